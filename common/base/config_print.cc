#include "common/base/config_print.h"

#include <nlohmann/json.hpp>

namespace centroid::config::detail {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Rule& rule, const Value& value) {
  return std::visit(
      [&]<class T>(const T& v) -> Json {
        if constexpr (std::is_same_v<T, std::chrono::milliseconds>)
          return v.count();
        else if constexpr (std::is_same_v<T, std::string>)
          return to_text(rule, value);
        else
          return v;
      },
      value);
}

const char* origin_name(Origin origin) {
  switch (origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kFile:
      return "file";
    case Origin::kEnvironment:
      return "environment";
    case Origin::kFlag:
      return "flag";
    case Origin::kRest:
      return "rest";
  }
  return "unknown";
}

const char* placeholder(const Rule& rule) {
  if (std::holds_alternative<bool>(rule.initial)) return "";
  if (std::holds_alternative<std::string>(rule.initial)) return " TEXT";
  if (rule.unit == "ms") return " TIME";
  if (rule.unit == "bytes") return " SIZE";
  return " N";
}

}  // namespace

Value current(const Setting& setting) {
  return std::visit([]<class T>(const T* target) { return Value(std::in_place_type<T>, *target); },
                    setting.target);
}

std::string json_text(const Rule& rule, const Value& value) {
  return to_json(rule, value).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string effective_json(const std::vector<Setting>& settings) {
  Json out = Json::object();
  for (const Setting& setting : settings) {
    const Rule& rule = setting.rule;
    Json& entry = out[setting.name];
    entry["value"] = to_json(rule, current(setting));
    entry["default"] = to_json(rule, rule.initial);
    entry["origin"] = origin_name(setting.origin);
    if (!setting.source.empty()) entry["source"] = setting.source;
    if (!rule.unit.empty()) entry["unit"] = rule.unit;
    entry["text"] = setting.text;
    if (rule.min) entry["min"] = to_json(rule, *rule.min);
    if (rule.max) entry["max"] = to_json(rule, *rule.max);
    if (!rule.choices.empty()) entry["choices"] = rule.choices;
    entry["live"] = setting.is_live;
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string help(const std::string& program, const std::string& summary,
                 const std::vector<Setting>& settings) {
  std::string out = summary + "\n\nusage: " + program + " [--config FILE] [--name value ...]\n\n";
  out += "  --config FILE       read a JSON file (also CENTROID_CONFIG)\n";
  out += "  --print-config      print the effective values and where each came from\n";
  out += "  --help, --version\n\n";
  for (const Setting& setting : settings) {
    const Rule& rule = setting.rule;
    out += "  --" + setting.name + placeholder(rule);
    if (!setting.alias.empty()) out += ", --" + setting.alias + placeholder(rule);
    out += "\n      " + setting.text;
    const std::string initial = to_text(rule, rule.initial);
    out += "\n      " + expected(rule) + "; default " + (initial.empty() ? "\"\"" : initial);
    if (!rule.unit.empty()) out += " " + rule.unit;
    if (rule.is_secret) out += "; --" + setting.name + "_file FILE reads it from a file";
    out += "; " + environment_name(setting.name) + "\n";
  }
  out += "\nLater wins: default, file, environment, flags. `--no-name` turns a switch off.\n";
  return out;
}

}  // namespace centroid::config::detail
