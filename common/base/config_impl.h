#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/config.h"
#include "common/base/config_print.h"
#include "common/base/config_value.h"

// State of a schema and the readers of its three sources. Private to config.
namespace centroid::config {
namespace detail {}  // namespace detail

struct Schema::Impl {
  std::string program;
  std::string summary;
  std::vector<detail::Setting> settings;
  std::map<std::string, std::size_t> names;
  std::vector<std::string> sections;
  std::map<std::string, std::size_t> flags;
  std::map<std::string, std::size_t> variables;
  std::vector<std::string> ignored;  // prefixes of variables

  // A value from one source; applied only after all values are valid.
  struct Assignment {
    std::size_t setting;
    detail::Value value;
    Origin origin;
    std::string source;
  };
  std::vector<Assignment> assignments;
  std::vector<std::string> problems;
  bool shows_help = false;
  bool shows_all = false;
  bool shows_version = false;
  bool prints_config = false;

  template <class T, class Bound>
  void add(const std::string& name, T* target, Doc<Bound> doc);

  // A name in one of the maps: the field, or the file with its secret.
  struct Match {
    std::size_t setting;
    bool is_file;
  };
  std::optional<Match> find(const std::map<std::string, std::size_t>& map, std::string_view key,
                            std::string_view suffix) const;

  void accept(Result<detail::Value> value, std::size_t setting, Origin origin,
              const std::string& source, const std::string& label);
  void accept_text(Match match, std::string text, Origin origin, const std::string& source,
                   const std::string& label);

  std::vector<std::string> known_names() const;
  std::vector<std::string> known_flags() const;

  void read_json(const std::string& text, const std::string& source);
  void read_json_file(const std::string& path);
  void read_environment(std::optional<std::string>& config_path);
  void read_flags(int argc, const char* const* argv, std::optional<std::string>& config_path);
  bool read_own_flag(std::string_view name);
  void begin() {
    assignments.clear();
    problems.clear();
    shows_help = shows_all = shows_version = prints_config = false;
  }
  Status finish();
};

}  // namespace centroid::config
