#include "transport/collective/group.h"

#include <algorithm>
#include <numeric>

#include "common/base/random.h"
#include "transport/collective/group_core.h"

namespace centroid::collective {

// ---- handles

Handle::Handle(std::shared_ptr<Driver> driver, std::shared_ptr<Call> call)
    : driver_(std::move(driver)), call_(std::move(call)) {}

Handle::Handle(Error refused) : refused_(std::move(refused)) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this == &other) return *this;
  if (call_) (void)wait();
  driver_ = std::move(other.driver_);
  call_ = std::move(other.call_);
  refused_ = std::move(other.refused_);
  return *this;
}

Handle::~Handle() {
  if (call_) (void)wait();
}

Status Handle::wait() {
  if (!call_) return refused_;
  if (!call_->is_done()) driver_->wait(call_->is_done());
  return call_->status();
}

bool Handle::wait_for(std::chrono::milliseconds time) {
  return test() || driver_->wait_until(call_->is_done(), now() + time);
}

bool Handle::test() const { return !call_ || call_->is_done(); }

Task<Status> Handle::ended() {
  if (!call_) co_return refused_;
  const std::shared_ptr<Call> call = call_;
  auto start = [call](transport::Parking::Handler handler) {
    if (call->park(handler)) return;
    transport::Parking::resume(std::move(handler), true);
  };
  (void)co_await boost::asio::async_initiate<const transport::Parking::Token, void(bool)>(
      std::move(start), boost::asio::use_awaitable);
  co_return call->status();
}

// ---- groups

Group make_group(std::shared_ptr<Generation> generation, std::vector<std::uint32_t> members,
                 std::uint32_t rank) {
  auto core = std::make_shared<Group::Core>();
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(generation->mutex);
    number = generation->made[members]++;
  }
  core->id = mix64(generation->network->generation(), number);
  for (const std::uint32_t member : members) core->id = mix64(core->id, member);
  for (const std::uint32_t member : members) core->nodes.push_back(generation->nodes[member]);
  core->generation = std::move(generation);
  core->members = std::move(members);
  core->rank = rank;
  return Group(std::move(core));
}

std::uint32_t Group::rank() const { return core_->rank; }
std::uint32_t Group::world() const { return static_cast<std::uint32_t>(core_->members.size()); }
std::uint64_t Group::generation() const { return core_->generation->network->generation(); }
std::span<const std::uint32_t> Group::members() const { return core_->members; }
std::span<const std::string> Group::nodes() const { return core_->nodes; }

Result<Group> Group::subgroup(std::vector<std::uint32_t> ranks) const {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  if (mine == ranks.end()) {
    return Error(ErrorCode::kInvalidArgument,
                 "subgroup: our own rank " + std::to_string(rank()) + " is not among the members");
  }
  if (ranks.back() >= world()) {
    return Error(ErrorCode::kInvalidArgument, "subgroup: rank " + std::to_string(ranks.back()) +
                                                  " is not in a group of " +
                                                  std::to_string(world()));
  }
  const auto place = static_cast<std::uint32_t>(mine - ranks.begin());
  std::vector<std::uint32_t> members;
  for (const std::uint32_t local : ranks) members.push_back(core_->members[local]);
  return make_group(core_->generation, std::move(members), place);
}

Result<Group> Group::split(std::span<const std::uint32_t> colors) const {
  if (colors.size() != world()) {
    return Error(ErrorCode::kInvalidArgument, "split: " + std::to_string(colors.size()) +
                                                  " colours for a group of " +
                                                  std::to_string(world()));
  }
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t other = 0; other < world(); ++other)
    if (colors[other] == colors[rank()]) ranks.push_back(other);
  return subgroup(std::move(ranks));
}

Result<Group> Group::with_ring(std::vector<std::uint32_t> order) const {
  std::vector<std::uint32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::uint32_t> ranks(world());
  std::iota(ranks.begin(), ranks.end(), 0u);
  if (sorted != ranks) {
    return Error(ErrorCode::kInvalidArgument,
                 "with_ring: not an order of the ranks 0 to " + std::to_string(world() - 1));
  }
  Group group = make_group(core_->generation, core_->members, rank());
  if (order != ranks) group.core().ring = std::move(order);
  return group;
}

std::span<const std::uint32_t> Group::ring() const { return core_->ring; }

void Group::abort(Error cause) const {
  core_->generation->network->abort(core_->id, std::move(cause));
}

std::vector<std::string> Group::connections() const {
  return core_->generation->network->connections();
}

std::optional<std::uint32_t> Group::culprit() const {
  return core_->generation->network->culprit();
}

transport::TrafficCounters Group::traffic() const { return core_->generation->network->traffic(); }

}  // namespace centroid::collective
