#include "server/election/fence.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/checkpoint/replace_file.h"
#include "common/storage/file.h"

namespace centroid::server {

namespace fs = std::filesystem;

namespace {

struct Written {
  std::uint64_t term = 0;
  std::string server;
};

/// Nothing if the file is missing.
Result<std::optional<Written>> read_term(const fs::path& path) {
  const auto text = file::read_text(path);
  if (!text.ok()) {
    const auto there = file::attributes_of(path);
    if (there.ok() && !*there) return std::optional<Written>();
    return Error(ErrorCode::kUnavailable, "cannot read " + path.string());
  }
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  Written written;
  if (json.is_object() && json.contains("term") && json["term"].is_number_unsigned()) {
    written.term = json["term"].get<std::uint64_t>();
    if (json.contains("server") && json["server"].is_string())
      written.server = json["server"].get<std::string>();
    return std::make_optional(written);
  }
  return Error(ErrorCode::kFailedPrecondition,
               path.string() +
                   " should name the leader's term: expected {\"term\": N, ...}; restore it, or "
                   "remove it when no server runs");
}

}  // namespace

bool Fence::open(std::uint64_t term, TimePoint until) {
  const std::lock_guard lock(mutex_);
  const TimePoint present = now();
  state_.term = term;
  return std::exchange(state_.until, until) <= present && until > present;
}

void Fence::close(std::string why) {
  const std::lock_guard lock(mutex_);
  if (state_.closed.empty()) state_.closed = std::move(why);
}

Fence::State Fence::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::uint64_t Fence::term() const { return state().term; }

Status Fence::holds() const {
  const TimePoint present = centroid::now();  // before the state: see `open`
  const State now = state();
  if (!now.closed.empty())
    return Error(ErrorCode::kAborted, "deposed: this server led in term " +
                                          std::to_string(now.term) + ": " + now.closed);
  if (present < now.until) return {};
  return Error(ErrorCode::kUnavailable,
               "the leader's lease could not be renewed in etcd: another server may lead by now");
}

Status Fence::check() {
  CENTROID_TRY(holds());
  return check_file();
}

void Fence::look() { (void)check_file(); }

Status Fence::check_file() {
  const fs::path path = folder_ / kFile;
  CENTROID_ASSIGN(const auto written, read_term(path));
  if (!written || written->term <= term()) return {};
  close(path.string() + " names term " + std::to_string(written->term) + " of server '" +
        written->server + "'");
  return holds();
}

Status Fence::check_alone(const fs::path& folder) {
  const fs::path path = folder / kFile;
  CENTROID_ASSIGN(const auto written, read_term(path));
  if (!written) return {};
  return Error(ErrorCode::kFailedPrecondition,
               path.string() + " names server '" + written->server + "' as leader of term " +
                   std::to_string(written->term) +
                   ": this folder belongs to servers whose leader etcd elects, and this server has "
                   "no etcd.endpoints. Set them (compose: --env-file deploy/compose/ha.env); or, "
                   "to continue with one server, stop all others and remove the file");
}

Status Fence::take() const {
  const fs::path path = folder_ / kFile;
  CENTROID_ASSIGN(const auto written, read_term(path));
  const std::uint64_t mine = term();
  if (written && written->term > mine)
    return Error(ErrorCode::kFailedPrecondition,
                 path.string() + " names term " + std::to_string(written->term) + " of server '" +
                     written->server + "', etcd assigned term " + std::to_string(mine) +
                     ": this etcd is not the one of before, or lost its data. Stop all servers, "
                     "then remove the file");
  std::error_code error;
  file::create_directories(folder_, error);
  nlohmann::json json;
  json["term"] = mine;
  json["server"] = server_;
  Replacement how{fault::Stem("term")};
  how.draft = draft_of(path, server_);
  how.may = [this] { return holds(); };
  return replace_file(path, json.dump() + "\n", how);
}

}  // namespace centroid::server
