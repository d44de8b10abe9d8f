#include "server/table_servers/bucket_mover.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/log.h"
#include "server/shard/placement.h"
#include "server/store/turns.h"

namespace centroid::server {

using proto::TablesKind;

namespace {

/// Bytes at first; then as many as were moved in `kHeldGoal`.
constexpr std::uint64_t kFirstBytes = 1u << 20, kLeastBytes = 256u << 10, kMostBytes = 16u << 20;
constexpr double kHeldGoal = 0.05;
constexpr std::size_t kPlaces = 1u << 16;
constexpr std::chrono::seconds kMovePause{1};

}  // namespace

/// The server that each bucket should have. One that is gone keeps what it has, one that is not
/// ready gets none.
std::vector<std::uint16_t> BucketMover::target() const {
  std::vector<bool> keeps(group_.holders.size(), true);
  for (std::size_t i = 1; i < group_.holders.size(); ++i) {
    const TableHolder& holder = group_.holders[i];
    const bool is_draining = holder.is_here() && holder.shard->is_draining;
    const bool is_ready = holder.is_here() && holder.state == HolderState::kServing &&
                          (holder.is_named || !group_.options.writes_journal);
    keeps[i] = !is_draining && (is_ready || group_.owns(i));
  }
  return replace_buckets(group_.rows.moves().route().owners, keeps);
}

/// The first server with buckets to give, and where most of these go.
std::optional<BucketMover::Move> BucketMover::next_move() const {
  if (!group_.has_begun || group_.is_ending || group_.is_ended) return std::nullopt;
  const auto to = target();
  const auto& owners = group_.rows.moves().route().owners;
  std::map<std::pair<std::size_t, std::size_t>, std::vector<std::uint16_t>> moves;
  for (std::size_t bucket = 0; bucket < owners.size(); ++bucket)
    if (to[bucket] != owners[bucket])
      moves[{owners[bucket], to[bucket]}].push_back(static_cast<std::uint16_t>(bucket));
  if (moves.empty()) return std::nullopt;
  auto most = moves.begin();
  for (auto at = moves.begin(); at != moves.end(); ++at) {
    const bool can =
        can_move(group_.holders[at->first.first].name, group_.holders[at->first.second].name);
    const bool could =
        can_move(group_.holders[most->first.first].name, group_.holders[most->first.second].name);
    if (can > could || (can == could && at->second.size() > most->second.size())) most = at;
  }
  return Move{group_.holders[most->first.first].name, group_.holders[most->first.second].name,
              most->second};
}

bool BucketMover::can_move(const std::string& from, const std::string& to) const {
  if (group_.is_ending || group_.is_ended) return false;
  for (const std::string* name : {&from, &to}) {
    const auto which = group_.index_of(*name);
    if (!which) return false;
    const TableHolder& holder = group_.holders[*which];
    if (*which == 0) {
      if (const auto journal = group_.rows.journal().state(); journal && !journal->trouble.empty())
        return false;
      continue;
    }
    if (!holder.is_here() || holder.state != HolderState::kServing || holder.report.is_broken)
      return false;
    if (name == &to && (holder.shard->is_draining || holder.is_full)) return false;
  }
  return true;
}

BucketMover::Share BucketMover::share_of(const std::string& server) const {
  Share share;
  const auto which = group_.index_of(server);
  const auto& owners = group_.rows.moves().route().owners;
  if (!which || owners.size() != proto::kRowBuckets) return share;
  const auto to = group_.has_begun ? target() : owners;
  for (std::size_t bucket = 0; bucket < owners.size(); ++bucket) {
    share.buckets += owners[bucket] == *which;
    share.moves += (owners[bucket] == *which) != (to[bucket] == *which);
  }
  for (const proto::TableReport& table : group_.holders[*which].report.tables) {
    share.rows += table.rows;
    share.bytes += table.bytes;
  }
  return share;
}

Task<bool> BucketMover::pause() {
  ++pauses_;
  const auto is_settled = [this] { return !is_moving_; };
  const bool is_quiet = co_await until(group_.changed, is_settled);
  if (!is_quiet) resume();
  co_return is_quiet;
}

void BucketMover::resume() {
  --pauses_;
  group_.notify();
}

void BucketMover::set_moving(bool is_moving) {
  is_moving_ = is_moving;
  group_.notify();
}

Task<void> BucketMover::run() {
  while (!group_.is_ended) {
    const bool goes_on = co_await sleep_until(retry_at_);  // lint-ok: a retry
    if (!goes_on) co_return;
    const std::uint64_t seen = group_.changes;
    if (auto next = next_move()) {
      co_await move(std::move(*next));
      continue;
    }
    settled_at_ = group_.clock.now();
    problem_.clear();
    const TimePoint limit = settled_at_ + group_.options.lease / 4;
    const bool has_next = co_await group_.next_change(seen, limit);
    if (!has_next) co_return;
  }
}

/// All that go from one server to another.
Task<void> BucketMover::move(Move move) {
  retry_at_ = group_.clock.now() + kMovePause;
  if (!can_move(move.from, move.to)) {
    problem_ = "one of them is away, has no memory for more, or cannot write its journal";
    co_return;
  }
  const TimePoint begin = group_.clock.now();
  const std::uint64_t losses = group_.losses;
  auto bytes = co_await find(move.from, move.buckets);
  if (!bytes.ok()) {
    problem_ = bytes.error().to_string();
    co_return;
  }
  std::uint64_t budget = kFirstBytes, moved_bytes = 0;
  double longest = 0;
  std::size_t at = 0;
  Status status;
  while (at < move.buckets.size() && status.ok()) {
    const auto may_go = [this] { return pauses_ == 0; };
    const bool is_free = co_await until(group_.changed, may_go);
    if (!is_free) co_return;
    // One that was lost and is back did not look for them.
    if (losses != group_.losses || !can_move(move.from, move.to)) break;
    std::uint64_t some_bytes = 0;
    std::vector<std::uint16_t> some;
    do {
      some_bytes += bytes.value()[at];
      some.push_back(move.buckets[at++]);
    } while (at < move.buckets.size() && some_bytes + bytes.value()[at] <= budget);
    set_moving(true);
    const TimePoint held = group_.clock.now();
    status = co_await move_some(move.from, move.to, std::move(some));
    set_moving(false);
    const double seconds = std::chrono::duration<double>(group_.clock.now() - held).count();
    longest = std::max(longest, seconds);
    moved_bytes += some_bytes;
    const double rate = static_cast<double>(some_bytes) / std::max(seconds, 1e-4);
    budget = std::clamp(static_cast<std::uint64_t>(rate * kHeldGoal), kLeastBytes, kMostBytes);
    co_await yield(group_.executor);  // requests that waited for these are served
  }
  (void)co_await find(move.from, std::vector<std::uint16_t>());
  problem_ = status.ok() ? std::string() : status.error().to_string();
  if (!status.ok()) {
    log::warn("rows.move_failed", {{"from", move.from}, {"to", move.to}, {"why", status.error()}});
    co_return;
  }
  retry_at_ = {};
  log::info("rows.moved",
            {{"from", move.from},
             {"to", move.to},
             {"buckets", at},
             {"bytes", moved_bytes},
             {"held_seconds", longest},
             {"seconds", std::chrono::duration<double>(group_.clock.now() - begin).count()}});
}

/// Have the server find the rows of these buckets. Returns bytes by bucket. An empty list ends it.
Task<Result<std::vector<std::uint64_t>>> BucketMover::find(std::string from,
                                                           std::vector<std::uint16_t> buckets) {
  proto::Buckets wanted;
  wanted.buckets = buckets;
  const auto head = proto::encode(wanted);
  for (;;) {
    CENTROID_CO_ASSIGN(const std::size_t which, group_.place_of(from));
    proto::BucketsFound found;
    if (which == 0) {
      found.is_done = group_.rows.moves().find(buckets, kPlaces);
      if (found.is_done) found.bytes = group_.rows.moves().bytes_found();
      co_await yield(group_.executor);
    } else {
      CENTROID_CO_ASSIGN(const auto reply,
                         co_await group_.ask(which, TablesKind::kBucketsFind, head));
      CENTROID_CO_ASSIGN(found, proto::decode<proto::BucketsFound>(reply.head));
    }
    if (!found.is_done) continue;
    if (found.bytes.size() != buckets.size())
      co_return Error(ErrorCode::kInvalidArgument,
                      "server '" + from + "' found " + std::to_string(found.bytes.size()) +
                          " buckets of " + std::to_string(buckets.size()));
    co_return std::move(found.bytes);
  }
}

/// One step of a move at a server, with the route that it makes: take, release or retain.
Task<Status> BucketMover::send_route(std::string server, TablesKind kind, const proto::Route& route,
                                     std::vector<std::uint16_t> some) {
  CENTROID_CO_ASSIGN(const std::size_t which, group_.place_of(server));
  if (which == 0) {
    Status done;
    if (kind == TablesKind::kBucketsTake) done = group_.rows.moves().take(route, some);
    if (kind == TablesKind::kBucketsRelease) done = group_.rows.moves().give(route, some);
    if (kind == TablesKind::kBucketsRetain) done = group_.rows.moves().keep(route, some);
    if (!done.ok()) group_.hooks.fail(done.error());  // its tables are incomplete
    if (done.ok() && kind == TablesKind::kBucketsTake)
      done = co_await group_.rows.journal().on_disk(TimePoint::max());
    co_return done;
  }
  proto::BucketsRoute change;
  change.route = route;
  change.buckets = std::move(some);
  auto head = proto::encode(change);
  CENTROID_CO_TRY(co_await group_.ask(which, kind, std::move(head)));
  co_return Status();
}

Task<Status> BucketMover::block(std::string from, std::vector<std::uint16_t> some) {
  CENTROID_CO_ASSIGN(const std::size_t which, group_.place_of(from));
  if (which == 0) {
    CENTROID_CO_TRY(group_.rows.moves().hold(some));
    const TimePoint limit = group_.clock.now() + group_.options.lease;
    co_return co_await group_.rows.journal().on_disk(limit);
  }
  proto::Buckets held;
  held.buckets = std::move(some);
  auto head = proto::encode(held);
  CENTROID_CO_TRY(co_await group_.ask(which, TablesKind::kBucketsBlock, std::move(head)));
  co_return Status();
}

/// What is blocked goes to the other server, which stages it beside its tables.
Task<Status> BucketMover::copy(std::string from, std::string to) {
  for (bool is_first = true;; is_first = false) {
    const auto from_index = group_.index_of(from), to_index = group_.index_of(to);
    if (!from_index || !to_index)
      co_return Error(ErrorCode::kUnavailable, "one of the servers is gone");
    const HolderSession sink = group_.holders[*to_index].shard;
    proto::RowsBlock head;
    std::vector<std::byte> payload;
    if (*from_index == 0) {
      group_.rows.moves().read(group_.holders[*to_index].max_payload, head, payload);
    } else {
      CENTROID_CO_ASSIGN(auto reply, co_await group_.ask(*from_index, TablesKind::kBucketsRead));
      CENTROID_CO_ASSIGN(head, proto::decode<proto::RowsBlock>(reply.head));
      payload = std::move(reply.payload);
    }
    if (head.rows == 0 && !is_first) co_return Status();
    proto::BucketsPut put;
    put.is_first = is_first;
    put.table = head.table;
    put.is_waiting = head.is_waiting;
    put.rows = head.rows;
    if (*to_index == 0) {
      CENTROID_CO_TRY(group_.rows.moves().put(put, payload));
    } else {
      if (!sink) co_return Error(ErrorCode::kUnavailable, "server '" + to + "' is gone");
      auto encoded = proto::encode(put);
      const auto kind = static_cast<proto::ServersKind>(TablesKind::kBucketsPut);
      const TimePoint limit =
          group_.clock.now() + group_.options.lease;  // it may refuse, for lack of memory
      CENTROID_CO_TRY(co_await group_.shards.ask(sink, kind, std::move(encoded), payload, limit));
    }
    if (head.rows == 0) co_return Status();
  }
}

/// Some buckets, from the first request that waits for them to the first that is refused.
Task<Status> BucketMover::move_some(std::string from, std::string to,
                                    std::vector<std::uint16_t> some) {
  const std::size_t from_index = *group_.index_of(from),
                    to_index = *group_.index_of(to);  // no server leaves meanwhile
  const HolderSession sink = group_.holders[to_index].shard;
  Status moved = co_await block(from, some);
  if (moved.ok()) moved = co_await copy(from, to);
  const bool is_copied = moved.ok();
  proto::Route route = group_.rows.moves().route();
  ++route.version;
  for (const std::uint16_t bucket : some)
    route.owners[bucket] = static_cast<std::uint16_t>(to_index);
  if (is_copied) moved = co_await send_route(to, TablesKind::kBucketsTake, route, some);
  if (!moved.ok()) {
    const bool is_full = !is_copied && moved.error().code() == ErrorCode::kResourceExhausted;
    group_.holders[to_index].is_full = is_full;
    // Whether it has taken them is not known: when it returns, it learns that it has not.
    if (to_index != 0 && !is_full && sink) group_.shards.give_up(sink, moved.error());
    route = group_.rows.moves().route();
    route.version += 2;
    (void)co_await send_route(from, TablesKind::kBucketsRetain, route, some);
    if (from_index != 0) CENTROID_CO_TRY(group_.rows.moves().set_route(route, 0));
    co_return moved;
  }
  group_.holders[to_index].has_held = true;
  if (from_index != 0 && to_index != 0) CENTROID_CO_TRY(group_.rows.moves().set_route(route, 0));
  // One that is lost now returns, and learns where they are.
  (void)co_await send_route(from, TablesKind::kBucketsRelease, route, some);
  co_return Status();
}

}  // namespace centroid::server
