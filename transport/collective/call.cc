#include "transport/collective/call.h"

#include <algorithm>
#include <cstring>

namespace centroid::collective {

namespace {

Error other_operation(std::uint32_t peer, const std::string& theirs, const std::string& ours) {
  return {ErrorCode::kFailedPrecondition, "rank " + std::to_string(peer) + " sent " + theirs +
                                              " where this rank has " + ours +
                                              "; every rank must issue the same operations"};
}

}  // namespace

Call::Call(Plan plan) : plan_(std::move(plan)) {
  Schedule& schedule = plan_.schedule;
  if (schedule.scratch_bytes != 0) scratch_ = plan_.pool->take(schedule.scratch_bytes);
  if (plan_.saves_input && !plan_.output.empty()) {
    copy_ = std::make_unique_for_overwrite<std::byte[]>(plan_.output.size());
    std::memcpy(copy_.get(), plan_.output.data(), plan_.output.size());
  }
  std::vector<std::int32_t> slots(plan_.members.size(), -1);
  const auto channel = [&](std::uint32_t local) -> Channel& {
    if (slots[local] < 0) {
      slots[local] = static_cast<std::int32_t>(channels_.size());
      channels_.emplace_back().peer = plan_.members[local];
    }
    return channels_[static_cast<std::size_t>(slots[local])];
  };
  for (std::uint32_t i = 0; i < schedule.sends.size(); ++i)
    channel(schedule.sends[i].peer).sends.push_back(i);
  for (std::uint32_t i = 0; i < schedule.receives.size(); ++i) {
    Channel& from = channel(schedule.receives[i].peer);
    from.receives.push_back(i);
    from.bytes_in += schedule.receives[i].to.bytes;
  }
  received_.resize(schedule.receives.size());
  checksums_.resize(schedule.receives.size());
  left_ = schedule.sends.size() + schedule.receives.size();
  for (const CopyStep& step : schedule.before) copy(step);
}

Call::~Call() {
  if (scratch_.memory) plan_.pool->give_back(std::move(scratch_));
}

Call::Channel* Call::channel_of(std::uint32_t global_rank) {
  for (Channel& channel : channels_)
    if (channel.peer == global_rank) return &channel;
  return nullptr;
}

bool Call::has_member(std::uint32_t global_rank) const {
  return std::find(plan_.members.begin(), plan_.members.end(), global_rank) != plan_.members.end();
}

MutableBytes Call::region(const Region& region) const {
  std::byte* base = scratch_.memory.get();
  // The input is read only: nothing is stored there unless it is the output too.
  if (region.place == Place::kInput) base = const_cast<std::byte*>(plan_.input.data());
  if (region.place == Place::kOutput) base = plan_.output.data();
  return {base + region.offset, static_cast<std::size_t>(region.bytes)};
}

void Call::copy(const CopyStep& step) {
  const Bytes from = region(step.from);
  const MutableBytes to = region(step.to);
  if (from.empty()) return;
  if (step.weighs) {
    plan_.arithmetic.scale(to.data(), from.data(), from.size() / size_of(plan_.signature.dtype),
                           plan_.weight);
  } else {
    std::memmove(to.data(), from.data(), from.size());
  }
}

// ---- sending

bool Call::can_send(const Channel& channel) const {
  if (error_ || channel.next_send == channel.sends.size()) return false;
  const SendStep& send = next_send(channel);
  return is_received(send.after) && is_received(send.also_after);
}

const SendStep& Call::next_send(const Channel& channel) const {
  return plan_.schedule.sends[channel.sends[channel.next_send]];
}

DataHead Call::head_of(const SendStep& send) const {
  DataHead head;
  head.key = plan_.key;
  head.count = plan_.signature.count;
  head.step = send.step;
  head.segment = send.segment;
  head.root = plan_.signature.root;
  head.operation = plan_.signature.operation;
  head.dtype = plan_.signature.dtype;
  head.reduction = plan_.signature.reduction;
  head.algorithm = static_cast<std::uint8_t>(plan_.signature.algorithm);
  return head;
}

Bytes Call::payload_of(const SendStep& send) const {
  if (send.from.bytes == 0) return {};
  return region(send.from);
}

std::optional<std::uint32_t> Call::checksum_of(const SendStep& send) const {
  if (send.after == kAtOnce) return std::nullopt;
  const auto at = static_cast<std::size_t>(send.after);
  if (plan_.schedule.receives[at].combines) return std::nullopt;
  return checksums_[at];
}

void Call::sent(Channel& channel) {
  ++channel.next_send;
  --left_;
}

// ---- receiving

Result<std::uint32_t> Call::expect(Channel& channel, const DataHead& head, std::uint64_t bytes) {
  if (!(head.signature() == plan_.signature)) {
    return other_operation(channel.peer, to_string(head.signature()), to_string(plan_.signature));
  }
  const auto sent = [&] {
    return "segment " + std::to_string(head.segment) + " of step " + std::to_string(head.step) +
           " with " + std::to_string(bytes) + " bytes of " + to_string(plan_.signature);
  };
  if (channel.next_receive == channel.receives.size())
    return other_operation(channel.peer, sent(), "received everything");
  const std::uint32_t at = channel.receives[channel.next_receive];
  ReceiveStep& step = plan_.schedule.receives[at];
  const bool fits = step.is_bounded ? bytes <= step.to.bytes : bytes == step.to.bytes;
  if (step.step != head.step || step.segment != head.segment || !fits) {
    return other_operation(channel.peer, sent(),
                           "segment " + std::to_string(step.segment) + " of step " +
                               std::to_string(step.step) + " with " +
                               (step.is_bounded ? "at most " : "") + std::to_string(step.to.bytes) +
                               " bytes");
  }
  ++channel.next_receive;
  if (step.is_bounded) take_length(channel, step, bytes);
  return at;
}

/// A bounded frame has its actual length. One below the maximum ends its peer's part.
void Call::take_length(Channel& channel, ReceiveStep& step, std::uint64_t bytes) {
  plan_.lengths[step.peer] += bytes;
  if (bytes == step.to.bytes) return;
  step.to.bytes = bytes;
  left_ -= channel.receives.size() - channel.next_receive;
  channel.receives.resize(channel.next_receive);
}

std::optional<MutableBytes> Call::place_for(std::uint32_t receive) {
  const ReceiveStep& step = plan_.schedule.receives[receive];
  if (step.combines || !is_received(step.after) || step.to.bytes == 0) return std::nullopt;
  return region(step.to);
}

void Call::stored(Channel& channel, std::uint32_t receive, std::optional<std::uint32_t> checksum) {
  checksums_[receive] = checksum;
  complete(channel, receive);
}

void Call::received(Channel& channel, std::uint32_t receive, Bytes payload) {
  const ReceiveStep& step = plan_.schedule.receives[receive];
  if (!is_received(step.after)) {
    CachedBlock segment;
    segment.memory = plan_.pool->take(payload.size());
    segment.bytes = payload.size();
    std::copy(payload.begin(), payload.end(), segment.payload().begin());
    early_.emplace(receive, std::move(segment));
    return;
  }
  combine(step, payload);
  complete(channel, receive);
}

void Call::combine(const ReceiveStep& step, Bytes payload) {
  const MutableBytes to = region(step.to);
  if (to.empty()) return;
  const std::size_t count = to.size() / size_of(plan_.signature.dtype);
  if (!step.combines) {
    std::memcpy(to.data(), payload.data(), to.size());
    return;
  }
  const Bytes own = region(step.own);
  const Arithmetic& arithmetic = plan_.arithmetic;
  if (step.own.place == Place::kInput && plan_.weight != 1) {
    arithmetic.combine_weighed(to.data(), payload.data(), own.data(), count, plan_.weight);
  } else if (step.payload_first) {
    arithmetic.combine(to.data(), payload.data(), own.data(), count);
  } else {
    arithmetic.combine(to.data(), own.data(), payload.data(), count);
  }
  if (!step.is_last || plan_.divisor == 1) return;
  if (plan_.is_factor) {
    arithmetic.scale(to.data(), to.data(), count, 1.0 / plan_.divisor);
  } else {
    arithmetic.divide(to.data(), to.data(), count, plan_.divisor);
  }
}

void Call::complete(Channel& channel, std::uint32_t receive) {
  received_[receive] = 1;
  ++channel.received;
  --left_;
  for (auto it = early_.begin(); it != early_.end();) {
    const ReceiveStep& step = plan_.schedule.receives[it->first];
    if (!is_received(step.after)) {
      ++it;
      continue;
    }
    combine(step, it->second.payload());
    received_[it->first] = 1;
    ++channel_of(plan_.members[step.peer])->received;
    --left_;
    plan_.pool->give_back(std::move(it->second.memory));
    early_.erase(it);
    it = early_.begin();  // another may have waited for this one
  }
}

// ---- the end

void Call::fail(Error error) {
  if (!error_) error_ = std::move(error).with_context(name());
}

std::string Call::name() const {
  return to_string(plan_.signature) + ", number " + std::to_string(plan_.key.sequence) +
         " on rank " + std::to_string(plan_.rank) + " of " + std::to_string(plan_.members.size()) +
         " in generation " + std::to_string(plan_.generation);
}

void Call::end() {
  if (error_) {
    status_ = *error_;
  } else {
    for (const CopyStep& step : plan_.schedule.after) copy(step);
  }
  if (plan_.on_end) std::exchange(plan_.on_end, nullptr)(status_);
  if (!status_.ok() && copy_) std::memcpy(plan_.output.data(), copy_.get(), plan_.output.size());
}

void Call::wake() {
  const auto take = [this] {
    const std::lock_guard lock(mutex_);
    has_woken_ = true;
    return parked_.take();
  };
  transport::Parking::resume(take(), true);
}

bool Call::park(transport::Parking::Handler& handler) {
  const std::lock_guard lock(mutex_);
  if (has_woken_) return false;
  parked_.put(std::move(handler));
  return true;
}

std::uint32_t Call::waits_for() const {
  for (const Channel& channel : channels_)
    if (channel.received < channel.receives.size()) return channel.peer;
  for (const Channel& channel : channels_)
    if (channel.next_send < channel.sends.size()) return channel.peer;
  return plan_.members[plan_.rank];
}

std::uint32_t Call::blamed() const {
  for (const Channel& channel : channels_) {
    if (channel.received < channel.receives.size() && !answers_.contains(channel.peer))
      return channel.peer;
  }
  // Every rank that we wait for waits too: follow the chain to the silent one.
  std::uint32_t rank = waits_for();
  for (std::size_t hops = 0; hops < plan_.members.size(); ++hops) {
    const auto answer = answers_.find(rank);
    if (answer == answers_.end()) break;
    rank = answer->second;
  }
  return rank;
}

}  // namespace centroid::collective
