#include "worker/exchange/server_link.h"

#include <algorithm>
#include <random>

#include <boost/asio/this_coro.hpp>

#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/refusal.h"
#include "common/base/version.h"

namespace centroid::worker {

using proto::Kind;
using transport::InFrame;
using transport::Session;

namespace {

/// With several servers a worker must notice soon that the leader is gone, and find the next one:
/// half of what docs/how-to/high-availability.md allows for a takeover is the lease in etcd.
constexpr std::chrono::milliseconds kSilence{3000}, kBeat{500}, kCall{1500}, kLongestPause{400};

/// Errors that another try cannot mend.
bool is_final(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kInternal:
      return true;
    default:
      return false;
  }
}

proto::Beat beat_now() {
  proto::Beat beat;
  beat.unix_seconds = SystemClock().unix_seconds();
  beat.version = kVersion;
  return beat;
}

/// The server leads in the highest term that this worker has followed, `term`, or in a later one.
Status check_term(const proto::JoinReply& reply, std::uint64_t term,
                  const transport::Endpoint& server) {
  if (reply.term >= term) return {};
  return Error(ErrorCode::kUnavailable, server.to_string() + " leads in term " +
                                            std::to_string(reply.term) +
                                            ", this worker has followed term " +
                                            std::to_string(term) + ": that server is deposed");
}

/// What was fixed at the first join is so still.
Status check_unchanged(const proto::JoinReply& reply, const proto::JoinReply& before,
                       bool is_same_plan) {
  if (is_same_plan && reply.apply_on_worker == before.apply_on_worker &&
      reply.codec_down == before.codec_down && reply.fragments == before.fragments &&
      (reply.local_steps > 1) == (before.local_steps > 1))
    return {};
  return Error(ErrorCode::kFailedPrecondition,
               "the server came back with other settings (chunk_bytes, apply, codec_down, "
               "local_steps or fragments): restart the worker");
}

}  // namespace

void Mailbox::push(LinkEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

void Mailbox::put_back(LinkEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_front(std::move(event));
}

std::optional<LinkEvent> Mailbox::pop(bool heed_stop) {
  std::unique_lock lock(mutex_);
  const auto is_stopped = [&] { return heed_stop ? stop_ : at_once_; };
  changed_.wait(lock, [&] { return !events_.empty() || is_stopped(); });
  if (is_stopped()) return std::nullopt;
  LinkEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Mailbox::request_stop(const std::string& why, bool at_once) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(stop_, true)) why_ = why;
  at_once_ = at_once_ || at_once;
  changed_.notify_all();
}

std::string Mailbox::stop_reason() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

ServerLink::ServerLink(Executor executor, std::unique_ptr<transport::Transport> transport,
                       ClusterOptions options, ExchangeMemory memory, Mailbox& mailbox,
                       metrics::Registry& registry)
    : executor_(executor),
      transport_(std::move(transport)),
      options_(std::move(options)),
      memory_(std::move(memory)),
      mailbox_(mailbox),
      feedback_(options_, memory_),
      wake_(executor),
      loop_ready_(executor),
      joined_(executor),
      arrived_(executor),
      servers_(options_.servers) {
  reconnects_ = registry.counter("centroid_worker_reconnects_total",
                                 "Times the worker lost the server and tried again.");
  bytes_out_ =
      registry.counter("centroid_worker_payload_sent_bytes_total", "Contribution bytes sent.");
  bytes_in_ = registry.counter("centroid_worker_payload_received_bytes_total",
                               "Result and state bytes received.");
  send_ = trace::StageProbe(registry, "worker", trace::Stage::kSend);
  encode_stage_ = trace::StageProbe(registry, "worker", trace::Stage::kEncode);
  decode_stage_ = trace::StageProbe(registry, "worker", trace::Stage::kDecode);
  exchange_ = trace::StageProbe(registry, "worker", trace::Stage::kExchange);
}

