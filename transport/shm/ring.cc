#include "transport/shm/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace centroid::transport::shm {

namespace {

constexpr std::uint64_t kPage = 4096;
// The reader may begin with this many bytes while the writer copies the next.
constexpr std::uint64_t kPublishBytes = 32 << 10;

static_assert(sizeof(Control) <= kPage);

Error system_error(const char* what) {
  return {ErrorCode::kUnavailable, std::string(what) + ": " + std::strerror(errno)};
}

std::uint64_t file_bytes(std::uint64_t capacity) { return 2 * kPage + 2 * capacity; }

void* map_at(void* where, std::uint64_t bytes, int fd, std::uint64_t offset) {
  const int flags = MAP_SHARED | (where == nullptr ? 0 : MAP_FIXED);
  return ::mmap(where, bytes, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
}

}  // namespace

// ---- files

File& File::operator=(File&& other) noexcept {
  if (this == &other) return *this;
  if (fd_ >= 0) ::close(fd_);
  fd_ = other.release();
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

int File::release() { return std::exchange(fd_, -1); }

// ---- memory

Result<std::unique_ptr<Memory>> Memory::make(std::uint64_t capacity, File& file) {
  file = File(::memfd_create("centroid", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return system_error("memfd_create");
  if (::ftruncate(file.get(), static_cast<off_t>(file_bytes(capacity))) != 0)
    return system_error("ftruncate");
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error("F_ADD_SEALS");
  std::unique_ptr<Memory> made(new Memory(capacity));
  CENTROID_TRY(made->map(file.get()));
  return made;
}

Result<std::unique_ptr<Memory>> Memory::open(const File& file, std::uint64_t capacity) {
  struct stat status{};
  // Without the seal a peer could shrink the file, and the next access would kill this process.
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (capacity < kLeastCapacity || capacity > kMostCapacity || !std::has_single_bit(capacity) ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != file_bytes(capacity)) {
    return Error(ErrorCode::kInvalidArgument, "not a shared memory of two rings");
  }
  std::unique_ptr<Memory> made(new Memory(capacity));
  CENTROID_TRY(made->map(file.get()));
  return made;
}

Status Memory::map(int fd) {
  for (int direction = 0; direction < 2; ++direction) {
    const auto at = static_cast<std::uint64_t>(direction);
    void* const control = map_at(nullptr, kPage, fd, at * kPage);
    if (control == MAP_FAILED) return system_error("mmap");
    controls_[direction] = static_cast<Control*>(control);  // a new file is zero, as they begin
    const std::uint64_t offset = 2 * kPage + at * capacity_;
    void* const space =
        ::mmap(nullptr, 2 * capacity_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return system_error("mmap");
    data_[direction] = static_cast<std::byte*>(space);
    if (map_at(space, capacity_, fd, offset) == MAP_FAILED ||
        map_at(data_[direction] + capacity_, capacity_, fd, offset) == MAP_FAILED) {
      return system_error("mmap");
    }
  }
  return {};
}

Memory::~Memory() {
  for (int direction = 0; direction < 2; ++direction) {
    if (controls_[direction] != nullptr) ::munmap(controls_[direction], kPage);
    if (data_[direction] != nullptr) ::munmap(data_[direction], 2 * capacity_);
  }
}

// ---- the writing end

void RingWriter::attach(const Memory& memory, int direction) {
  control_ = &memory.control(direction);
  data_ = memory.data(direction);
  capacity_ = memory.capacity();
}

std::uint64_t RingWriter::free() const {
  const std::uint64_t used = head_ - control_->tail.load();
  // Padding may follow what is written.
  return used > capacity_ ? kBroken : capacity_ - std::min(capacity_, used + kAlignment);
}

bool RingWriter::publish() {
  // Sequentially consistent, as the reader's flag and its read of `head`: one side sees the other.
  control_->head.store(head_);
  return control_->reader_sleeps.load() != 0 && control_->reader_sleeps.exchange(0) != 0;
}

bool RingWriter::write(std::span<const Bytes> parts, std::size_t& written) {
  std::uint64_t space = free(), left = 0, unpublished = 0;
  bool must_call = false;
  written = 0;
  if (space == kBroken) return false;
  for (const Bytes part : parts) left += part.size();
  for (Bytes part : parts) {
    while (!part.empty() && space != 0) {
      const std::uint64_t n =
          std::min({static_cast<std::uint64_t>(part.size()), space, kPublishBytes});
      std::memcpy(data_ + head_ % capacity_, part.data(), n);
      head_ += n;
      space -= n;
      left -= n;
      written += n;
      unpublished += n;
      part = part.subspan(n);
      if (unpublished < kPublishBytes || left == 0) continue;
      unpublished = 0;
      must_call |= publish();
    }
  }
  if (written == 0) return false;
  if (left == 0)
    head_ = aligned(head_);  // seen together with the last bytes: the reader aligns too
  return publish() || must_call;
}

// ---- the reading end

void RingReader::attach(const Memory& memory, int direction) {
  control_ = &memory.control(direction);
  data_ = memory.data(direction);
  capacity_ = memory.capacity();
}

std::uint64_t RingReader::available() const {
  const std::uint64_t there = control_->head.load() - tail_;
  return there > capacity_ ? kBroken : there;
}

bool RingReader::consume(std::uint64_t bytes) {
  if (bytes == 0) return false;
  tail_ += bytes;
  control_->tail.store(tail_);
  const std::uint64_t needed = control_->writer_awaits.load();
  if (needed == 0) return false;
  const std::uint64_t used = control_->head.load() - tail_;
  if (used + kAlignment + needed > capacity_) return false;
  return control_->writer_awaits.exchange(0) != 0;
}

}  // namespace centroid::transport::shm
