#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/tensor/buffer.h"
#include "common/tensor/chunk_plan.h"
#include "server/store/plane.h"

namespace centroid::server {

/// A version frozen for reading by one other thread, while the store continues.
///
/// A chunk is pending until it was read; the store copies a pending chunk before it changes it. The
/// lock is held for one chunk's copy at most, so neither side waits longer.
///
/// owns    a share of the planes' memory: safe to read or drop at any moment, from any thread, even
///         after the store is destroyed
/// memory  copies of at most the budget; a change that would need more fails the snapshot instead
///         (ParameterStore::snapshot_is_full shows it beforehand)
class Snapshot {
 public:
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  Version version() const { return version_; }
  std::uint64_t optimizer_step() const { return optimizer_step_; }

  /// As PlaneReader (plane 0 the parameters, then the slots); any order, but sequential reading
  /// frees memory soonest. Each element may be read once.
  ///
  /// fails  invalid_argument: no such plane or elements; failed_precondition: read before, or not
  ///        here (ParameterStore::place); resource_exhausted: the budget was too small for the
  ///        store's changes: begin another one
  Status read(std::size_t plane, std::uint64_t offset, std::span<float> into);

  /// The copies that all pending chunks may still need exceed the rest of the budget: changes wait
  /// until more was read.
  bool is_full() const;

  /// All elements were read, or it failed: writers no longer copy.
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

 private:
  friend class ParameterStore;

  struct Piece {
    Buffer saved;              // the chunk before the store changed it
    std::uint64_t unread = 0;  // elements
  };

  Snapshot(std::shared_ptr<const ChunkPlan> plan, std::vector<std::shared_ptr<const Plane>> planes,
           const std::vector<bool>& is_here, Version version, std::uint64_t optimizer_step,
           std::size_t copy_budget_bytes, std::function<void()> on_room);

  /// Called by the store before it changes a chunk of this memory.
  void preserve(const Plane& memory, const Chunk& chunk);
  std::size_t copied_bytes() const;
  /// The reader's handle is destroyed.
  void drop();
  bool is_dropped() const { return is_dropped_.load(std::memory_order_acquire); }

  std::size_t plane_of(const Plane& memory) const;
  Piece& piece(std::size_t plane, ChunkId chunk) {
    return pieces_[plane * plan_->chunks().size() + chunk.value];
  }
  void free_copy(Piece& piece, const Chunk& chunk);
  void fail();

  const std::shared_ptr<const ChunkPlan> plan_;
  const std::vector<std::shared_ptr<const Plane>> planes_;
  const Version version_;
  const std::uint64_t optimizer_step_;
  const std::size_t copy_budget_bytes_;
  const std::function<void()> on_room_;

  std::atomic<bool> is_done_ = false, is_dropped_ = false;
  mutable std::mutex mutex_;  // guards all below
  std::vector<Piece> pieces_;
  std::uint64_t unread_elements_ = 0;
  std::size_t uncopied_bytes_ = 0;  // of pending chunks that are in the planes only
  std::size_t copied_bytes_ = 0;
  bool has_failed_ = false;
};

}  // namespace centroid::server
