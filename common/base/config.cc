#include "common/base/config.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <type_traits>
#include <variant>

#include "common/base/config_json.h"
#include "common/base/config_print.h"
#include "common/base/config_value.h"
#include "common/base/version.h"

extern char** environ;

namespace centroid::config {
namespace {

using detail::Rule;
using detail::Setting;
using detail::Value;

constexpr std::string_view kEnvironmentPrefix = "CENTROID_";
constexpr std::string_view kFileSuffix = "_file";

// Flags are compared with '_' for '-'.
std::string flag_key(std::string_view flag) {
  std::string key(flag);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// "every_rounds" stays, "--every-rounds" loses its dashes.
std::string bare(std::string_view alias) {
  const auto first = alias.find_first_not_of('-');
  return first == alias.npos ? std::string() : std::string(alias.substr(first));
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file || file.bad())
    return Error(ErrorCode::kInvalidArgument,
                 "file \"" + path + "\" cannot be read: " + std::strerror(errno));
  return text;
}

template <class T>
Value as_value(const T& value) {
  return Value(std::in_place_type<T>, value);
}

}  // namespace

std::string detail::environment_name(std::string_view name) {
  std::string out(kEnvironmentPrefix);
  for (const char c : name)
    out +=
        c == '.' || c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

struct Schema::Impl {
  std::string program;
  std::string summary;
  std::vector<Setting> settings;
  std::map<std::string, std::size_t> names;
  std::map<std::string, std::size_t> flags;  // names and aliases, by flag_key
  std::map<std::string, std::size_t> variables;
  std::vector<std::string> ignored;  // prefixes of variables

  // One value found somewhere; kept back until everything was found valid.
  struct Assignment {
    std::size_t setting;
    Value value;
    Origin origin;
    std::string source;
  };
  std::vector<Assignment> assignments;
  std::vector<std::string> problems;
  bool wants_help = false;
  bool wants_version = false;
  bool wants_print = false;

  template <class T, class Bound>
  void add(const std::string& name, T* target, Doc<Bound> doc, const std::string& alias);

  // A name in one of the maps: the field, or the file that holds its secret.
  struct Match {
    std::size_t setting;
    bool is_file;
  };
  std::optional<Match> find(const std::map<std::string, std::size_t>& map, std::string_view key,
                            std::string_view suffix) const {
    if (const auto exact = map.find(std::string(key)); exact != map.end())
      return Match{exact->second, false};
    if (!key.ends_with(suffix)) return std::nullopt;
    const auto secret = map.find(std::string(key.substr(0, key.size() - suffix.size())));
    if (secret == map.end() || !settings[secret->second].rule.is_secret) return std::nullopt;
    return Match{secret->second, true};
  }

  void accept(Result<Value> value, std::size_t setting, Origin origin, const std::string& source,
              const std::string& label) {
    if (value.ok())
      assignments.push_back({setting, std::move(value).value(), origin, source});
    else
      problems.push_back(label + ": " + value.error().message());
  }
  void accept_text(Match match, std::string text, Origin origin, const std::string& source,
                   const std::string& label) {
    if (match.is_file) {
      auto content = read_file(text);
      if (!content.ok()) {
        problems.push_back(label + ": " + content.error().message());
        return;
      }
      text = std::move(content).value();
      while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    }
    accept(from_text(settings[match.setting].rule, text), match.setting, origin, source, label);
  }

  std::string guess(std::string_view name, std::vector<std::string> known) const {
    const std::string best = detail::nearest(name, known);
    return best.empty() ? "" : "; the nearest is \"" + best + "\"";
  }
  std::vector<std::string> known_names() const {
    std::vector<std::string> known;
    for (const Setting& setting : settings) known.push_back(setting.name);
    return known;
  }
  std::vector<std::string> known_flags() const {
    std::vector<std::string> known = {"--config", "--help", "--version", "--print-config"};
    for (const Setting& setting : settings) {
      known.push_back("--" + setting.name);
      if (!setting.alias.empty()) known.push_back("--" + setting.alias);
    }
    return known;
  }

  void read_json(const std::string& text, const std::string& source);
  void read_json_file(const std::string& path);
  void read_environment(std::optional<std::string>& config_path);
  void read_flags(int argc, const char* const* argv, std::optional<std::string>& config_path);
  bool read_own_flag(std::string_view name, const std::optional<std::string>& value,
                     bool& takes_next) {
    takes_next = name == "config" && !value;
    wants_help |= name == "help";
    wants_version |= name == "version";
    wants_print |= name == "print_config";
    return name == "config" || name == "help" || name == "version" || name == "print_config";
  }
  void begin() {
    assignments.clear();
    problems.clear();
    wants_help = wants_version = wants_print = false;
  }
  Status finish();
};

Schema::Schema(std::string program, std::string summary) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->summary = std::move(summary);
}

Schema::~Schema() = default;

template <class T, class Bound>
void Schema::Impl::add(const std::string& name, T* target, Doc<Bound> doc,
                       const std::string& alias) {
  Setting setting;
  setting.name = name;
  setting.alias = bare(alias);
  setting.text = std::move(doc.text);
  setting.is_live = doc.live;
  setting.rule.initial = as_value(*target);
  setting.rule.unit = std::move(doc.unit);
  setting.rule.choices = std::move(doc.choices);
  setting.rule.is_secret = doc.secret;
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, bool>) {
    if (doc.min) setting.rule.min = as_value(T(*doc.min));
    if (doc.max) setting.rule.max = as_value(T(*doc.max));
  }
  if constexpr (std::is_same_v<T, std::chrono::milliseconds>) setting.rule.unit = "ms";
  setting.target = target;

