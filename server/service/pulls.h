#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/proto/pulls.h"
#include "server/service/job_part.h"
#include "server/service/state_loader.h"

namespace centroid::server {

/// Tensors for those who are no workers: evaluation, serving, whoever wants to look. All values of
/// an answer are of one committed version: they are copied before the next one can come, and sent
/// from the copy however slowly they are read.
///
/// limits  kReaders at once; their copies together a quarter of what is free under `memory_limit`
/// thread  the service's
class Pulls : private JobPart {
 public:
  static constexpr std::size_t kReaders = 8;
  struct Request {
    transport::FrameHeader header;
    proto::Pull pull;
  };

  Pulls(JobContext& context, const StateLoader& loader, StateImages& images, ModelServers& servers)
      : JobPart(context), loader_(loader), images_(images), servers_(servers) {}
  static bool opens(std::uint16_t kind) {
    return kind == static_cast<std::uint16_t>(proto::PullKind::kPull);
  }
  /// Answer a session's only request, and end the session when the client does not.
  Task<void> serve(transport::Session& session, TaskGroup& tasks, std::shared_ptr<Request> request);

 private:
  struct Copy;
  class Seat;
  Status may_copy() const;
  Result<std::shared_ptr<Copy>> make(const std::vector<proto::TensorName>& names);
  Task<Status> answer(transport::Session& session, TaskGroup& tasks,
                      std::shared_ptr<Request> request);
  Task<void> tell(transport::Session& session, std::shared_ptr<const bool> is_over,
                  std::string waiter);
  Task<Status> fill(std::shared_ptr<Copy> copy, TaskGroup& tasks, std::string waiter);
  Task<Status> fill_once(std::shared_ptr<Copy> copy, TaskGroup& tasks);
  Task<Status> send(transport::Session& session, std::shared_ptr<const Copy> copy);

  const StateLoader& loader_;
  StateImages& images_;
  ModelServers& servers_;
  std::size_t readers_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace centroid::server
