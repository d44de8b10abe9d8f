#include "tests/simulation/memory_storage.h"

#include <cerrno>
#include <utility>

namespace centroid::test {

namespace fs = std::filesystem;
using storage::Attributes, storage::Entry, storage::File, storage::Open;
using storage::Outcome, storage::Space;

/// What a process and its open files share.
struct MemoryDisk::View {
  std::error_code asked(std::string_view operation, const fs::path& path) const {
    std::shared_ptr<const FaultHook> now;
    {
      const std::lock_guard lock(mutex);
      now = hook;
    }
    return {now ? (*now)(operation, path) : 0, std::generic_category()};
  }
  /// Run `use` on the disk, which stays the same meanwhile.
  template <class Use>
  auto on_disk(Use use) const {
    for (;;) {
      const std::shared_ptr<MemoryDisk> now = disk_now();
      const std::lock_guard lock(now->mutex_);
      if (now == disk_now()) return use(now->state_);
    }
  }
  std::shared_ptr<MemoryDisk> disk_now() const {
    const std::lock_guard lock(mutex);
    return disk;
  }
  /// From now on it sees a disk of its own.
  void leave(const DiskState& state) {
    auto own = std::make_shared<MemoryDisk>();
    own->state_ = state;
    const std::lock_guard lock(mutex);
    disk = std::move(own);
    hook.reset();
    is_detached = true;
  }

  std::uint64_t number = 0;
  mutable std::mutex mutex;  // guards the next; taken behind the disk's
  std::shared_ptr<MemoryDisk> disk;
  std::shared_ptr<const FaultHook> hook;
  bool is_detached = false;
};

void MemoryDisk::set_capacity(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  state_.set_capacity(bytes);
}

std::uint64_t MemoryDisk::used() const {
  const std::lock_guard lock(mutex_);
  return state_.used();
}

std::uint64_t MemoryDisk::digest() const {
  const std::lock_guard lock(mutex_);
  return state_.digest();
}

void MemoryDisk::crash(CounterRng& rng) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, view] : views_) view->leave(state_);
  views_.clear();
  state_.crash(rng);
}

/// A file that a process has open.
class MemoryDisk::OpenFile final : public File {
 public:
  OpenFile(std::shared_ptr<View> view, std::uint64_t handle, fs::path path)
      : view_(std::move(view)), handle_(handle), path_(std::move(path)) {}
  ~OpenFile() override { release(); }

  Outcome<Attributes> attributes() override {
    return view_->on_disk(
        [&](DiskState& disk) -> Outcome<Attributes> { return disk.attributes(handle_); });
  }
  Outcome<std::size_t> write(Bytes bytes) override {
    if (const auto error = view_->asked("write", path_)) return error;
    return view_->on_disk([&](DiskState& disk) { return disk.append(handle_, bytes); });
  }
  Outcome<std::size_t> write_at(std::uint64_t offset, Bytes bytes) override {
    if (const auto error = view_->asked("write", path_)) return error;
    return view_->on_disk([&](DiskState& disk) { return disk.write(handle_, offset, bytes); });
  }
  Outcome<std::size_t> read_at(std::uint64_t offset, MutableBytes into) override {
    if (const auto error = view_->asked("read", path_)) return error;
    return view_->on_disk([&](DiskState& disk) { return disk.read(handle_, offset, into); });
  }
  std::error_code truncate(std::uint64_t bytes) override {
    if (const auto error = view_->asked("truncate", path_)) return error;
    return view_->on_disk([&](DiskState& disk) { return disk.truncate(handle_, bytes); });
  }
  std::error_code sync() override {
    const auto error = view_->asked("sync", path_);
    return view_->on_disk([&](DiskState& disk) {
      if (error)
        disk.fail_sync(handle_);
      else
        disk.sync(handle_);
      return error;
    });
  }
  std::error_code sync_data() override { return sync(); }
  std::error_code lock() override {
    return view_->on_disk([&](DiskState& disk) { return disk.lock(handle_); });
  }
  std::error_code close() override {
    const auto error = view_->asked("close", path_);
    if (!error) release();
    return error;
  }

 private:
  void release() {
    view_->on_disk([&](DiskState& disk) { disk.close(handle_); });
  }

  const std::shared_ptr<View> view_;
  const std::uint64_t handle_;
  const fs::path path_;
};

MemoryStorage::MemoryStorage(std::shared_ptr<MemoryDisk> disk)
    : view_(std::make_shared<MemoryDisk::View>()) {
  const std::lock_guard lock(disk->mutex_);
  view_->number = disk->next_view_++;
  disk->views_.emplace(view_->number, view_.get());
  view_->disk = disk;
}

MemoryStorage::~MemoryStorage() {
  const auto disk = view_->disk_now();
  const std::lock_guard lock(disk->mutex_);
  disk->views_.erase({view_->number, view_.get()});
}

void MemoryStorage::set_hook(FaultHook hook) {
  const std::lock_guard lock(view_->mutex);
  view_->hook = std::make_shared<const FaultHook>(std::move(hook));
}

bool MemoryStorage::is_detached() const {
  const std::lock_guard lock(view_->mutex);
  return view_->is_detached;
}

void MemoryStorage::detach() {
  const auto disk = view_->disk_now();
  const std::lock_guard lock(disk->mutex_);
  if (disk->views_.erase({view_->number, view_.get()}) == 0) return;  // it is already
  view_->leave(disk->state_);
  disk->state_.close_all_of(view_->number);
}

Outcome<std::unique_ptr<File>> MemoryStorage::open(const fs::path& path, Open how, unsigned mode) {
  if (const auto error = view_->asked(name_of(how), path)) return error;
  const auto handle =
      view_->on_disk([&](DiskState& disk) { return disk.open(path, how, mode, view_->number); });
  if (!handle.ok()) return handle.error;
  return std::unique_ptr<File>(std::make_unique<MemoryDisk::OpenFile>(view_, handle.value, path));
}

Outcome<Attributes> MemoryStorage::attributes(const fs::path& path) {
  if (const auto error = view_->asked("stat", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.attributes(path); });
}

Outcome<std::vector<Entry>> MemoryStorage::list(const fs::path& path) {
  if (const auto error = view_->asked("list", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.list(path); });
}

std::error_code MemoryStorage::create_directory(const fs::path& path, unsigned mode) {
  if (const auto error = view_->asked("create_directory", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.create_directory(path, mode); });
}

std::error_code MemoryStorage::rename(const fs::path& from, const fs::path& to) {
  if (const auto error = view_->asked("rename", from)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.rename(from, to); });
}

std::error_code MemoryStorage::remove(const fs::path& path) {
  if (const auto error = view_->asked("remove", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.remove(path); });
}

std::error_code MemoryStorage::remove_directory(const fs::path& path) {
  if (const auto error = view_->asked("remove_directory", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.remove_directory(path); });
}

std::error_code MemoryStorage::sync_directory(const fs::path& path) {
  if (const auto error = view_->asked("sync_directory", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.sync_directory(path); });
}

Outcome<Space> MemoryStorage::space(const fs::path& path) {
  if (const auto error = view_->asked("space", path)) return error;
  return view_->on_disk([&](DiskState& disk) { return disk.space(path); });
}

}  // namespace centroid::test
