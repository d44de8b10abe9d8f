#include "server/api/idempotency_log.h"

#include <filesystem>
#include <map>
#include <span>

#include <nlohmann/json.hpp>

#include "common/checkpoint/fault_point.h"
#include "server/tokens/file_lock.h"
#include "server/tokens/private_file.h"

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr double kClocks = 60;  ///< by which those of two machines may differ
constexpr std::uint64_t kKeptBytes = 8u << 20, kMostBytes = 32u << 20;

constexpr const char* kWhat = "idempotency keys";

/// fails as file.h: keys that cannot be read are not none
Result<std::string> read_keys(const std::string& path) {
  auto text = file::read_text(path);
  if (!text.ok()) return private_file_error(kWhat, text.error());
  return text;
}

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string begin_line(const std::string& key, const std::string& request, double unix_seconds) {
  Json json;
  json["key"] = key;
  json["request"] = request;
  json["begun_unix_seconds"] = unix_seconds;
  return line_of(json);
}

std::string finish_line(const std::string& key, const HttpResponse& response) {
  Json fields = Json::array(), json;
  for (const auto& [name, value] : response.fields) fields.push_back({name, value});
  json["key"] = key;
  json["status"] = response.status;
  json["content_type"] = response.content_type;
  json["fields"] = std::move(fields);
  json["body"] = response.body;
  return line_of(json);
}

/// A field as it may stand in a response; the file is ours, but a line may have been damaged.
bool is_field(const std::string& text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
  return true;
}

std::optional<HttpResponse> response_of(const Json& json) {
  if (!json.at("status").is_number_unsigned()) return std::nullopt;
  HttpResponse response;
  response.status = json.at("status").get<unsigned>();
  response.content_type = json.at("content_type").get<std::string>();
  response.body = json.at("body").get<std::string>();
  if (response.status < 200 || response.status > 599 || !is_field(response.content_type))
    return std::nullopt;
  for (const Json& field : json.at("fields")) {
    auto name = field.at(0).get<std::string>();
    auto value = field.at(1).get<std::string>();
    if (name.empty() || !is_field(name) || !is_field(value)) return std::nullopt;
    response.fields.emplace_back(std::move(name), std::move(value));
  }
  return response;
}

}  // namespace

std::vector<IdempotencyLog::Kept> parse_idempotency(std::string_view text, double now_unix_seconds,
                                                    double lifetime_seconds) {
  std::vector<IdempotencyLog::Kept> kept;
  std::map<std::string, std::size_t> places;
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) continue;
    try {
      const auto key = json.at("key").get<std::string>();
      const auto place = places.find(key);
      if (json.contains("begun_unix_seconds")) {
        IdempotencyLog::Kept one;
        one.key = key;
        one.request = json.at("request").get<std::string>();
        one.begun_unix_seconds = json.at("begun_unix_seconds").get<double>();
        if (place != places.end()) kept[place->second].key.clear();
        places[key] = kept.size();
        kept.push_back(std::move(one));
      } else if (place != places.end() && json.contains("status")) {
        kept[place->second].response = response_of(json);
      } else if (place != places.end()) {  // it was not done
        kept[place->second].key.clear();
        places.erase(place);
      }
    } catch (const Json::exception&) {
      continue;
    }
  }
  std::erase_if(kept, [&](const IdempotencyLog::Kept& one) {
    const double age = now_unix_seconds - one.begun_unix_seconds;
    return one.key.empty() || !(age < lifetime_seconds);
  });
  return kept;
}

Result<std::unique_ptr<IdempotencyLog>> IdempotencyLog::open(std::string path,
                                                             double now_unix_seconds,
                                                             double lifetime_seconds) {
  std::unique_ptr<IdempotencyLog> log(new IdempotencyLog(std::move(path)));
  log->lifetime_seconds_ = lifetime_seconds;
  if (log->path_.empty()) return log;
  const auto about = file::attributes_of(log->path_);
  if (about.ok() && *about) {
    if (((*about)->mode & 077u) != 0)
      return Error(ErrorCode::kFailedPrecondition, "idempotency keys " + log->path_ +
                                                       ": others may read or write it; chmod 600 " +
                                                       log->path_);
    CENTROID_ASSIGN(const std::string text, read_keys(log->path_));
    log->kept_ = parse_idempotency(text, now_unix_seconds, lifetime_seconds);
  }
  CENTROID_TRY(log->rewrite());
  return log;
}

