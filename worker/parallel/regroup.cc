#include "worker/parallel/regroup.h"

#include <algorithm>
#include <string>
#include <utility>

#include "transport/collective/collectives.h"
#include "worker/parallel/agreement.h"

namespace centroid::parallel {
namespace {

Error refused(ErrorCode code, const std::string& why) {
  return Error(code, "regroup sharded parameters: " + why);
}

/// What a rank says about the earlier generation.
enum Field : std::size_t { kShard, kRanks, kSteps, kPrepared, kCopied };

Notice describe(const ShardedParameters* old, std::span<const ParameterShape> parameters,
                const ShardedOptions& options) {
  Notice out;
  if (old == nullptr) return out;
  const auto same = [](const ParameterShape& a, const ParameterShape& b) {
    return a.name == b.name && a.elements == b.elements && a.layer == b.layer;
  };
  const auto units = ShardLayout::make({parameters.begin(), parameters.end()},
                                       old->layout().ranks(), options.least_elements);
  if (!units.ok())
    out.status = units.error();
  else if (!std::ranges::equal(parameters, old->layout().parameters(), same) ||
           units->units().size() != old->layout().units().size())
    out.status = refused(ErrorCode::kInvalidArgument,
                         "the parameters or the least elements of a unit are others than before");
  else if (old->optimizer().config().name != options.optimizer.name)
    out.status =
        refused(ErrorCode::kInvalidArgument, "the optimizer was " + old->optimizer().config().name +
                                                 ", and is now " + options.optimizer.name);
  out.numbers[kShard] = old->shard_rank() + 1;  // 0: a newcomer
  out.numbers[kRanks] = old->layout().ranks();
  out.numbers[kSteps] = old->steps();
  out.numbers[kPrepared] = old->is_prepared() ? 1 : 0;
  out.numbers[kCopied] = old->has_copy() ? old->copied_rank() + 1 : 0;
  return out;
}

/// Elements of a shard that one rank sends to others.
struct Source {
  std::uint32_t rank = 0;  ///< of the later generation
  bool is_copy = false;
};

/// Who gives each shard: one that has it of that step, itself or a copy.
Result<std::vector<Source>> sources(const std::vector<Notice>& notices, std::uint64_t step,
                                    std::uint64_t ranks) {
  std::vector<Source> out(ranks);
  for (std::uint64_t shard = 0; shard < ranks; ++shard) {
    bool is_found = false;
    for (const bool is_copy : {false, true}) {
      for (std::uint32_t rank = 0; rank < notices.size() && !is_found; ++rank) {
        const auto& numbers = notices[rank].numbers;
        is_found = numbers[is_copy ? kCopied : kShard] == shard + 1 &&
                   numbers[kSteps] + numbers[kPrepared] >= step;
        if (is_found) out[shard] = {rank, is_copy};
      }
    }
    if (!is_found)
      return refused(ErrorCode::kUnavailable, "no rank has shard " + std::to_string(shard) +
                                                  " of " + std::to_string(ranks) + " of step " +
                                                  std::to_string(step) + "; restore a checkpoint");
  }
  return out;
}

/// Reads elements that are in the memory of several ranks. Every rank calls `read` at the same
/// time, each for elements of its own.
class SpreadShards {
 public:
  SpreadShards(const collective::Group& group, const ShardLayout& layout,
               const ShardedParameters* old, std::vector<Source> sources,
               std::chrono::milliseconds timeout)
      : group_(group), layout_(layout), old_(old), sources_(std::move(sources)) {
    call_.timeout = timeout;
  }

  Status read(std::size_t plane, Range elements, std::span<float> out) {
    const std::uint32_t world = group_.world();
    std::vector<std::int64_t> wanted(2 * world);
    const std::int64_t own[2] = {static_cast<std::int64_t>(elements.begin),
                                 static_cast<std::int64_t>(elements.count)};
    CENTROID_TRY(collective::all_gather(group_, std::span(own), std::span(wanted), call_));
    sent_.clear();
    std::vector<std::uint64_t> send_counts(world), receive_counts(world);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      const Range range{static_cast<std::uint64_t>(wanted[2 * rank]),
                        static_cast<std::uint64_t>(wanted[2 * rank + 1])};
      for (const Part& part : parts_of(range)) {
        if (sources_[part.shard].rank != group_.rank()) continue;
        const std::span<const float> values = values_of(part, plane);
        sent_.insert(sent_.end(), values.begin(), values.end());
        send_counts[rank] += part.elements.count;
      }
    }
    const std::vector<Part> parts = parts_of(elements);
    const auto source = [&](const Part& part) { return sources_[part.shard].rank; };
    for (const Part& part : parts) receive_counts[source(part)] += part.elements.count;
    // They come by the rank that sent them, then in the order of elements.
    const bool is_in_order = std::ranges::is_sorted(parts, {}, source);
    if (!is_in_order) received_.resize(out.size());
    CENTROID_TRY(collective::all_to_all(group_, std::span<const float>(sent_),
                                        is_in_order ? out : std::span(received_), call_,
                                        send_counts, receive_counts));
    if (is_in_order) return {};
    auto from = received_.begin();
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      for (const Part& part : parts) {
        if (source(part) != rank) continue;
        const auto count = static_cast<std::ptrdiff_t>(part.elements.count);
        std::copy(from, from + count,
                  out.begin() + static_cast<std::ptrdiff_t>(part.elements.begin - elements.begin));
        from += count;
      }
    }
    return {};
  }

