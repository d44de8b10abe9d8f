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

std::vector<Reducing::Operation> Reducing::operations(const PartCodec& codec, std::uint32_t shards,
                                                      std::uint32_t replicas) {
  std::vector<Operation> out;
  if (shards > 1) out.push_back(Operation::kScatter);
  if (replicas > 1 && codec.is_f32()) out.push_back(Operation::kAllReduce);
  if (replicas > 1 && !codec.is_f32())
    out.insert(out.end(), {Operation::kToOwners, Operation::kToAll});
  return out;
}

std::uint64_t Reducing::room(const PartCodec& codec, const ShardLayout& layout, std::size_t unit,
                             std::uint32_t replicas) {
  if (codec.is_f32()) return 0;
  const std::uint64_t part = layout.shard(unit, 0).count;
  const std::uint64_t bytes =
      std::max(CodedParts::room_bytes(codec, layout.units()[unit].elements.count, layout.ranks()),
               CodedParts::room_bytes(codec, part, replicas));
  // The memory of a unit, so that it serves for gradients and parameters too.
  return std::max(layout.ranks() * part, (bytes + sizeof(float) - 1) / sizeof(float));
}

Reducing::Reducing(const ShardLayout& layout, const collective::Group& shards,
                   const collective::Group& replicas, PartCodec codec, UnitBuffers& buffers,
                   std::chrono::milliseconds timeout)
    : layout_(layout),
      shards_(shards),
      replicas_(replicas),
      codec_(std::move(codec)),
      shard_parts_(shards, codec_),
      replica_parts_(replicas, codec_),
      buffers_(buffers),
      timeout_(timeout),
      operations_(operations(codec_, shards.world(), replicas.world())),
      begun_(layout.units().size()),
      means_(layout.units().size()),
      parts_(buffers) {}

std::span<float> Reducing::whole(Entry& entry) const {
  return entry.gradient.as<float>().first(layout_.units()[entry.unit].elements.count);
}

std::span<float> Reducing::part(Entry& entry) const {
  const Range shard = layout_.shard(entry.unit, shards_.rank());
  return whole(entry).subspan(shard.begin, shard.count);
}

/// Of this rank's part, what it adds up for its replicas.
std::span<float> Reducing::part_of_replica(Entry& entry) const {
  const std::span<float> all = part(entry);
  const Range own = shard_of(all.size(), replicas_.world(), replicas_.rank());
  return all.subspan(own.begin, own.count);
}

/// Every rank begins and awaits the same operations in the same order, whenever its own ones end:
/// data of an operation that this rank has not begun takes credit from those that it awaits, and
/// its peer would wait for that credit.
Status Reducing::begin(std::size_t unit, Buffer gradient) {
  begun_[unit] = true;
  Entry& entry = entries_.emplace_back();
  entry.unit = unit;
  entry.gradient = std::move(gradient);
  if (!operations_.empty())
    entry.room = buffers_.take(room(codec_, layout_, unit, replicas_.world()));
  return go_on_with_all();
}

collective::Handle Reducing::start(Entry& entry) {
  const collective::CallOptions options = mean_of(entry.unit, timeout_);
  const std::span<float> all = whole(entry), own = part(entry);
  switch (operations_[entry.begun]) {
    case Operation::kScatter:
      if (!codec_.is_f32()) return shard_parts_.scatter(all, entry.room, options);
      return collective::reduce_scatter_async(shards_, std::span<const float>(all), own, options,
                                              shard_counts(all.size(), shards_.world()));
    case Operation::kAllReduce:
      return collective::all_reduce_async(replicas_, own, options);
    case Operation::kToOwners:
      return replica_parts_.scatter(own, entry.room, options);
    case Operation::kToAll:
      break;
  }
  return replica_parts_.gather(part_of_replica(entry), own.size(), entry.room, options);
}

/// Of the operation that has ended.
Status Reducing::take_result(Entry& entry) {
  if (codec_.is_f32()) return {};  // it is there
  switch (operations_[entry.begun - 1]) {
    case Operation::kScatter:
      return shard_parts_.take_mean(entry.room, whole(entry).size(), part(entry));
    case Operation::kToOwners:
      return replica_parts_.take_mean(entry.room, part(entry).size(), part_of_replica(entry));
    case Operation::kToAll:
      return replica_parts_.take_parts(entry.room, part(entry));
    case Operation::kAllReduce:
      break;
  }
  return {};
}

/// Await the operation in progress, and begin the next one. False: there is none.
Result<bool> Reducing::go_on(Entry& entry) {
  if (entry.begun > 0) {
    CENTROID_TRY(entry.handle.wait());
    CENTROID_TRY(take_result(entry));
  }
  if (entry.begun == operations_.size()) return false;
  entry.handle = start(entry);
  ++entry.begun;
  return true;
}

/// The newest first: its bytes move while the others are awaited.
Status Reducing::go_on_with_all() {
  std::size_t ended = 0;
  for (std::size_t i = entries_.size(); i-- > 0;) {
    CENTROID_ASSIGN(const bool is_on_its_way, go_on(entries_[i]));
    if (!is_on_its_way) ++ended;  // and those before it
  }
  for (; ended > 0; --ended) {
    store_mean(entries_.front());
    entries_.pop_front();
  }
  return {};
}

void Reducing::store_mean(Entry& entry) {
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
  buffers_.give_back(std::move(entry.room));
  buffers_.give_back(std::move(entry.gradient));
}

Status Reducing::finish() {
  while (!entries_.empty()) CENTROID_TRY(go_on_with_all());
  return {};
}

void Reducing::clear() {
  begun_.assign(begun_.size(), false);
  means_.assign(means_.size(), {});
  parts_.clear();
}

}  // namespace centroid::parallel
