#include "common/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace centroid {
namespace {

constexpr std::size_t kEditsShare = 3;  // at most length / 3: one of "list", three of "checkpoint"
constexpr std::size_t kLeastBeginning = 3;  // "che" begins a word, "c" is a guess
constexpr std::size_t kTypo = 2;            // edits; beyond them a prefix is likelier
constexpr std::size_t kListed = 3;

constexpr std::string_view kVariable = "centroid_";

/// As it is compared: without dashes of a flag and CENTROID_ of a variable, which are no
/// similarity.
std::string folded(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string out(name);
  for (char& c : out) c = c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  if (out.starts_with(kVariable)) out.erase(0, kVariable.size());
  return out;
}

/// "log-level" is like "log.level".
std::string without_dots(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

/// source  optimal string alignment distance (Damerau 1964), three rows
std::size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last.back();
}

/// The near name, or all names with the prefix `name`.
std::vector<std::string> candidates(std::string_view name, const std::vector<std::string>& known) {
  const std::string sought = without_dots(folded(name));
  const std::string last = folded(name).insert(0, 1, '.');
  std::string best;
  std::pair<std::size_t, std::size_t> fewest;  // then by the distance without dots: "--run-id"
  std::vector<std::string> begun;
  for (const std::string& one : known) {
    if (!sought.empty() && folded(one).ends_with(last)) return {one};
    const std::string other = without_dots(folded(one));
    if (sought.size() >= kLeastBeginning && other.starts_with(sought)) begun.push_back(one);
    const std::size_t count = edits(sought, other);
    if (kEditsShare * count > std::max(sought.size(), other.size())) continue;
    const std::pair both(count, edits(std::string(name), one));
    if (best.empty() || both < fewest) {
      fewest = both;
      best = one;
    }
  }
  if (best.empty() || (fewest.first > kTypo && !begun.empty())) return begun;
  return {best};
}

}  // namespace

std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  const auto found = candidates(name, known);
  return found.size() == 1 ? found.front() : "";
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const auto found = candidates(name, known);
  std::string out;
  for (std::size_t i = 0; i < std::min(found.size(), kListed); ++i)
    out += (i == 0 ? "; did you mean \"" : ", \"") + found[i] + "\"";
  if (found.empty()) return out;
  return out + (found.size() > kListed ? ", ...?" : "?");
}

}  // namespace centroid
