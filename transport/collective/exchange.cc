#include "transport/collective/exchange.h"

#include <algorithm>
#include <string>

#include "transport/collective/start.h"

namespace centroid::collective {

namespace {

Error bad(const std::string& what) {
  return {ErrorCode::kInvalidArgument, std::string(to_string(Operation::kExchange)) + ": " + what};
}

Status check(const Group& group, std::span<const Parcel> parcels, std::size_t memory,
             bool is_sending) {
  const std::string name = is_sending ? "sent" : "received";
  if (parcels.size() != group.world())
    return bad(std::to_string(parcels.size()) + " " + name + " parcels for a group of " +
               std::to_string(group.world()));
  for (std::size_t i = 0; i < parcels.size(); ++i) {
    if (i == group.rank()) continue;
    const Parcel& parcel = parcels[i];
    const std::uint64_t bytes = is_sending ? parcel.bytes : parcel.most;
    const std::string which = "the parcel " + std::string(is_sending ? "to" : "from") + " rank " +
                              std::to_string(i) + " ";
    if (bytes > parcel.most)
      return bad(which + "has " + std::to_string(bytes) + " bytes, at most " +
                 std::to_string(parcel.most) + " were agreed");
    if (parcel.begin > memory || bytes > memory - parcel.begin)
      return bad(which + "ends beyond its memory of " + std::to_string(memory) + " bytes");
  }
  return {};
}

Handle start(const Group& group, Bytes input, std::span<const Parcel> out, MutableBytes output,
             std::span<const Parcel> in, std::span<std::uint64_t> lengths, CallOptions options,
             bool is_waited) {
  Status checked = check(group, out, input.size(), true);
  if (checked.ok()) checked = check(group, in, output.size(), false);
  if (checked.ok() && lengths.size() != group.world())
    checked = bad("no length for each of " + std::to_string(group.world()) + " ranks");
  if (!checked.ok()) return Handle(std::move(checked).error());
  std::fill(lengths.begin(), lengths.end(), 0);
  Group::Core& core = group.core();
  Network& network = *core.generation->network;
  Shape shape;
  shape.rank = group.rank();
  shape.world = group.world();
  shape.element_bytes = 1;
  Call::Plan plan;
  plan.key.group = core.id;
  plan.key.tag = options.tag;
  plan.key.sequence = core.next_sequence(options.tag);
  plan.signature.operation = Operation::kExchange;
  plan.signature.dtype = DType::kU8;
  plan.generation = network.generation();
  plan.members = core.members;
  plan.rank = core.rank;
  plan.schedule = bounded_exchange(shape, out, in);
  plan.pool = core.generation->scratch;
  plan.input = input;
  plan.output = output;
  plan.lengths = lengths;
  plan.timeout =
      options.turns * (options.timeout.count() > 0 ? options.timeout : network.timeout());
  if (options.on_end)
    plan.on_end = [notify = std::move(options.on_end)](const Status&) { notify(); };
  return begin(group, make_call(std::move(plan)), is_waited);
}

}  // namespace

Handle exchange_async(const Group& group, Bytes input, std::span<const Parcel> out,
                      MutableBytes output, std::span<const Parcel> in,
                      std::span<std::uint64_t> lengths, CallOptions options) {
  return start(group, input, out, output, in, lengths, std::move(options), false);
}

Status exchange(const Group& group, Bytes input, std::span<const Parcel> out, MutableBytes output,
                std::span<const Parcel> in, std::span<std::uint64_t> lengths, CallOptions options) {
  return start(group, input, out, output, in, lengths, std::move(options), true).wait();
}

}  // namespace centroid::collective
