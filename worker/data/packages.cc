#include "worker/data/packages.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <unordered_set>
#include <utility>

#include "common/base/random.h"
#include "worker/data/command.h"
#include "worker/data/file.h"
#include "worker/data/split.h"

namespace centroid::worker {

namespace {

constexpr std::size_t kMaxListBytes = std::size_t{512} << 20;  // Debian 12 has 48 MiB
constexpr std::chrono::seconds kListTimeout{120};
constexpr std::size_t kMaxSections = 20;
constexpr std::size_t kMaxTextBytes = 512;
constexpr std::size_t kMinGram = 3;
constexpr std::size_t kMaxGram = 5;
constexpr std::uint64_t kFeatures = 4096;
constexpr std::uint64_t kMinFeatures = 16;
constexpr std::uint64_t kMaxFeatures = std::uint64_t{1} << 20;

enum class GramKind : std::uint64_t { kWord = 1, kWordPair = 2, kCharacters = 3 };

/// Views into the list.
struct Package {
  std::string_view name;
  std::string_view section;
  std::string_view synopsis;
};

/// FNV-1a, one byte at a time; mixed before use.
/// source  Fowler, Noll, Vo, constants of the 64-bit variant
constexpr std::uint64_t kFnvStart = 0xCBF29CE484222325ULL;
constexpr std::uint64_t fnv(std::uint64_t hash, char c) {
  return (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
}
std::uint64_t fnv(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = fnv(hash, c);
  return hash;
}

/// The value of a line "Key: value".
bool take_field(std::string_view line, std::string_view key, std::string_view& value) {
  if (!line.starts_with(key) || !line.substr(key.size()).starts_with(':')) return false;
  line.remove_prefix(key.size() + 1);
  while (line.starts_with(' ')) line.remove_prefix(1);
  while (line.ends_with('\r') || line.ends_with(' ')) line.remove_suffix(1);
  value = line;
  return true;
}

std::vector<Package> read_list(std::string_view list) {
  std::vector<Package> packages;
  std::unordered_set<std::string_view> known;
  Package now;
  const auto finish = [&] {
    if (const auto slash = now.section.rfind('/'); slash != std::string_view::npos)
      now.section.remove_prefix(slash + 1);
    if (!now.name.empty() && !now.section.empty() && !now.synopsis.empty() &&
        known.insert(now.name).second)
      packages.push_back(now);
    now = {};
  };
  while (!list.empty()) {
    const std::string_view line = list.substr(0, list.find('\n'));
    list.remove_prefix(std::min(list.size(), line.size() + 1));
    if (line.empty() || line == "\r") {
      finish();
      continue;
    }
    if (take_field(line, "Package", now.name) || take_field(line, "Section", now.section)) continue;
    if (!take_field(line, "Description", now.synopsis))
      take_field(line, "Description-en", now.synopsis);
  }
  finish();
  return packages;
}

/// Class of each selected section.
std::map<std::string_view, std::uint32_t> largest_sections(const std::vector<Package>& packages) {
  std::map<std::string_view, std::uint64_t> counts;
  for (const auto& package : packages) ++counts[package.section];
  std::vector<std::pair<std::string_view, std::uint64_t>> by_size(counts.begin(), counts.end());
  // Stable: equal sizes stay in the order of names.
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (by_size.size() > kMaxSections) by_size.resize(kMaxSections);
  std::map<std::string_view, std::uint32_t> classes;
  for (const auto& [section, count] : by_size)
    classes.emplace(section, static_cast<std::uint32_t>(classes.size()));
  return classes;
}

bool is_word_byte(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c >= 0x80;
}

/// Hashed n-grams of one text at a time; reuses its memory.
class Hasher {
 public:
  explicit Hasher(std::uint64_t features) : features_(features) {}

  /// Append the row of `text` to a CSR data set.
  void append(std::string_view text, Dataset& out) {
    split(text.substr(0, kMaxTextBytes));
    columns_.clear();
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::string_view word = words_[i];
      add(fnv(kFnvStart, word), GramKind::kWord);
      if (i > 0) add(fnv(fnv(fnv(kFnvStart, words_[i - 1]), ' '), word), GramKind::kWordPair);
      add_characters(word);
    }
    std::sort(columns_.begin(), columns_.end());
    const std::size_t begin = out.cols.size();
    double squares = 0;
    for (std::size_t i = 0; i < columns_.size();) {
      std::size_t end = i;
      while (end < columns_.size() && columns_[end] == columns_[i]) ++end;
      const auto count = static_cast<float>(end - i);
      out.cols.push_back(columns_[i]);
      out.vals.push_back(count);
      squares += static_cast<double>(count) * count;
      i = end;
    }
    const auto scale = static_cast<float>(squares > 0 ? 1.0 / std::sqrt(squares) : 0.0);
    for (std::size_t i = begin; i < out.vals.size(); ++i) out.vals[i] *= scale;
    out.row_begin.push_back(out.cols.size());
  }

 private:
  void split(std::string_view text) {
    text_.assign(text);
    for (char& c : text_)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    words_.clear();
    const std::string_view all = text_;
    for (std::size_t i = 0; i < all.size();) {
      std::size_t end = i;
      while (end < all.size() && is_word_byte(static_cast<unsigned char>(all[end]))) ++end;
      if (end > i) words_.push_back(all.substr(i, end - i));
      i = end + 1;
    }
  }

  void add_characters(std::string_view word) {
    framed_.assign(1, ' ').append(word).append(1, ' ');
    for (std::size_t from = 0; from + kMinGram <= framed_.size(); ++from) {
      std::uint64_t hash = kFnvStart;
      for (std::size_t n = 1; n <= kMaxGram && from + n <= framed_.size(); ++n) {
        hash = fnv(hash, framed_[from + n - 1]);
        if (n >= kMinGram) add(hash, GramKind::kCharacters);
      }
    }
  }

  void add(std::uint64_t hash, GramKind kind) {
    columns_.push_back(
        static_cast<std::uint32_t>(mix64(hash, static_cast<std::uint64_t>(kind)) % features_));
  }

  std::uint64_t features_;
  std::string text_;
  std::string framed_;
  std::vector<std::string_view> words_;
  std::vector<std::uint32_t> columns_;
};

}  // namespace

Result<Dataset> parse_packages(std::string_view list, const std::string& file,
                               std::uint64_t text_features) {
  if (text_features < kMinFeatures || text_features > kMaxFeatures)
    return Error(ErrorCode::kInvalidArgument,
                 "text_features must be from 16 to 1048576, not " + std::to_string(text_features));
  const std::vector<Package> packages = read_list(list);
  const auto classes = largest_sections(packages);
  if (classes.size() < 2)
    return Error(ErrorCode::kFailedPrecondition,
                 file + ": expected packages of at least 2 sections, found " +
                     std::to_string(classes.size()) +
                     "; run `apt-get update`, or pass a file with the output of `apt-cache "
                     "dumpavail` as packages:FILE");
  Dataset out;
  out.features = text_features;
  out.classes = static_cast<std::uint32_t>(classes.size());
  out.row_begin.push_back(0);
  Hasher hasher(text_features);
  std::string text;
  for (const auto& package : packages) {
    const auto section = classes.find(package.section);
    if (section == classes.end()) continue;
    text.assign(package.name).append(1, ' ').append(package.synopsis);
    hasher.append(text, out);
    out.y.push_back(section->second);
    ++out.samples;
  }
  out.name = "packages: " + std::to_string(out.samples) + " Debian packages of " +
             std::to_string(out.classes) + " sections from " + file;
  return out;
}

Result<DataSplit> load_packages(const std::string& file, std::uint64_t seed) {
  const std::string hint =
      "write it with `apt-cache dumpavail > FILE` on a Debian or Ubuntu machine and use "
      "packages:FILE, or use data set 'digits', which `./centroid build` fetches";
  if (!file.empty()) {
    CENTROID_ASSIGN(const std::string list, read_file(file, kMaxListBytes, hint));
    CENTROID_ASSIGN(const Dataset all, parse_packages(list, file, kFeatures));
    return stratified_split(all, seed);
  }
  auto list = run_command({"apt-cache", "dumpavail"}, kMaxListBytes, kListTimeout);
  if (!list.ok())
    return Error(list.error().code(), "list of packages: " + list.error().message() + "; " + hint);
  CENTROID_ASSIGN(const Dataset all, parse_packages(*list, "`apt-cache dumpavail`", kFeatures));
  return stratified_split(all, seed);
}

}  // namespace centroid::worker