 private:
  struct Part {
    std::uint32_t shard = 0;
    std::size_t unit = 0;
    Range elements;  ///< of the model
  };

  /// The parts of old shards in a range of one unit, in order.
  std::vector<Part> parts_of(Range range) const {
    std::vector<Part> out;
    if (range.count == 0) return out;
    const auto next = std::ranges::upper_bound(
        layout_.units(), range.begin, {}, [](const auto& unit) { return unit.elements.begin; });
    const auto unit = static_cast<std::size_t>(next - layout_.units().begin()) - 1;
    for (std::uint32_t shard = 0; shard < layout_.ranks(); ++shard) {
      Range of = layout_.shard(unit, shard);
      of.begin += layout_.units()[unit].elements.begin;
      const std::uint64_t begin = std::max(of.begin, range.begin);
      const std::uint64_t end = std::min(of.end(), range.end());
      if (begin < end) out.push_back({shard, unit, {begin, end - begin}});
    }
    return out;
  }
  std::span<const float> values_of(const Part& part, std::size_t plane) const {
    const bool is_copy = sources_[part.shard].is_copy;
    std::span<const float> shard;
    if (plane == 0)
      shard = is_copy ? old_->copy(part.unit) : old_->shard(part.unit);
    else
      shard = is_copy ? old_->copy_state(part.unit, plane - 1) : old_->state(part.unit, plane - 1);
    const std::uint64_t begin =
        layout_.units()[part.unit].elements.begin + layout_.shard(part.unit, part.shard).begin;
    return shard.subspan(part.elements.begin - begin, part.elements.count);
  }

  const collective::Group& group_;
  const ShardLayout& layout_;  ///< the earlier one
  const ShardedParameters* const old_;
  const std::vector<Source> sources_;
  collective::CallOptions call_;
  std::vector<float> sent_, received_;  ///< of a read; new memory costs more than the copy
};

}  // namespace

Result<std::unique_ptr<ShardedParameters>> regroup(const collective::Group& group,
                                                   std::vector<ParameterShape> parameters,
                                                   const ShardedOptions& options,
                                                   ShardedParameters* old) {
  std::vector<std::uint32_t> everyone(group.world());
  for (std::uint32_t i = 0; i < group.world(); ++i) everyone[i] = i;
  CENTROID_ASSIGN(const collective::Group own, group.subgroup(std::move(everyone)));
  CENTROID_ASSIGN(const std::vector<Notice> notices,
                  exchange(own, describe(old, parameters, options), options.timeout));
  CENTROID_TRY(first_failure(notices));
  std::uint64_t step = 0, ranks = 0, prepared = ~std::uint64_t{0};
  for (const Notice& notice : notices) {
    if (notice.numbers[kShard] == 0) continue;
    step = std::max(step, notice.numbers[kSteps]);
    prepared = std::min(prepared, notice.numbers[kSteps] + notice.numbers[kPrepared]);
    if (ranks != 0 && ranks != notice.numbers[kRanks])
      return refused(ErrorCode::kInvalidArgument, "the ranks are of different generations");
    ranks = notice.numbers[kRanks];
  }
  if (ranks == 0)
    return refused(ErrorCode::kUnavailable, "no rank has a shard; restore a checkpoint");
  step = std::max(step, prepared);  // the lost rank may have made that one
  CENTROID_ASSIGN(std::vector<Source> from, sources(notices, step, ranks));
  CENTROID_ASSIGN(
      const ShardLayout layout,
      ShardLayout::make(parameters, static_cast<std::uint32_t>(ranks), options.least_elements));
  if (old != nullptr && old->is_prepared() && old->steps() + 1 == step) old->complete_step();
  if (old != nullptr) old->buffers().drop_spares();
  SpreadShards shards(own, layout, old, std::move(from), options.timeout);
  const auto stored = [&](std::size_t plane, Range elements, std::span<float> out) {
    return shards.read(plane, elements, out);
  };
  return ShardedParameters::resume(group, std::move(parameters), options, step, stored);
}

}  // namespace centroid::parallel
