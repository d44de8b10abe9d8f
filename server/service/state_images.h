#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/async/task.h"
#include "server/service/model_servers.h"
#include "server/service/probe.h"
#include "server/service/waits.h"

namespace centroid::server {

/// Copies of the state for workers that were left out of a round: who reads one slowly holds up no
/// round. One copy is shared by all who need its version. Of one thread.
class StateImages {
 public:
  StateImages(Executor executor, const ServerConfig& config, const Clock& clock,
              const RoundPolicy& policy, const JobState& job, OpenRound& open,
              ModelServers& servers, Waits& waits, const Probe& probe, Event& changed)
      : executor_(std::move(executor)),
        config_(config),
        clock_(clock),
        policy_(policy),
        job_(job),
        open_(open),
        servers_(servers),
        waits_(waits),
        probe_(probe),
        changed_(changed) {}

  /// So many may be in memory at once.
  void set_limit(std::size_t limit) { limit_ = limit; }
  /// One is being made: no other version may be committed.
  bool is_copying() const { return is_copying_; }
  [[nodiscard]] Raised begin_copy() { return Raised(is_copying_, changed_); }
  /// Its version comes again with other values.
  void forget_newest() { newest_.reset(); }

  bool needs_last_state(const Link& link) const;
  Task<Result<bool>> bring_state(std::shared_ptr<Link> link, transport::Session& session,
                                 Attempt::Key key);
  Task<Status> bring_last_state(std::shared_ptr<Link> link, transport::Session& session);

 private:
  bool is_of_use(const Link& link, const Attempt::Key& key) const;
  std::size_t count();
  Task<Result<std::shared_ptr<const StateImage>>> state_image(std::shared_ptr<Link> link,
                                                              std::optional<Attempt::Key> key);
  Task<Status> fill_image(StateImage& image);
  Task<Status> copy_image(StateImage& image);
  Task<Result<bool>> send_image(std::shared_ptr<Link> link, transport::Session& session,
                                std::shared_ptr<const StateImage> image,
                                std::optional<Attempt::Key> key);

  const Executor executor_;
  const ServerConfig& config_;
  const Clock& clock_;
  const RoundPolicy& policy_;
  const JobState& job_;
  OpenRound& open_;
  ModelServers& servers_;
  Waits& waits_;
  const Probe& probe_;
  Event& changed_;
  std::weak_ptr<const StateImage> newest_;
  std::vector<std::weak_ptr<const StateImage>> copies_;
  std::size_t limit_ = 2;
  bool is_copying_ = false;
};

}  // namespace centroid::server
