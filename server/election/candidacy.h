#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/async/io_thread.h"
#include "common/async/task_group.h"
#include "common/base/metrics.h"
#include "server/election/candidates.h"
#include "server/election/election.h"
#include "server/election/etcd.h"
#include "server/election/fence.h"

namespace centroid::server {

/// The leader, as this server knows it.
struct Leadership {
  Election::Role role = Election::Role::kStandby;
  std::uint64_t term = 0;          ///< of the leader; 0: unknown
  std::string leader, data, api;   ///< its name and endpoints; empty: unknown
  std::string trouble;             ///< why etcd does not answer; empty: it does
  std::vector<Candidate> servers;  ///< leader and standbys, by etcd's last answer
  bool operator==(const Leadership&) const = default;
  /// "standby, leader is b at 10.0.0.2:7070"
  std::string to_string() const;
};

/// Metrics of the election; a server without an election always leads.
class ElectionProbe {
 public:
  explicit ElectionProbe(metrics::Registry& registry);
  void leads(bool does, std::uint64_t term) const;
  void renewed() const { renewals_.add(); }
  void failed() const { failures_.add(); }

 private:
  metrics::Gauge is_leader_, leads_, is_standby_, term_;
  metrics::Counter renewals_, failures_;
};

/// Runs one Election against etcd, on a thread of its own, so that a busy server does not lose its
/// lease. Opens and closes the fence; reports every change.
class Candidacy {
 public:
  struct Options {
    MakeEtcd connect;
    Election::Options election;
    std::string cluster;          ///< the key is /centroid/<cluster>/leader
    std::string name, data, api;  ///< of this server, as others reach it
  };
  /// `on_change` is called on the election's thread.
  Candidacy(Options options, Fence& fence, const ElectionProbe& probe,
            std::function<void(Leadership)> on_change);
  /// Release the key, if this server has it, and join.
  ~Candidacy();

  static std::string key_of(const std::string& cluster) {
    return "/centroid/" + cluster + "/leader";
  }
  /// The prefix of a server's key.
  static std::string servers_of(const std::string& cluster) {
    return "/centroid/" + cluster + "/servers/";
  }

 private:
  Task<void> run();
  Task<Result<Election::Reply>> perform(Election::Request request);
  Task<void> resign();
  void publish();

  const Options options_;
  Fence& fence_;
  const ElectionProbe& probe_;
  const std::function<void(Leadership)> on_change_;
  IoThread thread_{"election"};
  const std::unique_ptr<Etcd> etcd_;
  Election election_;
  Candidates candidates_;
  std::vector<Candidate> servers_;
  Event stop_;
  bool stopping_ = false;
  bool is_over_ = false;  ///< nothing more is published: the fence stays as it is
  Leadership published_;
  Pending<void> ended_;
};

}  // namespace centroid::server
