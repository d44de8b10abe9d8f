#include "client/rows_client.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "client/rows_client/impl.h"

namespace centroid::client {

using transport::Reply;

// ---- calls

/// Of the remaining rows, those of one message to each server.
std::vector<std::unique_ptr<Part>> RowsClient::Impl::split(const Call& call,
                                                           const std::vector<std::uint32_t>& left) {
  const std::size_t servers = std::max<std::size_t>(route->servers.size(), 1);
  std::vector<std::unique_ptr<Part>> by_owner(servers);
  for (std::size_t i = 0; i < servers; ++i) {
    by_owner[i] = std::make_unique<Part>();
    by_owner[i]->lane = i == 0 ? &leader() : lanes.at(route->servers[i].name).get();
  }
  if (servers == 1) by_owner[0]->rows = left;
  for (const std::uint32_t row : left)
    if (servers > 1)
      by_owner[route->owners[proto::row_bucket(call.keys[row])]]->rows.push_back(row);
  std::erase_if(by_owner, [](const auto& part) { return part->rows.empty(); });
  for (const auto& part : by_owner) part->is_alone = by_owner.size() == 1;
  return by_owner;
}

void RowsClient::Impl::fill(Part& part, const Call& call) {
  // The excess goes with the next turn.
  if (part.rows.size() > part.lane->opened->max_rows) part.rows.resize(part.lane->opened->max_rows);
  const std::size_t n = part.rows.size(), floats = call.gradients.empty() ? 0 : dim;
  part.payload.resize(n * (sizeof(std::uint64_t) + floats * sizeof(float)));
  std::byte* const keys = part.payload.data();
  std::byte* const gradients = keys + n * sizeof(std::uint64_t);
  if (n == call.keys.size()) {  // in their order
    std::memcpy(keys, call.keys.data(), call.keys.size_bytes());
    if (floats > 0) std::memcpy(gradients, call.gradients.data(), call.gradients.size_bytes());
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t row = part.rows[i];
      std::memcpy(keys + i * sizeof(std::uint64_t), &call.keys[row], sizeof(std::uint64_t));
      if (floats > 0)
        std::memcpy(gradients + i * floats * sizeof(float), call.gradients.data() + row * floats,
                    floats * sizeof(float));
    }
  }
  if (call.kind == proto::RowsKind::kPush) part.sequence = ++part.lane->sequence;
}

Status RowsClient::Impl::take(const Part& part, const Reply& reply, const Call& call) {
  if (call.kind == proto::RowsKind::kPush) {
    CENTROID_TRY(proto::decode<proto::RowsPushReply>(reply.head));
    part.lane->answered = part.sequence;
    return {};
  }
  const std::size_t bytes = dim * sizeof(float);
  if (reply.payload.size() != part.rows.size() * bytes)
    return Error(ErrorCode::kDataLoss,
                 "table '" + table + "': " + std::to_string(part.rows.size()) +
                     " rows arrived as " + std::to_string(reply.payload.size()) + " bytes");
  if (part.rows.size() == call.keys.size()) {  // in their order
    std::memcpy(call.out.data(), reply.payload.data(), reply.payload.size());
    return {};
  }
  for (std::size_t i = 0; i < part.rows.size(); ++i)
    std::memcpy(call.out.data() + part.rows[i] * std::size_t{dim}, reply.payload.data() + i * bytes,
                bytes);
  return {};
}

const char* name_of(proto::RowsKind kind) {
  return kind == proto::RowsKind::kPush ? "a push" : "a pull";
}

