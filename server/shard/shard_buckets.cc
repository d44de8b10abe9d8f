#include "server/shard/shard_buckets.h"

#include <span>

namespace centroid::server {

using proto::TablesKind;
using transport::InFrame;
using transport::Session;

namespace {

/// Places that one Find scans: a few milliseconds.
constexpr std::size_t kPlaces = 1u << 16;

/// Answer when all changes are on disk. The session continues meanwhile.
Task<void> confirm(Session& session, transport::FrameHeader request,
                   std::shared_ptr<RowsService> service) {
  const Status written = co_await service->journal().on_disk(TimePoint::max());
  (void)co_await session.respond(request, written);
}

}  // namespace

Task<Status> ShardBuckets::on_frame(Session& session, const InFrame& frame,
                                    const std::vector<std::byte>& payload, TaskGroup& tasks,
                                    Service service) {
  switch (static_cast<TablesKind>(frame.header.kind)) {
    case TablesKind::kBucketsFind:
      co_return co_await on_find(session, frame, *service);
    case TablesKind::kBucketsBlock:
      co_return co_await on_hold(session, frame, tasks, service);
    case TablesKind::kBucketsRead:
      co_return co_await on_read(session, frame, *service);
    case TablesKind::kBucketsPut: {
      CENTROID_CO_ASSIGN(const auto put, proto::decode<proto::BucketsPut>(frame.head));
      const Status is_put = service->moves().put(put, payload);
      co_return co_await session.respond(frame.header, is_put);
    }
    case TablesKind::kBucketsTake:
    case TablesKind::kBucketsRelease:
    case TablesKind::kBucketsRetain:
      co_return co_await on_change(session, frame, tasks, service);
    case TablesKind::kBucketsClaims: {
      const auto& claims = service->moves().claims();
      co_return co_await session.respond(frame.header, Bytes(), std::as_bytes(std::span(claims)));
    }
    default:
      co_return Error(ErrorCode::kInvalidArgument, "unexpected message kind " +
                                                       std::to_string(frame.header.kind) +
                                                       " from the leader (docs/reference/wire.md)");
  }
}

Task<Status> ShardBuckets::on_find(Session& session, const InFrame& frame, RowsService& service) {
  CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Buckets>(frame.head));
  proto::BucketsFound found;
  found.is_done = service.moves().find(wanted.buckets, kPlaces);
  if (found.is_done) found.bytes = service.moves().bytes_found();
  const auto head = proto::encode(found);
  co_return co_await session.respond(frame.header, head);
}

Task<Status> ShardBuckets::on_read(Session& session, const InFrame& frame, RowsService& service) {
  proto::RowsBlock head;
  std::vector<std::byte> rows;
  service.moves().read(session.peer().limits.max_payload_bytes, head, rows);
  const auto encoded = proto::encode(head);
  co_return co_await session.respond(frame.header, encoded, rows);
}

Task<Status> ShardBuckets::on_hold(Session& session, const InFrame& frame, TaskGroup& tasks,
                                   Service service) {
  CENTROID_CO_ASSIGN(const auto held, proto::decode<proto::Buckets>(frame.head));
  const Status is_held = service->moves().hold(held.buckets);
  if (!is_held.ok()) co_return co_await session.respond_error(frame.header, is_held.error());
  tasks.spawn(confirm(session, frame.header, std::move(service)));
  co_return Status();
}

Task<Status> ShardBuckets::on_change(Session& session, const InFrame& frame, TaskGroup& tasks,
                                     Service service) {
  CENTROID_CO_ASSIGN(const auto change, proto::decode<proto::BucketsRoute>(frame.head));
  const auto kind = static_cast<TablesKind>(frame.header.kind);
  BucketMoves& moves = service->moves();
  Status changed;
  if (kind == TablesKind::kBucketsTake) changed = moves.take(change.route, change.buckets);
  if (kind == TablesKind::kBucketsRelease) changed = moves.give(change.route, change.buckets);
  if (kind == TablesKind::kBucketsRetain) changed = moves.keep(change.route, change.buckets);
  changed_();
  if (!changed.ok() || kind != TablesKind::kBucketsTake)
    co_return co_await session.respond(frame.header, changed);
  tasks.spawn(confirm(session, frame.header, std::move(service)));
  co_return Status();
}

}  // namespace centroid::server
