#pragma once

#include <cstdint>
#include <string>

#include "common/base/memory_limit.h"
#include "common/base/result.h"

namespace centroid::server {

/// The memory that a model needs on the server, computed before any of it is allocated. Bytes.
struct MemoryNeed {
  std::uint64_t parameters = 0;     ///< elements
  std::uint64_t planes = 0;         ///< parameters, spare, optimizer slots, residual
  std::uint64_t plane_count = 0;    ///< of them
  std::uint64_t contributions = 0;  ///< received and not yet added: credit, or all with a policy
  std::uint64_t copies = 0;         ///< a checkpoint's, the journal's, results in flight, images
  std::uint64_t image = 0;          ///< of `copies`, one image of the state; 0: none
  std::uint64_t tables = 0;         ///< of sparse rows
  std::uint64_t base = 0;           ///< the process itself
  std::uint64_t total() const { return planes + contributions + copies + tables + base; }
};

struct MemoryQuestion {
  std::uint64_t parameters = 0, tensors = 0, chunks = 0;
  std::uint64_t slots = 0;
  bool stores_residual = false, compresses_results = false, applies_on_worker = false;
  /// Largest contribution of a worker to one round, as its codec may encode it: of the largest
  /// fragment.
  std::uint64_t contribution_bytes = 0;
  std::uint64_t result_bytes = 0;  ///< of one round, as float32
  bool is_elastic = false;         ///< contributions are stored completely until their round closes
  std::uint64_t kept = 2;          ///< of each worker then: a waiting one, and the next
  bool waits_for_all = false;      ///< a chunk is stored until all workers' have arrived
  std::uint64_t compared_at_once = 0;  ///< chunks in which each worker is compared with each
  std::uint64_t decoded_bytes = 0;     ///< of a worker then; 0: all send float32
  std::uint64_t workers = 1;           ///< that send at once
  std::uint64_t credit_bytes = 0;      ///< of all workers together
  std::uint64_t snapshot_bytes = 0, journal_copies = 0;
  std::uint64_t tables_bytes = 0;  ///< of sparse rows, and a checkpoint's copies of them
  static constexpr std::uint64_t kImages = 2;  ///< of the state, at least, for excluded members
};
MemoryNeed memory_need(const MemoryQuestion& question);
/// What it takes to compare each of so many workers with each.
std::uint64_t compared_bytes(std::uint64_t workers, std::uint64_t at_once);

using centroid::memory_limit;
using centroid::MemoryLimit;

/// fails failed_precondition: names both numbers and their parts
Status check_memory(const MemoryNeed& need, const MemoryLimit& limit);

}  // namespace centroid::server
