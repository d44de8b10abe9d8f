#include "common/checkpoint/manifest_json.h"

#include <charconv>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "common/base/crc32c.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "centroid-checkpoint";
constexpr std::uint64_t kFormatVersion = 1, kVersionOfColumns = 2;
constexpr std::size_t kMaxDepth = 8;
constexpr const char* kChecksum = "crc32c";

std::string hex(std::uint32_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(8, '0');
  for (std::size_t i = 8; i-- > 0; value >>= 4) text[i] = kDigits[value & 0xF];
  return text;
}

Error refused(const std::string& what) { return {ErrorCode::kDataLoss, "manifest.json: " + what}; }

Error wrong(const std::string& field, const std::string& expected) {
  return refused("field \"" + field + "\": expected is " + expected);
}

bool is_too_deep(std::string_view text) {
  std::size_t depth = 0;
  bool is_in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      if (c == '"') is_in_string = false;
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return false;
}

/// Typed look-ups; the first failure is stored, so that fields are read as a list.
class Fields {
 public:
  explicit Fields(const Json& json, std::string prefix = {})
      : json_(json), prefix_(std::move(prefix)) {}

  std::uint64_t number(const char* name) {
    const Json* value = find(name, "an integer");
    if (value == nullptr) return 0;
    if (value->is_number_unsigned()) return value->get<std::uint64_t>();
    fail(name, "an integer");
    return 0;
  }
  double real(const char* name) {
    const Json* value = find(name, "a number");
    if (value == nullptr) return 0;
    if (value->is_number()) return value->get<double>();
    fail(name, "a number");
    return 0;
  }
  std::string text(const char* name) {
    const Json* value = find(name, "a string");
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    fail(name, "a string");
    return {};
  }
  std::uint32_t checksum(const char* name) {
    const std::string digits = text(name);
    std::uint32_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 8 || error != std::errc() || end != digits.data() + digits.size())
      fail(name, "8 hexadecimal digits");
    return value;
  }
  std::vector<std::string> texts(const char* name) {
    std::vector<std::string> out;
    const Json* value = find(name, "a list of strings");
    if (value == nullptr) return out;
    if (!value->is_array()) fail(name, "a list of strings");
    if (!value->is_array()) return out;
    for (const Json& item : *value) {
      if (item.is_string())
        out.push_back(item.get<std::string>());
      else
        fail(name, "a list of strings");
    }
    return out;
  }
  std::vector<std::uint64_t> numbers(const char* name) {
    std::vector<std::uint64_t> out;
    const Json* value = find(name, "a list of integers");
    if (value == nullptr) return out;
    bool is_right = value->is_array();
    for (const Json& item : *value) {
      is_right = is_right && item.is_number_unsigned();
      if (is_right) out.push_back(item.get<std::uint64_t>());
    }
    if (!is_right) fail(name, "a list of integers");
    return out;
  }
  const Json* object(const char* name) {
    const Json* value = find(name, "an object");
    if (value != nullptr && value->is_object()) return value;
    fail(name, "an object");
    return nullptr;
  }
  void fail(const std::string& name, const std::string& expected) {
    if (status_.ok()) status_ = wrong(prefix_ + name, expected);
  }
  Status status() const { return status_; }

 private:
  const Json* find(const char* name, const char* expected) {
    const auto found = json_.find(name);
    if (found != json_.end()) return &*found;
    fail(name, expected);
    return nullptr;
  }

  const Json& json_;
  std::string prefix_;
  Status status_;
};

Result<Manifest> tensors_of(const Json& list) {
  Manifest tensors;
  if (!list.is_array()) return wrong("tensors", "a list");
  for (const Json& item : list) {
    if (!item.is_object()) return wrong("tensors", "a list of objects");
    Fields fields(item, "tensors.");
    TensorInfo& tensor = tensors.emplace_back();
    tensor.name = fields.text("name");
    tensor.shape = fields.numbers("shape");
    CENTROID_TRY(fields.status());
  }
  if (const Status valid = validate(tensors); !valid.ok())
    return refused("field \"tensors\": " + valid.error().message());
  return tensors;
}

