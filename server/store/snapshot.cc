#include "server/store/snapshot.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace centroid::server {
namespace {

std::size_t bytes_of(const Chunk& chunk) {
  return static_cast<std::size_t>(chunk.elements) * sizeof(float);
}

/// The chunk with element `position` of all tensors end to end.
std::size_t chunk_at(std::span<const Chunk> chunks, std::uint64_t position) {
  const auto after =
      std::upper_bound(chunks.begin(), chunks.end(), position,
                       [](std::uint64_t at, const Chunk& chunk) { return at < chunk.position; });
  return static_cast<std::size_t>(after - chunks.begin()) - 1;
}

}  // namespace

Snapshot::Snapshot(std::shared_ptr<const ChunkPlan> plan,
                   std::vector<std::shared_ptr<const Plane>> planes,
                   const std::vector<bool>& is_here, Version version, std::uint64_t optimizer_step,
                   std::size_t copy_budget_bytes, std::function<void()> on_room)
    : plan_(std::move(plan)),
      planes_(std::move(planes)),
      version_(version),
      optimizer_step_(optimizer_step),
      copy_budget_bytes_(copy_budget_bytes),
      on_room_(std::move(on_room)),
      pieces_(planes_.size() * plan_->chunks().size()) {
  for (std::size_t plane = 0; plane < planes_.size(); ++plane) {
    for (const Chunk& chunk : plan_->chunks()) {
      if (!is_here.empty() && !is_here[chunk.id.value]) continue;
      piece(plane, chunk.id).unread = chunk.elements;
      unread_elements_ += chunk.elements;
      uncopied_bytes_ += bytes_of(chunk);
    }
  }
  is_done_ = unread_elements_ == 0;
}

Snapshot::~Snapshot() = default;

Status Snapshot::read(std::size_t plane, std::uint64_t offset, std::span<float> into) {
  const std::uint64_t total = plan_->total_elements();
  if (plane >= planes_.size())
    return Error(ErrorCode::kInvalidArgument, "snapshot has planes 0.." +
                                                  std::to_string(planes_.size() - 1) + ", not " +
                                                  std::to_string(plane));
  if (offset > total || into.size() > total - offset)
    return Error(ErrorCode::kInvalidArgument,
                 "snapshot has " + std::to_string(total) + " elements per plane; requested are " +
                     std::to_string(into.size()) + " from " + std::to_string(offset));
  if (into.empty()) return {};

  const bool was_full = is_full();
  const auto chunks = plan_->chunks();
  for (std::size_t at = chunk_at(chunks, offset); !into.empty(); ++at) {
    const Chunk& chunk = chunks[at];
    const std::uint64_t skip = offset - chunk.position;
    const std::uint64_t count = std::min<std::uint64_t>(into.size(), chunk.elements - skip);

    const std::lock_guard lock(mutex_);
    if (has_failed_)
      return Error(ErrorCode::kResourceExhausted, "snapshot of version " + to_string(version_) +
                                                      " was aborted: its copy budget of " +
                                                      std::to_string(copy_budget_bytes_) +
                                                      " bytes was too small for the changes");
    Piece& from = piece(plane, chunk.id);
    if (from.unread < count)
      return Error(ErrorCode::kFailedPrecondition, "snapshot plane " + std::to_string(plane) +
                                                       ", chunk " + to_string(chunk.id) +
                                                       ": elements may be read once");
    const float* const source =
        from.saved ? from.saved.as<float>().data() : planes_[plane]->values(chunk).data();
    std::copy_n(source + skip, count, into.begin());
    from.unread -= count;
    unread_elements_ -= count;
    if (from.unread == 0) {
      if (from.saved)
        free_copy(from, chunk);
      else
        uncopied_bytes_ -= bytes_of(chunk);
    }
    if (unread_elements_ == 0) is_done_.store(true, std::memory_order_release);
    into = into.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
  if (was_full && !is_full() && on_room_) on_room_();
  return {};
}

void Snapshot::preserve(const Plane& memory, const Chunk& chunk) {
  if (is_done()) return;
  const std::size_t plane = plane_of(memory);
  if (plane == planes_.size()) return;

  const std::lock_guard lock(mutex_);
  if (has_failed_) return;
  Piece& to = piece(plane, chunk.id);
  if (to.saved || to.unread == 0) return;
  const std::size_t bytes = bytes_of(chunk);
  if (bytes > copy_budget_bytes_ - copied_bytes_) return fail();
  try {
    to.saved = Buffer(bytes);
  } catch (const std::bad_alloc&) {
    return fail();  // training continues without this snapshot
  }
  const auto values = memory.values(chunk);
  std::copy(values.begin(), values.end(), to.saved.as<float>().begin());
  uncopied_bytes_ -= bytes;
  copied_bytes_ += bytes;
}

bool Snapshot::is_full() const {
  if (is_done()) return false;
  const std::lock_guard lock(mutex_);
  return uncopied_bytes_ > copy_budget_bytes_ - copied_bytes_;
}

std::size_t Snapshot::copied_bytes() const {
  const std::lock_guard lock(mutex_);
  return copied_bytes_;
}

std::size_t Snapshot::plane_of(const Plane& memory) const {
  const auto same = [&](const auto& plane) { return plane.get() == &memory; };
  return static_cast<std::size_t>(std::find_if(planes_.begin(), planes_.end(), same) -
                                  planes_.begin());
}

void Snapshot::free_copy(Piece& piece, const Chunk& chunk) {
  piece.saved = Buffer();
  copied_bytes_ -= bytes_of(chunk);
}

void Snapshot::drop() {
  {
    const std::lock_guard lock(mutex_);
    if (!is_done()) fail();
    is_dropped_.store(true, std::memory_order_release);
  }
  if (on_room_) on_room_();
}

void Snapshot::fail() {
  has_failed_ = true;
  pieces_.clear();
  pieces_.shrink_to_fit();
  unread_elements_ = 0;
  uncopied_bytes_ = 0;
  copied_bytes_ = 0;
  is_done_.store(true, std::memory_order_release);
}

}  // namespace centroid::server
