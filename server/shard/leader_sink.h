#pragma once

#include "common/async/task_group.h"
#include "common/proto/servers.h"
#include "server/shard/hosted_model.h"
#include "server/shard/shard_context.h"
#include "server/shard/shard_rows.h"
#include "server/shard/shard_workers.h"
#include "transport/session.h"

namespace centroid::server {

/// Handles the leader's messages to a shard server, each with its own handler. Sums and steps run
/// concurrently with reading, so that heartbeats continue.
///
/// thread  one executor
class LeaderSink final : public transport::FrameSink {
 public:
  /// `tasks`: of the session
  LeaderSink(ShardContext& context, HostedModel& model, ShardWorkers& workers, ShardRows& rows,
             TaskGroup& tasks)
      : context_(context), model_(model), workers_(workers), rows_(rows), tasks_(tasks) {}

  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;

 private:
  using Session = transport::Session;
  using InFrame = transport::InFrame;

  /// `frame` must outlive the task.
  Task<Status> dispatch(Session& session, const InFrame& frame);
  Task<Status> on_model(Session& session, const InFrame& frame);
  Task<Status> on_place(Session& session, const InFrame& frame);
  Task<Status> on_load(Session& session, const InFrame& frame);
  Task<Status> on_begin(Session& session, const InFrame& frame);
  Task<Status> on_fetch(Session& session, const InFrame& frame);
  Task<Status> on_freeze(Session& session, const InFrame& frame);
  Task<Status> on_merge(Session& session, const InFrame& frame);
  Task<Status> on_step(Session& session, const InFrame& frame);
  Task<Status> on_commit(Session& session, const InFrame& frame);
  Task<Status> on_optimizer(Session& session, const InFrame& frame);
  Task<Status> on_recall(Session& session, const InFrame& frame);
  Task<Status> on_statistics(Session& session, const InFrame& frame);
  Task<Status> on_tokens(Session& session, const InFrame& frame);
  Task<Status> on_opened(const InFrame& frame);
  Task<Status> on_memory_plan(Session& session, const InFrame& frame);
  Task<Status> on_forget(const InFrame& frame);
  static Task<Status> refuse(const InFrame& frame);

  // concurrent with reading
  Task<void> send_chunk(Session& session, transport::FrameHeader request, proto::ServerChunk head);
  Task<void> run_merge(Session& session, transport::FrameHeader request, proto::Merge merge);
  Task<void> run_step(Session& session, transport::FrameHeader request, proto::Step step);
  Task<void> run_commit(Session& session, transport::FrameHeader request, proto::ServerState state);
  Task<void> run_statistics(Session& session, transport::FrameHeader request,
                            proto::Statistics wanted);

  ShardContext& context_;
  HostedModel& model_;
  ShardWorkers& workers_;
  ShardRows& rows_;
  TaskGroup& tasks_;
};

}  // namespace centroid::server
