#include "server/store/memory_need.h"

#include <algorithm>
#include <sstream>

namespace centroid::server {
namespace {

constexpr std::uint64_t kProcessBytes = std::uint64_t{32} << 20;
// Of Neighbours and RobustMean: a distance, and twice a row that is near; some numbers of each row.
constexpr std::uint64_t kPairBytes = 16, kRowBytes = 3328;

std::string gib(std::uint64_t bytes) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << static_cast<double>(bytes) / double(1 << 30) << " GiB";
  return text.str();
}

}  // namespace

std::uint64_t compared_bytes(std::uint64_t workers, std::uint64_t at_once) {
  return at_once * workers * (workers * kPairBytes + kRowBytes);
}

MemoryNeed memory_need(const MemoryQuestion& q) {
  const std::uint64_t plane = q.parameters * sizeof(float);
  MemoryNeed need;
  need.parameters = q.parameters;
  need.plane_count = 2 + q.slots + (q.stores_residual ? 1 : 0);
  need.planes = need.plane_count * plane;
  // With `late` each worker may send a second one before the first is added; a worker that reads
  // results or a state of one plane slowly has none in flight.
  const std::uint64_t once = q.workers * q.contribution_bytes;  // one of each worker
  need.contributions = q.is_elastic      ? q.kept * once
                       : q.waits_for_all ? once
                                         : std::min(q.credit_bytes, q.workers * q.result_bytes);
  if (q.waits_for_all) need.contributions += q.workers * q.decoded_bytes;
  need.contributions += compared_bytes(q.workers, q.compared_at_once);
  need.copies = std::min(q.snapshot_bytes, need.planes) + std::min(q.journal_copies, plane);
  if (q.compresses_results) need.copies += q.result_bytes;  // payloads are no longer than that
  if (q.is_elastic) {
    need.image = plane * (1 + (q.applies_on_worker ? q.slots : 0));
    need.copies += q.result_bytes + MemoryQuestion::kImages * need.image;  // and states
  }
  need.tables = q.tables_bytes;
  need.base = kProcessBytes + 512 * q.tensors + 256 * q.chunks;
  return need;
}

Status check_memory(const MemoryNeed& need, const MemoryLimit& limit) {
  if (need.total() <= limit.bytes) return {};
  if (need.parameters == 0)
    return Error(ErrorCode::kFailedPrecondition,
                 "the tables of sparse rows may need " + std::to_string(need.tables) + " bytes (" +
                     gib(need.tables) + "), the server itself " + std::to_string(need.base) + "; " +
                     limit.source + " allows " + std::to_string(limit.bytes) + " (" +
                     gib(limit.bytes) +
                     "). Set a smaller max_bytes of the tables; memory_limit overrides the limit");
  return Error(ErrorCode::kFailedPrecondition,  // trying again does not help
               "the model has " + std::to_string(need.parameters) + " parameters and needs " +
                   std::to_string(need.total()) + " bytes (" + gib(need.total()) + ") here, " +
                   limit.source + " allows " + std::to_string(limit.bytes) + " (" +
                   gib(limit.bytes) + "). It is made of " + std::to_string(need.plane_count) +
                   " planes (parameters, next version, optimizer slots) " + gib(need.planes) +
                   ", contributions under way " + gib(need.contributions) +
                   ", copies of checkpoint and results " + gib(need.copies) +
                   (need.tables == 0 ? "" : ", tables of sparse rows " + gib(need.tables)) +
                   ". Take an optimizer with fewer slots, a smaller model, or another machine; "
                   "memory_limit overrides the limit");
}

}  // namespace centroid::server
