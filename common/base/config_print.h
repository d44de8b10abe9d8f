#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/config.h"
#include "common/base/config_value.h"

// Fields as people and tools see them. Private to config.
namespace centroid::config::detail {

/// One field: its description, its target and the source of its value.
struct Setting {
  std::string name;
  std::string text;
  Rule rule;
  bool is_live = false;
  bool is_basic = false;
  std::size_t section = 0;
  std::variant<bool*, std::int64_t*, std::uint64_t*, double*, std::string*,
               std::chrono::milliseconds*>
      target;
  Origin origin = Origin::kDefault;
  std::string source = {};  ///< "run.json:3", "--steps"
  struct Configured {
    Value value;
    Origin origin = Origin::kDefault;
    std::string source;
  };
  std::optional<Configured> configured = {};  ///< before the first live change
};

/// "checkpoint.every-rounds" of the field "checkpoint.every_rounds".
std::string flag_of(std::string_view name);

/// The environment variable of a field.
std::string environment_name(std::string_view name);

/// The present value of its target.
Value current(const Setting& setting);

/// As in a file, in one line.
std::string json_text(const Rule& rule, const Value& value);

std::string effective_json(const std::vector<Setting>& settings);
std::string help(const std::string& program, const std::string& summary,
                 const std::vector<std::string>& sections, const std::vector<Setting>& settings,
                 bool is_all);

}  // namespace centroid::config::detail
