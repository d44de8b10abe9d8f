#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/async/task.h"
#include "server/service/job_part.h"
#include "server/service/model_servers.h"

namespace centroid::server {

/// Copies of the state for workers that were left out of a round: who reads one slowly holds up no
/// round. One copy is shared by all who need its version. Of one thread.
class StateImages : private JobPart {
 public:
  StateImages(JobContext& context, ModelServers& servers) : JobPart(context), servers_(servers) {}

  /// So many may be in memory at once.
  void set_limit(std::size_t limit) { limit_ = limit; }
  /// One is being made: no other version may be committed.
  bool is_copying() const { return is_copying_; }
  /// Until it is made: no version may be committed meanwhile. fails  cancelled
  Task<Status> until_copied() const;
  [[nodiscard]] Raised begin_copy() { return Raised(is_copying_, changed_); }
  /// Its version comes again with other values.
  void forget_newest() { newest_.reset(); }

  bool needs_last_state(const WorkerSession& worker) const;
  Task<Result<bool>> transfer_state(std::shared_ptr<WorkerSession> worker,
                                    transport::Session& session, Attempt::Key key);
  Task<Status> transfer_last_state(std::shared_ptr<WorkerSession> worker,
                                   transport::Session& session);
  /// All of a version has been sent to a worker.
  void state_sent(WorkerSession& worker, const transport::Session& session, Version version,
                  std::size_t planes) const;

 private:
  bool is_of_use(const WorkerSession& worker, const Attempt::Key& key) const;
  std::size_t count();
  std::shared_ptr<const StateImage> present_copy() const;
  Task<Result<std::shared_ptr<const StateImage>>> state_image(std::shared_ptr<WorkerSession> worker,
                                                              std::optional<Attempt::Key> key);
  Task<Status> fill_image(StateImage& image);
  Task<Status> copy_image(StateImage& image);
  Task<Result<bool>> send_image(std::shared_ptr<WorkerSession> worker, transport::Session& session,
                                std::shared_ptr<const StateImage> image,
                                std::optional<Attempt::Key> key);

  ModelServers& servers_;
  std::weak_ptr<const StateImage> newest_;
  std::vector<std::weak_ptr<const StateImage>> copies_;
  std::size_t limit_ = 2;
  bool is_copying_ = false;
};

}  // namespace centroid::server
