#include "worker/parallel/regroup.h"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "common/tensor/text.h"
#include "transport/collective/collectives.h"
#include "worker/parallel/agreement.h"

namespace centroid::parallel {
namespace {

using Models = std::vector<std::vector<ParameterShape>>;

Error refused(ErrorCode code, const std::string& why) {
  return Error(code, "regroup sharded parameters: " + why);
}

/// What a rank says about the earlier generation. Two numbers of 32 bits in one where it says so.
enum Field : std::size_t {
  kShard,   ///< ranks of the layout, and shard + 1; 0: it has none
  kSteps,   ///< twice the steps, and 1 if the next one is prepared
  kCopied,  ///< shard + 1; 0: none
  kFirst,   ///< model, and its first parameter
  kParameters
};
std::uint64_t pair(std::uint64_t high, std::uint64_t low) { return high << 32 | low; }
std::uint32_t high(std::uint64_t both) { return static_cast<std::uint32_t>(both >> 32); }
std::uint32_t low(std::uint64_t both) { return static_cast<std::uint32_t>(both); }
std::uint64_t steps_of(const Notice& notice) { return notice.numbers[kSteps] / 2; }
std::uint64_t prepared_of(const Notice& notice) {
  return steps_of(notice) + notice.numbers[kSteps] % 2;
}

bool is_portion(const Models& models, const Portion& one) {
  return one.model < models.size() && one.parameters.count > 0 &&
         one.parameters.end() <= models[one.model].size();
}

/// Whether these are the parameters that were divided before.
Status check_same(const Models& models, const ShardedOptions& options, const Earlier& old) {
  const ShardLayout& before = old.parameters->layout();
  const auto same = [](const ParameterShape& a, const ParameterShape& b) {
    return a.name == b.name && a.elements == b.elements && a.layer == b.layer;
  };
  const Error other = refused(ErrorCode::kInvalidArgument,
                              "the parameters or the least elements of a unit are others than "
                              "before");
  if (!is_portion(models, old.portion)) return other;
  const auto now = cut(models[old.portion.model], old.portion.parameters);
  CENTROID_ASSIGN(const auto layout,
                  ShardLayout::make(now, before.ranks(), options.least_elements));
  if (!std::ranges::equal(now, before.parameters(), same) ||
      layout.units().size() != before.units().size())
    return other;
  const std::string& rule = old.parameters->optimizer().config().name;
  if (rule == options.optimizer.name) return {};
  return refused(ErrorCode::kInvalidArgument,
                 "the optimizer was " + rule + ", and is now " + options.optimizer.name);
}

Notice describe(const Models& models, const ShardedOptions& options, const Earlier& old) {
  Notice out;
  if (old.parameters == nullptr) return out;
  const ShardedParameters& own = *old.parameters;
  out.status = check_same(models, options, old);
  out.numbers[kShard] = pair(own.layout().ranks(), own.shard_rank() + 1);
  out.numbers[kSteps] = 2 * own.steps() + (own.is_prepared() ? 1 : 0);
  out.numbers[kCopied] = own.has_copy() ? own.copied_rank() + 1 : 0;
  out.numbers[kFirst] = pair(old.portion.model, old.portion.parameters.begin);
  out.numbers[kParameters] = old.portion.parameters.count;
  return out;
}

/// Elements of a shard that one rank sends to others.
struct Source {
  std::uint32_t rank = 0;  ///< of the later generation
  bool is_copy = false;
};

/// Parameters that some ranks of the earlier generation divided.
struct OldStage {
  Portion portion;
  std::uint64_t first = 0;  ///< element of the model
  ShardLayout layout;
  std::vector<Source> sources{};  ///< by shard
};

bool is_of(const Notice& notice, const Portion& portion) {
  return notice.numbers[kShard] != 0 &&
         notice.numbers[kFirst] == pair(portion.model, portion.parameters.begin);
}

/// Who gives each shard: one that has it of that step, itself or a copy.
Status find_sources(const std::vector<Notice>& notices, std::uint64_t step, OldStage& stage) {
  const std::uint32_t ranks = stage.layout.ranks();
  stage.sources.resize(ranks);
  for (std::uint32_t shard = 0; shard < ranks; ++shard) {
    bool is_found = false;
    for (const bool is_copy : {false, true}) {
      for (std::uint32_t rank = 0; rank < notices.size() && !is_found; ++rank) {
        const auto& numbers = notices[rank].numbers;
        is_found = is_of(notices[rank], stage.portion) &&
                   (is_copy ? numbers[kCopied] : low(numbers[kShard])) == shard + 1 &&
                   prepared_of(notices[rank]) >= step;
        if (is_found) stage.sources[shard] = {rank, is_copy};
      }
    }
    if (!is_found)
      return refused(ErrorCode::kUnavailable, "no rank has shard " + std::to_string(shard) +
                                                  " of " + std::to_string(ranks) + " of step " +
                                                  std::to_string(step) + "; restore a checkpoint");
  }
  return {};
}

/// The stages of the earlier generation, which have all parameters together.
Result<std::vector<OldStage>> find_stages(const std::vector<Notice>& notices, const Models& models,
                                          std::uint64_t least_elements) {
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>> seen;
  for (const auto& notice : notices)
    if (const auto& numbers = notice.numbers; numbers[kShard] != 0)
      seen.emplace_back(numbers[kFirst], numbers[kParameters], high(numbers[kShard]));
  if (seen.empty())
    return refused(ErrorCode::kUnavailable, "no rank has a shard; restore a checkpoint");
  std::ranges::sort(seen);
  seen.erase(std::ranges::unique(seen).begin(), seen.end());
  const Error mixed =
      refused(ErrorCode::kInvalidArgument, "the ranks are of different generations");
  std::vector<OldStage> out;
  auto next = seen.begin();
  for (std::uint32_t model = 0; model < models.size(); ++model) {
    std::uint64_t element = 0;
    for (std::uint64_t at = 0; at < models[model].size(); ++next) {
      if (next == seen.end() || std::get<0>(*next) > pair(model, at))
        return refused(ErrorCode::kUnavailable, "no rank has parameter " +
                                                    printable(models[model][at].name) +
                                                    "; restore a checkpoint");
      const auto& [first, count, ranks] = *next;
      const Portion portion{model, {low(first), count}};
      if (first != pair(model, at) || !is_portion(models, portion)) return mixed;
      CENTROID_ASSIGN(auto layout, ShardLayout::make(cut(models[model], portion.parameters), ranks,
                                                     least_elements));
      const std::uint64_t elements = layout.elements();
      out.push_back({portion, element, std::move(layout)});
      element += elements;
      at += count;
    }
  }
  if (next != seen.end()) return mixed;
  return out;
}

/// Reads elements that are in the memory of several ranks. Every rank makes the same number of
/// rounds: one that has read all that it needs gives to the others until they have, too.
class SpreadShards {
 public:
  SpreadShards(const collective::Group& group, const std::vector<OldStage>& stages,
               const ShardedParameters* old, std::chrono::milliseconds timeout)
      : group_(group), stages_(stages), old_(old) {
    call_.timeout = timeout;
  }