/// One message, sent again after a lost connection.
Task<void> RowsClient::Impl::send(Impl* self, const Call* call, Part* part) {
  std::chrono::milliseconds pause = kFirstPause;
  const bool is_push = call->kind == proto::RowsKind::kPush;
  Lane* const lane = part->lane;
  const StalledScope hold(*lane, name_of(call->kind), part->rows.size());
  for (;;) {
    part->is_refused = false;
    part->status = co_await ensure(self, lane, call->deadline);
    if (!part->status.ok() && part->status.error().code() == ErrorCode::kAborted) {
      if (is_push && part->is_sent) {
        part->status = co_await refresh_route(self, lane, call->deadline);
        if (!part->status.ok()) co_return;
        if (lane->opened->newest >= part->sequence) {
          lane->answered = part->sequence;
          co_return;
        }
      }
      part->is_moved = true;
      co_return;
    }
    if (!part->status.ok()) co_return;
    const bool is_there = is_push && part->is_sent && lane->opened->newest >= part->sequence;
    if (self->notice && part->is_alone && !call->has_done && !is_there) {
      part->status = *std::exchange(self->notice, std::nullopt);
      co_return;
    }
    std::vector<std::byte> head;
    if (is_push) {
      proto::RowsPush push;
      push.table = lane->opened->table;
      push.rows = static_cast<std::uint32_t>(part->rows.size());
      push.sequence = part->sequence;
      push.step = call->step;
      head = proto::encode(push);
    } else {
      proto::RowsPull pull;
      pull.table = lane->opened->table;
      pull.rows = static_cast<std::uint32_t>(part->rows.size());
      head = proto::encode(pull);
    }
    part->is_sent = true;
    const auto reply = co_await ask(lane, call->kind, head, part->payload, call->deadline);
    if (reply.ok()) {
      part->status = self->take(*part, reply.value(), *call);
      co_return;
    }
    part->status = self->named(*lane, reply.error());
    const ErrorCode code = reply.error().code();
    const bool is_answer = code != ErrorCode::kUnavailable && code != ErrorCode::kCancelled &&
                           code != ErrorCode::kDeadlineExceeded;
    part->is_refused = is_answer && lane->is_open();
    lane->trouble = reply.error().message();
    if (reply.error().code() == ErrorCode::kAborted) {
      if (is_push) --lane->sequence;  // it was not applied
      part->is_moved = true;
    }
    if (reply.error().code() != ErrorCode::kUnavailable) co_return;
    const TimePoint again = lane->is_open() ? in(pause) : in(std::chrono::milliseconds(0));
    if (again >= call->deadline) co_return;
    if (lane->is_open()) {  // it does not serve yet
      if (!co_await sleep_until(again)) co_return;
    }
    pause = std::min(2 * pause, kLongestPause);
  }
}

std::string human(const Lane& lane) {
  return lane.name.empty() ? "the leader" : "server '" + lane.name + "'";
}

/// All remaining rows of the call, on any server.
Task<Status> RowsClient::Impl::serve(Impl* self, Call* call) {
  std::vector<std::uint32_t>& left = call->left;
  std::chrono::milliseconds pause = kFirstPause;
  std::optional<StalledScope> disagreement;  // until the next try
  std::optional<TimePoint> disagree_since;
  bool is_reported = false;
  while (!left.empty()) {
    if (!self->leader().is_open() || !self->route)
      CENTROID_CO_TRY(co_await request_route(self, call->deadline));
    CENTROID_CO_TRY(co_await settle_lost(self, call->deadline));
    if (disagreement) is_reported = self->leader().stalled.is_reported;
    disagreement.reset();
    const bool is_again = !call->open.empty();
    auto parts = is_again ? std::exchange(call->open, {}) : self->split(*call, left);
    bool is_moved = false;
    for (const auto& part : parts) {  // all are built before anything is sent
      if (is_again) break;
      const StalledScope hold(*part->lane, name_of(call->kind), part->rows.size());
      const Status here = co_await ensure(self, part->lane, call->deadline);
      is_moved = is_moved || (!here.ok() && here.error().code() == ErrorCode::kAborted);
      if (!here.ok() && !is_moved) co_return here;
      if (is_moved) break;
    }
    if (!self->route && !is_again) continue;  // the leader was lost meanwhile
    if (is_moved) continue;
    if (self->notice && !call->has_done && !is_again) {
      const Error lost = *std::exchange(self->notice, std::nullopt);
      co_return lost;
    }
    for (const auto& part : parts)
      if (!is_again) self->fill(*part, *call);
    if (parts.size() == 1) {
      co_await send(self, call, parts.front().get());
    } else {
      TaskGroup group(self->context.get_executor());
      for (const auto& part : parts) group.spawn(send(self, call, part.get()));
      co_await group.join();
    }
    std::vector<bool> is_done(call->keys.size());
    Status failed;
    for (auto& part : parts) {
      is_moved = is_moved || part->is_moved;
      if (part->is_moved) continue;
      if (!part->status.ok() && failed.ok()) failed = part->status;
      if (part->status.ok()) {
        call->has_done = true;
        call->done[human(*part->lane)] += part->rows.size();
        for (const std::uint32_t row : part->rows) is_done[row] = true;
      } else if (part->is_refused) {
        call->refused[human(*part->lane)] += part->rows.size();
      } else if (part->is_sent) {
        call->open.push_back(std::move(part));
      }
    }
    std::erase_if(left, [&](std::uint32_t row) { return is_done[row]; });
    CENTROID_CO_TRY(failed);
    if (!is_moved) continue;
    // The servers have a route that the leader has sent them.
    if (!disagree_since) disagree_since = in(std::chrono::milliseconds(0));
    disagreement.emplace(self->leader(), "a route that its servers go by", 0u, *disagree_since,
                         is_reported);
    const TimePoint again = in(pause);
    if (again >= call->deadline)
      co_return Error(ErrorCode::kDeadlineExceeded,
                      "table '" + self->table + "': the servers refuse rows that lie there by " +
                          "route " + std::to_string(self->route ? self->route->version : 0));
    if (!co_await sleep_until(again))
      co_return Error(ErrorCode::kCancelled, "the client is closing");
    pause = std::min(2 * pause, kLongestPause);
    self->route.reset();
  }
  co_return Status();
}

