#include "server/election/candidacy.h"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "common/base/log.h"
#include "common/base/version.h"

namespace centroid::server {

std::string Leadership::to_string() const {
  if (role != Election::Role::kStandby) return "leader";
  if (!leader.empty()) return "standby, leader is " + leader + " at " + data;
  return trouble.empty() ? "standby, there is no leader" : "standby, leader unknown: " + trouble;
}

ElectionProbe::ElectionProbe(metrics::Registry& r) {
  is_leader_ = r.gauge("centroid_server_is_leader",
                       "1 when this server leads its cluster, 0 when it is a standby or may not "
                       "act because its lease could not be renewed.");
  term_ =
      r.gauge("centroid_server_term_number",
              "Term of the leader in etcd; grows with every new leader; 0: no etcd, or unknown.");
  renewals_ =
      r.counter("centroid_server_lease_renewals_total", "Renewals of the leader's lease in etcd.");
  failures_ = r.counter("centroid_server_etcd_failures_total",
                        "Requests to etcd that no endpoint answered.");
  const auto role = [&](const char* which) {
    return r.gauge(
        "centroid_server_role",
        "1 for the role of this server: leader (also a single server), standby or shard server.",
        {{"role", which}});
  };
  leads_ = role("leader");
  is_standby_ = role("standby");
  leads(true, 0);
}

void ElectionProbe::leads(bool does, std::uint64_t term) const {
  is_leader_.set(does ? 1 : 0);
  leads_.set(does ? 1 : 0);
  is_standby_.set(does ? 0 : 1);
  term_.set(static_cast<double>(term));
}

namespace {
/// A silent candidate is shown for this many leases.
constexpr int kShown = 10;

Candidate self_of(const Candidacy::Options& options) {
  Candidate self;
  self.name = options.name;
  self.data = options.data;
  self.api = options.api;
  self.version = kVersion;
  return self;
}

Candidates::Options candidates_options(const Candidacy::Options& options) {
  Candidates::Options out;
  out.connect = options.connect;
  out.prefix = Candidacy::servers_of(options.cluster);
  out.self = self_of(options);
  out.every = options.election.ttl;
  out.entry_ttl = kShown * options.election.ttl;
  return out;
}
}  // namespace

Candidacy::Candidacy(Options options, Fence& fence, const ElectionProbe& probe,
                     std::function<void(Leadership)> on_change)
    : options_(std::move(options)),
      fence_(fence),
      probe_(probe),
      on_change_(std::move(on_change)),
      etcd_(options_.connect(thread_.executor())),
      election_(options_.election),
      candidates_(thread_.executor(), candidates_options(options_),
                  [this](std::vector<Candidate> found) {
                    servers_ = std::move(found);
                    if (!is_over_) publish();
                  }),
      stop_(thread_.executor()) {
  probe_.leads(false, 0);
  ended_ = Pending<void>(thread_.executor(), run());
}

Candidacy::~Candidacy() {
  boost::asio::post(thread_.context(), [this] {
    stopping_ = true;
    stop_.notify_all();
  });
  ended_.get();
}

Task<Result<Election::Reply>> Candidacy::perform(Election::Request request) {
  const std::string key = key_of(options_.cluster);
  Election::Reply reply;
  switch (request.call) {
    case Election::Call::kLook: {
      CENTROID_CO_ASSIGN(reply.holder, co_await etcd_->get(key));
      break;
    }
    case Election::Call::kGrant: {
      CENTROID_CO_ASSIGN(const auto lease, co_await etcd_->grant(options_.election.ttl));
      reply.lease = lease.id;
      reply.ttl = lease.ttl;
      break;
    }
    case Election::Call::kAcquire: {
      const std::string value = encode_candidate(self_of(options_));
      CENTROID_CO_ASSIGN(reply.holder, co_await etcd_->create(key, value, request.lease));
      break;
    }
    case Election::Call::kRenew: {
      CENTROID_CO_ASSIGN(const auto lease, co_await etcd_->keep_alive(request.lease));
      reply.ttl = lease.ttl;
      if (lease.ttl <= Duration::zero()) break;
      CENTROID_CO_ASSIGN(reply.holder, co_await etcd_->get(key));
      probe_.renewed();
      break;
    }
  }
  co_return reply;
}

Task<void> Candidacy::run() {
  TaskGroup beside(thread_.executor());
  beside.spawn(candidates_.run());
  while (!stopping_ && election_.role(now()) != Election::Role::kDeposed) {
    const auto request = election_.next(now());
    if (request) {
      auto reply = co_await perform(*request);
      if (!reply.ok() && election_.trouble().empty())
        log::warn("etcd.failed", {{"error", reply.error()}});
      if (!reply.ok()) probe_.failed();
      if (reply.ok())
        election_.answered(now(), *reply);
      else
        election_.failed(now(), reply.error().message());
      publish();
      continue;
    }
    publish();
    TimePoint wake = election_.wakes();
    if (const TimePoint end = election_.acts_until(); end > now()) wake = std::min(wake, end);
    co_await stop_.wait(wake);
  }
  publish();
  is_over_ = true;
  candidates_.stop();
  if (stopping_) co_await resign();
  co_await beside.join();
}

Task<void> Candidacy::resign() {
  if (election_.role(now()) == Election::Role::kStandby && election_.lease() == 0) co_return;
  fence_.close("it stopped");
  if (election_.lease() == 0 || election_.role(now()) == Election::Role::kDeposed) co_return;
  const Status revoked = co_await etcd_->revoke(election_.lease());
  if (election_.term() == 0) co_return;
  if (revoked.ok())
    log::info("leader.resigned", {{"term", election_.term()}});
  else
    log::warn("leader.resign_failed", {{"term", election_.term()},
                                       {"why", revoked.error()},
                                       {"action", "a standby takes over when the lease runs out"}});
}

void Candidacy::publish() {
  Leadership present;
  present.role = election_.role(now());
  present.trouble = election_.trouble();
  present.servers = servers_;
  if (const auto& holder = election_.holder()) {
    present.term = holder->term;
    if (auto leader = decode_candidate(holder->value)) {
      present.leader = std::move(leader->name);
      present.data = std::move(leader->data);
      present.api = std::move(leader->api);
    }
  }
  bool opens = false;
  if (present.role != Election::Role::kStandby) {
    present.term = election_.term();
    opens = fence_.open(present.term, election_.acts_until());
  }
  if (present.role == Election::Role::kDeposed) {
    present.trouble = election_.why_deposed();
    fence_.close(present.trouble);
  }
  if (present == published_ && !opens) return;
  published_ = present;
  probe_.leads(present.role == Election::Role::kLeader, present.term);
  on_change_(std::move(present));
}

}  // namespace centroid::server
