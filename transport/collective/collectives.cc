#include "transport/collective/collectives.h"

#include <algorithm>
#include <bit>

#include "common/base/random.h"
#include "transport/collective/group_core.h"
#include "transport/collective/start.h"

namespace centroid::collective {

namespace {

// Measured with centroid-bench-collectives: below, fewer steps win; above, fewer bytes.
constexpr std::uint64_t kDoublingBytes = 128 << 10;
constexpr std::uint64_t kDirectBytes = 256 << 10;  // two ranks: the same bytes, half the steps
constexpr std::uint64_t kTreeBytes = 64 << 10;
constexpr std::uint64_t kGatherBytes = 64 << 10;
constexpr std::uint64_t kMaxDoublingBytes = 16 << 20;
constexpr std::uint64_t kHalvingBytes = 2 << 20;  // worlds of 4, 8, 16, ...: fewer steps
constexpr std::uint64_t kLeastSegment = 512 << 10;

constexpr std::uint64_t kWeightTag = 0x7765696768747300;
constexpr std::uint64_t kPairTag = 0x7061697273000000;

bool overlap(Bytes a, Bytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

/// A call while it is built.
struct Draft {
  Draft(const Group& in_group, Operation operation, ConstElements in, Elements out,
        const CallOptions& call_options)
      : group(in_group), options(call_options), input(in), output(out) {
    signature.operation = operation;
    signature.dtype = in.dtype;
    shape.rank = group.rank();
    shape.world = group.world();
    shape.element_bytes = size_of(in.dtype);
  }

  Error refuse(const std::string& what) const {
    const std::string operation(to_string(signature.operation));
    return {ErrorCode::kInvalidArgument, operation + ": " + what};
  }

  const Group& group;
  CallOptions options;
  Signature signature;
  Shape shape;
  ConstElements input;
  Elements output;
  Schedule schedule;
  Arithmetic arithmetic;
  std::uint64_t tag = 0;
};

Status check(const Draft& draft) {
  if (draft.input.dtype != draft.output.dtype) {
    return draft.refuse("the input is " + std::string(to_string(draft.input.dtype)) +
                        ", the output " + std::string(to_string(draft.output.dtype)));
  }
  const std::size_t width = size_of(draft.input.dtype);
  if (draft.input.bytes.size() % width != 0 || draft.output.bytes.size() % width != 0)
    return draft.refuse("memory of a broken number of elements");
  return {};
}

Status check_root(const Draft& draft, std::uint32_t root, std::string_view name) {
  if (root < draft.shape.world) return {};
  return draft.refuse(std::string(name) + " " + std::to_string(root) + " is not in a group of " +
                      std::to_string(draft.shape.world));
}

Status check_count(const Draft& draft, std::string_view name, std::uint64_t is,
                   std::uint64_t requested) {
  if (is == requested) return {};
  return draft.refuse("the " + std::string(name) + " has " + std::to_string(is) +
                      " elements, not " + std::to_string(requested));
}

Result<Parts> parts_for(const Draft& draft, std::span<const std::uint64_t> counts,
                        std::uint64_t total, std::string_view name) {
  if (counts.empty()) return even_parts(total, draft.shape.world);
  if (counts.size() != draft.shape.world) {
    return draft.refuse(std::to_string(counts.size()) + " counts for a group of " +
                        std::to_string(draft.shape.world));
  }
  Parts parts = parts_of(counts);
  CENTROID_TRY(check_count(draft, name, total, parts.back().end));
  return parts;
}

/// The position of the part within the buffer, if they share memory.
Result<bool> is_part_of(const Draft& draft, Bytes buffer, Bytes part, Range range) {
  if (!overlap(buffer, part)) return false;
  if (part.data() == buffer.data() + range.begin * draft.shape.element_bytes) return true;
  return draft.refuse("input and output overlap, and not at the rank's own part");
}

Call::Plan plan_of(Draft& draft) {
  Group::Core& core = draft.group.core();
  Network& network = *core.generation->network;
  Call::Plan plan;
  plan.key.group = core.id;
  plan.key.tag = draft.tag;
  plan.key.sequence = core.next_sequence(draft.tag);
  plan.signature = draft.signature;
  plan.generation = network.generation();
  plan.members = core.members;
  plan.rank = core.rank;
  plan.schedule = std::move(draft.schedule);
  plan.arithmetic = draft.arithmetic;
  plan.pool = core.generation->scratch;
  plan.input = draft.input.bytes;
  plan.output = draft.output.bytes;
  plan.saves_input = draft.options.preserve_input && draft.shape.is_in_place;
  const CallOptions& options = draft.options;
  plan.timeout =
      options.turns * (options.timeout.count() > 0 ? options.timeout : network.timeout());
  plan.waits_next = draft.options.waits_next;
  if (draft.options.on_end)
    plan.on_end = [notify = draft.options.on_end](const Status&) { notify(); };
  return plan;
}

Handle begin(Draft& draft, bool is_waited) {
  draft.tag = draft.options.tag;
  return begin(draft.group, make_call(plan_of(draft)), is_waited);
}

/// First the sum of the weights, then the numbers: the first complete part needs the sum.
Handle begin_weighted(Draft& draft, Call::Plan plan, bool is_waited) {
  plan.weight = draft.options.weight;
  plan.is_factor = true;
  const auto network = draft.group.core().generation->network;
  const auto main = make_call(std::move(plan));
  const auto weight = std::make_shared<double>(draft.options.weight);
  CallOptions options = draft.options;
  options.preserve_input = false;
  options.on_end = nullptr;
  const Elements one(std::span<double>(weight.get(), 1));
  Draft sum(draft.group, Operation::kAllReduce, one, one, options);
  sum.signature.count = 1;
  sum.signature.reduction = Reduction::kWeightedMean;
  sum.signature.algorithm = Algorithm::kRecursiveDoubling;
  sum.shape.is_in_place = true;
  sum.schedule = doubling_all_reduce(sum.shape, 1);
  sum.tag = mix64(kWeightTag, options.tag);
  const auto arithmetic = arithmetic_of(DType::kF64, Reduction::kSum);
  sum.arithmetic = *arithmetic;
  Call::Plan weights = plan_of(sum);
  weights.on_end = [network, main, weight](const Status& status) {
    if (status.ok() && *weight == 0)
      main->fail(Error(ErrorCode::kInvalidArgument, "weight: the sum over all ranks is 0"));
    main->set_divisor(*weight);
    network->start(main, false);  // if the weights failed, the group's cause ends it
  };
  network->start(make_call(std::move(weights)), is_waited);
  return Handle(draft.group.core().generation->driver, main);
}

Result<Algorithm> choose(const Draft& draft, std::uint64_t bytes) {
  const Algorithm requested = draft.options.algorithm;
  if (requested == Algorithm::kRecursiveDoubling && bytes > kMaxDoublingBytes)
    return draft.refuse("recursive doubling is for messages up to 16 MiB");
  if (requested != Algorithm::kAuto) return requested;
  const std::uint64_t limit = draft.shape.world == 2 ? kDirectBytes : kDoublingBytes;
  if (bytes <= limit) return Algorithm::kRecursiveDoubling;
  if (pays_hierarchy(draft.group.nodes())) return Algorithm::kHierarchical;
  const bool halves = std::has_single_bit(draft.shape.world) && draft.shape.world > 2;
  return halves && bytes <= kHalvingBytes ? Algorithm::kHalvingDoubling : Algorithm::kRing;
}

/// The parts of a reduction beyond its schedule.
Status prepare_reduction(Draft& draft) {
  const CallOptions& options = draft.options;
  if (options.reduction == Reduction::kNone) return draft.refuse("no reduction is set");
  CENTROID_ASSIGN(draft.arithmetic, arithmetic_of(draft.input.dtype, options.reduction));
  draft.signature.reduction = options.reduction;
  if (options.reduction != Reduction::kWeightedMean) return {};
  if (!(options.weight >= 0) || options.weight > 1e15)
    return draft.refuse("weight " + std::to_string(options.weight) + " is not in 0..1e15");
  draft.shape.weighs = options.weight != 1 && draft.shape.world > 1;
  return {};
}

Handle begin_reduction(Draft& draft, bool is_waited) {
  draft.tag = draft.options.tag;
  Call::Plan plan = plan_of(draft);
  if (draft.options.reduction == Reduction::kWeightedMean && draft.shape.world > 1)
    return begin_weighted(draft, std::move(plan), is_waited);
  if (draft.options.reduction == Reduction::kMean) plan.divisor = draft.shape.world;
  return begin(draft.group, make_call(std::move(plan)), is_waited);
}

/// Places in the ring represent ranks; the schedule names ranks.
Schedule ring_in_order(Shape shape, std::uint64_t count, std::span<const std::uint32_t> order) {
  if (order.empty()) return ring_all_reduce(shape, count);
  shape.rank =
      static_cast<std::uint32_t>(std::find(order.begin(), order.end(), shape.rank) - order.begin());
  Schedule schedule = ring_all_reduce(shape, count);
  for (SendStep& send : schedule.sends) send.peer = order[send.peer];
  for (ReceiveStep& receive : schedule.receives) receive.peer = order[receive.peer];
  return schedule;
}

Status plan_all_reduce(Draft& draft) {
  CENTROID_TRY(check(draft));
  const std::uint64_t count = draft.input.count();
  CENTROID_TRY(check_count(draft, "output", draft.output.count(), count));
  CENTROID_TRY(prepare_reduction(draft));
  draft.shape.is_in_place = draft.input.bytes.data() == draft.output.bytes.data();
  if (!draft.shape.is_in_place && overlap(draft.input.bytes, draft.output.bytes))
    return draft.refuse("input and output overlap without being the same");
  CENTROID_ASSIGN(const Algorithm algorithm, choose(draft, draft.input.bytes.size()));
  draft.signature.algorithm = algorithm;
  draft.signature.count = count;
  if (count == 0) return {};
  switch (algorithm) {
    case Algorithm::kRecursiveDoubling:
      draft.schedule = doubling_all_reduce(draft.shape, count);
      return {};
    case Algorithm::kChain:
      draft.schedule = chain_all_reduce(draft.shape, count);
      return {};
    default:
      // A part in at least four segments, so that adding and sending overlap.
      draft.shape.segment_bytes = std::clamp(draft.input.bytes.size() / draft.shape.world / 4,
                                             kLeastSegment, kSegmentBytes);
      if (algorithm == Algorithm::kHierarchical)
        draft.schedule = hierarchical_all_reduce(draft.shape, count, draft.group.nodes());
      else if (algorithm == Algorithm::kHalvingDoubling)
        draft.schedule = halving_all_reduce(draft.shape, count);
      else
        draft.schedule = ring_in_order(draft.shape, count, draft.group.ring());
      return {};
  }
}

Handle start_all_reduce(const Group& group, ConstElements input, Elements output,
                        const CallOptions& options, bool is_waited) {
  Draft draft(group, Operation::kAllReduce, input, output, options);
  if (Status planned = plan_all_reduce(draft); !planned.ok())
    return Handle(std::move(planned).error());
  if (input.count() == 0) return begin(draft, is_waited);
  return begin_reduction(draft, is_waited);
}

Status plan_reduce_scatter(Draft& draft, std::span<const std::uint64_t> counts) {
  CENTROID_TRY(check(draft));
  CENTROID_TRY(prepare_reduction(draft));
  const std::uint64_t count = draft.input.count();
  CENTROID_ASSIGN(const Parts parts, parts_for(draft, counts, count, "input"));
  const Range mine = parts[draft.shape.rank];
  CENTROID_TRY(check_count(draft, "output", draft.output.count(), mine.size()));
  CENTROID_ASSIGN(draft.shape.is_in_place,
                  is_part_of(draft, draft.input.bytes, draft.output.bytes, mine));
  draft.signature.count = count;
  draft.signature.algorithm = Algorithm::kRing;
  draft.schedule = ring_reduce_scatter(draft.shape, parts);
  return {};
}

Handle start_reduce_scatter(const Group& group, ConstElements input, Elements output,
                            const CallOptions& options, std::span<const std::uint64_t> counts,
                            bool is_waited) {
  Draft draft(group, Operation::kReduceScatter, input, output, options);
  if (Status planned = plan_reduce_scatter(draft, counts); !planned.ok())
    return Handle(std::move(planned).error());
  return begin_reduction(draft, is_waited);
}

Status plan_all_gather(Draft& draft, std::span<const std::uint64_t> counts) {
  CENTROID_TRY(check(draft));
  const std::uint64_t count = draft.output.count();
  CENTROID_ASSIGN(const Parts parts, parts_for(draft, counts, count, "output"));
  const Range mine = parts[draft.shape.rank];
  CENTROID_TRY(check_count(draft, "input", draft.input.count(), mine.size()));
  CENTROID_ASSIGN(draft.shape.is_in_place,
                  is_part_of(draft, draft.output.bytes, draft.input.bytes, mine));
  draft.signature.count = count;
  draft.schedule = draft.output.bytes.size() <= kGatherBytes ? direct_all_gather(draft.shape, parts)
                                                             : ring_all_gather(draft.shape, parts);
  return {};
}

Handle start_all_gather(const Group& group, ConstElements input, Elements output,
                        const CallOptions& options, std::span<const std::uint64_t> counts,
                        bool is_waited) {
  Draft draft(group, Operation::kAllGather, input, output, options);
  if (Status planned = plan_all_gather(draft, counts); !planned.ok())
    return Handle(std::move(planned).error());
  return begin(draft, is_waited);
}

Handle start_broadcast(const Group& group, Elements data, std::uint32_t root,
                       const CallOptions& options, bool is_waited) {
  Draft draft(group, Operation::kBroadcast, data, data, options);
  Status checked = check(draft);
  if (checked.ok()) checked = check_root(draft, root, "root");
  if (!checked.ok()) return Handle(std::move(checked).error());
  draft.shape.is_in_place = true;
  draft.signature.root = root;
  draft.signature.count = data.count();
  draft.schedule = data.bytes.size() <= kTreeBytes
                       ? tree_broadcast(draft.shape, data.count(), root)
                       : chain_broadcast(draft.shape, data.count(), root);
  return begin(draft, is_waited);
}

Status plan_all_to_all(Draft& draft, std::span<const std::uint64_t> send_counts,
                       std::span<const std::uint64_t> receive_counts) {
  CENTROID_TRY(check(draft));
  CENTROID_ASSIGN(const Parts out, parts_for(draft, send_counts, draft.input.count(), "input"));
  CENTROID_ASSIGN(const Parts in, parts_for(draft, receive_counts, draft.output.count(), "output"));
  const std::uint32_t rank = draft.shape.rank;
  CENTROID_TRY(check_count(draft, "own part of the output", in[rank].size(), out[rank].size()));
  draft.shape.is_in_place = draft.input.bytes.data() == draft.output.bytes.data();
  if (!draft.shape.is_in_place && overlap(draft.input.bytes, draft.output.bytes))
    return draft.refuse("input and output overlap without being the same");
  if (draft.shape.is_in_place && out != in)
    return draft.refuse("in place the parts to send and to receive must be the same");
  if (send_counts.empty() && receive_counts.empty() && draft.input.count() % draft.shape.world != 0)
    return draft.refuse("parts of different sizes need counts");
  draft.schedule = direct_all_to_all(draft.shape, out, in);
  return {};
}

Handle start_all_to_all(const Group& group, ConstElements input, Elements output,
                        const CallOptions& options, std::span<const std::uint64_t> send_counts,
                        std::span<const std::uint64_t> receive_counts, bool is_waited) {
  Draft draft(group, Operation::kAllToAll, input, output, options);
  if (Status planned = plan_all_to_all(draft, send_counts, receive_counts); !planned.ok())
    return Handle(std::move(planned).error());
  return begin(draft, is_waited);
}

/// gather and scatter: `buffer` is the root's memory of all parts, `part` each rank's own.
Result<Parts> rooted_parts(Draft& draft, ConstElements buffer, ConstElements part,
                           std::uint32_t root, std::span<const std::uint64_t> counts) {
  CENTROID_TRY(check(draft));
  CENTROID_TRY(check_root(draft, root, "root"));
  const std::uint32_t rank = draft.shape.rank;
  const bool is_root = rank == root;
  draft.signature.root = root;
  const std::vector<std::uint64_t> same(draft.shape.world, part.count());
  Parts parts = parts_of(counts.empty() ? std::span<const std::uint64_t>(same) : counts);
  if (counts.empty() && is_root) parts = even_parts(buffer.count(), draft.shape.world);
  if (parts.size() != draft.shape.world)
    return draft.refuse(std::to_string(counts.size()) + " counts for a group of " +
                        std::to_string(draft.shape.world));
  if (is_root) CENTROID_TRY(check_count(draft, "whole", buffer.count(), parts.back().end));
  CENTROID_TRY(check_count(draft, "part", part.count(), parts[rank].size()));
  if (is_root) {
    CENTROID_ASSIGN(draft.shape.is_in_place,
                    is_part_of(draft, buffer.bytes, part.bytes, parts[rank]));
  }
  return parts;
}

Handle start_gather(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                    const CallOptions& options, std::span<const std::uint64_t> counts,
                    bool is_waited) {
  if (group.rank() != root) output = Elements(input.dtype, MutableBytes());
  Draft draft(group, Operation::kGather, input, output, options);
  auto parts = rooted_parts(draft, output, input, root, counts);
  if (!parts.ok()) return Handle(std::move(parts).error());
  draft.schedule = direct_gather(draft.shape, *parts, root);
  return begin(draft, is_waited);
}

Handle start_scatter(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                     const CallOptions& options, std::span<const std::uint64_t> counts,
                     bool is_waited) {
  if (group.rank() != root) input = ConstElements(output.dtype, Bytes());
  Draft draft(group, Operation::kScatter, input, output, options);
  auto parts = rooted_parts(draft, input, output, root, counts);
  if (!parts.ok()) return Handle(std::move(parts).error());
  draft.schedule = direct_scatter(draft.shape, *parts, root);
  return begin(draft, is_waited);
}

Handle start_barrier(const Group& group, const CallOptions& options, bool is_waited) {
  Draft draft(group, Operation::kBarrier, ConstElements(DType::kU8, Bytes()),
              Elements(DType::kU8, MutableBytes()), options);
  draft.schedule = dissemination_barrier(draft.shape);
  return begin(draft, is_waited);
}

Handle start_pair(const Group& group, ConstElements input, Elements output, std::uint32_t peer,
                  bool is_sender, const CallOptions& options, bool is_waited) {
  Draft draft(group, Operation::kSend, input, output, options);
  Status checked = check(draft);
  if (checked.ok()) checked = check_root(draft, peer, "rank");
  if (checked.ok() && peer == group.rank())
    checked = draft.refuse("to and from our own rank " + std::to_string(peer));
  if (!checked.ok()) return Handle(std::move(checked).error());
  const std::uint64_t count = is_sender ? input.count() : output.count();
  draft.signature.count = count;
  const std::uint64_t from = is_sender ? group.rank() : peer;
  const std::uint64_t to = is_sender ? peer : group.rank();
  draft.schedule =
      is_sender ? send_to(draft.shape, count, peer) : receive_from(draft.shape, count, peer);
  draft.tag = mix64(mix64(kPairTag, options.tag), (from << 32) | to);
  return begin(group, make_call(plan_of(draft)), is_waited);
}

}  // namespace

Handle all_reduce_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options) {
  return start_all_reduce(group, input, output, options, false);
}
Status all_reduce(const Group& group, ConstElements input, Elements output, CallOptions options) {
  return start_all_reduce(group, input, output, options, true).wait();
}
Handle all_reduce_async(const Group& group, Elements data, CallOptions options) {
  return start_all_reduce(group, data, data, options, false);
}
Status all_reduce(const Group& group, Elements data, CallOptions options) {
  return start_all_reduce(group, data, data, options, true).wait();
}

Handle reduce_scatter_async(const Group& group, ConstElements input, Elements output,
                            CallOptions options, std::span<const std::uint64_t> counts) {
  return start_reduce_scatter(group, input, output, options, counts, false);
}
Status reduce_scatter(const Group& group, ConstElements input, Elements output, CallOptions options,
                      std::span<const std::uint64_t> counts) {
  return start_reduce_scatter(group, input, output, options, counts, true).wait();
}

Handle all_gather_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options, std::span<const std::uint64_t> counts) {
  return start_all_gather(group, input, output, options, counts, false);
}
Status all_gather(const Group& group, ConstElements input, Elements output, CallOptions options,
                  std::span<const std::uint64_t> counts) {
  return start_all_gather(group, input, output, options, counts, true).wait();
}

