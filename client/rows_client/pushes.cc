#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

#include "client/rows_client/impl.h"

/// Pushes of any number of messages to any number of servers: refusals come before anything is
/// sent, and sent parts that were not applied are retained.
namespace centroid::client {

namespace {

std::size_t sum_of(const Tally& tally) {
  std::size_t sum = 0;
  for (const auto& [server, keys] : tally) sum += keys;
  return sum;
}

std::string listed(const Tally& tally) {
  std::string out;
  for (const auto& [server, keys] : tally)
    out.append(out.empty() ? " (" : ", ").append(server).append(": ").append(std::to_string(keys));
  return out.empty() ? out : out + ")";
}

/// The error of a failed push, with the state of its keys; unchanged if nothing can have been
/// applied.
Error with_tally(const Error& why, const Tally& done, const Tally& refused, const Rest& rest) {
  Tally open;
  for (const auto& part : rest.open) open[human(*part->lane)] += part->rows.size();
  const std::size_t applied = sum_of(done), unknown = sum_of(open);
  if (applied + unknown == 0) return why;
  std::string text = why.message() + "; of the " + std::to_string(applied + rest.size()) +
                     " keys of this push " + std::to_string(applied) + " were applied" +
                     listed(done);
  if (const std::size_t not_applied = rest.size() - unknown; not_applied > 0)
    text += ", " + std::to_string(not_applied) + " were not" + listed(refused);
  if (unknown > 0) text += ", of " + std::to_string(unknown) + " it is not known" + listed(open);
  return {why.code(), text + "; push_rest repeats only what was not applied", why.where()};
}

}  // namespace

/// The server's checks (server/rows/row_table.cc), with the same texts.
Status RowsClient::Impl::check_gradients(std::span<const std::uint64_t> keys,
                                         std::span<const float> gradients,
                                         std::string_view what) const {
  // Largest magnitude as an integer: NaN and infinity are above every number.
  std::uint32_t largest = 0;
  for (const float g : gradients)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(g) & 0x7FFFFFFFu);
  if (largest <= std::bit_cast<std::uint32_t>(kMaxGradient)) return {};
  const auto bad =
      std::ranges::find_if(gradients, [](float g) { return !(std::fabs(g) <= kMaxGradient); });
  const auto at = static_cast<std::size_t>(bad - gradients.begin());
  return Error(ErrorCode::kInvalidArgument,
               "table '" + table + "': " + std::string(what) + " of key " +
                   std::to_string(keys[at / dim]) + ", column " + std::to_string(at % dim) +
                   ", is " + std::to_string(*bad) +
                   "; it must be finite and at most 1e18. Nothing of the push was applied");
}

/// Gradients of a duplicate key in a message are added, in their order.
Status RowsClient::Impl::check_sums(std::span<const std::uint64_t> keys,
                                    std::span<const float> gradients) const {
  float largest = 0;
  for (const float g : gradients) largest = std::max(largest, std::fabs(g));
  if (largest * static_cast<float>(keys.size()) < kMaxGradient / 2) return {};
  std::unordered_map<std::uint64_t, std::size_t> places;
  std::vector<std::uint64_t> distinct;
  std::vector<float> sums;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto gradient = gradients.subspan(i * dim, dim);
    const auto [at, is_new] = places.try_emplace(keys[i], distinct.size());
    if (is_new) {
      distinct.push_back(keys[i]);
      sums.insert(sums.end(), gradient.begin(), gradient.end());
      continue;
    }
    for (std::size_t c = 0; c < dim; ++c) sums[at->second * dim + c] += gradient[c];
  }
  return check_gradients(distinct, sums, "the sum of gradients");
}

void RowsClient::Impl::discard_rest() {
  rest.reset();
  for (const auto& [name, lane] : lanes) lane->has_open_part = false;
}

/// Message by message. `begun`: the state of the first.
Status RowsClient::Impl::push_all(std::span<const std::uint64_t> keys,
                                  std::span<const float> gradients, std::uint64_t step,
                                  std::optional<Rest> begun) {
  const TimePoint start = in(std::chrono::milliseconds(0)), deadline = start + options.timeout;
  // Parts without an answer may have been applied from then on, however often they are repeated.
  TimePoint since = begun && !begun->open.empty() ? begun->since : start;
  Tally done;
  while (!keys.empty()) {
    const std::size_t n =
        begun ? begun->begun : std::min<std::size_t>(keys.size(), leader().opened->max_rows);
    Call call{proto::RowsKind::kPush, keys.first(n), gradients.first(n * dim), {}, deadline, step};
    if (begun) call.left = std::move(begun->left), call.open = std::move(begun->open);
    begun.reset();
    const Status made = make(call);
    for (const auto& [server, count] : call.done) done[server] += count;
    if (!made.ok()) {
      rest.emplace();
      rest->keys.assign(keys.begin(), keys.end());
      rest->gradients.assign(gradients.begin(), gradients.end());
      rest->step = step;
      rest->begun = n;
      rest->left = std::move(call.left);
      rest->open = std::move(call.open);
      rest->since = since;
      for (const auto& [name, lane] : lanes) lane->has_open_part = false;
      for (const auto& part : rest->open) part->lane->has_open_part = true;
      return with_tally(made.error(), done, call.refused, *rest);
    }
    keys = keys.subspan(n);
    gradients = gradients.subspan(n * dim);
    since = start;
  }
  discard_rest();
  return {};
}

std::uint64_t RowsClient::rest() const { return impl_->rest ? impl_->rest->size() : 0; }

Status RowsClient::push(std::span<const std::uint64_t> keys, std::span<const float> gradients,
                        std::uint64_t step) {
  impl_->discard_rest();  // of the push before, also if this one is refused here
  CENTROID_TRY(impl_->check_size(keys.size(), gradients.size()));
  CENTROID_TRY(impl_->check_gradients(keys, gradients, "the gradient"));
  for (std::size_t at = 0; at < keys.size(); at += max_rows()) {
    const std::size_t n = std::min<std::size_t>(keys.size() - at, max_rows());
    CENTROID_TRY(impl_->check_sums(keys.subspan(at, n), gradients.subspan(at * dim(), n * dim())));
  }
  return impl_->push_all(keys, gradients, step, std::nullopt);
}

Status RowsClient::push_rest() {
  if (!impl_->rest) return {};
  // How long a client without a connection is remembered.
  const Duration retention =
      std::min<Duration>(impl_->options.repeat_within, proto::kRowsClientRetention);
  if (!impl_->rest->open.empty() && in(impl_->options.timeout) - impl_->rest->since >= retention)
    return Error(ErrorCode::kFailedPrecondition,
                 "table '" + impl_->table + "': a try may go on until more than " +
                     std::to_string(std::chrono::ceil<std::chrono::seconds>(retention).count()) +
                     " seconds after the push began. By then a server that did not answer may have "
                     "discarded its record of the push, so nothing is repeated");
  Rest begun = std::move(*impl_->rest);
  impl_->rest.reset();  // lanes stay marked until their parts are resolved
  const std::vector<std::uint64_t> keys = std::move(begun.keys);
  const std::vector<float> gradients = std::move(begun.gradients);
  const std::uint64_t step = begun.step;
  return impl_->push_all(keys, gradients, step, std::move(begun));
}

}  // namespace centroid::client
