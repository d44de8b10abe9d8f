#include "server/service/chunk_fetcher.h"

#include <utility>

namespace centroid::server {

ChunkFetcher::ChunkFetcher(Executor executor, TaskGroup& tasks, Fetch fetch,
                           std::vector<Wanted> wanted)
    : tasks_(tasks),
      shared_(std::make_shared<Shared>(executor, std::move(fetch))),
      wanted_(std::move(wanted)) {}

bool ChunkFetcher::is_next(std::size_t plane, ChunkId chunk) const {
  const std::size_t at = asked_ - ahead_.size();
  return at < wanted_.size() && wanted_[at].head.plane == plane && wanted_[at].head.chunk == chunk;
}

Task<void> ChunkFetcher::bring(std::shared_ptr<Shared> shared, std::shared_ptr<Slot> slot) {
  auto values = co_await shared->fetch(slot->head);
  slot->values.emplace(std::move(values));
  shared->arrived.notify_all();
}

Task<ChunkFetcher::Values> ChunkFetcher::next() {
  while (asked_ < wanted_.size() && ahead_.size() < kAhead) {
    const Wanted& wanted = wanted_[asked_];
    if (!ahead_.empty() && bytes_ahead_ + wanted.bytes > kAheadBytes) break;
    auto slot = std::make_shared<Slot>();
    slot->head = wanted.head;
    slot->bytes = wanted.bytes;
    bytes_ahead_ += wanted.bytes;
    ahead_.push_back(slot);
    tasks_.spawn(bring(shared_, slot));
    ++asked_;
  }
  if (ahead_.empty()) co_return Error(ErrorCode::kInternal, "no more chunks were wanted");
  const auto first = ahead_.front();
  const auto is_here = [first] { return first->values.has_value(); };
  const bool goes_on = co_await until(shared_->arrived, is_here);
  if (!goes_on) co_return Error(ErrorCode::kCancelled, "the server is stopping");
  ahead_.pop_front();
  bytes_ahead_ -= first->bytes;
  co_return std::move(*first->values);
}

}  // namespace centroid::server
