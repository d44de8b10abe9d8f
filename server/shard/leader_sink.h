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
  Task<Status> on_load(Session& session, const InFrame& frame);
  Task<Status> on_fetch(Session& session, const InFrame& frame);
  Task<Status> on_recall(Session& session, const InFrame& frame);
  Task<Status> on_tokens(Session& session, const InFrame& frame);
  Task<Status> on_opened(const InFrame& frame);
  Task<Status> on_forget(const InFrame& frame);
  static Task<Status> refuse(const InFrame& frame);

  /// Decode a message, have the model act on it, and answer with the outcome: before more is read,
  /// or while reading goes on.
  template <class M>
  Task<Status> act(Session& session, const InFrame& frame, Status (HostedModel::*what)(M));
  template <class M>
  Task<Status> act(Session& session, const InFrame& frame, Task<Status> (HostedModel::*what)(M));
  template <class M, class R>
  Task<Status> act_beside(Session& session, const InFrame& frame, Task<R> (HostedModel::*what)(M));
  template <class R>
  static Task<void> answer(Session& session, transport::FrameHeader request, Task<R> work);
  Task<void> send_chunk(Session& session, transport::FrameHeader request, proto::ServerChunk head);

  ShardContext& context_;
  HostedModel& model_;
  ShardWorkers& workers_;
  ShardRows& rows_;
  TaskGroup& tasks_;
};

}  // namespace centroid::server
