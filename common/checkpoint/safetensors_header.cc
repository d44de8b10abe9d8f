#include "common/checkpoint/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "common/tensor/text.h"

namespace centroid {
namespace {

constexpr std::size_t kAlignment = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

struct Entry {
  TensorInfo info;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Error refused(std::string what) { return {ErrorCode::kDataLoss, std::move(what)}; }

/// Receives the parser's events. The format has exactly three levels; anything else stops the
/// parser.
class HeaderEvents {
 public:
  explicit HeaderEvents(std::uint64_t data_bytes) : data_bytes_(data_bytes) {}

  bool null() { return wrong_value("null"); }
  bool boolean(bool) { return wrong_value("a boolean"); }
  bool number_integer(std::int64_t) { return wrong_value("a negative number"); }
  bool number_float(double, const std::string&) {
    return wrong_value("a number that is not an integer below 2^64");
  }
  bool binary(std::vector<std::uint8_t>&) { return wrong_value("binary"); }

  bool number_unsigned(std::uint64_t value) {
    if (level_ != Level::kArray) return wrong_value("a number");
    numbers_.push_back(value);
    if (numbers_.size() <= (field_ == "shape" ? kMaxTensorRank : 2)) return true;
    return stop(where() + "more than " + std::to_string(numbers_.size() - 1) + " numbers");
  }

  bool string(std::string& value) {
    if (level_ == Level::kMetadata) {
      metadata_.emplace(field_, std::move(value));
      return true;
    }
    if (level_ != Level::kTensor || field_ != "dtype") return wrong_value("a string");
    const auto dtype = parse_dtype(value);
    if (!dtype.ok() || safetensors_name(*dtype) != value) {
      code_ = ErrorCode::kUnimplemented;
      return stop(where() + "\"" + printable(value) + "\" is unknown here");
    }
    entry_.info.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) {
    if (level_ == Level::kNothing) {
      level_ = Level::kTop;
      return true;
    }
    if (level_ != Level::kTop) return wrong_value("an object");
    level_ = name_ == kMetadataKey ? Level::kMetadata : Level::kTensor;
    entry_ = Entry{};
    entry_.info.name = name_;
    fields_.clear();
    return true;
  }

  bool key(std::string& text) {
    if (level_ != Level::kTop) {
      field_ = std::move(text);
      if (!fields_.insert(field_).second) return stop(where() + "appears twice");
      if (level_ == Level::kMetadata || field_ == "dtype" || field_ == "shape" ||
          field_ == "data_offsets")
        return true;
      return stop(where() + "is no field of the format");
    }
    name_ = std::move(text);
    field_.clear();
    if (name_.empty() || name_.size() > kMaxSafetensorsNameBytes)
      return stop(where() + "name of " + std::to_string(name_.size()) + " bytes, allowed are 1.." +
                  std::to_string(kMaxSafetensorsNameBytes));
    if (!names_.insert(name_).second) return stop(where() + "appears twice");
    return true;
  }

  bool end_object() {
    if (level_ == Level::kTop) {
      level_ = Level::kDone;
      return true;
    }
    const bool is_tensor = level_ == Level::kTensor;
    level_ = Level::kTop;
    return !is_tensor || take_tensor();
  }

  bool start_array(std::size_t) {
    if (level_ != Level::kTensor || field_ == "dtype") return wrong_value("an array");
    level_ = Level::kArray;
    numbers_.clear();
    return true;
  }

  bool end_array() {
    level_ = Level::kTensor;
    if (field_ == "shape") {
      entry_.info.shape = numbers_;
      return true;
    }
    if (numbers_.size() != 2) return stop(where() + "expected are two numbers");
    entry_.begin = numbers_[0];
    entry_.end = numbers_[1];
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& why) {
    return stop("header: byte " + std::to_string(position) + ": " + printable(why.what(), 160));
  }

  Error error() const { return {code_, problem_}; }
  std::vector<Entry> take_entries() { return std::move(entries_); }
  std::map<std::string, std::string> take_metadata() { return std::move(metadata_); }

 private:
  enum class Level { kNothing, kTop, kMetadata, kTensor, kArray, kDone };

