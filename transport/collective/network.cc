#include "transport/collective/network.h"

#include <algorithm>

#include <boost/asio/post.hpp>

namespace centroid::collective {

namespace {

/// A failed operation waits this long for its last frames before their connections are closed.
constexpr std::chrono::milliseconds kGrace{200};

std::string name_of(const PeerConnection& peer) { return "rank " + std::to_string(peer.rank()); }

}  // namespace

Network::Network(const std::shared_ptr<Station>& station, const Roster& roster)
    : driver_(station->driver),
      generation_(roster.generation),
      rank_(roster.rank),
      world_(static_cast<std::uint32_t>(roster.endpoints.size())),
      timeout_(station->options.timeout),
      leave_timeout_(station->options.leave_timeout),
      peers_(world_),
      dialer_(*this, station, roster),
      readers_(driver_->executor()),
      writers_(driver_->executor()),
      leave_(driver_->executor()),
      watchdog_(driver_->executor()) {}

Network::~Network() { close(); }

void Network::open() {
  dialer_.answer();
  is_watched_ = true;
  driver_->begin_watch();
}

void Network::add_peer(std::uint32_t rank, std::unique_ptr<transport::Connection> connection,
                       std::uint32_t features) {
  peers_[rank] = std::make_unique<PeerConnection>(*this, rank, std::move(connection), features);
  PeerConnection& peer = *peers_[rank];
  readers_.spawn(peer.read());
  writers_.spawn(peer.write());
  for (const auto& [group, over] : aborted_) notify_aborted(peer, group, over);
  std::vector<std::shared_ptr<Call>> begun;
  for (const auto& [key, call] : calls_)
    if (!call->is_failing()) begun.push_back(call);
  std::sort(begun.begin(), begun.end(),
            [](const auto& a, const auto& b) { return a->key().sequence < b->key().sequence; });
  for (const auto& call : begun) {
    if (call->is_queried && call->has_member(rank)) ask(peer, *call);
    Call::Channel* const channel = call->channel_of(rank);
    if (channel == nullptr) continue;
    if (channel->bytes_in >= kReadyFrom) peer.send_control(kReady, encode(call->key()));
    peer.enqueue(call, *channel);
  }
}

void Network::on_refused(std::uint32_t rank, const Error& why) {
  std::vector<std::shared_ptr<Call>> hit;
  for (const auto& [key, call] : calls_)
    if (!call->is_failing() && call->channel_of(rank) != nullptr) hit.push_back(call);
  for (const auto& call : hit) fail(call, why);
}

TimePoint Network::needed_until(std::uint32_t rank) const {
  TimePoint until = TimePoint::min();
  for (const auto& [key, call] : calls_)
    if (!call->is_failing() && call->channel_of(rank) != nullptr)
      until = std::max(until, call->deadline);
  return until;
}

// ---- operations

void Network::start(std::shared_ptr<Call> call, bool is_waited) {
  driver_->begin_work(is_waited);
  boost::asio::post(driver_->context(), [self = shared_from_this(), call = std::move(call)] {
    self->begin(call);
    self->settle(call);
  });
}

std::shared_ptr<Call> Network::find(const Key& key) const {
  const auto at = calls_.find(key);
  return at == calls_.end() ? nullptr : at->second;
}

bool Network::is_over(const Key& key) const {
  if (aborted_.contains(key.group)) return true;
  const auto at = started_.find(std::pair(key.group, key.tag));
  return at != started_.end() && key.sequence < at->second && !calls_.contains(key);
}

const PeerConnection* Network::lost_member(const Call& call) const {
  for (const std::uint32_t member : call.plan().members) {
    const PeerConnection* const peer = peers_[member].get();
    if (peer != nullptr && peer->lost() && !peer->has_left()) return peer;
  }
  return nullptr;
}

/// A rank that has left before its part of this call; a root may leave after its broadcast.
std::optional<std::uint32_t> Network::left_before(const Call& call) const {
  if (!has_bad_links_) return std::nullopt;
  for (const Call::Channel& channel : call.channels()) {
    const PeerConnection* const peer = peers_[channel.peer].get();
    if (peer == nullptr || !peer->has_left()) continue;
    if (channel.next_receive < channel.receives.size() || channel.next_send < channel.sends.size())
      return channel.peer;
  }
  return std::nullopt;
}

void Network::begin(const std::shared_ptr<Call>& call) {
  const Key& key = call->key();
  std::uint64_t& next = started_[std::pair(key.group, key.tag)];
  next = std::max(next, key.sequence + 1);
  calls_.emplace(key, call);
  if (call->is_failing()) return;
  if (const auto over = aborted_.find(key.group); over != aborted_.end()) {
    call->fail(over->second.cause);
    return;
  }
  if (has_bad_links_) {
    if (const PeerConnection* const peer = lost_member(*call)) {
      Error lost(peer->lost()->code(), peer->lost()->message());
      begin_abort(key.group, std::move(lost).with_context(name_of(*peer)), peer->rank());
      return;
    }
  }
  for (Call::Channel& channel : call->channels()) {
    PeerConnection* const peer = peer_at(channel.peer);
    if (peer == nullptr) {
      dialer_.need(channel.peer);
    } else if (channel.bytes_in >= kReadyFrom) {
      peer->send_control(kReady, encode(key));
    }
  }
  if (auto pending = pending_.extract(key); !pending.empty()) {
    for (const std::uint32_t rank : pending.mapped().ready) {
      if (Call::Channel* const channel = call->channel_of(rank)) channel->is_ready = true;
    }
    for (Early& early : pending.mapped().frames) {
      deliver(call, early);
      if (call->is_failing()) return;
    }
  }
  if (const auto rank = left_before(*call)) {
    Error gone(ErrorCode::kUnavailable, "rank " + std::to_string(*rank) + " has left the group");
    begin_abort(key.group, std::move(gone), *rank);
    return;
  }
  advance(call);
  watch(call->query_at);
}

void Network::deliver(const std::shared_ptr<Call>& call, Early& early) {
  PeerConnection& peer = *peer_at(early.rank);
  peer.early_bytes_ -= early.segment.bytes;
  peer.give_back(early.segment.bytes);
  Call::Channel* const channel = call->channel_of(early.rank);
  if (channel == nullptr) return refuse_late(peer, early.head);
  auto expected = call->expect(*channel, early.head, early.segment.bytes);
  if (!expected.ok()) return fail(call, std::move(expected).error());
  call->received(*channel, *expected, early.segment.payload());
  spares_.give_back(std::move(early.segment.memory));
}

void Network::advance(const std::shared_ptr<Call>& call) {
  for (Call::Channel& channel : call->channels())
    if (PeerConnection* const peer = peer_at(channel.peer)) peer->enqueue(call, channel);
}

void Network::settle(const std::shared_ptr<Call>& call) {
  if (!call->can_end() || calls_.erase(call->key()) == 0) return;
  std::erase_if(ending_, [&](const auto& entry) { return entry.second == call; });
  call->end();
  driver_->end_work();
  driver_->finish(call->is_done());
  call->wake();
}

void Network::keep(PeerConnection& peer, const DataHead& head, CachedBlock segment) {
  Early early;
  early.head = head;
  early.segment = std::move(segment);
  early.rank = peer.rank();
  if (auto call = find(head.key)) {  // begun while the payload arrived
    deliver(call, early);
    advance(call);
    settle(call);
    return;
  }
  if (is_over(head.key)) {
    peer.early_bytes_ -= early.segment.bytes;
    peer.give_back(early.segment.bytes);
    return;
  }
  pending_[head.key].frames.push_back(std::move(early));
}

void Network::refuse_late(PeerConnection& peer, const DataHead& head) {
  if (aborted_.contains(head.key.group)) return;  // in progress when it ended
  Error error(ErrorCode::kFailedPrecondition,
              name_of(peer) + " sent " + to_string(head.signature()) +
                  " for an operation that expects nothing from it on rank " +
                  std::to_string(rank_));
  begin_abort(head.key.group, std::move(error));
}

void Network::on_ready(PeerConnection& peer, const Key& key) {
  if (auto call = find(key)) {
    if (Call::Channel* const channel = call->channel_of(peer.rank())) {
      channel->is_ready = true;
      peer.waiter_.wake();
    }
    return;
  }
  if (!is_over(key)) pending_[key].ready.push_back(peer.rank());
}

// ---- failures

void Network::fail(const std::shared_ptr<Call>& call, Error error, std::uint32_t culprit) {
  begin_abort(call->key().group, std::move(error), culprit);
}

std::optional<std::uint32_t> Network::culprit() const {
  const std::uint32_t rank = culprit_;
  if (rank == kNoRank) return std::nullopt;
  return rank;
}

void Network::abort(std::uint64_t group, Error cause) {
  driver_->begin_work(false);
  boost::asio::post(driver_->context(), [self = shared_from_this(), group, cause] {
    self->begin_abort(group, cause);
    self->driver_->end_work();
  });
}

/// Every rank passes it on, because not every pair is connected: a rank that waits for a lost rank,
/// at any distance, has a connection with the one it waits for.
void Network::begin_abort(std::uint64_t group, Error cause, std::uint32_t culprit,
                          const PeerConnection* teller) {
  const auto [at, is_new] = aborted_.emplace(group, Over{cause, culprit});
  if (!is_new) return;
  if (culprit_ == kNoRank) culprit_ = culprit;
  drop_pending(group);
  for (const auto& peer : peers_)
    if (peer && peer.get() != teller) notify_aborted(*peer, group, at->second);
  std::vector<std::shared_ptr<Call>> failed;
  for (const auto& [key, call] : calls_)
    if (key.group == group) failed.push_back(call);
  for (const auto& call : failed) {
    call->fail(cause);
    if (call->has_io()) {
      ending_.emplace_back(now() + kGrace, call);
      watch(ending_.back().first);
    }
    settle(call);
  }
}

void Network::drop_pending(std::uint64_t group) {
  std::erase_if(pending_, [&](const auto& entry) {
    if (entry.first.group != group) return false;
    for (const Early& early : entry.second.frames) {
      PeerConnection& peer = *peer_at(early.rank);
      peer.early_bytes_ -= early.segment.bytes;
      peer.give_back(early.segment.bytes);
    }
    return true;
  });
}

void Network::notify_aborted(PeerConnection& peer, std::uint64_t group, const Over& over) {
  Abort abort;
  abort.group = group;
  abort.code = over.cause.code();
  abort.culprit = over.culprit;
  abort.text = over.cause.message();
  peer.send_control(kAbort, encode(abort));
}

void Network::on_abort(PeerConnection& peer, const Abort& abort) {
  begin_abort(abort.group, Error(abort.code, abort.text), abort.culprit, &peer);
}

void Network::on_lost(PeerConnection& peer) {
  has_bad_links_ = true;
  leave_.notify_all();
  if (is_closing_) return;
  std::vector<std::shared_ptr<Call>> hit;
  for (const auto& [key, call] : calls_) {
    if (!call->has_member(peer.rank())) continue;
    if (peer.has_left() && call->channel_of(peer.rank()) == nullptr) continue;
    hit.push_back(call);
  }
  for (const auto& call : hit) {
    if (peer.has_left()) {
      const Call::Channel& channel = *call->channel_of(peer.rank());
      const bool is_needed =
          channel.received < channel.receives.size() || channel.next_send < channel.sends.size();
      if (!is_needed) continue;
    }
    fail(call, Error(peer.lost()->code(), peer.lost()->message()).with_context(name_of(peer)),
         peer.rank());
  }
}

void Network::on_left(PeerConnection& peer) {
  has_bad_links_ = true;
  std::vector<std::shared_ptr<Call>> hit;
  for (const auto& [key, call] : calls_) {
    const Call::Channel* const channel = call->channel_of(peer.rank());
    // It left after its last frame: missing frames will not arrive.
    if (channel != nullptr && channel->received < channel->receives.size() &&
        channel->next_receive < channel->receives.size())
      hit.push_back(call);
  }
  for (const auto& call : hit)
    fail(call, Error(ErrorCode::kUnavailable, name_of(peer) + " has left the group"), peer.rank());
}

// ---- who waits for whom: when an operation is late, its ranks exchange what they know

void Network::notify_waiting(PeerConnection& peer, const Call& call) {
  Waiting waiting;
  waiting.key = call.key();
  waiting.rank = rank_;
  waiting.waits_for = call.waits_for();
  peer.send_control(kWaiting, encode(waiting));
  for (const auto& [rank, waits_for] : call.answers()) {
    waiting.rank = rank;
    waiting.waits_for = waits_for;
    peer.send_control(kWaiting, encode(waiting));
  }
}

void Network::ask(PeerConnection& peer, const Call& call) {
  peer.send_control(kQuery, encode(call.key()));
  notify_waiting(peer, call);
}

/// Once: report that it is late, and what we know.
void Network::ask(Call& call) {
  if (std::exchange(call.is_queried, true)) return;
  for (const std::uint32_t member : call.plan().members)
    if (PeerConnection* const peer = peer_at(member)) ask(*peer, call);
}

void Network::on_query(PeerConnection& peer, const Key& key) {
  const auto call = find(key);
  if (!call || call->is_failing()) return;  // not begun, or ended: the chain of waits stops here
  if (!call->is_queried) return ask(*call);
  notify_waiting(peer, *call);
}

Status Network::on_waiting(PeerConnection& peer, const Waiting& waiting) {
  if (waiting.rank >= world_ || waiting.waits_for >= world_)
    return Error(ErrorCode::kDataLoss, "an answer about a rank that does not exist");
  const auto call = find(waiting.key);
  if (!call || waiting.rank == rank_ || !call->answered(waiting.rank, waiting.waits_for)) return {};
  for (const std::uint32_t member : call->plan().members) {
    PeerConnection* const other = peer_at(member);
    if (other != nullptr && other != &peer) other->send_control(kWaiting, encode(waiting));
  }
  return {};
}

/// Description of the rank that an operation has waited for in vain.
std::string Network::silence(const Call& call, std::uint32_t blamed) const {
  std::string text = "rank " + std::to_string(blamed) + " did not do its part within " +
                     std::to_string(call.plan().timeout.count()) + " ms";
  const auto& failure = dialer_.failure(blamed);
  if (peers_[blamed] == nullptr && failure) text += "; no connection: " + failure->message();
  return text;
}

// ---- the watchdog: one timer for all deadlines

void Network::watch(TimePoint when) {
  if (when >= watching_) return;
  watching_ = when;
  watchdog_.expires_at(when);
  watchdog_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (error) return;
    if (const auto self = weak.lock()) self->on_watch();
  });
}

