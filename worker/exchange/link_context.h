#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/async/task_group.h"
#include "transport/session.h"
#include "worker/exchange/link_feedback.h"
#include "worker/exchange/mailbox.h"
#include "worker/exchange/model_planes.h"

namespace centroid::worker {

/// What the parts of a ServerLink share.
///
/// thread  the link's executor
struct LinkContext {
  LinkContext(Executor on, std::unique_ptr<transport::Transport> way, ClusterOptions how,
              ExchangeMemory memory, Mailbox& to_loop, metrics::Registry& registry)
      : executor(on),
        transport(std::move(way)),
        options(std::move(how)),
        mailbox(to_loop),
        counters(registry),
        model(options, std::move(memory)),
        feedback(options, model.memory(), counters) {}

  Executor executor;
  std::unique_ptr<transport::Transport> transport;
  const ClusterOptions options;
  Mailbox& mailbox;
  ExchangeCounters counters;
  ModelPlanes model;
  LinkFeedback feedback;
  transport::Session* leader =
      nullptr;                 ///< the session with the server that leads, if there is one
  TaskGroup* tasks = nullptr;  ///< that end with it
  /// Whose peers the server has named last: a round of it is added among the workers.
  std::optional<Generation> peers_of;
  /// The server compares replicas every so many versions; 0: never. The loop reads it.
  std::atomic<std::uint32_t> compare_rounds{0};

  /// nullptr: all rounds go through the server.
  PeerReducer* peers() const {
    return model.terms().peer_timeout_ms > 0 ? options.peers.get() : nullptr;
  }

  transport::Greeting greeting() const {
    transport::Greeting out;
    out.role = "worker";
    out.name = options.join.name;
    out.run_id = model.terms().run_id;  // empty before the first join; later the same run
    out.token = options.token;
    out.manifest_hash = manifest_hash(options.join.manifest);
    out.limits.max_head_bytes = transport::kMaxHeadBytes;
    out.limits.max_payload_bytes = 256u << 20;
    return out;
  }

  /// Send one message; waits for credit as long as it takes.
  template <class Kind>
  static Task<Status> send(transport::Session& session, Kind kind, std::vector<std::byte> head,
                           Bytes payload = {}) {
    return send_frame(session, static_cast<std::uint16_t>(kind), std::move(head), payload);
  }
  /// To the leader in the background, if there is a session.
  template <class Kind>
  void post(Kind kind, std::vector<std::byte> head) {
    if (leader != nullptr) tasks->spawn(ignore(send(*leader, kind, std::move(head))));
  }

 private:
  static Task<Status> send_frame(transport::Session& session, std::uint16_t kind,
                                 std::vector<std::byte> head, Bytes payload) {
    co_return co_await session.send(kind, head, payload, TimePoint::max());
  }
  static Task<void> ignore(Task<Status> task) { (void)co_await std::move(task); }
};

}  // namespace centroid::worker