/// A new file of what is kept, the newest that fit.
Status IdempotencyLog::rewrite() {
  std::string text;
  std::size_t first = kept_.size();
  std::vector<std::string> lines;
  for (std::uint64_t bytes = 0; first > 0; --first) {
    const Kept& one = kept_[first - 1];
    std::string line = begin_line(one.key, one.request, one.begun_unix_seconds);
    if (one.response) line += finish_line(one.key, *one.response);
    bytes += line.size();
    if (bytes > kKeptBytes) break;
    lines.push_back(std::move(line));
  }
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(first));
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) text += *line;
  file_ = file::Descriptor();  // also when this fails: nobody knows then which one has the name
  CENTROID_TRY(replace_private(kWhat, path_, text, fault::Stem("idempotency")));
  is_cut_ = false;
  bytes_ = text.size();
  return {};
}

Status IdempotencyLog::append(const std::string& line) {
  const std::string text = is_cut_ ? "\n" + line : line;  // what a full disk cut stays by itself
  const Status written = write_line(text);
  if (!written.ok()) return private_file_error(kWhat, written.error());
  return {};
}

Status IdempotencyLog::write_line(const std::string& text) {
  if (!file_.is_open()) {
    CENTROID_ASSIGN(file_, file::open_to_append(path_, kPrivateMode));
  }
  const Bytes bytes = std::as_bytes(std::span(text)), half = bytes.first(bytes.size() / 2);
  is_cut_ = true;
  CENTROID_TRY(file::write_all(file_, path_, half));
  fault::point("idempotency.line_torn");
  CENTROID_TRY(file::write_all(file_, path_, bytes.subspan(half.size())));
  is_cut_ = false;
  bytes_ += text.size();
  fault::point("idempotency.line_written");
  CENTROID_TRY(file::sync_data(file_, path_));
  fault::point("idempotency.line_synced");
  return {};
}

/// What another server has of a key.
std::optional<IdempotencyLog::Kept> IdempotencyLog::find_elsewhere(const std::string& key,
                                                                   double now_unix_seconds) const {
  if (path_.empty()) return std::nullopt;
  std::optional<Kept> newest;
  const std::filesystem::path mine(path_);
  const auto files = file::list(mine.parent_path());
  if (!files.ok()) return std::nullopt;
  for (const auto& [name, about] : *files) {
    if (!name.starts_with("idempotency") || !name.ends_with(".jsonl") || name == mine.filename())
      continue;
    if ((about.mode & 077u) != 0) continue;
    const double age = now_unix_seconds - 1e-9 * static_cast<double>(about.modified_ns);
    if (age > lifetime_seconds_ + kClocks) continue;  // of a server that is gone
    const auto text = file::read_text(mine.parent_path() / name, 2 * kMostBytes);
    if (!text.ok()) continue;
    for (Kept& one : parse_idempotency(*text, now_unix_seconds, lifetime_seconds_))
      if (one.key == key && (!newest || newest->begun_unix_seconds < one.begun_unix_seconds))
        newest = std::move(one);
  }
  return newest;
}

Result<std::optional<IdempotencyLog::Kept>> IdempotencyLog::claim(const std::string& key,
                                                                  const std::string& request,
                                                                  double unix_seconds) {
  const std::scoped_lock lock(mutex_);
  if (path_.empty()) return std::optional<Kept>();
  // Between the look at the others' files and the line in this one nobody else may do the same.
  const std::string held =
      (std::filesystem::path(path_).parent_path() / "idempotency.lock").string();
  CENTROID_ASSIGN(const auto claims, FileLock::try_take(held));
  if (!claims) return Error(ErrorCode::kAborted, "idempotency keys: another server holds " + held);
  if (auto other = find_elsewhere(key, unix_seconds)) return other;
  if (bytes_ > kMostBytes) {
    CENTROID_ASSIGN(const std::string text, read_keys(path_));
    kept_ = parse_idempotency(text, unix_seconds, lifetime_seconds_);
    CENTROID_TRY(rewrite());
    kept_.clear();
  }
  CENTROID_TRY(append(begin_line(key, request, unix_seconds)));
  return std::optional<Kept>();
}

Status IdempotencyLog::finish(const std::string& key, const HttpResponse& response) {
  const std::scoped_lock lock(mutex_);
  return path_.empty() ? Status() : append(finish_line(key, response));
}

Status IdempotencyLog::forget(const std::string& key) {
  const std::scoped_lock lock(mutex_);
  if (path_.empty()) return {};
  Json json;
  json["key"] = key;
  json["forgotten"] = true;
  return append(line_of(json));
}

}  // namespace centroid::server
