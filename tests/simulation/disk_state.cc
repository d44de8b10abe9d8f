#include "tests/simulation/disk_state.h"

#include <algorithm>
#include <cerrno>

namespace centroid::test {

using storage::Attributes, storage::Entry, storage::Kind, storage::Open, storage::Space;

namespace {

constexpr std::uint64_t kRoot = 1;
constexpr unsigned kUmask = 022;

std::error_code error_of(int number) { return {number, std::generic_category()}; }

bool may_write(Open how) {
  return how == Open::kCreate || how == Open::kAppend || how == Open::kChange || how == Open::kLock;
}
bool may_read(Open how) { return how != Open::kCreate && how != Open::kChange; }
bool makes(Open how) { return how == Open::kCreate || how == Open::kAppend || how == Open::kLock; }

}  // namespace

DiskState::DiskState(std::function<std::int64_t()> now_ns) : now_ns_(std::move(now_ns)) {
  Inode root;
  root.kind = Kind::kFolder;
  root.mode = 0755;
  root.names = 1;
  inodes_.emplace(kRoot, std::move(root));
}

std::uint64_t DiskState::digest() const {
  std::uint64_t sum = 0;
  const auto add = [&sum](const auto& bytes) {
    sum = mix64(sum, bytes.size());
    for (const auto one : bytes) sum = mix64(sum ^ static_cast<std::uint8_t>(one));
  };
  const auto visit = [&](const auto& self, std::uint64_t folder) -> void {
    for (const auto& [name, inode] : at(folder).children) {
      const Inode& one = at(inode);
      add(name);
      add(one.data);
      sum = mix64(mix64(sum, one.mode), one.children.size());
      self(self, inode);
    }
  };
  visit(visit, kRoot);
  return sum;
}

DiskState::Outcome<DiskState::Found> DiskState::find(const Path& path) const {
  if (path.empty()) return error_of(ENOENT);
  Found found{0, "", kRoot};
  for (const Path& part : path.lexically_normal()) {
    std::string name = part.string();
    if (name.empty() || name == "/" || name == ".") continue;
    if (name == "..") return error_of(EINVAL);  // out of the root
    if (found.inode == 0) return error_of(ENOENT);
    const Inode& folder = at(found.inode);
    if (folder.kind != Kind::kFolder) return error_of(ENOTDIR);
    const auto child = folder.children.find(name);
    const std::uint64_t inode = child == folder.children.end() ? 0 : child->second;
    found = {found.inode, std::move(name), inode};
  }
  return found;
}

DiskState::Outcome<DiskState::Found> DiskState::find_there(const Path& path) const {
  auto found = find(path);
  if (found.ok() && found.value.inode == 0) return error_of(ENOENT);
  return found;
}

bool DiskState::is_within(std::uint64_t inode, std::uint64_t folder) const {
  if (inode == folder) return true;
  return std::ranges::any_of(at(folder).children,
                             [&](const auto& child) { return is_within(inode, child.second); });
}

void DiskState::touch(Inode& inode) {
  time_ns_ = std::max(time_ns_ + 1, now_ns_ ? now_ns_() : 0);
  inode.modified_ns = time_ns_;
}

/// What everybody sees from now on; the disk has it when the folders are synced.
void DiskState::change(Change change) {
  for (const Name& one : change) {
    Inode& folder = at(one.folder);
    touch(folder);
    const auto before = folder.children.find(one.name);
    if (before != folder.children.end()) {
      Inode& gone = at(before->second);
      if (--gone.names == 0 && gone.handles == 0) used_ -= gone.data.size();
      folder.children.erase(before);
    }
    if (one.inode == 0) continue;
    ++at(one.inode).names;
    folder.children[one.name] = one.inode;
  }
  unsynced_names_.push_back(std::move(change));
}

std::uint64_t DiskState::make(const Found& where, Kind kind, unsigned mode) {
  const std::uint64_t number = next_inode_++;
  Inode inode;
  inode.kind = kind;
  inode.mode = mode & ~kUmask;
  touch(inode);
  inodes_.emplace(number, std::move(inode));
  change({{where.folder, where.name, number}});
  return number;
}

Attributes DiskState::about(std::uint64_t inode) const {
  const Inode& one = at(inode);
  return {.kind = one.kind,
          .mode = one.mode,
          .bytes = one.data.size(),
          .device = 1,
          .inode = inode,
          .modified_ns = one.modified_ns};
}

DiskState::Outcome<std::uint64_t> DiskState::open(const Path& path, Open how, unsigned mode,
                                                  std::uint64_t owner) {
  const auto found = find(path);
  if (!found.ok()) return found.error;
  std::uint64_t inode = found.value.inode;
  if (inode != 0 && how == Open::kCreate) return error_of(EEXIST);
  if (inode == 0 && !makes(how)) return error_of(ENOENT);
  if (inode == 0) inode = make(found.value, Kind::kFile, mode);
  const bool is_folder = at(inode).kind == Kind::kFolder;
  if (is_folder && may_write(how)) return error_of(EISDIR);
  if (!is_folder && how == Open::kFolder) return error_of(ENOTDIR);
  ++at(inode).handles;
  handles_[next_handle_] = {inode, how, 0, owner};
  return next_handle_++;
}

void DiskState::close(std::uint64_t handle) {
  const auto one = handles_.find(handle);
  if (one == handles_.end()) return;
  Inode& inode = at(one->second.inode);
  if (inode.locked_by == handle) inode.locked_by = 0;
  if (--inode.handles == 0 && inode.names == 0) used_ -= inode.data.size();
  handles_.erase(one);
}

void DiskState::close_all_of(std::uint64_t owner) {
  std::vector<std::uint64_t> left;
  for (const auto& [number, handle] : handles_)
    if (handle.owner == owner) left.push_back(number);
  for (const std::uint64_t number : left) close(number);
}

Attributes DiskState::attributes(std::uint64_t handle) const {
  return about(handles_.at(handle).inode);
}

/// Before the sector changes: what the disk has of it.
void DiskState::save_sector(Inode& file, std::uint64_t sector) {
  if (file.unsynced.contains(sector)) return;
  if (auto dropped = file.dropped.extract(sector)) {
    file.unsynced.insert(std::move(dropped));
    return;
  }
  Sector content;
  const std::uint64_t begin = sector * kSectorBytes;
  if (begin < file.data.size()) {
    const auto first = file.data.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = std::min(kSectorBytes, file.data.size() - begin);
    content.assign(first, first + static_cast<std::ptrdiff_t>(count));
    content.resize(kSectorBytes);
  }
  file.unsynced.emplace(sector, std::move(content));
}

void DiskState::resize(Inode& file, std::uint64_t bytes) {
  const std::uint64_t before = file.data.size();
  for (std::uint64_t sector = std::min(before, bytes) / kSectorBytes;
       sector * kSectorBytes < std::max(before, bytes); ++sector)
    save_sector(file, sector);
  used_ += bytes;
  used_ -= before;
  file.data.resize(bytes);
  touch(file);
}

DiskState::Outcome<std::size_t> DiskState::append(std::uint64_t handle, Bytes bytes) {
  Handle& file = handles_.at(handle);
  auto written = write(handle, file.position, bytes);
  if (written.ok()) file.position += written.value;
  return written;
}

DiskState::Outcome<std::size_t> DiskState::write(std::uint64_t handle, std::uint64_t offset,
                                                 Bytes bytes) {
  if (!may_write(handles_.at(handle).how)) return error_of(EBADF);
  Inode& file = at(handles_.at(handle).inode);
  if (handles_.at(handle).how == Open::kAppend) offset = file.data.size();  // as on Linux
  if (bytes.empty()) return std::size_t{0};
  if (offset + bytes.size() > file.data.size()) {
    const std::uint64_t room = capacity_ > used_ ? capacity_ - used_ : 0;
    const std::uint64_t most = file.data.size() + room;
    if (most <= offset) return error_of(ENOSPC);
    bytes = bytes.first(std::min<std::uint64_t>(bytes.size(), most - offset));
    if (offset + bytes.size() > file.data.size()) resize(file, offset + bytes.size());
  }
  for (std::uint64_t sector = offset / kSectorBytes; sector * kSectorBytes < offset + bytes.size();
       ++sector)
    save_sector(file, sector);
  std::ranges::copy(bytes, file.data.begin() + static_cast<std::ptrdiff_t>(offset));
  touch(file);
  return bytes.size();
}

DiskState::Outcome<std::size_t> DiskState::read(std::uint64_t handle, std::uint64_t offset,
                                                MutableBytes into) const {
  const Handle& open = handles_.at(handle);
  const Inode& file = at(open.inode);
  if (file.kind == Kind::kFolder) return error_of(EISDIR);
  if (!may_read(open.how)) return error_of(EBADF);
  if (offset >= file.data.size()) return std::size_t{0};
  const auto count = std::min<std::uint64_t>(into.size(), file.data.size() - offset);
  std::copy_n(file.data.begin() + static_cast<std::ptrdiff_t>(offset), count, into.begin());
  return static_cast<std::size_t>(count);
}

std::error_code DiskState::truncate(std::uint64_t handle, std::uint64_t bytes) {
  if (!may_write(handles_.at(handle).how)) return error_of(EINVAL);
  Inode& file = at(handles_.at(handle).inode);
  if (bytes != file.data.size()) resize(file, bytes);
  return {};
}

void DiskState::sync(std::uint64_t handle) {
  const std::uint64_t inode = handles_.at(handle).inode;
  Inode& file = at(inode);
  if (file.kind == Kind::kFolder) return sync_folder(inode);
  file.unsynced.clear();
  file.synced_bytes = file.data.size();
}

void DiskState::fail_sync(std::uint64_t handle) {
  Inode& file = at(handles_.at(handle).inode);
  file.dropped.merge(file.unsynced);
  file.unsynced.clear();
}

std::error_code DiskState::lock(std::uint64_t handle) {
  Inode& inode = at(handles_.at(handle).inode);
  if (inode.locked_by != 0 && inode.locked_by != handle) return error_of(EWOULDBLOCK);
  inode.locked_by = handle;
  return {};
}

DiskState::Outcome<Attributes> DiskState::attributes(const Path& path) const {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  return about(found.value.inode);
}

DiskState::Outcome<std::vector<Entry>> DiskState::list(const Path& path) const {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  const Inode& folder = at(found.value.inode);
  if (folder.kind != Kind::kFolder) return error_of(ENOTDIR);
  std::vector<Entry> entries;
  for (const auto& [name, inode] : folder.children) entries.push_back({name, about(inode)});
  return entries;
}

std::error_code DiskState::create_directory(const Path& path, unsigned mode) {
  const auto found = find(path);
  if (!found.ok()) return found.error;
  if (found.value.inode != 0) return error_of(EEXIST);
  make(found.value, Kind::kFolder, mode);
  return {};
}

std::error_code DiskState::rename(const Path& from, const Path& to) {
  const auto first = find_there(from), second = find(to);
  if (!first.ok()) return first.error;
  if (!second.ok()) return second.error;
  const std::uint64_t moved = first.value.inode, replaced = second.value.inode;
  if (moved == replaced) return {};
  const bool is_folder = at(moved).kind == Kind::kFolder;
  if (first.value.name.empty()) return error_of(EBUSY);
  if (is_folder && is_within(second.value.folder, moved)) return error_of(EINVAL);
  if (replaced != 0) {
    const bool was_folder = at(replaced).kind == Kind::kFolder;
    if (is_folder && !was_folder) return error_of(ENOTDIR);
    if (!is_folder && was_folder) return error_of(EISDIR);
    if (!at(replaced).children.empty()) return error_of(ENOTEMPTY);
  }
  change(
      {{second.value.folder, second.value.name, moved}, {first.value.folder, first.value.name, 0}});
  return {};
}

std::error_code DiskState::remove(const Path& path) {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  if (at(found.value.inode).kind == Kind::kFolder) return error_of(EISDIR);
  change({{found.value.folder, found.value.name, 0}});
  return {};
}

std::error_code DiskState::remove_directory(const Path& path) {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  if (found.value.name.empty()) return error_of(EBUSY);
  if (at(found.value.inode).kind != Kind::kFolder) return error_of(ENOTDIR);
  if (!at(found.value.inode).children.empty()) return error_of(ENOTEMPTY);
  change({{found.value.folder, found.value.name, 0}});
  return {};
}

std::error_code DiskState::sync_directory(const Path& path) {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  if (at(found.value.inode).kind != Kind::kFolder) return error_of(ENOTDIR);
  sync_folder(found.value.inode);
  return {};
}

DiskState::Outcome<Space> DiskState::space(const Path& path) const {
  const auto found = find_there(path);
  if (!found.ok()) return found.error;
  return Space{.free_bytes = capacity_ > used_ ? capacity_ - used_ : 0, .total_bytes = capacity_};
}

}  // namespace centroid::test
