#include "common/base/config_print.h"

#include <algorithm>
#include <optional>

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
                 const std::vector<std::string>& sections, const std::vector<Setting>& settings,
                 bool is_all) {
  const bool is_short = !is_all && std::any_of(settings.begin(), settings.end(),
                                               [](const Setting& one) { return one.is_basic; });
  std::string out = summary + "\n\nusage: " + program + " [--config FILE] [--name value ...]\n\n";
  out += "  --config FILE       read a JSON file (also CENTROID_CONFIG)\n";
  out += "  --print-config      print the effective values and the source of each\n";
  out += is_short ? "  --help-all          list all settings, not only those below\n" : "";
  out += "  --help, --version\n";
  std::optional<std::size_t> section;
  for (const Setting& setting : settings) {
    if (is_short && !setting.is_basic) continue;
    if (section != setting.section)
      out += sections.empty() ? "\n" : "\n" + sections[setting.section] + "\n";
    section = setting.section;
    const Rule& rule = setting.rule;
    const std::string flag = "  --" + flag_of(setting.name);
    out += flag + placeholder(rule) + "\n      " + setting.text;
    const std::string initial = to_text(rule, rule.initial);
    out += "\n      " + expected(rule) + "; default " + (initial.empty() ? "\"\"" : initial);
    if (!rule.unit.empty()) out += " " + rule.unit;
    if (rule.is_secret) out += "; --" + flag_of(setting.name) + "-file FILE reads it from a file";
    out += "\n";
  }
  out +=
      "\nLater wins: default, file, environment, flags. `--no-name` turns a switch off.\n"
      "In JSON --a.b-c is \"a.b_c\" or {\"a\": {\"b_c\": ...}}, in the environment "
      "CENTROID_A_B_C.\n";
  return out;
}

}  // namespace centroid::config::detail
