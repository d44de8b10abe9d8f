#include "tests/simulation/etcd.h"

#include <optional>
#include <utility>

namespace centroid::simulation {

using server::Etcd;
using server::Holder;

namespace {

constexpr std::chrono::milliseconds kTimeout{750};

}  // namespace

/// Of one process.
class SimulatedEtcdClient final : public Etcd {
 public:
  explicit SimulatedEtcdClient(SimulatedEtcd& etcd)
      : etcd_(etcd), process_(etcd.world_.process()) {}

  Task<Result<Lease>> grant(Duration ttl) override {
    CENTROID_CO_TRY(co_await travel());
    Lease lease;
    lease.id = ++etcd_.last_lease_;
    lease.ttl = lease.granted = ttl;
    etcd_.leases_[lease.id] = {.ttl = ttl, .end = etcd_.world_.time() + ttl};
    CENTROID_CO_TRY(co_await travel());
    co_return lease;
  }
  Task<Result<Lease>> keep_alive(std::int64_t id) override {
    CENTROID_CO_TRY(co_await travel());
    Lease lease;
    lease.id = id;
    if (const auto found = etcd_.leases_.find(id); found != etcd_.leases_.end()) {
      found->second.end = etcd_.world_.time() + found->second.ttl;
      lease.ttl = found->second.ttl;
    }
    CENTROID_CO_TRY(co_await travel());
    co_return lease;
  }
  Task<Result<Lease>> time_to_live(std::int64_t id) override {
    CENTROID_CO_TRY(co_await travel());
    Lease lease;
    lease.id = id;
    if (const auto found = etcd_.leases_.find(id); found != etcd_.leases_.end()) {
      lease.granted = found->second.ttl;
      lease.ttl = found->second.end - etcd_.world_.time();
    }
    CENTROID_CO_TRY(co_await travel());
    co_return lease;
  }
  Task<Status> revoke(std::int64_t id) override {
    CENTROID_CO_TRY(co_await travel());
    etcd_.remove_lease(id);
    co_return co_await travel();
  }
  Task<Result<std::optional<Holder>>> get(std::string key) override {
    CENTROID_CO_TRY(co_await travel());
    std::optional<Holder> found = holder(key);
    CENTROID_CO_TRY(co_await travel());
    co_return found;
  }
  Task<Result<std::optional<Holder>>> create(std::string key, std::string value,
                                             std::int64_t lease) override {
    CENTROID_CO_TRY(co_await travel());
    if (!etcd_.leases_.contains(lease))
      co_return Error(ErrorCode::kFailedPrecondition, "etcd: requested lease not found");
    if (!etcd_.keys_.contains(key))
      etcd_.keys_[key] = {.value = value, .created = ++etcd_.revision_, .lease = lease};
    std::optional<Holder> found = holder(key);
    CENTROID_CO_TRY(co_await travel());
    co_return found;
  }
  Task<Status> put(std::string key, std::string value, std::int64_t lease) override {
    CENTROID_CO_TRY(co_await travel());
    ++etcd_.revision_;
    auto& there = etcd_.keys_[key];
    if (there.created == 0) there.created = etcd_.revision_;
    there.value = value;
    there.lease = lease;
    co_return co_await travel();
  }
  Task<Result<std::vector<Holder>>> list(std::string prefix, std::size_t most) override {
    CENTROID_CO_TRY(co_await travel());
    std::vector<Holder> found;
    for (auto it = etcd_.keys_.lower_bound(prefix); it != etcd_.keys_.end(); ++it)
      if (it->first.starts_with(prefix) && found.size() < most) found.push_back(*holder(it->first));
    CENTROID_CO_TRY(co_await travel());
    co_return found;
  }

 private:
  /// One way. What has arrived has happened, also when its answer is lost.
  Task<Status> travel() {
    const TimePoint begin = now();
    co_await sleep_until(begin + etcd_.network_.draw_delay());
    const bool is_cut =
        etcd_.network_.blocked_until(process_, etcd_.process_) > etcd_.world_.time();
    if (is_cut || process_.is_killed) {
      co_await sleep_until(begin + kTimeout);
      co_return Error(ErrorCode::kUnavailable, "etcd: no answer in time");
    }
    etcd_.expire();
    co_return Status();
  }
  std::optional<Holder> holder(const std::string& key) const {
    const auto found = etcd_.keys_.find(key);
    if (found == etcd_.keys_.end()) return std::nullopt;
    return Holder{
        .value = found->second.value, .term = found->second.created, .lease = found->second.lease};
  }

  SimulatedEtcd& etcd_;
  const Process& process_;
};

server::MakeEtcd SimulatedEtcd::connector() {
  return [this](const Executor&) { return std::make_unique<SimulatedEtcdClient>(*this); };
}

void SimulatedEtcd::expire() {
  for (auto it = leases_.begin(); it != leases_.end();) {
    const auto one = it++;
    if (one->second.end <= world_.time()) remove_lease(one->first);
  }
}

void SimulatedEtcd::remove_lease(std::int64_t lease) {
  leases_.erase(lease);
  std::erase_if(keys_, [lease](const auto& entry) { return entry.second.lease == lease; });
}

}  // namespace centroid::simulation