  bool stop(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  std::string where() const {
    std::string text = "header";
    if (!name_.empty()) text += ": \"" + printable(name_) + "\"";
    if (!field_.empty()) text += ": field \"" + printable(field_) + "\"";
    return text + ": ";
  }

  bool wrong_value(const std::string& what) { return stop(where() + what + " is not expected"); }

  bool take_tensor() {
    field_.clear();
    if (fields_.size() != 3) return stop(where() + "lacks dtype, shape or data_offsets");
    const auto bytes = checked_bytes(entry_.info);
    const std::string shape = to_string(entry_.info.shape);
    if (!bytes) return stop(where() + "shape " + shape + " overflows");
    const std::string range =
        "data_offsets [" + std::to_string(entry_.begin) + ", " + std::to_string(entry_.end) + "]";
    if (entry_.begin > entry_.end || entry_.end > data_bytes_)
      return stop(where() + range + " do not lie in the " + std::to_string(data_bytes_) +
                  " bytes of data");
    if (entry_.end - entry_.begin != *bytes)
      return stop(where() + range + " do not fit " + std::string(to_string(entry_.info.dtype)) +
                  " " + shape + " of " + std::to_string(*bytes) + " bytes");
    entries_.push_back(std::move(entry_));
    return true;
  }

  std::uint64_t data_bytes_;
  Level level_ = Level::kNothing;
  std::string name_;   // key at the top level
  std::string field_;  // key below it
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
  std::vector<std::uint64_t> numbers_;
  Entry entry_;
  std::vector<Entry> entries_;
  std::map<std::string, std::string> metadata_;
  ErrorCode code_ = ErrorCode::kDataLoss;
  std::string problem_;
};

// The tensors must cover the data exactly, one after the other.
Status check_cover(const std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != at)
      return refused("header: \"" + printable(entry.info.name) + "\": data begins at byte " +
                     std::to_string(entry.begin) + ", " + (entry.begin < at ? "overlap" : "hole") +
                     ": the tensor before ends at " + std::to_string(at));
    at = entry.end;
  }
  if (at != data_bytes)
    return refused("header: hole: the tensors end at byte " + std::to_string(at) + " of " +
                   std::to_string(data_bytes) + " bytes of data");
  return {};
}

Status check_names(const Manifest& manifest) {
  std::unordered_set<std::string_view> names;
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : manifest) {
    std::string problem;
    const auto bytes = checked_bytes(tensor);
    if (tensor.name.empty() || tensor.name.size() > kMaxSafetensorsNameBytes)
      problem = "name must have 1.." + std::to_string(kMaxSafetensorsNameBytes) + " bytes";
    else if (!is_utf8(tensor.name))
      problem = "name is not UTF-8";
    else if (tensor.name == kMetadataKey)
      problem = "name is reserved";
    else if (!names.insert(tensor.name).second)
      problem = "name appears twice";
    else if (tensor.shape.size() > kMaxTensorRank)
      problem = "rank is above " + std::to_string(kMaxTensorRank);
    else if (!bytes || *bytes > std::numeric_limits<std::int64_t>::max() - total)
      problem = "bytes overflow";
    if (!problem.empty())
      return Error(ErrorCode::kInvalidArgument,
                   "tensor \"" + printable(tensor.name) + "\": " + problem);
    total += *bytes;
  }
  return {};
}

}  // namespace

Result<std::string> build_safetensors_header(const Manifest& manifest,
                                             const std::map<std::string, std::string>& metadata) {
  CENTROID_TRY(check_names(manifest));
  for (const auto& [key, value] : metadata)
    if (!is_utf8(key) || !is_utf8(value))
      return Error(ErrorCode::kInvalidArgument, "metadata \"" + printable(key) + "\": not UTF-8");

  // Written by hand: a JSON object of the library would sort the tensors by name.
  std::string json = "{";
  if (!metadata.empty())
    json += "\"" + std::string(kMetadataKey) + "\":" + nlohmann::json(metadata).dump();
  std::uint64_t at = 0;
  for (const TensorInfo& tensor : manifest) {
    if (json.size() > 1) json += ',';
    const std::uint64_t end = at + tensor.bytes();
    json += nlohmann::json(tensor.name).dump();
    json += ":{\"dtype\":\"";
    json += safetensors_name(tensor.dtype);
    json += "\",\"shape\":" + nlohmann::json(tensor.shape).dump();
    json += ",\"data_offsets\":[" + std::to_string(at) + ',' + std::to_string(end) + "]}";
    at = end;
  }
  json += '}';
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > kMaxSafetensorsHeaderBytes)
    return Error(ErrorCode::kInvalidArgument, "header of " + std::to_string(json.size()) +
                                                  " bytes, the format allows " +
                                                  std::to_string(kMaxSafetensorsHeaderBytes));
  const std::uint64_t length = json.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return header + json;
}

Status check_safetensors_header_length(std::uint64_t header_bytes, std::uint64_t file_bytes) {
  if (header_bytes > kMaxSafetensorsHeaderBytes)
    return refused("header: length " + std::to_string(header_bytes) + " is above the limit of " +
                   std::to_string(kMaxSafetensorsHeaderBytes));
  if (file_bytes < sizeof(header_bytes) || header_bytes > file_bytes - sizeof(header_bytes))
    return refused("header: length " + std::to_string(header_bytes) + " does not fit a file of " +
                   std::to_string(file_bytes) + " bytes");
  return {};
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json,
                                                   std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') return refused("header: does not begin with '{'");
  if (json.find('\0') != std::string_view::npos)  // the parser would take it for the end
    return refused("header: contains a zero byte");
  HeaderEvents events(data_bytes);
  if (!nlohmann::json::sax_parse(json, &events)) return events.error();

  SafetensorsHeader header;
  std::vector<Entry> entries = events.take_entries();
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  CENTROID_TRY(check_cover(entries, data_bytes));
  header.manifest.reserve(entries.size());
  header.offsets.reserve(entries.size());
  for (Entry& entry : entries) {
    header.manifest.push_back(std::move(entry.info));
    header.offsets.push_back(entry.begin);
  }
  header.metadata = events.take_metadata();
  return header;
}

Result<SafetensorsHeader> parse_safetensors(Bytes file) {
  ByteReader reader(file);
  const auto length = reader.get<std::uint64_t>();
  if (!reader.ok())
    return refused("header: the file has only " + std::to_string(file.size()) + " bytes");
  CENTROID_TRY(check_safetensors_header_length(length, file.size()));
  const Bytes json = reader.get_bytes(static_cast<std::size_t>(length));
  return parse_safetensors_header({reinterpret_cast<const char*>(json.data()), json.size()},
                                  reader.left());
}

}  // namespace centroid
