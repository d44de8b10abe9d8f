#include "worker/loop/local_keeper.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/storage/file.h"
#include "worker/exchange/feedback_keeper.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kKeep = 3;

std::string text_of(double number) {
  char out[40];
  std::snprintf(out, sizeof out, "%.17g", number);
  return out;
}

double number_of(const CheckpointInfo& info, const std::string& name) {
  const auto found = info.extra.find(name);
  return found == info.extra.end() ? 0 : std::strtod(found->second.c_str(), nullptr);
}

}  // namespace

Result<std::unique_ptr<LocalKeeper>> LocalKeeper::open(const std::filesystem::path& dir,
                                                       const std::string& worker,
                                                       const LocalTerms& terms, Manifest manifest) {
  std::filesystem::path folder = state_folder(dir, terms.run_id, worker);
  folder += ".local";
  auto directory = CheckpointDirectory::open(folder, kKeep);
  if (!directory.ok()) return std::move(directory).error().with_context("state_dir");
  return std::unique_ptr<LocalKeeper>(new LocalKeeper(
      std::move(directory).value(), terms.run_id, terms.checkpoint_rounds, std::move(manifest)));
}

Status LocalKeeper::restore(const CheckpointEntry& entry, State& state) const {
  if (!entry.problem.empty()) return Error(ErrorCode::kDataLoss, entry.problem);
  if (entry.info.optimizer != state.optimizer || entry.info.slot_names != state.slot_names)
    return Error(ErrorCode::kFailedPrecondition, "it was made with inner optimizer '" +
                                                     entry.info.optimizer + "', now it is '" +
                                                     state.optimizer + "'");
  const auto plane = [&](std::size_t k) { return k == 0 ? state.params : state.slots[k - 1]; };
  std::vector<std::vector<float>> planes(1 + state.slots.size());
  for (std::size_t k = 0; k < planes.size(); ++k) planes[k].resize(plane(k).size());
  const auto write = [&](std::size_t k, std::uint64_t offset, std::span<const float> from) {
    std::ranges::copy(from, planes[k].begin() + static_cast<std::ptrdiff_t>(offset));
    return Status();
  };
  CENTROID_TRY(directory_.read(entry, manifest_, write));
  for (std::size_t k = 0; k < planes.size(); ++k) std::ranges::copy(planes[k], plane(k).begin());
  state.steps = entry.info.optimizer_step;
  state.untold.samples = static_cast<std::uint64_t>(number_of(entry.info, "untold_samples"));
  state.untold.correct = static_cast<std::uint64_t>(number_of(entry.info, "untold_correct"));
  state.untold.loss_sum = number_of(entry.info, "untold_loss");
  return {};
}

LocalKeeper::Found LocalKeeper::resume(Round next, State& state) {
  if (after_ && after_->value + 1 == next.value) return Found::kNothing;
  if (next.value <= 1 && !is_used_) return Found::kNothing;
  const Round wanted(next.value - 1);
  Found found = Found::kNothing;
  std::string why =
      "no state after round " + to_string(wanted) + " in " + directory_.root().string();
  for (const CheckpointEntry& entry : directory_.list(false)) {  // newest first
    const std::uint64_t round = entry.version.value;
    if (round > wanted.value) (void)file::remove_all(entry.path);  // gone back behind
    const bool is_exact = round == wanted.value;
    if (found != Found::kNothing || round > wanted.value || (!is_exact && is_used_)) continue;
    const Status restored = restore(entry, state);
    if (!restored.ok()) {
      why = "state " + entry.path.string() + " is refused: " + restored.error().message();
      continue;
    }
    found = is_exact ? Found::kExact : Found::kOlder;
    log::info("local.restored", {{"path", entry.path.string()},
                                 {"after_round", round},
                                 {"round", next.value},
                                 {"inner_steps", state.steps}});
  }
  if (saved_ && saved_->value > wanted.value) saved_.reset();
  if (found == Found::kNothing)
    log::warn(is_used_ ? "local.retained" : "local.reset", {{"round", next.value}, {"why", why}});
  if (found == Found::kExact) after_ = saved_ = wanted;
  return found;
}

void LocalKeeper::closed(Round round, const Source& state) {
  after_ = round;
  is_used_ = true;
  if (every_ > 0 && round.value % every_ == 0) (void)save(round, state);
}

Status LocalKeeper::keep(Round round, const Source& state) {
  if (!after_ && !is_used_) return {};  // nothing has been trained here yet
  if (after_ != round)
    return Error(ErrorCode::kFailedPrecondition,
                 after_ ? "what is in memory is the state after round " + to_string(*after_)
                        : "what is in memory is the state after no round");
  return saved_ == after_ ? Status() : save(round, state);
}

Status LocalKeeper::save(Round round, const Source& source) {
  const auto state = source();
  const Status written = state.ok() ? write(round, *state) : Status(state.error());
  if (written.ok())
    saved_ = round;
  else
    log::error("local.save_failed", {{"why", written.error()}, {"action", "training goes on"}});
  return written;
}

Status LocalKeeper::write(Round round, const State& state) {
  CheckpointInfo info;
  info.run_id = run_id_;
  info.version = Version(round.value);
  info.round = round;
  info.optimizer_step = state.steps;
  info.optimizer = state.optimizer;
  info.slot_names = state.slot_names;
  info.created_unix_seconds = SystemClock().unix_seconds();
  info.extra["what"] = "a worker's own parameters and inner optimizer, after a round";
  info.extra["untold_samples"] = std::to_string(state.untold.samples);
  info.extra["untold_correct"] = std::to_string(state.untold.correct);
  info.extra["untold_loss"] = text_of(state.untold.loss_sum);
  const auto read = [&](std::size_t plane, std::uint64_t offset, std::span<float> into) {
    const std::span<const float> from = plane == 0 ? state.params : state.slots[plane - 1];
    std::ranges::copy(from.subspan(offset, into.size()), into.begin());
    return Status();
  };
  const auto written = directory_.write(info, manifest_, read);
  return written.ok() ? Status() : Status(written.error());
}

void LocalKeeper::leave(const Source& state) {
  if (is_used_ && after_ && saved_ != after_) (void)save(*after_, state);
}

}  // namespace centroid::worker
