#include "worker/parallel/reducing.h"

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
                   const collective::Group& replicas, std::chrono::milliseconds timeout)
    : layout_(layout),
      shards_(shards),
      replicas_(replicas),
      timeout_(timeout),
      begun_(layout.units().size()),
      means_(layout.units().size()) {}

std::span<float> Reducing::part(Entry& entry) const {
  const Range shard = layout_.shard(entry.unit, shards_.rank());
  return std::span(entry.gradient).subspan(shard.begin, shard.count);
}

Status Reducing::begin(std::size_t unit, std::vector<float> gradient) {
  begun_[unit] = true;
  Entry& entry = entries_.emplace_back();
  entry.unit = unit;
  entry.gradient = std::move(gradient);
  if (shards_.world() > 1)
    entry.scatter = collective::reduce_scatter_async(
        shards_, std::span<const float>(entry.gradient), part(entry), mean_of(unit, timeout_),
        shard_counts(entry.gradient.size(), shards_.world()));
  CENTROID_TRY(begin_seconds(entry.scatter ? 1 : 0));
  while (entries_.size() > kInProgress) CENTROID_TRY(end_first());
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
  std::vector<float>& mean = means_[entry.unit];
  if (mean.empty())
    mean.assign(own.begin(), own.end());
  else
    for (std::size_t i = 0; i < own.size(); ++i) mean[i] += own[i];
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
  for (std::vector<float>& mean : means_) mean = std::vector<float>();
}

std::uint64_t Reducing::elements() const {
  std::uint64_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.gradient.capacity();
  for (const std::vector<float>& mean : means_) sum += mean.capacity();
  return sum;
}

}  // namespace centroid::parallel
