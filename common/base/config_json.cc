#include "common/base/config_json.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <nlohmann/json.hpp>

namespace centroid::config::detail {
namespace {

using nlohmann::json;

// Iterator that counts how far the parser has read, so that a key has its line.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    const TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Receives the parser's events and collects leaves; stops at the first problem.
class Flattener {
 public:
  Flattener(std::string_view text, const char** reached, const std::string& source)
      : text_(text), reached_(reached), source_(source) {}

  bool null() { return leaf(nullptr); }
  bool boolean(bool value) { return leaf(value); }
  bool number_integer(json::number_integer_t value) { return leaf(std::int64_t{value}); }
  bool number_unsigned(json::number_unsigned_t value) { return leaf(std::uint64_t{value}); }
  bool number_float(json::number_float_t value, const json::string_t&) { return leaf(value); }
  bool string(json::string_t& value) { return leaf(value); }
  bool binary(json::binary_t&) { return leaf(nullptr); }

  bool start_object(std::size_t) {
    if (arrays_ > 0) return true;
    if (!levels_.empty()) levels_.back().is_empty = false;
    const std::string prefix = levels_.empty() ? "" : path() + ".";
    levels_.push_back({prefix, {}, 0, true});
    return true;
  }
  bool key(json::string_t& name) {
    if (arrays_ > 0) return true;
    levels_.back().key = name;
    levels_.back().line = line_of(static_cast<std::size_t>(*reached_ - text_.data()));
    return true;
  }
  bool end_object() {
    if (arrays_ > 0) return true;
    const bool is_empty = levels_.back().is_empty;
    levels_.pop_back();
    return !is_empty || levels_.empty() || leaf(Compound{false});
  }
  // No field is an array: one leaf reports it, its content does not matter.
  bool start_array(std::size_t) {
    if (arrays_++ > 0) return true;
    --arrays_;
    const bool go_on = leaf(Compound{true});
    ++arrays_;
    return go_on;
  }
  bool end_array() {
    --arrays_;
    return true;
  }
  bool parse_error(std::size_t byte, const std::string&, const json::exception& failure) {
    const std::size_t at = std::min(byte == 0 ? 0 : byte - 1, text_.size());
    const auto line_start = text_.substr(0, at).rfind('\n');
    const std::size_t column = at - (line_start == text_.npos ? 0 : line_start + 1) + 1;
    std::string what = failure.what();
    const auto prefix = what.find(": ");  // the library's own name and position
    if (prefix != what.npos)
      what.erase(0, prefix + 2);
    else if (const auto tag = what.find("] "); tag != what.npos)
      what.erase(0, tag + 2);
    if (const auto read = what.find("; last read: "); read != what.npos) {  // may be a secret
      const auto expected = what.rfind("; expected ");
      what.erase(read, expected == what.npos || expected < read ? what.npos : expected - read);
    }
    problem_ = source_ + ":" + std::to_string(line_of(at)) + ":" + std::to_string(column) +
               ": not valid JSON: " + what;
    return false;
  }

  const std::string& problem() const { return problem_; }
  std::vector<Leaf> take() { return std::move(leaves_); }

 private:
  struct Level {
    std::string prefix;
    std::string key;
    std::size_t line;
    bool is_empty;
  };

  std::string path() const { return levels_.back().prefix + levels_.back().key; }
  std::size_t line_of(std::size_t offset) const {
    const auto end = text_.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text_.size()));
    return 1 + static_cast<std::size_t>(std::count(text_.begin(), end, '\n'));
  }
  bool leaf(Scalar value) {
    if (arrays_ > 0) return true;
    if (levels_.empty()) {
      problem_ = source_ + ": expected a JSON object at the top";
      return false;
    }
    Level& level = levels_.back();
    level.is_empty = false;
    const auto [earlier, is_new] = lines_.emplace(path(), level.line);
    if (!is_new) {
      problem_ = source_ + ":" + std::to_string(level.line) + ": " + path() +
                 " is set twice, first in line " + std::to_string(earlier->second);
      return false;
    }
    leaves_.push_back({path(), std::move(value), level.line});
    return true;
  }

  std::string_view text_;
  const char** reached_;
  std::string source_;
  std::vector<Level> levels_;
  std::size_t arrays_ = 0;
  std::map<std::string, std::size_t> lines_;
  std::vector<Leaf> leaves_;
  std::string problem_;
};

}  // namespace

Result<std::vector<Leaf>> read_leaves(std::string_view text, const std::string& source) {
  const char* reached = text.data();
  Flattener flattener(text, &reached, source);
  const TrackingIterator begin(text.data(), &reached);
  const TrackingIterator end(text.data() + text.size(), &reached);
  if (!json::sax_parse(begin, end, &flattener))
    return Error(ErrorCode::kInvalidArgument, flattener.problem());
  return flattener.take();
}

}  // namespace centroid::config::detail
