#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/async/task_group.h"
#include "common/base/clock.h"
#include "common/base/clock_watch.h"
#include "common/base/trace.h"
#include "common/codec/codec.h"
#include "common/codec/spec.h"
#include "common/proto/messages.h"
#include "server/aggregate/contribution_stage.h"
#include "server/coordinate/cadence.h"
#include "server/coordinate/reported_steps.h"
#include "server/coordinate/returned_shares.h"
#include "server/service/attempt.h"
#include "transport/session.h"

namespace centroid::server {

/// What the service knows of a present member beyond the roster.
struct WorkerSession {
  WorkerSession(Executor executor, std::shared_ptr<const char> of)
      : sessions(std::move(of)), wake(std::move(executor)) {}

  const std::shared_ptr<const char> sessions;  ///< of Members
  Event wake;                                  ///< its outbox: there may be something to send
  MemberId id;
  proto::Join join;
  std::shared_ptr<const Codec> codec;
  CodecSpec::Kind codec_kind = CodecSpec::Kind::kF32;
  trace::Lane lane;
  transport::Session* session = nullptr;
  TaskGroup* tasks = nullptr;  ///< of its session: joined before the session ends
  bool is_gone = false;
  Version version;                      ///< state it holds
  bool has_drifted = false;             ///< it holds another one than it should
  std::optional<proto::Finish> finish;  ///< to be sent after its attempt
  std::optional<proto::Wait> wait;      ///< to be sent: why it waits
  TimePoint wait_reported;              ///< when `wait` was sent last
  bool init_requested = false, sends_init = false;
  bool state_requested = false;
  OptimizerConfig optimizer;  ///< that it was told of when it joined
  Generation told;            ///< whose peers it knows
  std::uint64_t route = 0;    ///< that it knows, with several servers
  bool is_told_of = false;    ///< to them
  transport::TrafficCounters traffic;
  ClockWatch clock;     ///< of its machine
  std::string program;  ///< its version; empty: it has not said

  struct Evaluations {
    std::vector<Version> asked;  ///< parameters that it evaluates; its report is missing
    TimePoint asked_at;          ///< when it was last told so with a round
    SmoothedTime duration;       ///< of one, before it began to train
  };
  Evaluations evaluations;

  /// Error feedback or local steps, which belong to a round.
  struct OwnState {
    bool is_present = false;
    std::optional<Round> keep;     ///< to be told that the state after this round is saved
    bool tells_kept = false;       ///< answers Keep
    std::optional<Round> keeping;  ///< the server asked for that; the answer is missing
  };
  OwnState own_state;

  /// Its last share of samples.
  struct Share {
    DataPart part;              ///< until a contribution of it is here
    Round round;                ///< for which it got it
    std::uint64_t steps = 0;    ///< local ones
    double wanted = 0;          ///< steps it would have with data enough; 0: not known
    std::uint32_t overlap = 0;  ///< steps of it that it makes behind its contribution
    double ratio = 0;           ///< its part of its last round's samples
  };
  Share share;

  /// Its rounds of local steps.
  struct LocalSteps {
    ReportedSteps told;
    double divergence = -1;      ///< at its last average
    double parameter_norm = -1;  ///< of its parameters, as it told last
    std::uint32_t fragment = 0;  ///< of the round it began last
    std::uint32_t before = 0;    ///< of the one before, of whose average it tells
    Round round;                 ///< the round it began last
    /// A round of a fragment begins for it.
    void begin(Round next, std::uint32_t of) {
      if (std::exchange(round, next) == next) return;
      before = std::exchange(fragment, of);
    }
  };
  LocalSteps local;

  struct Contribution {
    Attempt::Key computed;              ///< the last attempt for which its gradients were complete
    std::optional<Attempt::Key> ended;  ///< the last one whose PushEnd has come
    std::optional<proto::PushEnd> pending_end;  ///< complete here, not yet on the other servers
    Scalars scalars;                            ///< of its last with any
    std::optional<TimePoint> at;                ///< its last one
  };
  Contribution contribution;

  /// How it keeps up, where a round may close without some members.
  struct Pace {
    Attempt::Key opened;      ///< the last attempt that began for it
    bool is_brought = false;  ///< its state for that is on its way: it has not begun
    TimePoint opened_at;      ///< when, or when its last chunk came, with policy bsp
    /// How long it said nothing when it was left out last; falls as it says nothing for less (bsp).
    std::optional<Duration> came_late;
    Duration silence{};    ///< the longest, of what it contributes now (bsp)
    bool is_away = false;  ///< has no seat until it is free again
    /// Since when it may not begin an epoch, for an older one is not done (asp, ssp).
    std::optional<TimePoint> held_since;
    std::optional<Attempt::Key> behind;  ///< this attempt is over; its Ready is missing
    /// It may not begin now.
    void hold(TimePoint now) {
      if (!held_since) held_since = now;
    }
  };
  Pace pace;

  /// What it still gives to a round that is over.
  struct Late {
    Attempt::Key key;
    std::unique_ptr<StagedContribution> staged;  ///< until its end is here, or does not matter
    std::optional<proto::RoundClosed> closed;    ///< what others were told
    std::optional<proto::Outcome> outcome;       ///< kLate or kCarried, once that is known
  };
  std::optional<Late> late;

  /// Of its contributions, each once, however many attempts its round took.
  struct Sums {
    std::uint64_t samples = 0, rounds = 0;
    double compute_seconds = 0, wait_seconds = 0;
    double encode_seconds = 0, decode_seconds = 0;  ///< in its codecs, as it told
  };
  /// For the operator.
  struct Measured {
    Sums sums, sums_before;  ///< with and without the last
    Round counted;           ///< the round of the last
    double step_seconds = 0, last_loss = 0;
    double send_seconds = 0, addition_seconds = 0, apply_seconds = 0;  ///< as it told
    double receive_seconds = 0;                                        ///< reading its chunks here
    double residual_norm = 0;  ///< of its error feedback, as it told last
  };
  Measured measured;

  /// Results on their way to it.
  struct Results {
    std::weak_ptr<Attempt> attempt;  ///< whose its outbox sends
    std::size_t sent = 0;            ///< of its pieces
    /// That are ready for it and not yet sent.
    std::size_t unsent() const {
      const auto from = attempt.lock();
      return from ? from->pieces.size() - sent : 0;
    }
  };
  Results results;
};

/// The first values, on their way from one worker.
struct Initial {
  MemberId from;
  std::vector<bool> is_here;  ///< by chunk
  std::size_t received = 0;
};

/// The state of a peer-to-peer exchange, on its way from one worker.
struct Upload {
  MemberId from;
  TimePoint begun, moved;
  std::size_t received = 0, chunks = 0, planes = 0;
  std::size_t pieces() const { return chunks * planes; }
};

}  // namespace centroid::server
