#include "worker/parallel/reducing.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/collective/collectives.h"

namespace centroid::parallel {
namespace {

/// Calls of a unit have a tag of their own: units never mix, whatever the ranks' order.
collective::CallOptions mean_of(std::size_t unit, std::chrono::milliseconds timeout) {
  collective::CallOptions options;
  options.reduction = collective::Reduction::kMean;
  options.tag = 2 * unit + 1;
  options.timeout = timeout;
  return options;
}

}  // namespace

Reducing::Reducing(const ShardLayout& layout, const collective::Group& shards,
                   const collective::Group& replicas, UnitBuffers& buffers,
                   std::chrono::milliseconds timeout)
    : layout_(layout),
      shards_(shards),
      replicas_(replicas),
      buffers_(buffers),
      timeout_(timeout),
      begun_(layout.units().size()),
      means_(layout.units().size()),
      parts_(buffers) {}

std::span<float> Reducing::part(Entry& entry) const {
  const Range shard = layout_.shard(entry.unit, shards_.rank());
  return entry.gradient.as<float>().subspan(shard.begin, shard.count);
}

Status Reducing::begin(std::size_t unit, Buffer gradient) {
  begun_[unit] = true;
  Entry& entry = entries_.emplace_back();
  entry.unit = unit;
  entry.gradient = std::move(gradient);
  if (shards_.world() > 1) {
    const std::span<const float> whole =
        entry.gradient.as<float>().first(layout_.units()[unit].elements.count);
    entry.scatter =
        collective::reduce_scatter_async(shards_, whole, part(entry), mean_of(unit, timeout_),
                                         shard_counts(whole.size(), shards_.world()));
  }
  CENTROID_TRY(begin_seconds(entry.scatter ? 1 : 0));
  const std::size_t most = in_progress(shards_.world(), replicas_.world());
  while (entries_.size() > most) CENTROID_TRY(end_first());
  return {};
}

void Reducing::begin_second(Entry& entry) {
  if (entry.reduce || replicas_.world() == 1) return;
  entry.reduce =
      collective::all_reduce_async(replicas_, part(entry), mean_of(entry.unit, timeout_));
}

/// Of all entries but the newest `without`. Every rank begins and awaits the same operations in the
/// same order, whenever its own ones end: data of an operation that this rank has not begun takes
/// credit from those that it awaits, and its peer would wait for that credit.
Status Reducing::begin_seconds(std::size_t without) {
  if (replicas_.world() == 1) return {};
  for (std::size_t i = 0; i + without < entries_.size(); ++i) {
    if (entries_[i].scatter) CENTROID_TRY(entries_[i].scatter->wait());
    begin_second(entries_[i]);
  }
  return {};
}

Status Reducing::end_first() {
  Entry& entry = entries_.front();
  if (entry.scatter) CENTROID_TRY(entry.scatter->wait());
  begin_second(entry);
  if (entry.reduce) CENTROID_TRY(entry.reduce->wait());
  const std::span<const float> own = part(entry);
  std::span<float>& mean = means_[entry.unit];
  if (!mean.empty()) {
    for (std::size_t i = 0; i < own.size(); ++i) mean[i] += own[i];
  } else if (mean = parts_.find(own.size()); !mean.empty()) {
    std::ranges::copy(own, mean.begin());
  } else if (!own.empty()) {
    std::memmove(entry.gradient.data(), own.data(), own.size_bytes());
    mean = parts_.add(std::move(entry.gradient), own.size());
  }
  buffers_.give_back(std::move(entry.gradient));
  entries_.pop_front();
  return {};
}

Status Reducing::finish() {
  CENTROID_TRY(begin_seconds(0));
  while (!entries_.empty()) CENTROID_TRY(end_first());
  return {};
}

void Reducing::clear() {
  begun_.assign(begun_.size(), false);
  means_.assign(means_.size(), {});
  parts_.clear();
}

}  // namespace centroid::parallel
