#include "server/shard/shard_rows.h"

/// Buckets of tables that come and go at a shard server while they are in use: its leader says
/// which, and waits for each step.
namespace centroid::server {

using proto::TablesKind;

namespace {

/// Places that one Find looks through: a few milliseconds.
constexpr std::size_t kPlaces = 1u << 16;

}  // namespace

Status ShardRows::change(TablesKind kind, const proto::BucketsRoute& change) {
  Status done;
  if (kind == TablesKind::kBucketsTake) done = service_->take_buckets(change.route, change.buckets);
  if (kind == TablesKind::kBucketsGive) done = service_->give_buckets(change.route, change.buckets);
  if (kind == TablesKind::kBucketsKeep) done = service_->keep_buckets(change.route, change.buckets);
  set_beside(beside_);
  return done;
}

/// Answer when all that was done is on the disk. The session goes on meanwhile.
Task<void> ShardRows::confirm(transport::Session* session, transport::FrameHeader request) {
  const auto service = service_;
  const Status written = co_await service->on_disk(TimePoint::max());
  if (written.ok())
    (void)co_await session->respond(request, Bytes());
  else
    (void)co_await session->respond_error(request, written.error());
}

Task<Status> ShardRows::on_buckets(transport::Session& session, const transport::InFrame& frame,
                                   const std::vector<std::byte>& payload, TaskGroup& tasks) {
  if (!service_ || !is_loaded_) {
    const Error early(ErrorCode::kFailedPrecondition,
                      "server '" + options_.name + "' has no tables that it serves yet");
    co_return co_await session.respond_error(frame.header, early);
  }
  const auto kind = static_cast<TablesKind>(frame.header.kind);
  Status done;
  switch (kind) {
    case TablesKind::kBucketsFind: {
      CENTROID_CO_ASSIGN(const auto wanted, proto::decode<proto::Buckets>(frame.head));
      proto::BucketsFound found;
      found.is_done = service_->find_buckets(wanted.buckets, kPlaces);
      if (found.is_done) found.bytes = service_->bytes_found();
      const auto head = proto::encode(found);
      co_return co_await session.respond(frame.header, head);
    }
    case TablesKind::kBucketsHold: {
      CENTROID_CO_ASSIGN(const auto held, proto::decode<proto::Buckets>(frame.head));
      done = service_->hold_buckets(held.buckets);
      if (done.ok()) tasks.spawn(confirm(&session, frame.header));
      if (done.ok()) co_return Status();
      break;
    }
    case TablesKind::kBucketsRead: {
      proto::RowsBlock head;
      std::vector<std::byte> rows;
      service_->read_held(session.peer().limits.max_payload_bytes, head, rows);
      const auto encoded = proto::encode(head);
      co_return co_await session.respond(frame.header, encoded, rows);
    }
    case TablesKind::kBucketsPut: {
      CENTROID_CO_ASSIGN(const auto put, proto::decode<proto::BucketsPut>(frame.head));
      done = service_->put_rows(put, payload);
      break;
    }
    case TablesKind::kBucketsTake:
    case TablesKind::kBucketsGive:
    case TablesKind::kBucketsKeep: {
      CENTROID_CO_ASSIGN(const auto route, proto::decode<proto::BucketsRoute>(frame.head));
      done = change(kind, route);
      const bool waits = done.ok() && kind == TablesKind::kBucketsTake;
      if (waits) tasks.spawn(confirm(&session, frame.header));
      if (waits) co_return Status();
      break;
    }
    case TablesKind::kBucketsClaims: {
      const auto& claims = service_->claims();
      co_return co_await session.respond(frame.header, Bytes(), std::as_bytes(std::span(claims)));
    }
    default:
      co_return Error(ErrorCode::kInvalidArgument, "unexpected message kind " +
                                                       std::to_string(frame.header.kind) +
                                                       " from the leader (docs/wire.md)");
  }
  if (!done.ok()) co_return co_await session.respond_error(frame.header, done.error());
  co_return co_await session.respond(frame.header, Bytes());
}

}  // namespace centroid::server
