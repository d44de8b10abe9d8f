#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/async/task_group.h"
#include "server/election/etcd.h"

namespace centroid::server {

/// A server of the cluster that leads, or would lead.
struct Candidate {
  std::string name, data, api;   ///< endpoints, as others reach it
  std::string version;           ///< of its program
  double seen_unix_seconds = 0;  ///< when it last told etcd that it is there
  bool operator==(const Candidate&) const = default;
};

/// What a candidate tells under its key, and back. Nothing: it is no such value.
std::string encode_candidate(const Candidate& candidate);
std::optional<Candidate> decode_candidate(const std::string& text);

/// Tells etcd that this server is there, and looks who else is. Of no weight for who leads: it has
/// requests of its own, which may fail, and the key of a server is bound to a lease, so that it
/// goes when that one is gone for good.
///
/// thread  its executor
class Candidates {
 public:
  struct Options {
    MakeEtcd connect;
    std::string prefix;  ///< the key of a server is this and its name
    Candidate self;
    Duration every{};  ///< between two looks
    Duration kept{};   ///< how long one that says nothing is still shown
  };
  /// `tell` gets all there are, in the order of names, on the executor.
  Candidates(Executor executor, Options options, std::function<void(std::vector<Candidate>)> tell);

  Task<void> run();
  /// Its key goes, then `run` ends.
  void stop();

 private:
  Task<Status> announce();
  Task<Result<std::vector<Candidate>>> look();

  const Options options_;
  const std::function<void(std::vector<Candidate>)> tell_;
  const std::unique_ptr<Etcd> etcd_;
  Event stop_;
  std::int64_t lease_ = 0;  ///< 0: the key is not there
  bool stopping_ = false, is_well_ = true;
};

}  // namespace centroid::server
