#include <algorithm>

#include "tests/simulation/disk_state.h"

/// What is on the disk, and what a power cut leaves of the rest.
namespace centroid::test {

/// With every change that is chosen the earlier ones of the same names.
std::vector<bool> DiskState::with_earlier(std::vector<bool> chosen) const {
  std::set<std::pair<std::uint64_t, std::string>> names;
  for (std::size_t i = unsynced_names_.size(); i-- > 0;) {
    const Change& change = unsynced_names_[i];
    const auto is_named = [&](const Name& one) { return names.contains({one.folder, one.name}); };
    if (!chosen[i] && std::ranges::none_of(change, is_named)) continue;
    chosen[i] = true;
    for (const Name& one : change) names.emplace(one.folder, one.name);
  }
  return chosen;
}

void DiskState::apply_synced(const Change& change) {
  for (const Name& one : change) {
    auto& children = at(one.folder).synced_children;
    if (one.inode == 0)
      children.erase(one.name);
    else
      children[one.name] = one.inode;
  }
}

void DiskState::sync_folder(std::uint64_t folder) {
  std::vector<bool> chosen(unsynced_names_.size());
  for (std::size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = std::ranges::any_of(unsynced_names_[i],
                                    [&](const Name& one) { return one.folder == folder; });
  chosen = with_earlier(std::move(chosen));
  std::vector<Change> left;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i])
      apply_synced(unsynced_names_[i]);
    else
      left.push_back(std::move(unsynced_names_[i]));
  }
  unsynced_names_ = std::move(left);
  drop_unused();
}

/// Files that nobody can reach any more, nor after a crash.
void DiskState::drop_unused() {
  std::set<std::uint64_t> used;
  for (const auto& [number, inode] : inodes_) {
    if (inode.names > 0 || inode.handles > 0) used.insert(number);
    for (const auto& [name, child] : inode.synced_children) used.insert(child);
  }
  for (const Change& change : unsynced_names_)
    for (const Name& one : change) used.insert({one.folder, one.inode});
  std::erase_if(inodes_, [&](const auto& one) { return !used.contains(one.first); });
}

void DiskState::crash_names(CounterRng& rng) {
  const std::size_t count = unsynced_names_.size();
  std::vector<bool> chosen(count);
  switch (rng.below(4)) {
    case 0:
      break;
    case 1:
      chosen.assign(count, true);
      break;
    case 2:
      std::fill_n(chosen.begin(), rng.below(count + 1), true);
      break;
    default:
      for (std::size_t i = 0; i < count; ++i) chosen[i] = rng.below(2) == 1;
  }
  chosen = with_earlier(std::move(chosen));
  for (std::size_t i = 0; i < count; ++i)
    if (chosen[i]) apply_synced(unsynced_names_[i]);
  unsynced_names_.clear();
  for (auto& [number, inode] : inodes_) inode.children = inode.synced_children;
}

void DiskState::crash_content(Inode& file, CounterRng& rng) {
  enum class Fate : std::uint8_t { kLost, kThere, kPrefix, kTorn };
  const std::uint64_t now = file.data.size(), then = file.synced_bytes;
  const bool is_clean = file.unsynced.empty() && now == then;
  const Fate fate = is_clean ? Fate::kThere : static_cast<Fate>(rng.below(4));
  std::uint64_t bytes = fate == Fate::kLost ? then : now;
  if (fate == Fate::kPrefix || fate == Fate::kTorn)
    bytes = now > then ? then + rng.below(now - then + 1) : (rng.below(2) == 0 ? now : then);
  const std::uint64_t prefix = rng.below(file.unsynced.size() + 1);
  std::uint64_t position = 0;
  std::map<std::uint64_t, Sector> lost = std::move(file.dropped);
  for (auto& [sector, content] : file.unsynced) {
    bool is_there = fate == Fate::kThere || (fate == Fate::kPrefix && position < prefix) ||
                    (fate == Fate::kTorn && rng.below(2) == 0);
    if ((sector + 1) * kSectorBytes > now && bytes > now) is_there = false;  // nor was it cut off
    ++position;
    if (!is_there) lost[sector] = std::move(content);
  }
  file.data.resize(std::max({bytes, now, then}));
  for (auto& [sector, content] : lost) {
    content.resize(kSectorBytes);
    const std::uint64_t begin = sector * kSectorBytes;
    if (begin >= file.data.size()) continue;
    const auto count = std::min(kSectorBytes, file.data.size() - begin);
    std::copy_n(content.begin(), count, file.data.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  file.data.resize(bytes);
  file.unsynced.clear();
  file.dropped.clear();
  file.synced_bytes = bytes;
}

void DiskState::crash(CounterRng& rng) {
  handles_.clear();
  crash_names(rng);
  std::map<std::uint64_t, Inode> left;  // what a name leads to
  used_ = 0;
  const auto visit = [&](const auto& self, std::uint64_t number) -> void {
    Inode& inode = left.emplace(number, std::move(inodes_.at(number))).first->second;
    inode.names = 1;
    inode.handles = inode.locked_by = 0;
    if (inode.kind == storage::Kind::kFile) crash_content(inode, rng);
    used_ += inode.data.size();
    for (const auto& [name, child] : inode.children) self(self, child);
  };
  constexpr std::uint64_t kRoot = 1;
  visit(visit, kRoot);
  inodes_ = std::move(left);
}

}  // namespace centroid::test
