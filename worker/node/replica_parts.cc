#include "worker/node/replica_parts.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/log.h"
#include "common/device/device.h"
#include "common/tensor/chunk_plan.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kMaxDevices = 256;

/// A zeroed buffer.
Buffer plane_of(HostMemory& memory, std::size_t bytes) {
  Buffer plane = memory.take(bytes);
  std::ranges::fill(plane.as<float>(), 0.0F);
  return plane;
}

Result<std::vector<Compute>> open_all(const GroupOptions& options) {
  std::vector<Compute> all;
  std::string_view left = options.devices;
  for (bool is_more = true; is_more;) {
    const std::string spec(left.substr(0, left.find(',')));
    is_more = spec.size() < left.size();
    left.remove_prefix(spec.size() + (is_more ? 1 : 0));
    if (spec.empty())
      return Error(ErrorCode::kInvalidArgument,
                   "devices '" + options.devices +
                       "': a name is empty; at least one device is needed, as in cpu or cuda:0");
    CENTROID_ASSIGN(Compute compute, options.open(spec, options.matmul));
    const std::string name = compute.device->name();
    const auto is_same = [&](const Compute& other) { return other.device->name() == name; };
    if (std::any_of(all.begin(), all.end(), is_same))
      return Error(ErrorCode::kInvalidArgument,
                   "devices '" + options.devices + "' name " + name + " twice");
    all.push_back(std::move(compute));
    if (all.size() > kMaxDevices)
      return Error(ErrorCode::kInvalidArgument,
                   "more than " + std::to_string(kMaxDevices) + " devices");
  }
  return all;
}

/// A NCCL group of two or more GPUs; null if they must add on the host, which is logged.
std::unique_ptr<NcclGroup> join_by_nccl(const std::vector<Compute>& all,
                                        const GroupOptions& options) {
  std::vector<int> numbers;
  for (const Compute& one : all) {
    if (one.device->is_host()) return nullptr;
    const std::string name = one.device->name();  // "cuda:3"
    numbers.push_back(std::atoi(name.c_str() + name.find(':') + 1));
  }
  if (numbers.size() < 2) return nullptr;
  const auto on_host = [&](const std::string& why) {
    log::warn("nccl.disabled", {{"why", why},
                                {"devices", options.devices},
                                {"instead", "gradients are copied and added on the host"}});
    return nullptr;
  };
  if (options.nccl.empty()) return on_host("the setting nccl is empty");
  auto library = nccl::Library::load(options.nccl);
  if (!library.ok()) return on_host(library.error().message());
  auto group =
      NcclGroup::make(std::move(library).value(), numbers, {.timeout = options.nccl_timeout});
  if (!group.ok()) return on_host(group.error().message());
  return std::move(group).value();
}

}  // namespace

std::optional<std::uint64_t> least_room(const std::vector<Seat>& seats) {
  std::optional<std::uint64_t> least;
  for (const Seat& seat : seats)
    if (const auto room = seat.replica->room())
      least = std::min(least.value_or(room->free), room->free);
  return least;
}

Status check_room(Replica& replica, const Model& model, std::uint64_t samples, std::size_t slots,
                  std::uint64_t plane) {
  const auto room = replica.room();
  if (!room) return {};
  CENTROID_ASSIGN(const Replica::StepMemory memory, replica.memory_of(samples));
  const std::uint64_t need = memory.with_evaluation + slots * plane;
  const std::uint64_t free = room->free + memory.taken;
  if (need <= free) return {};
  const auto text = [](std::uint64_t bytes) { return std::to_string(bytes); };
  std::string takes =
      "a step of " + text(samples) + " samples takes " + text(memory.step) + " bytes";
  std::string remedy = "Lower --batch, the model's context or width, or use more devices";
  if (memory.with_evaluation > memory.step)
    takes += ", it and an evaluation of " + text(evaluate_samples(model)) + " samples " +
             text(memory.with_evaluation);
  if (slots > 0) {
    takes += " and " + text(slots) + " slots of the optimizer " + text(slots * plane);
    remedy += "; inner.on_gpu no keeps the slots on the host";
  }
  return Error(ErrorCode::kFailedPrecondition,
               "device " + replica.name() + ": " + takes + ", " + text(free) + " of " +
                   text(room->total) + " are free beside parameters and gradients. " + remedy);
}

Batch rows_of(const LoadedBatch& loaded, const Dataset& data, Range part) {
  const auto cut = [&](const auto& values, std::uint64_t of_one) {
    return std::span(values).subspan(part.begin * of_one, part.size() * of_one);
  };
  Batch batch;
  batch.samples = part.size();
  batch.ids = cut(loaded.index, 1);
  batch.y = cut(loaded.y, data.targets());
  if (data.vocabulary > 0) {
    batch.tokens = cut(loaded.tokens, data.features);
    batch.lengths = cut(loaded.lengths, 1);
  } else {
    batch.x = cut(loaded.x, data.features);
  }
  return batch;
}

Result<Parts> make_parts(const Model& model, const GroupOptions& options) {
  CENTROID_ASSIGN(auto all, open_all(options));
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.manifest()) bytes += tensor.bytes();
  Parts parts;
  // Pinned if there is a GPU: its copies begin or end here.
  const auto gpu = std::ranges::find_if(all, [](const Compute& c) { return !c.device->is_host(); });
  Device& of_memory = *(gpu == all.end() ? all.front() : *gpu).device;
  parts.memory.emplace(of_memory, options.pinned_bytes);
  parts.params = plane_of(*parts.memory, bytes);
  parts.gradients = plane_of(*parts.memory, bytes);
  for (Compute& one : all)
    for (Compute& other : all)
      if (&one != &other && !one.device->is_host() && !other.device->is_host())
        CENTROID_TRY(one.device->share_with(*other.device));
  parts.nccl = join_by_nccl(all, options);
  for (Compute& compute : all) {
    Seat seat;
    seat.lane = trace::Lane(compute.device->name());
    ReplicaOptions mine;
    mine.bucket_bytes = options.bucket_bytes;
    if (parts.nccl) mine.seat = {parts.nccl.get(), parts.seats.size()};
    if (parts.nccl || all.size() == 1) {
      if (parts.seats.empty()) mine.gradient = parts.gradients.as<float>();
    } else {
      seat.gradient = plane_of(*parts.memory, bytes);
      mine.gradient = seat.gradient.as<float>();
    }
    CENTROID_ASSIGN(seat.replica, make_replica(model, std::move(compute), mine));
    parts.seats.push_back(std::move(seat));
  }
  parts.room = least_room(parts.seats);
  for (std::size_t d = 0; options.batch > 0 && d < parts.seats.size(); ++d) {
    Replica& replica = *parts.seats[d].replica;
    const std::uint64_t share = part_of(options.batch, parts.seats.size(), d).size();
    CENTROID_TRY(check_room(replica, model, share, 0, bytes));
    CENTROID_TRY(replica.make_room(share));
  }
  return parts;
}

}  // namespace centroid::worker
