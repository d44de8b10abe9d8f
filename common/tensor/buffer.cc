#include "common/tensor/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

namespace centroid {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMaxBytes =
    static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - kHugePage;

std::byte* allocate(std::size_t bytes) {
  if (bytes > kMaxBytes) throw std::bad_alloc();
  const bool is_huge = bytes >= kHugePage;
  void* memory = nullptr;
  // At least one cache line, so that a free buffer has room for the link of the pool's list.
  if (posix_memalign(&memory, is_huge ? kHugePage : kAlignment, std::max(bytes, kAlignment)) != 0)
    throw std::bad_alloc();
  if (is_huge) {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    (void)madvise(memory, bytes / page * page, MADV_HUGEPAGE);  // advice: a refusal changes nothing
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

/// Shared by the pool and its buffers, whichever lives longer.
struct BufferPoolState {
  BufferPoolState(std::size_t bytes, std::size_t buffers) : buffer_bytes(bytes), max(buffers) {}
  BufferPoolState(const BufferPoolState&) = delete;
  BufferPoolState& operator=(const BufferPoolState&) = delete;
  ~BufferPoolState() {
    while (free_list != nullptr) std::free(pop());
  }

  // The free buffers are a list with links in the buffers: returning one never allocates.
  void push(std::byte* buffer) noexcept {
    std::memcpy(buffer, &free_list, sizeof(free_list));
    free_list = buffer;
  }
  std::byte* pop() noexcept {
    std::byte* const buffer = free_list;
    std::memcpy(&free_list, buffer, sizeof(free_list));
    return buffer;
  }

  const std::size_t buffer_bytes;
  const std::size_t max;
  std::mutex mutex;
  std::byte* free_list = nullptr;
  std::size_t in_use = 0;
  std::size_t high_water = 0;
};

Buffer::Buffer(std::size_t bytes) : data_(allocate(bytes)), size_(bytes) {}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      home_(std::move(other.home_)),
      owner_(std::move(other.owner_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    home_ = std::move(other.home_);
    owner_ = std::move(other.owner_);
  }
  return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::release() noexcept {
  std::byte* const data = std::exchange(data_, nullptr);
  size_ = 0;
  if (data == nullptr) return;
  if (owner_ != nullptr) return owner_.reset();
  const auto home = std::move(home_);
  home_ = nullptr;
  if (home == nullptr) {
    std::free(data);
    return;
  }
  const std::lock_guard lock(home->mutex);
  home->push(data);
  --home->in_use;
}

BufferPool::BufferPool(std::size_t buffer_bytes, std::size_t max_buffers)
    : state_(std::make_shared<BufferPoolState>(buffer_bytes, max_buffers)) {}

std::optional<Buffer> BufferPool::try_acquire() {
  const std::lock_guard lock(state_->mutex);
  if (state_->in_use >= state_->max) return std::nullopt;
  Buffer buffer;
  buffer.data_ = state_->free_list != nullptr ? state_->pop() : allocate(state_->buffer_bytes);
  buffer.size_ = state_->buffer_bytes;
  buffer.home_ = state_;
  ++state_->in_use;
  state_->high_water = std::max(state_->high_water, state_->in_use);
  return buffer;
}

std::size_t BufferPool::buffer_bytes() const { return state_->buffer_bytes; }
std::size_t BufferPool::capacity() const { return state_->max; }

std::size_t BufferPool::in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->in_use;
}

std::size_t BufferPool::high_water() const {
  const std::lock_guard lock(state_->mutex);
  return state_->high_water;
}

}  // namespace centroid
