#include "transport/collective/peer_connection.h"

#include <algorithm>

#include "transport/collective/network.h"

namespace centroid::collective {

using transport::InFrame;
using transport::OutFrame;

namespace {

/// A payload is combined in pieces of this size: the piece, the numbers it is added to and the
/// socket's copy stay in the cache of one core.
constexpr std::size_t kPieceBytes = 256 << 10;

}  // namespace

PeerConnection::PeerConnection(Network& network, std::uint32_t rank,
                               std::unique_ptr<transport::Connection> connection,
                               std::uint32_t features)
    : network_(network),
      rank_(rank),
      connection_(std::move(connection)),
      is_unsummed_((features & kFeatureNoPayloadCrc) != 0) {
  if (!is_unsummed_) return;
  transport::FrameLimits limits = connection_->limits();
  limits.accepts_without_crc = true;
  connection_->set_limits(limits);
}

void PeerConnection::lose(Error cause) {
  if (lost_) return;
  lost_ = std::move(cause);
  connection_->close(*lost_);
  for (std::size_t i = 0; i < controls_.size(); ++i) network_.driver().end_work();
  controls_.clear();
  queue_.clear();
  waiter_.wake();
  network_.on_lost(*this);
}

void PeerConnection::stop() {
  is_stopping_ = true;
  waiter_.wake();
}

MutableBytes PeerConnection::scratch(std::size_t bytes) {
  if (scratch_bytes_ < bytes) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return {scratch_.get(), bytes};
}

// ---- writing

void PeerConnection::send_control(PeerKind kind, std::vector<std::byte> head) {
  if (lost_ || is_stopping_) return;
  network_.driver().begin_work(false);
  controls_.push_back(Control{kind, std::move(head)});
  waiter_.wake();
}

void PeerConnection::enqueue(const std::shared_ptr<Call>& call, Call::Channel& channel) {
  if (lost_ || channel.is_queued || channel.is_writing || !call->can_send(channel)) return;
  channel.is_queued = true;
  queue_.push_back(Queued{call, &channel});
  waiter_.wake();
}

void PeerConnection::give_back(std::uint64_t bytes) {
  unreturned_ += bytes;
  if (unreturned_ < kCreditBytes / 2) return;
  send_control(kReturn, encode_bytes(std::exchange(unreturned_, 0)));
}

std::optional<PeerConnection::Queued> PeerConnection::next_queued() {
  for (auto it = queue_.begin(); it != queue_.end();) {
    Call& call = *it->call;
    if (!call.can_send(*it->channel)) {
      it->channel->is_queued = false;
      it = queue_.erase(it);
      continue;
    }
    const std::uint64_t bytes = call.next_send(*it->channel).from.bytes;
    if (it->channel->is_ready || bytes <= credit_) {
      Queued queued = std::move(*it);
      queued.channel->is_queued = false;
      queue_.erase(it);
      return queued;
    }
    ++it;  // others may have begun on the other side, or be smaller
  }
  return std::nullopt;
}

Task<void> PeerConnection::write() {
  while (!lost_) {
    if (!controls_.empty()) {
      const Control control = std::move(controls_.front());
      controls_.pop_front();
      OutFrame frame;
      frame.kind = control.kind;
      frame.head = control.head;
      Status sent = co_await connection_->write(frame);
      network_.driver().end_work();
      if (!sent.ok()) lose(std::move(sent).error());
      continue;
    }
    if (auto queued = next_queued()) {
      Status sent = co_await send_segment(std::move(*queued));
      if (!sent.ok()) lose(std::move(sent).error());
      continue;
    }
    if (is_stopping_) co_return;
    if (!co_await waiter_.park()) co_return;
  }
}

Task<Status> PeerConnection::send_segment(Queued queued) {
  const std::shared_ptr<Call> call = std::move(queued.call);
  Call::Channel& channel = *queued.channel;
  const SendStep& send = call->next_send(channel);
  DataHead head = call->head_of(send);
  if (!channel.is_ready && send.from.bytes != 0) {
    credit_ -= send.from.bytes;
    head.algorithm |= 0x80;
  }
  OutFrame frame;
  frame.kind = kData;
  frame.head = Bytes(reinterpret_cast<const std::byte*>(&head), sizeof(head));
  frame.payload = call->payload_of(send);
  if (is_unsummed_) {
    frame.flags = transport::kFlagNoPayloadCrc;
  } else if (!frame.payload.empty()) {
    frame.payload_crc = call->checksum_of(send);
  }
  channel.is_writing = true;
  call->begin_io();
  writing_ = call.get();
  Status sent = co_await connection_->write(frame);
  writing_ = nullptr;
  channel.is_writing = false;
  call->end_io();
  if (sent.ok()) {
    call->sent(channel);
    enqueue(call, channel);
  }
  network_.settle(call);
  co_return sent;
}

// ---- reading

Task<void> PeerConnection::read() {
  while (true) {
    auto frame = co_await connection_->read_header();
    if (!frame.ok()) co_return lose(std::move(frame).error());
    Status taken = co_await take(std::move(*frame));
    if (!taken.ok()) co_return lose(std::move(taken).error());
  }
}

Task<Status> PeerConnection::take(InFrame frame) {
  if (frame.header.kind == kData) co_return co_await take_data(std::move(frame));
  CENTROID_CO_TRY(co_await connection_->skip_payload());
  co_return take_control(frame);
}

Task<Status> PeerConnection::take_data(InFrame frame) {
  CENTROID_CO_ASSIGN(const DataHead head, decode_data(frame.head));
  const std::uint64_t bytes = frame.header.payload_bytes;
  if (auto call = network_.find(head.key)) {
    std::optional<std::uint32_t> checksum;
    if (!is_unsummed_) checksum = frame.header.payload_crc;
    co_return co_await take_segment(std::move(call), head, checksum, bytes);
  }
  if (!network_.is_over(head.key)) co_return co_await take_early(head, bytes);
  CENTROID_CO_TRY(co_await connection_->skip_payload());
  if (head.is_on_credit()) give_back(bytes);
  network_.refuse_late(*this, head);
  co_return Status();
}

Task<Status> PeerConnection::take_early(DataHead head, std::uint64_t bytes) {
  if (!head.is_on_credit() && bytes != 0) {
    co_return Error(ErrorCode::kDataLoss,
                    "rank " + std::to_string(rank_) + " sent a segment before this rank began");
  }
  if (early_bytes_ + bytes > kCreditBytes) {
    co_return Error(ErrorCode::kResourceExhausted, "rank " + std::to_string(rank_) +
                                                       " sent more than its credit of " +
                                                       std::to_string(kCreditBytes) + " bytes");
  }
  CachedBlock segment;
  segment.memory = network_.spares().take(bytes);
  segment.bytes = bytes;
  early_bytes_ += bytes;
  CENTROID_CO_TRY(co_await connection_->read_payload(segment.payload()));
  network_.keep(*this, head, std::move(segment));
  co_return Status();
}

Task<Status> PeerConnection::take_segment(std::shared_ptr<Call> call, DataHead head,
                                          std::optional<std::uint32_t> checksum,
                                          std::uint64_t bytes) {
  if (head.is_on_credit()) give_back(bytes);
  Call::Channel* const channel = call->channel_of(rank_);
  if (channel == nullptr) {
    CENTROID_CO_TRY(co_await connection_->skip_payload());
    network_.refuse_late(*this, head);
    co_return Status();
  }
  auto expected = call->expect(*channel, head, bytes);
  if (!expected.ok() || call->is_failing()) {
    CENTROID_CO_TRY(co_await connection_->skip_payload());
    if (!expected.ok()) network_.fail(call, std::move(expected).error());
    co_return Status();
  }
  if (call->takes_pieces(*expected)) {
    co_return co_await take_pieces(std::move(call), *channel, *expected, bytes);
  }
  const std::optional<MutableBytes> place = call->place_for(*expected);
  if (place) {
    call->begin_io();
    reading_ = call.get();
  }
  const MutableBytes into = place ? *place : scratch(bytes);
  Status got = co_await connection_->read_payload(into);
  if (place) {
    reading_ = nullptr;
    call->end_io();
  }
  if (got.ok() && !call->is_failing()) {
    if (place) {
      call->stored(*channel, *expected, checksum);
    } else {
      call->received(*channel, *expected, into);
    }
    network_.advance(call);
  }
  network_.settle(call);
  co_return got;
}

Task<Status> PeerConnection::take_pieces(std::shared_ptr<Call> call, Call::Channel& channel,
                                         std::uint32_t receive, std::uint64_t bytes) {
  const MutableBytes space = scratch(kPieceBytes);
  std::uint64_t at = 0;
  while (at < bytes) {
    CENTROID_CO_ASSIGN(const Bytes piece, co_await connection_->read_piece(space));
    if (call->is_failing()) co_return co_await connection_->skip_payload();
    call->take_piece(receive, at, piece);
    at += piece.size();
  }
  call->stored(channel, receive, std::nullopt);
  network_.advance(call);
  network_.settle(call);
  co_return Status();
}

Status PeerConnection::take_control(const InFrame& frame) {
  switch (frame.header.kind) {
    case kReady: {
      CENTROID_ASSIGN(const Key key, decode_key(frame.head));
      network_.on_ready(*this, key);
      return {};
    }
    case kReturn: {
      CENTROID_ASSIGN(const std::uint64_t bytes, decode_bytes(frame.head));
      if (bytes > kCreditBytes - credit_)
        return Error(ErrorCode::kDataLoss, "the peer returned more credit than was granted");
      credit_ += bytes;
      waiter_.wake();
      return {};
    }
    case kAbort: {
      CENTROID_ASSIGN(const Abort abort, decode_abort(frame.head));
      network_.on_abort(*this, abort);
      return {};
    }
    case kQuery: {
      CENTROID_ASSIGN(const Key key, decode_key(frame.head));
      network_.on_query(*this, key);
      return {};
    }
    case kWaiting: {
      CENTROID_ASSIGN(const Waiting waiting, decode_waiting(frame.head));
      return network_.on_waiting(*this, waiting);
    }
    case kLeave: {
      // An empty head is a request, any other a confirmation.
      if (frame.head.empty()) {
        has_left_ = true;
        send_control(kLeave, encode_bytes(1));
        network_.on_left(*this);
      } else {
        has_confirmed_leave_ = true;
        network_.on_leave_confirmed();
      }
      return {};
    }
    default:
      return Error(ErrorCode::kDataLoss, "received a frame of unknown kind " +
                                             std::to_string(frame.header.kind) + " came");
  }
}

}  // namespace centroid::collective