  Status read(std::uint32_t model, std::size_t plane, Range elements, std::span<float> out) {
    return round({model, plane, elements.begin, elements.count}, out);
  }
  Status finish() {
    while (!have_all_) CENTROID_TRY(round(kNothing, {}));
    return {};
  }

 private:
  /// What a rank wants in a round: model, plane, first element, number of elements.
  using Request = std::array<std::uint64_t, 4>;
  static constexpr Request kNothing{~std::uint64_t{0}};  ///< from now on
  static Range elements_of(const Request& one) { return {one[2], one[3]}; }
  struct Part {
    const OldStage* stage = nullptr;
    std::uint32_t shard = 0;
    std::size_t unit = 0;
    Range elements;  ///< of the model
    const Source& source() const { return stage->sources[shard]; }
  };

  Status round(const Request& own, std::span<float> out) {
    const std::uint32_t world = group_.world();
    std::vector<Request> wanted(world);
    const collective::ConstElements mine(DType::kI32, std::as_bytes(std::span(own)));
    const collective::Elements all(DType::kI32, std::as_writable_bytes(std::span(wanted)));
    CENTROID_TRY(collective::all_gather(group_, mine, all, call_));
    have_all_ = std::ranges::all_of(wanted, [](const Request& one) { return one == kNothing; });
    sent_.clear();
    std::vector<std::uint64_t> send_counts(world), receive_counts(world);
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      for (const Part& part : parts_of(wanted[rank])) {
        if (part.source().rank != group_.rank()) continue;
        const std::span<const float> values = values_of(part, wanted[rank][1]);
        sent_.insert(sent_.end(), values.begin(), values.end());
        send_counts[rank] += part.elements.count;
      }
    }
    const std::vector<Part> parts = parts_of(own);
    const auto source = [](const Part& part) { return part.source().rank; };
    for (const Part& part : parts) receive_counts[source(part)] += part.elements.count;
    // They come by the rank that sent them, then in the order of elements.
    const bool is_in_order = std::ranges::is_sorted(parts, {}, source);
    if (!is_in_order) received_.resize(out.size());
    CENTROID_TRY(collective::all_to_all(group_, std::span<const float>(sent_),
                                        is_in_order ? out : std::span(received_), call_,
                                        send_counts, receive_counts));
    if (!is_in_order) sort(parts, elements_of(own).begin, out);
    return {};
  }