Result<CheckpointManifest> from_fields(const Json& json) {
  CheckpointManifest manifest;
  CheckpointInfo& info = manifest.info;
  Fields fields(json);
  info.run_id = fields.text("run_id");
  info.version = Version(fields.number("version"));
  info.round = Round(fields.number("round"));
  info.epoch = fields.number("epoch");
  info.offset = fields.number("offset");
  info.optimizer_step = fields.number("optimizer_step");
  info.seed = fields.number("seed");
  info.optimizer = fields.text("optimizer");
  info.slot_names = fields.texts("slot_names");
  info.created_unix_seconds = fields.real("created_unix_seconds");
  if (const Json* extra = fields.object("extra")) {
    for (const auto& [key, value] : extra->items()) {
      if (value.is_string())
        info.extra[key] = value.get<std::string>();
      else
        fields.fail("extra." + printable(key), "a string");
    }
  }
  if (const Json* files = fields.object("files")) {
    for (const auto& [name, value] : files->items()) {
      if (!value.is_object()) return wrong("files." + printable(name), "an object");
      Fields record(value, "files." + printable(name) + ".");
      manifest.files[name] = FileRecord{record.number("bytes"), record.checksum("crc32c")};
      CENTROID_TRY(record.status());
    }
  }
  CENTROID_TRY(fields.status());
  if (const auto tensors = json.find("tensors"); tensors != json.end()) {
    CENTROID_ASSIGN(manifest.tensors, tensors_of(*tensors));
  }
  return manifest;
}

}  // namespace

Result<std::string> to_json(const CheckpointManifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  if (!std::isfinite(info.created_unix_seconds))
    return Error(ErrorCode::kInvalidArgument,
                 "manifest.json: field \"created_unix_seconds\": not finite");
  try {
    Json json;
    json["format"] = kFormat;
    json["format_version"] = manifest.has_columns ? kVersionOfColumns : kFormatVersion;
    json["run_id"] = info.run_id;
    json["version"] = info.version.value;
    json["round"] = info.round.value;
    json["epoch"] = info.epoch;
    json["offset"] = info.offset;
    json["optimizer_step"] = info.optimizer_step;
    json["seed"] = info.seed;
    json["optimizer"] = info.optimizer;
    json["slot_names"] = info.slot_names;
    json["created_unix_seconds"] = info.created_unix_seconds;
    json["extra"] = info.extra;
    json["files"] = Json::object();
    for (const auto& [name, record] : manifest.files) {
      Json& file = json["files"][name];
      file["bytes"] = record.bytes;
      file["crc32c"] = hex(record.crc32c);
    }
    for (const TensorInfo& tensor : manifest.tensors) {
      Json& item = json["tensors"].emplace_back();
      item["name"] = tensor.name;
      item["shape"] = tensor.shape;
    }
    json[kChecksum] = hex(crc32c(as_bytes(json.dump())));
    return json.dump(2) + "\n";
  } catch (const Json::exception& why) {  // a string that is not UTF-8
    return Error(ErrorCode::kInvalidArgument, "manifest.json: " + printable(why.what(), 160));
  }
}

Result<CheckpointManifest> parse_checkpoint_manifest(std::string_view text) {
  if (is_too_deep(text)) return refused("nested deeper than " + std::to_string(kMaxDepth));
  try {
    Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return refused("not a JSON object");
    Fields head(json);
    if (head.text("format") != kFormat) return wrong("format", std::string(kFormat));
    const std::uint64_t version = head.number("format_version");
    const std::uint32_t checksum = head.checksum(kChecksum);
    CENTROID_TRY(head.status());
    if (version < kFormatVersion || version > kVersionOfColumns)
      return Error(ErrorCode::kUnimplemented,
                   "manifest.json: field \"format_version\": " + std::to_string(version) +
                       " received, this program reads up to " + std::to_string(kVersionOfColumns));
    json.erase(kChecksum);
    if (crc32c(as_bytes(json.dump())) != checksum)
      return refused("field \"crc32c\": does not fit the other fields: altered");
    CENTROID_ASSIGN(CheckpointManifest out, from_fields(json));
    out.has_columns = version == kVersionOfColumns;
    return out;
  } catch (const Json::exception& why) {
    return refused(printable(why.what(), 160));
  }
}

}  // namespace centroid