Status RowsClient::Impl::make(Call& call) {
  if (call.left.empty()) {
    call.left.resize(call.keys.size());
    std::iota(call.left.begin(), call.left.end(), 0u);
  }
  const std::lock_guard lock(turn);
  if (context.stopped()) context.restart();
  context.poll();  // a departed server's loss is known then
  return run(serve(this, &call));
}

Status RowsClient::Impl::check_size(std::size_t keys, std::size_t floats) const {
  if (floats == keys * dim) return {};
  return Error(ErrorCode::kInvalidArgument, "table '" + table + "' has dim " + std::to_string(dim) +
                                                ": " + std::to_string(keys) + " keys need " +
                                                std::to_string(keys * dim) + " floats, not " +
                                                std::to_string(floats));
}
RowsClient::RowsClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RowsClient::~RowsClient() {
  {
    const std::lock_guard lock(impl_->turn);
    impl_->is_ending = true;
  }
  impl_->ended.notify_all();
  impl_->beats.join();
  for (const auto& [name, lane] : impl_->lanes) (void)impl_->run(Impl::drop(lane.get()));
}

Result<std::unique_ptr<RowsClient>> RowsClient::open(RowsClientOptions options, std::string table) {
  if (options.timeout >= proto::kRowsClientRetention)
    return Error(ErrorCode::kInvalidArgument,
                 "timeout is " + std::to_string(options.timeout.count()) +
                     " ms, it must be below 10 minutes: the server forgets then what was pushed");
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  impl->table = std::move(table);
  CENTROID_ASSIGN(auto servers, transport::ServerList::parse(impl->options.servers));
  transport::Connector::Options connect;
  connect.servers = std::move(servers);
  connect.first_pause = kFirstPause;
  connect.longest_pause = kLongestPause;
  connect.logs_pauses = false;
  impl->connector.emplace(impl->context.get_executor(), std::move(connect));
  transport::TransportOptions how;
  if (impl->options.tls) {
    CENTROID_ASSIGN(how.layer, transport::make_tls(*impl->options.tls));
  }
  impl->transport = impl->options.make_transport(impl->context.get_executor(), how);
  const TimePoint deadline = in(impl->options.timeout);
  std::unique_ptr<RowsClient> client(new RowsClient(std::move(impl)));
  Impl& self = *client->impl_;
  self.lanes[""] = std::make_unique<Lane>();
  CENTROID_TRY(self.run(Impl::request_route(&self, deadline)));
  const std::chrono::milliseconds every(std::max(self.leader().opened->lease_ms / 4, 10u));
  self.beats = Thread("rows-keeper", [&self, every] { self.keep(every); });
  return client;
}

std::uint32_t RowsClient::dim() const { return impl_->dim; }
std::uint32_t RowsClient::max_rows() const { return impl_->leader().opened->max_rows; }
std::uint64_t RowsClient::lost() const { return impl_->lost; }

std::uint64_t RowsClient::pushed() const {
  std::uint64_t answered = impl_->answered_before;
  for (const auto& [name, lane] : impl_->lanes) answered += lane->answered;
  return answered;
}

Status RowsClient::pull(std::span<const std::uint64_t> keys, std::span<float> out) {
  CENTROID_TRY(impl_->check_size(keys.size(), out.size()));
  const TimePoint deadline = in(impl_->options.timeout);
  while (!keys.empty()) {
    const std::size_t n = std::min<std::size_t>(keys.size(), max_rows());
    Call call{proto::RowsKind::kPull, keys.first(n), {}, out.first(n * dim()), deadline};
    CENTROID_TRY(impl_->make(call));
    keys = keys.subspan(n);
    out = out.subspan(n * dim());
  }
  return {};
}

}  // namespace centroid::client
