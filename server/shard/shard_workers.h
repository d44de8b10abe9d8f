#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/async/until.h"
#include "common/base/trace.h"
#include "common/codec/codec.h"
#include "common/proto/servers.h"
#include "server/shard/contribution_fence.h"
#include "server/shard/hosted_model.h"
#include "server/shard/shard_context.h"
#include "server/tokens/digest.h"
#include "transport/session.h"

namespace centroid::server {

/// The workers of a shard server: admission, their contributions and their results. Reports
/// complete contributions and ended sessions to the leader.
///
/// thread  one executor
class ShardWorkers {
 public:
  struct Worker {
    proto::Enter enter;
    std::shared_ptr<const Codec> codec;
    transport::Session* session = nullptr;
    TaskGroup* tasks = nullptr;
    trace::Lane lane;
    std::deque<ShardResult> outgoing;
    std::size_t unreleased = 0;  ///< bytes of its credit that are not returned yet
    Event wake;
    explicit Worker(Executor executor) : wake(executor) {}
  };

  ShardWorkers(ShardContext& context, HostedModel& model);

  // messages of the leader
  void set_opened(proto::Opened opened) { fence_.set(std::move(opened)); }
  void set_tokens(proto::Tokens tokens);
  void forget(const proto::Forget& gone);
  /// The session with the leader has ended: close all workers' sessions.
  void close_all(const Error& why);

  /// Whether `secret` is a token for workers, besides the server's own.
  bool accepts(std::string_view secret) const;
  /// First message of a worker. `tasks`: of its session
  Task<Result<std::shared_ptr<Worker>>> enter(transport::Session& session, TaskGroup& tasks,
                                              const proto::Enter& enter);
  Task<Status> take_push(transport::Session& session, std::shared_ptr<Worker> worker,
                         proto::Push push, std::uint64_t bytes);
  /// Its session has ended.
  void left(const std::shared_ptr<Worker>& worker, const Error& why);
  /// Send a result to those of the workers that are connected.
  void send(const std::vector<MemberId>& members, const ShardResult& result);
  /// Return credit to a worker.
  void release(MemberId member, std::size_t bytes);
  void add_to(proto::ServerReport& report) const;

 private:
  Result<std::shared_ptr<Worker>> admit(transport::Session& session, const proto::Enter& enter);
  Status check_push(const Worker& worker, const proto::Push& push, std::uint64_t bytes) const;
  Task<void> outbox(std::shared_ptr<Worker> worker);
  void report_whole(proto::Whole whole);
  void session_ended(const proto::Enter& enter, const Error& why);
  static Task<void> send_whole(transport::Session& leader, proto::Whole whole);
  static Task<void> send_refused(transport::Session& leader,
                                 std::shared_ptr<const proto::Refused> refused);
  Task<void> refuse_if_away(transport::Session& leader,
                            std::shared_ptr<const proto::Refused> refused);

  ShardContext& context_;
  HostedModel& model_;
  ContributionFence fence_;
  std::map<MemberId, std::shared_ptr<Worker>> workers_;
  std::set<MemberId> away_;  ///< workers whose sessions have ended and that may return
  std::vector<TokenDigest> tokens_;
  transport::TrafficCounters traffic_;  ///< of ended sessions
};

}  // namespace centroid::server