  CENTROID_CHECK(!name.empty());
  const std::size_t index = settings.size();
  for (const std::string& flag : {setting.name, setting.alias}) {
    const std::string key = flag_key(flag);
    CENTROID_CHECK(key != "config" && key != "help" && key != "version" && key != "print_config");
    if (!key.empty() && key != flag_key(name)) CENTROID_CHECK(flags.emplace(key, index).second);
  }
  CENTROID_CHECK(flags.emplace(flag_key(name), index).second);
  CENTROID_CHECK(names.emplace(name, index).second);
  CENTROID_CHECK(variables.emplace(detail::environment_name(name), index).second);
  settings.push_back(std::move(setting));
}

void Schema::field(const std::string& name, bool* target, Doc<bool> doc, const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}
void Schema::field(const std::string& name, std::int64_t* target, Doc<std::int64_t> doc,
                   const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}
void Schema::field(const std::string& name, std::uint64_t* target, Doc<std::uint64_t> doc,
                   const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}
void Schema::field(const std::string& name, double* target, Doc<double> doc,
                   const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}
void Schema::field(const std::string& name, std::string* target, Doc<std::string> doc,
                   const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}
void Schema::field(const std::string& name, std::chrono::milliseconds* target,
                   Doc<std::int64_t> doc, const std::string& alias) {
  impl_->add(name, target, std::move(doc), alias);
}

void Schema::ignore_environment(const std::string& prefix) { impl_->ignored.push_back(prefix); }

void Schema::Impl::read_json(const std::string& text, const std::string& source) {
  auto leaves = detail::read_leaves(text, source);
  if (!leaves.ok()) {
    problems.push_back(leaves.error().message());
    return;
  }
  for (const detail::Leaf& leaf : leaves.value()) {
    const std::string where = source + ":" + std::to_string(leaf.line);
    const std::string label = where + ": " + leaf.path;
    const auto match = find(names, leaf.path, kFileSuffix);
    const std::string group = leaf.path + ".";
    const auto inside = names.lower_bound(group);
    const bool is_group = inside != names.end() && inside->first.starts_with(group);
    const auto* compound = std::get_if<detail::Compound>(&leaf.value);
    if (match && match->is_file) {
      if (const auto* path = std::get_if<std::string>(&leaf.value))
        accept_text(*match, *path, Origin::kFile, where, label);
      else
        problems.push_back(label + ": expected the path of a file");
    } else if (match) {
      const Rule& rule = settings[match->setting].rule;
      accept(from_scalar(rule, leaf.value), match->setting, Origin::kFile, where, label);
    } else if (is_group && compound != nullptr && !compound->is_array) {
      continue;  // an empty group
    } else if (is_group) {
      problems.push_back(label + ": expected an object, its first field is \"" + inside->first +
                         "\"");
    } else {
      problems.push_back(where + ": unknown key \"" + leaf.path + "\"" +
                         guess(leaf.path, known_names()));
    }
  }
}

void Schema::Impl::read_json_file(const std::string& path) {
  auto text = read_file(path);
  if (text.ok())
    read_json(text.value(), path);
  else
    problems.push_back("--config: " + text.error().message());
}

void Schema::Impl::read_environment(std::optional<std::string>& config_path) {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!text.starts_with(kEnvironmentPrefix)) continue;
    const auto equals = text.find('=');
    if (equals == text.npos) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  std::sort(found.begin(), found.end());  // messages in a fixed order
  for (const auto& [name, value] : found) {
    const auto is_prefix = [&](const std::string& prefix) { return name.starts_with(prefix); };
    if (name == "CENTROID_CONFIG") {
      if (!config_path) config_path = value;
    } else if (const auto match = find(variables, name, "_FILE")) {
      accept_text(*match, value, Origin::kEnvironment, name, name);
    } else if (std::none_of(ignored.begin(), ignored.end(), is_prefix)) {
      std::vector<std::string> known = {"CENTROID_CONFIG"};
      for (const auto& [variable, index] : variables) known.push_back(variable);
      problems.push_back("unknown environment variable " + name + guess(name, known));
    }
  }
}

