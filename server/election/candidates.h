#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "server/election/etcd.h"

namespace centroid::server {

/// A server of the cluster: the leader or a standby.
struct Candidate {
  std::string name, data, api;   ///< endpoints, as others reach it
  std::string version;           ///< of its program
  double seen_unix_seconds = 0;  ///< time of its last report to etcd
  bool operator==(const Candidate&) const = default;
};

/// A candidate as the value of its key, and back. Nothing: it is no such value.
std::string encode_candidate(const Candidate& candidate);
std::optional<Candidate> decode_candidate(const std::string& text);

/// Reports to etcd that this server is present, and lists the others. It has no influence on the
/// election: its requests are separate and may fail, and the key of a server is bound to a lease,
/// so that it vanishes with the server.
///
/// thread  its executor
class Candidates {
 public:
  struct Options {
    MakeEtcd connect;
    std::string prefix;  ///< the key of a server is this and its name
    Candidate self;
    Duration every{};      ///< between two reports
    Duration entry_ttl{};  ///< how long a silent one is still shown
  };
  /// `publish` receives all present ones, ordered by name, on the executor.
  Candidates(Executor executor, Options options,
             std::function<void(std::vector<Candidate>)> publish);

  Task<void> run();
  /// Delete its key, then end `run`.
  void stop();

 private:
  Task<Status> announce();
  Task<Result<std::vector<Candidate>>> list_live();

  const Options options_;
  const std::function<void(std::vector<Candidate>)> publish_;
  const std::unique_ptr<Etcd> etcd_;
  Event stop_;
  std::int64_t lease_ = 0;  ///< 0: the key is not there
  bool stopping_ = false, is_listed_ = true;
};

}  // namespace centroid::server