Task<void> ServerLink::run() {
  std::mt19937_64 jitter(random_seed());
  auto codec = make_codec(options_.join.codec);
  if (!codec.ok()) {
    mailbox_.push({std::move(codec).error()});
    co_return;
  }
  codec_ = std::move(codec).value();
  TimePoint outside_since = now();
  std::chrono::milliseconds backoff{100};
  while (!ending_) {
    while (!loop_waits() && !ending_)
      if (!co_await loop_ready_.wait(TimePoint::max())) ending_ = true;  // it may use the memory
    if (ending_) break;
    give_up_ = outside_since + options_.join_timeout;
    Error failure(ErrorCode::kInternal, "");
    auto session = co_await connect(give_up_);
    if (session.ok() && ending_) {  // asked to end during the handshake: not to join any more
      session.value()->close(Error(ErrorCode::kCancelled, "the worker is stopping"));
      break;
    }
    if (session.ok()) {
      failure = co_await serve(*session.value());
      if (ending_) break;
      if (is_joined_) {
        backoff = std::chrono::milliseconds(100);
        outside_since = now();
        is_joined_ = false;
        if (options_.membership) options_.membership(false);
        mailbox_.push({LinkEvent::Lost{failure}});
      }
    } else {
      failure = session.error();
    }
    const bool is_put_off = refusal_of<NotReady>(failure) != nullptr;  // the server lives, and says why
    if (is_put_off) outside_since = now();
    if (is_final(failure)) {
      mailbox_.push({failure});
      co_return;
    }
    const transport::Endpoint called = servers_.present();
    if (servers_.failed(failure)) {
      log::info("server.next", {{"server", called.to_string()},
                                {"why", failure},
                                {"next", servers_.present().to_string()}});
      continue;
    }
    if (!is_put_off && now() + backoff >= outside_since + options_.join_timeout) {
      Error gave_up(ErrorCode::kUnavailable, "gave up joining " + called.to_string() + " after " +
                                                 std::to_string(options_.join_timeout.count()) +
                                                 " ms (--join-timeout): " + failure.message());
      mailbox_.push({gave_up});
      co_return;
    }
    const auto pause =
        backoff / 2 +
        std::chrono::milliseconds(jitter() % static_cast<std::uint64_t>(backoff.count() / 2 + 1));
    log::warn("server.unreachable",
              {{"server", called.to_string()}, {"why", failure}, {"retry_ms", pause.count()}});
    reconnects_.add();
    const TimePoint again = now() + pause;
    while (!ending_ && now() < again) co_await loop_ready_.wait(again);
    if (is_put_off) outside_since = now();
    const std::chrono::milliseconds longest(is_put_off ? 1000 : 5000);
    backoff = std::min(backoff * 2, servers_.is_several() ? kLongestPause : longest);
  }
}