  void sort(const std::vector<Part>& parts, std::uint64_t begin, std::span<float> out) const {
    auto from = received_.begin();
    for (std::uint32_t rank = 0; rank < group_.world(); ++rank) {
      for (const Part& part : parts) {
        if (part.source().rank != rank) continue;
        const auto count = static_cast<std::ptrdiff_t>(part.elements.count);
        std::copy(from, from + count,
                  out.begin() + static_cast<std::ptrdiff_t>(part.elements.begin - begin));
        from += count;
      }
    }
  }

  /// The parts of old shards in what a rank wants, in order.
  std::vector<Part> parts_of(const Request& wanted) const {
    std::vector<Part> out;
    const Range range = elements_of(wanted);
    for (const OldStage& stage : stages_) {
      if (stage.portion.model != wanted[0] || stage.first >= range.end() ||
          stage.first + stage.layout.elements() <= range.begin)
        continue;
      for (std::size_t unit = 0; unit < stage.layout.units().size(); ++unit) {
        const Range& whole = stage.layout.units()[unit].elements;
        if (stage.first + whole.begin >= range.end() || stage.first + whole.end() <= range.begin)
          continue;
        for (std::uint32_t shard = 0; shard < stage.layout.ranks(); ++shard) {
          Range of = stage.layout.shard(unit, shard);
          of.begin += stage.first + whole.begin;
          const std::uint64_t begin = std::max(of.begin, range.begin);
          const std::uint64_t end = std::min(of.end(), range.end());
          if (begin < end) out.push_back({&stage, shard, unit, {begin, end - begin}});
        }
      }
    }
    return out;
  }

  std::span<const float> values_of(const Part& part, std::size_t plane) const {
    const bool is_copy = part.source().is_copy;
    std::span<const float> shard;
    if (plane == 0)
      shard = is_copy ? old_->copy(part.unit) : old_->shard(part.unit);
    else
      shard = is_copy ? old_->copy_state(part.unit, plane - 1) : old_->state(part.unit, plane - 1);
    const ShardLayout& layout = part.stage->layout;
    const std::uint64_t begin = part.stage->first + layout.units()[part.unit].elements.begin +
                                layout.shard(part.unit, part.shard).begin;
    return shard.subspan(part.elements.begin - begin, part.elements.count);
  }

  const collective::Group& group_;
  const std::vector<OldStage>& stages_;  ///< of the earlier generation
  const ShardedParameters* const old_;
  collective::CallOptions call_;
  bool have_all_ = false;
  std::vector<float> sent_, received_;  ///< of a round; new memory costs more than the copy
};

/// The elements of the model before these parameters.
std::uint64_t elements_before(const std::vector<ParameterShape>& model, const Portion& portion) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < portion.parameters.begin; ++i) sum += model[i].elements;
  return sum;
}

/// The last step that any rank made, or may have made that is lost.
std::uint64_t last_step(const std::vector<Notice>& notices) {
  std::uint64_t step = 0, prepared = ~std::uint64_t{0};
  for (const Notice& notice : notices) {
    if (notice.numbers[kShard] == 0) continue;
    step = std::max(step, steps_of(notice));
    prepared = std::min(prepared, prepared_of(notice));
  }
  return std::max(step, prepared);
}

}  // namespace

Result<Regrouped> regroup(const collective::Group& group, const Models& models,
                          const ShardedOptions& common, const Earlier& old,
                          const std::optional<Later>& next) {
  std::vector<std::uint32_t> everyone(group.world());
  for (std::uint32_t i = 0; i < group.world(); ++i) everyone[i] = i;
  CENTROID_ASSIGN(const collective::Group own, group.subgroup(std::move(everyone)));
  CENTROID_ASSIGN(const std::vector<Notice> notices,
                  exchange(own, describe(models, common, old), common.timeout));
  CENTROID_TRY(first_failure(notices));
  CENTROID_ASSIGN(auto stages, find_stages(notices, models, common.least_elements));
  Regrouped out;
  out.step = last_step(notices);
  for (OldStage& stage : stages) CENTROID_TRY(find_sources(notices, out.step, stage));
  if (old.parameters != nullptr) {
    if (old.parameters->is_prepared() && old.parameters->steps() + 1 == out.step)
      old.parameters->complete_step();
    old.parameters->buffers().drop_spares();
  }
  SpreadShards shards(own, stages, old.parameters, common.timeout);
  if (next) {
    const auto& model = models[next->portion.model];
    const auto stored = [&, first = elements_before(model, next->portion)](
                            std::size_t plane, Range elements, std::span<float> values) {
      elements.begin += first;
      return shards.read(next->portion.model, plane, elements, values);
    };
    auto made = ShardedParameters::resume(next->ranks, cut(model, next->portion.parameters),
                                          next->options, out.step, stored);
    if (!made.ok()) {
      own.abort(made.error());  // also of those that divide other parameters
      return std::move(made).error();
    }
    out.parameters = std::move(*made);
  }
  CENTROID_TRY(shards.finish());
  return out;
}

}  // namespace centroid::parallel