Handle broadcast_async(const Group& group, Elements data, std::uint32_t root, CallOptions options) {
  return start_broadcast(group, data, root, options, false);
}
Status broadcast(const Group& group, Elements data, std::uint32_t root, CallOptions options) {
  return start_broadcast(group, data, root, options, true).wait();
}

Handle all_to_all_async(const Group& group, ConstElements input, Elements output,
                        CallOptions options, std::span<const std::uint64_t> send_counts,
                        std::span<const std::uint64_t> receive_counts) {
  return start_all_to_all(group, input, output, options, send_counts, receive_counts, false);
}
Status all_to_all(const Group& group, ConstElements input, Elements output, CallOptions options,
                  std::span<const std::uint64_t> send_counts,
                  std::span<const std::uint64_t> receive_counts) {
  return start_all_to_all(group, input, output, options, send_counts, receive_counts, true).wait();
}

Handle gather_async(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                    CallOptions options, std::span<const std::uint64_t> counts) {
  return start_gather(group, input, output, root, options, counts, false);
}
Status gather(const Group& group, ConstElements input, Elements output, std::uint32_t root,
              CallOptions options, std::span<const std::uint64_t> counts) {
  return start_gather(group, input, output, root, options, counts, true).wait();
}

Handle scatter_async(const Group& group, ConstElements input, Elements output, std::uint32_t root,
                     CallOptions options, std::span<const std::uint64_t> counts) {
  return start_scatter(group, input, output, root, options, counts, false);
}
Status scatter(const Group& group, ConstElements input, Elements output, std::uint32_t root,
               CallOptions options, std::span<const std::uint64_t> counts) {
  return start_scatter(group, input, output, root, options, counts, true).wait();
}

Handle barrier_async(const Group& group, CallOptions options) {
  return start_barrier(group, options, false);
}
Status barrier(const Group& group, CallOptions options) {
  return start_barrier(group, options, true).wait();
}

Handle send_async(const Group& group, ConstElements data, std::uint32_t to, CallOptions options) {
  return start_pair(group, data, Elements(data.dtype, MutableBytes()), to, true, options, false);
}
Status send(const Group& group, ConstElements data, std::uint32_t to, CallOptions options) {
  return start_pair(group, data, Elements(data.dtype, MutableBytes()), to, true, options, true)
      .wait();
}
Handle receive_async(const Group& group, Elements data, std::uint32_t from, CallOptions options) {
  return start_pair(group, ConstElements(data.dtype, Bytes()), data, from, false, options, false);
}
Status receive(const Group& group, Elements data, std::uint32_t from, CallOptions options) {
  return start_pair(group, ConstElements(data.dtype, Bytes()), data, from, false, options, true)
      .wait();
}

}  // namespace centroid::collective