void Network::on_watch() {
  watching_ = TimePoint::max();
  const TimePoint time = now();
  std::vector<std::shared_ptr<Call>> late;
  for (const auto& [key, call] : calls_) {
    if (call->is_failing()) continue;
    if (time >= call->deadline) {
      late.push_back(call);
      continue;
    }
    if (time >= call->query_at) ask(*call);
    watch(time >= call->query_at ? call->deadline : call->query_at);
  }
  for (const auto& call : late) {
    const std::uint32_t blamed = call->blamed();
    fail(call, Error(ErrorCode::kDeadlineExceeded, silence(*call, blamed)), blamed);
  }
  const auto ending = ending_;
  for (const auto& [until, call] : ending) {
    if (until > time) {
      watch(until);
      continue;
    }
    for (const auto& peer : peers_) {
      if (peer && peer->touches(*call)) {
        peer->lose(
            Error(ErrorCode::kAborted, "closed in the middle of a frame of a failed operation"));
      }
    }
  }
}

// ---- the end

void Network::on_leave_confirmed() { leave_.notify_all(); }

Task<void> Network::shut_down() {
  is_closing_ = true;
  co_await dialer_.stop();
  const Deadline deadline = now() + leave_timeout_;
  for (const auto& peer : peers_)
    if (peer) peer->send_control(kLeave, {});
  const auto is_waiting = [this] {
    return std::any_of(peers_.begin(), peers_.end(), [](const auto& peer) {
      return peer && !peer->lost() && !peer->has_confirmed_leave();
    });
  };
  while (is_waiting() && now() < deadline) (void)co_await leave_.wait(deadline);
  for (const auto& peer : peers_)
    if (peer) peer->stop();
  // A peer that does not read must not block us.
  for (const auto& peer : peers_) {
    if (peer && !peer->has_confirmed_leave())
      peer->lose(Error(ErrorCode::kCancelled, "this rank has left"));
  }
  co_await writers_.join();
  for (const auto& peer : peers_)
    if (peer) peer->lose(Error(ErrorCode::kCancelled, "this rank has left"));
  readers_.cancel();
  co_await readers_.join();
  watchdog_.cancel();
}

void Network::close() {
  if (std::exchange(is_closed_, true)) return;
  driver_->run(shut_down());
  if (is_watched_) driver_->end_watch();
}

std::vector<std::string> Network::connections() {
  const auto names = [](Network* self) -> Task<std::vector<std::string>> {
    std::vector<std::string> out;
    for (const auto& peer : self->peers_) out.push_back(peer ? peer->connection_->peer() : "");
    co_return out;
  };
  return driver_->run(names(this));
}

transport::TrafficCounters Network::traffic() {
  const auto sum = [](Network* self) -> Task<transport::TrafficCounters> {
    transport::TrafficCounters total;
    for (const auto& peer : self->peers_) {
      if (!peer) continue;
      const transport::TrafficCounters one = peer->connection_->traffic();
      total.bytes_in += one.bytes_in;
      total.bytes_out += one.bytes_out;
      total.frames_in += one.frames_in;
      total.frames_out += one.frames_out;
    }
    co_return total;
  };
  return driver_->run(sum(this));
}

}  // namespace centroid::collective
