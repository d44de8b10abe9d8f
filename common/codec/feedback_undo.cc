#include <algorithm>
#include <cmath>
#include <utility>

#include "common/codec/error_feedback.h"

/// Rounds that became void or may be lost: restores residual and momentum.
namespace centroid {
/// The residual is only in the device's memory: an error loses it, and a failed GPU stays failed
/// until its process restarts.
Error ErrorFeedback::device_failed(const std::string& what, const Error& error) {
  return {ErrorCode::kInternal,
          "error feedback on the GPU: " + what + " failed (" + error.message() +
              "). What was left out so far is lost with it, so this worker cannot go on: it ends "
              "with status 1, and may be started again, with nothing left to send"};
}

/// Copy the unit's momentum before its first change in this round. Returns where a copy of its
/// residual belongs, which is made in the pass that changes it; empty: there are copies.
std::span<float> ErrorFeedback::keep(const Unit& unit) {
  const auto number = static_cast<std::size_t>(&unit - units_.data());
  if (!owns_residual_ || has_copy_[number]) return {};
  has_copy_[number] = true;
  const std::uint64_t n = plan_.total_elements();
  if (momentum_)
    std::ranges::copy(floats(momentum_, n).subspan(unit.begin, unit.elements),
                      floats(momentum_before_, n).subspan(unit.begin).begin());
  return floats(residual_before_, n).subspan(unit.begin, unit.elements);
}

/// Copy the unit before its first change in this round.
Status ErrorFeedback::keep_on_device(const Unit& unit) {
  const auto number = static_cast<std::size_t>(&unit - units_.data());
  if (has_copy_[number]) return {};
  CENTROID_TRY(device_->keep(unit.begin, unit.elements));
  has_copy_[number] = true;
  return {};
}

/// The round will not be undone. Keep the difference of an earlier promised round.
void ErrorFeedback::drop_copies() {
  using What = Promised::What;
  const bool is_covered = promised_ && std::ranges::find(has_copy_, true) != has_copy_.end();
  if (is_covered) read_copies();
  const std::uint64_t n = plan_.total_elements();
  for (std::size_t i = 0; is_covered && i < units_.size(); ++i) {
    if (!has_copy_[i] || promised_->what[i] != What::kBefore) continue;
    promised_->what[i] = What::kDifference;
    const std::span<float> before =
        floats(promised_->residual, n).subspan(units_[i].begin, units_[i].elements);
    const std::span<const float> after =
        floats(residual_before_, n).subspan(units_[i].begin, units_[i].elements);
    for (std::size_t j = 0; j < before.size(); ++j) before[j] -= after[j];
  }
  has_copy_.assign(has_copy_.size(), false);
}

/// Read the copies on the device.
void ErrorFeedback::read_copies() {
  if (!device_ || !device_status_.ok()) return;
  const std::uint64_t n = plan_.total_elements();
  const auto momentum = momentum_ ? floats(momentum_before_, n) : std::span<float>();
  const Status read = device_->read_copies(floats(residual_before_, n), momentum);
  if (!read.ok()) device_status_ = device_failed("reading what was before a round", read.error());
}

void ErrorFeedback::commit_promised() {
  CENTROID_CHECK(owns_residual_);
  finish_started();
  if (!is_open_) {  // nothing was sent, so there is nothing to undo; the earlier round counts
    confirm_promised();
    return commit();
  }
  read_copies();
  // The earlier round counts. Reuse its memory for the next copies: with asp every round is
  // promised.
  auto promised = promised_ ? std::move(promised_) : std::make_unique<Promised>();
  promised->what.assign(units_.size(), Promised::What::kNothing);
  const std::uint64_t n = plan_.total_elements();
  if (!promised->residual) promised->residual = Buffer(n * sizeof(float));
  if (momentum_ && !promised->momentum) promised->momentum = Buffer(n * sizeof(float));
  std::swap(promised->residual, residual_before_);
  if (momentum_) std::swap(promised->momentum, momentum_before_);
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (has_copy_[i]) promised->what[i] = Promised::What::kBefore;
  commit();
  promised_ = std::move(promised);
}

void ErrorFeedback::undo_promised() {
  CENTROID_CHECK(owns_residual_ && !is_open_);
  drop_copies();
  if (!promised_) return;
  read_device();
  const std::uint64_t n = plan_.total_elements();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const Unit& unit = units_[i];
    const std::span<float> left = sums_.subspan(unit.begin, unit.elements);
    const std::span<const float> then =
        floats(promised_->residual, n).subspan(unit.begin, unit.elements);
    if (promised_->what[i] == Promised::What::kDifference)
      for (std::size_t j = 0; j < left.size(); ++j)
        if (const float sum = left[j] + then[j]; std::isfinite(sum)) left[j] = sum;
    if (promised_->what[i] != Promised::What::kBefore) continue;
    std::ranges::copy(then, left.begin());
    if (momentum_)
      std::ranges::copy(floats(promised_->momentum, n).subspan(unit.begin, unit.elements),
                        floats(momentum_, n).subspan(unit.begin).begin());
  }
  write_device();
  promised_.reset();
  if (rounds_ > 0) --rounds_;
}

void ErrorFeedback::undo() {
  CENTROID_CHECK(owns_residual_);
  finish_started();
  const std::uint64_t n = plan_.total_elements();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!has_copy_[i]) continue;
    const Unit& unit = units_[i];
    if (device_) {
      const Status undone =
          device_status_.ok() ? device_->undo(unit.begin, unit.elements) : Status();
      if (!undone.ok()) device_status_ = device_failed("undoing of " + unit.name, undone.error());
      continue;
    }
    std::ranges::copy(floats(residual_before_, n).subspan(unit.begin, unit.elements),
                      sums_.subspan(unit.begin).begin());
    if (momentum_)
      std::ranges::copy(floats(momentum_before_, n).subspan(unit.begin, unit.elements),
                        floats(momentum_, n).subspan(unit.begin).begin());
  }
  for (Payload& payload : payloads_) payload.is_there = false;
  has_copy_.assign(has_copy_.size(), false);
  is_open_ = false;
}

}  // namespace centroid