void Schema::Impl::read_flags(int argc, const char* const* argv,
                              std::optional<std::string>& config_path) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (!argument.starts_with("--") || argument == "--") {
      problems.push_back("positional argument \"" + std::string(argument) +
                         "\"; everything is given as --name value" +
                         guess("--" + bare(argument), known_flags()));
      continue;
    }
    const auto equals = argument.find('=');
    const std::string written(argument.substr(0, equals));
    const std::string key = flag_key(std::string_view(written).substr(2));
    std::optional<std::string> value;
    if (equals != argument.npos) value = std::string(argument.substr(equals + 1));
    bool takes_next = false;
    const bool is_own = read_own_flag(key, value, takes_next);
    std::optional<Match> match;
    bool is_negated = false;
    if (!is_own) {
      match = find(flags, key, kFileSuffix);
      if (!match && key.starts_with("no_") && !value) {
        match = find(flags, std::string_view(key).substr(3), kFileSuffix);
        is_negated = match && std::holds_alternative<bool>(settings[match->setting].rule.initial);
        if (!is_negated) match.reset();
      }
      if (!match) {
        problems.push_back("unknown flag " + written + guess(written, known_flags()));
        // What follows is most likely its value: one complaint is enough.
        if (!value && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--")) ++i;
        continue;
      }
      const bool is_bool = std::holds_alternative<bool>(settings[match->setting].rule.initial);
      if (is_bool && !value) value = is_negated ? "false" : "true";
      takes_next = !value;
    }
    if (takes_next) {
      if (i + 1 == argc || std::string_view(argv[i + 1]).starts_with("--")) {
        problems.push_back(written + " needs a value");
        continue;
      }
      value = argv[++i];
    }
    if (key == "config") {
      if (config_path) problems.push_back("--config is given twice");
      config_path = *value;
    } else if (is_own && value) {
      problems.push_back(written + " takes no value");
    } else if (match) {
      accept_text(*match, *value, Origin::kFlag, written, written);
    }
  }
}

Status Schema::Impl::finish() {
  const auto found = std::exchange(problems, {});
  auto values = std::exchange(assignments, {});
  if (!found.empty()) {
    std::string message = found.front();
    if (found.size() > 1) {
      message = std::to_string(found.size()) + " problems:";
      for (const std::string& problem : found) message += "\n  " + problem;
    }
    return Error(ErrorCode::kInvalidArgument, std::move(message));
  }
  for (Assignment& assignment : values) {
    Setting& setting = settings[assignment.setting];
    std::visit([&]<class T>(T* target) { *target = std::get<T>(std::move(assignment.value)); },
               setting.target);
    setting.origin = assignment.origin;
    setting.source = std::move(assignment.source);
  }
  return {};
}

Result<Schema::Outcome> Schema::load(int argc, const char* const* argv) {
  std::optional<std::string> flag_path;
  std::optional<std::string> config_path;
  impl_->begin();
  impl_->read_flags(argc, argv, flag_path);
  if (impl_->wants_help || impl_->wants_version) {
    const std::string text = impl_->wants_help ? help() : impl_->program + " " + kVersion + "\n";
    std::fputs(text.c_str(), stdout);
    return Outcome::kPrinted;
  }
  // Flags were read first (they name the file) but are applied last.
  auto from_flags = std::exchange(impl_->assignments, {});
  auto flag_problems = std::exchange(impl_->problems, {});
  impl_->read_environment(config_path);
  auto from_environment = std::exchange(impl_->assignments, {});
  auto environment_problems = std::exchange(impl_->problems, {});
  if (flag_path) config_path = flag_path;
  if (config_path) impl_->read_json_file(*config_path);
  const auto move_all = [](auto& from, auto& to) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  move_all(from_environment, impl_->assignments);
  move_all(from_flags, impl_->assignments);
  move_all(environment_problems, impl_->problems);
  move_all(flag_problems, impl_->problems);
  CENTROID_TRY(impl_->finish());
  if (!impl_->wants_print) return Outcome::kRun;
  std::fputs((effective_json() + "\n").c_str(), stdout);
  return Outcome::kPrinted;
}

Status Schema::load_text(const std::string& json_text, const std::string& source_name) {
  impl_->begin();
  impl_->read_json(json_text, source_name);
  return impl_->finish();
}

std::string Schema::effective_json() const { return detail::effective_json(impl_->settings); }

std::string Schema::help() const {
  return detail::help(impl_->program, impl_->summary, impl_->settings);
}

}  // namespace centroid::config