Task<Result<std::unique_ptr<Session>>> ServerLink::connect(Deadline deadline) {
  const std::chrono::milliseconds longest(10'000);
  const auto time = servers_.is_several() ? kCall : longest;
  const TimePoint limit = std::min(deadline, now() + time);
  auto connection = co_await transport_->connect(servers_.present(), limit);
  if (!connection.ok()) co_return std::move(connection).error();
  transport::Greeting greeting;
  greeting.role = "worker";
  greeting.name = options_.join.name;
  greeting.run_id = terms_.run_id;  // empty until we have joined: later we insist on the same run
  greeting.token = options_.token;
  greeting.manifest_hash = manifest_hash(options_.join.manifest);
  greeting.limits.max_head_bytes = transport::kMaxHeadBytes;
  greeting.limits.max_payload_bytes = 256u << 20;
  co_return co_await Session::open(std::move(connection).value(), std::move(greeting), limit);
}

Status ServerLink::accept_terms(proto::JoinReply reply) {
  CENTROID_TRY(check_term(reply, term_, servers_.present()));
  term_ = reply.term;
  CENTROID_ASSIGN(auto plan, ChunkPlan::make(options_.join.manifest, reply.chunk_bytes));
  if (plan.hash() != reply.plan_hash)
    return Error(ErrorCode::kFailedPrecondition,
                 "the server cuts the model into other chunks than this program: versions differ");
  if (!joined_once_) {
    CENTROID_TRY(take_first_terms(reply, std::move(plan)));
  } else {
    CENTROID_TRY(check_unchanged(reply, terms_, plan.hash() == plan_.hash()));
  }
  terms_ = std::move(reply);
  {
    const std::lock_guard lock(traffic_mutex_);
    codecs_.codec = codec_->spec();
    codecs_.codec_down = terms_.codec_down;
  }
  joined_once_ = true;
  feedback_.settle(terms_.counted);
  have_.assign(plan_.chunks().size(), false);
  if (held_ != Version()) left_with_ = held_;
  held_ = Version();
  peers_.reset();
  route_ = {};
  shards_.clear();
  return meet_peers();
}

/// What stays as it is for all later joins.
Status ServerLink::take_first_terms(const proto::JoinReply& reply, ChunkPlan plan) {
  plan_ = std::move(plan);
  CENTROID_ASSIGN(fragments_, FragmentPlan::make(plan_, reply.fragments));
  params_ = memory_.params;
  if (reply.local_steps > 1) CENTROID_TRY(begin_local(reply));
  CENTROID_TRY(open_results(reply));
  encoded_.resize(codec_->max_bytes(plan_.max_chunk_elements()));
  CENTROID_ASSIGN(const CodecSpec spec, CodecSpec::parse(options_.join.codec));
  if (reply.fragments > 1 && spec.scope == Scope::kGlobal)
    return Error(ErrorCode::kFailedPrecondition,
                 "codec " + options_.join.codec +
                     " selects from all tensors at once, but the server has them sent in " +
                     std::to_string(reply.fragments) + " fragments: leave scope=global away");
  CENTROID_TRY(feedback_.open(reply, spec, plan_));
  if (feedback_.keeper() != nullptr) tell_of_writes();
  if (!reply.apply_on_worker) return {};
  OptimizerConfig config;
  config.name = reply.optimizer;
  CENTROID_ASSIGN(const auto optimizer, make_optimizer(config));
  slots_.assign(optimizer->slots(), std::vector<float>(plan_.total_elements()));
  return {};
}

/// Where results arrive: as the codec has them, or as floats in a plane of their own.
Status ServerLink::open_results(const proto::JoinReply& reply) {
  if (reply.codec_down != "f32") {
    if (!reply.apply_on_worker)
      return Error(ErrorCode::kFailedPrecondition,
                   "the server compresses results (codec_down " + reply.codec_down +
                       ") that are parameters: only gradients can be");
    CENTROID_ASSIGN(codec_down_, make_codec(reply.codec_down));
    encoded_results_.resize(plan_.chunks().size());
  } else {
    const std::size_t bytes = plan_.total_elements() * sizeof(float);
    second_plane_ = memory_.allocate ? memory_.allocate(bytes) : Buffer(bytes);
  }
  results_ = second_plane_.as<float>();
  return {};
}

/// Tell the side that meets the other workers how gradients are added.
Status ServerLink::meet_peers() {
  if (!options_.peers) return {};
  ReduceTerms reduce;
  reduce.run_id = terms_.run_id;
  reduce.algorithm = static_cast<collective::Algorithm>(terms_.algorithm);
  reduce.bucket_bytes = terms_.bucket_bytes;
  reduce.orders_by_bandwidth = terms_.ring_by_bandwidth;
  reduce.timeout = std::chrono::milliseconds(terms_.peer_timeout_ms);
  reduce.refuses_nonfinite =
      terms_.nonfinite != static_cast<std::uint8_t>(proto::NonFinite::kPropagate);
  reduce.codec = codec_->spec();
  reduce.seed = terms_.seed;
  reduce.fragments = terms_.fragments;
  reduce.may_list = slots_.empty() && terms_.weight_decay == 0 && terms_.clip_norm == 0;
  CENTROID_ASSIGN(const bool is_kept, options_.peers->configure(plan_, std::move(reduce)));
  if (FeedbackKeeper* const keeper = feedback_.keeper(); keeper != nullptr && !is_kept)
    keeper->broken();
  return {};
}

/// What is given to rounds is what local steps have changed.
Status ServerLink::begin_local(const proto::JoinReply& reply) {
  if (!memory_.begin_local)
    return Error(ErrorCode::kFailedPrecondition,
                 "the server wants " + std::to_string(reply.local_steps) +
                     " local steps a round (local_steps), which this program does not make");
  LocalTerms terms;
  terms.run_id = reply.run_id;
  terms.checkpoint_rounds = reply.checkpoint_rounds;
  terms.fragments = reply.fragments;
  CENTROID_ASSIGN(memory_.gradients, memory_.begin_local(terms, plan_));
  return {};
}

Task<Status> ServerLink::enter(Session& session) {
  const auto head = proto::encode(options_.join);
  const auto kind = static_cast<std::uint16_t>(Kind::kJoin);
  if (!options_.join.node.empty()) session.take_unsummed();
  const TimePoint limit = std::min(give_up_, now() + std::chrono::seconds(30));
  const auto manifest = proto::encode_manifest(options_.join.manifest);
  auto reply = co_await session.request(kind, head, manifest, limit);
  if (!reply.ok()) co_return std::move(reply).error();
  CENTROID_CO_ASSIGN(auto terms, proto::decode<proto::JoinReply>(reply->head));
  CENTROID_CO_TRY(accept_terms(std::move(terms)));
  servers_.joined();
  log::info("cluster.joined", {{"server", servers_.present().to_string()},
                               {"run_id", terms_.run_id},
                               {"member", terms_.member.value},
                               {"apply", terms_.apply_on_worker ? "worker" : "server"}});
  if (terms_.unsummed) session.send_unsummed();
  is_joined_ = true;
  if (options_.membership) options_.membership(true);
  joined_.notify_all();
  co_return Status();
}

Task<Error> ServerLink::serve(Session& session) {
  session_ = &session;
  TaskGroup children(executor_);
  auto start = [](ServerLink* self, Session* s, TaskGroup* group) -> Task<void> {
    const Status entered = co_await self->enter(*s);
    if (!entered.ok()) {
      s->close(entered.error());
      co_return;
    }
    group->spawn(self->heartbeats(*s));
    group->spawn(self->sender(*s));
  };
  children.spawn(start(this, &session, &children));
  tasks_ = &children;
  const Error cause = co_await session.run(*this);
  co_await boost::asio::this_coro::reset_cancellation_state(boost::asio::disable_cancellation());
  session.close(cause);
  session_ = nullptr;
  // Whether a whole contribution was taken is for the server to say (JoinReply.counted). What was
  // not is computed again, here or by others.
  if (open_ && undelivered_)  // it was late, and we were still sending
    round_is_over(late_end(*undelivered_));
  else if (open_ && feedback_.is_any() && sent_end_ && open_->attempt != ~std::uint32_t{0})
    feedback_.leave_open(open_->round);
  else if (open_)
    round_is_over(RoundEnd::kUndone);
  open_.reset();
  undelivered_.reset();
  opened_meanwhile_.reset();
  behind_.reset();
  keeping_.reset();
  tells_kept_ = false;
  wake_.notify_all();
  joined_.notify_all();
  arrived_.notify_all();
  for (const auto& shard : shards_)
    if (shard && shard->session != nullptr) shard->session->close(cause);
  children.cancel();
  co_await children.join();
  tasks_ = nullptr;
  const auto traffic = session.connection().traffic();
  const std::lock_guard lock(traffic_mutex_);
  closed_traffic_.bytes_in += traffic.bytes_in;
  closed_traffic_.bytes_out += traffic.bytes_out;
  live_traffic_ = {};
  co_return cause;
}

Task<void> ServerLink::heartbeats(Session& session) {
  const std::chrono::milliseconds lease(terms_.lease_ms);
  const auto kind = static_cast<std::uint16_t>(Kind::kHeartbeat);
  bool is_first = true;  // at once: whoever asks the server wants to know of us
  while (!session.is_closed()) {
    const auto beat = servers_.is_several() ? std::min(kBeat, lease / 4) : lease / 4;
    const auto longest = servers_.is_several() ? kSilence : 3 * lease;
    if (is_first) {
      const auto first = proto::encode(beat_now());
      (void)co_await session.send(kind, first, Bytes(), now() + lease);
      is_first = false;
    }
    if (!co_await sleep_until(now() + beat)) co_return;
    {
      const std::lock_guard lock(traffic_mutex_);
      live_traffic_ = session.connection().traffic();
    }
    const auto silent = now() - session.connection().last_received();
    if (silent > longest) {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
      session.close(Error(ErrorCode::kDeadlineExceeded,
                          "the server was silent for " + std::to_string(ms) + " ms"));
      co_return;
    }
    const auto head = proto::encode(beat_now());
    (void)co_await session.send(kind, head, Bytes(), now() + lease);
  }
}

transport::TrafficCounters ServerLink::traffic() const {
  const std::lock_guard lock(traffic_mutex_);
  transport::TrafficCounters sum = closed_traffic_;
  sum.bytes_in += live_traffic_.bytes_in;
  sum.bytes_out += live_traffic_.bytes_out;
  if (options_.peers) {
    const auto among_us = options_.peers->traffic();
    sum.bytes_in += among_us.bytes_in;
    sum.bytes_out += among_us.bytes_out;
  }
  return sum;
}

void ServerLink::leave_feedback() { feedback_.leave(); }

void ServerLink::look_at_residual() {
  if (feedback_.own() == nullptr) return;
  const double norm = feedback_.own()->residual_norm();
  const std::lock_guard lock(traffic_mutex_);
  codecs_.residual_norm = norm;
}

CodecTotals ServerLink::codecs() const {
  const std::lock_guard lock(traffic_mutex_);
  return codecs_;
}

void ServerLink::decoded(double seconds) {
  const std::lock_guard lock(traffic_mutex_);
  codecs_.decode_seconds += seconds;
}

void ServerLink::loop_waits(std::uint64_t serial) {
  waits_serial_ = serial;
  loop_ready_.notify_all();
  say_ready();
}

void ServerLink::end(std::string reason) {
  ending_ = true;
  here_.reset();
  loop_ready_.notify_all();
  if (session_ == nullptr) return;
  if (is_joined_)
    tasks_->spawn(say_goodbye(
        *session_, std::move(reason)));  // a child of the session, so that it does not outlive it
  else
    session_->close(Error(ErrorCode::kCancelled, std::move(reason)));
}

Task<void> ServerLink::say_goodbye(Session& session, std::string reason) {
  proto::Leave leave;
  leave.reason = reason;
  const auto head = proto::encode(leave);
  const auto kind = static_cast<std::uint16_t>(Kind::kLeave);
  (void)co_await session.request(kind, head, Bytes(), now() + std::chrono::seconds(2));
  session.close(Error(ErrorCode::kCancelled, reason));
}

}  // namespace centroid::worker
