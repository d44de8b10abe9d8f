#include "worker/model/cuda/pinned_batches.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

namespace centroid::worker::cuda {

PinnedBatches::PinnedBatches(Device& device, Stream& stream)
    : device_(device), stream_(stream), pinned_(device, std::numeric_limits<std::size_t>::max()) {}

Status PinnedBatches::reserve(std::size_t bytes) {
  for (One& one : all_)
    if (!one.copied) {
      CENTROID_ASSIGN(one.copied, device_.make_event());
    }
  const auto is_long = [&](const One& one) { return one.memory && one.memory.size() >= bytes; };
  if (std::ranges::all_of(all_, is_long)) return {};
  CENTROID_TRY(stream_.wait());
  try {
    for (One& one : all_) {
      one.memory = {};
      one.memory = pinned_.take(bytes);
    }
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kResourceExhausted,
                 "no memory for a batch of " + std::to_string(bytes) + " bytes");
  }
  return {};
}

Result<std::byte*> PinnedBatches::next(std::size_t bytes) {
  CENTROID_TRY(reserve(bytes));
  One& one = all_[++next_ % all_.size()];
  CENTROID_TRY(one.copied->wait());
  return one.memory.data();
}

Status PinnedBatches::note_copy() { return all_[next_ % all_.size()].copied->record(stream_); }

}  // namespace centroid::worker::cuda
