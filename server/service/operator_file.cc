#include "server/service/operator_file.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "common/checkpoint/replace_file.h"
#include "common/storage/file.h"

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = 8u << 20;

std::string text_of(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// A scalar as JSON; empty: it is none.
std::string scalar_of(const Json& json) {
  const bool is_one = json.is_number() || json.is_boolean() || json.is_string();
  return is_one ? json.dump(-1, ' ', false, Json::error_handler_t::replace) : std::string();
}

/// Files of version 0.1 have these settings by other names.
std::string name_today(std::string name) {
  return name == "optimizer.learning_rate" ? "lr"
         : name == "optimizer.schedule"    ? "lr_schedule"
                                           : name;
}

}  // namespace

std::string to_json(const OperatorState& state) {
  Json evictions = Json::array();
  for (const auto& one : state.evictions) {
    Json json;
    json["name"] = one.name;
    json["why"] = one.why;
    json["since_unix_seconds"] = one.since_unix_seconds;
    json["until_unix_seconds"] = one.until_unix_seconds;
    evictions.push_back(std::move(json));
  }
  Json out;
  out["evictions"] = std::move(evictions);
  out["scale"]["workers"] = state.scale.workers;
  out["scale"]["why"] = state.scale.why;
  out["scale"]["since_unix_seconds"] = state.scale.since_unix_seconds;
  if (state.stop) {
    out["stop"]["run_id"] = state.stop->run_id;
    out["stop"]["version"] = state.stop->version;
    out["stop"]["since_unix_seconds"] = state.stop->since_unix_seconds;
    if (!state.stop->halted.empty()) out["stop"]["halted"] = state.stop->halted;
  }
  if (!state.has_job()) return text_of(out);
  out["job"]["run_id"] = state.job.run_id;
  out["job"]["version"] = state.job.version;
  if (state.pause) out["pause"]["since_unix_seconds"] = state.pause->since_unix_seconds;
  Json settings = Json::array();
  for (const auto& one : state.settings) {
    Json json;
    json["name"] = one.name;
    json["value"] = Json::parse(one.value, nullptr, false);
    json["instead_of"] = Json::parse(one.instead_of, nullptr, false);
    settings.push_back(std::move(json));
  }
  out["settings"] = std::move(settings);
  return text_of(out);
}

Result<OperatorState> parse_operator_state(std::string_view text) {
  const Error damaged(ErrorCode::kDataLoss,
                      "damaged; move it away, then say again who is evicted, how many workers are "
                      "wanted, whether the job is to stop or to pause, and what to set");
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return damaged;
  OperatorState state;
  try {
    for (const Json& one : json.at("evictions")) {
      OperatorState::Eviction eviction;
      eviction.name = one.at("name").get<std::string>();
      eviction.why = one.at("why").get<std::string>();
      eviction.since_unix_seconds = one.at("since_unix_seconds").get<double>();
      eviction.until_unix_seconds = one.at("until_unix_seconds").get<double>();
      if (eviction.name.empty() || !(eviction.until_unix_seconds >= 0)) return damaged;
      state.evictions.push_back(std::move(eviction));
      if (state.evictions.size() > kMaxEvictions) return damaged;
    }
    const Json& scale = json.at("scale");
    if (!scale.at("workers").is_number_unsigned()) return damaged;
    state.scale.workers = scale.at("workers").get<std::uint64_t>();
    state.scale.why = scale.at("why").get<std::string>();
    state.scale.since_unix_seconds = scale.at("since_unix_seconds").get<double>();
    if (const auto stop = json.find("stop"); stop != json.end()) {
      if (!stop->at("version").is_number_unsigned()) return damaged;
      OperatorState::Stop said;
      said.run_id = stop->at("run_id").get<std::string>();
      said.version = stop->at("version").get<std::uint64_t>();
      said.since_unix_seconds = stop->at("since_unix_seconds").get<double>();
      said.halted = stop->value("halted", "");
      state.stop = std::move(said);
    }
    if (const auto pause = json.find("pause"); pause != json.end()) {
      state.pause = OperatorState::Pause{pause->at("since_unix_seconds").get<double>()};
    }
    if (const auto settings = json.find("settings"); settings != json.end()) {
      for (const Json& one : *settings) {
        OperatorState::Setting setting;
        setting.name = name_today(one.at("name").get<std::string>());
        setting.value = scalar_of(one.at("value"));
        setting.instead_of = scalar_of(one.at("instead_of"));
        if (setting.name.empty() || setting.value.empty() || setting.instead_of.empty())
          return damaged;
        state.settings.push_back(std::move(setting));
        if (state.settings.size() > kMaxSettings) return damaged;
      }
    }
    if (state.has_job()) {
      const Json& job = json.at("job");
      if (!job.at("version").is_number_unsigned()) return damaged;
      state.job.run_id = job.at("run_id").get<std::string>();
      state.job.version = job.at("version").get<std::uint64_t>();
    }
  } catch (const Json::exception&) {
    return damaged;
  }
  return state;
}

Result<OperatorState> read_operator_state(const std::string& folder) {
  const std::string path = folder + "/" + kOperatorFile;
  if (!file::exists(path)) return OperatorState();
  const auto text = file::read_text(path, kMaxBytes);
  if (!text.ok() && text.error().code() == ErrorCode::kResourceExhausted)
    return Error(ErrorCode::kDataLoss, path + ": cannot be read, or larger than 8 MiB");
  if (!text.ok())
    return Error(ErrorCode::kFailedPrecondition,
                 path + ": cannot be read: " + text.error().message());
  auto state = parse_operator_state(*text);
  if (!state.ok()) return std::move(state).error().with_context(path);
  return state;
}

Status write_operator_state(const std::string& folder, const OperatorState& state,
                            const std::function<Status()>& may, const std::string& writer) {
  const std::filesystem::path path = folder + "/" + kOperatorFile;
  Replacement how{fault::Stem("operator")};
  how.draft = draft_of(path, writer);
  how.may = may;
  return replace_file(path, to_json(state), how);
}

}  // namespace centroid::server
