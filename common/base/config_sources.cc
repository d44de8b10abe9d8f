#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/base/config_impl.h"
#include "common/base/config_json.h"
#include "common/base/nearest.h"

extern char** environ;

namespace centroid::config {
namespace {

using detail::flag_of;
using detail::Rule;
using detail::Setting;
using detail::Value;

constexpr std::string_view kEnvironmentPrefix = "CENTROID_";
constexpr std::string_view kFileSuffix = "_file";  // of a name
constexpr std::string_view kFileFlag = "-file";

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  if (file) text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file || file.bad())
    return Error(ErrorCode::kInvalidArgument,
                 "file \"" + path + "\" cannot be read: " + std::strerror(errno));
  return text;
}

}  // namespace

std::string detail::environment_name(std::string_view name) {
  std::string out(kEnvironmentPrefix);
  for (const char c : name)
    out +=
        c == '.' || c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string detail::flag_of(std::string_view name) {
  std::string flag(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::optional<Schema::Impl::Match> Schema::Impl::find(const std::map<std::string, std::size_t>& map,
                                                      std::string_view key,
                                                      std::string_view suffix) const {
  if (const auto exact = map.find(std::string(key)); exact != map.end())
    return Match{exact->second, false};
  if (!key.ends_with(suffix)) return std::nullopt;
  const auto secret = map.find(std::string(key.substr(0, key.size() - suffix.size())));
  if (secret == map.end() || !settings[secret->second].rule.is_secret) return std::nullopt;
  return Match{secret->second, true};
}

void Schema::Impl::accept(Result<Value> value, std::size_t setting, Origin origin,
                          const std::string& source, const std::string& label) {
  if (value.ok())
    assignments.push_back({setting, std::move(value).value(), origin, source});
  else
    problems.push_back(label + ": " + value.error().message());
}

void Schema::Impl::accept_text(Match match, std::string text, Origin origin,
                               const std::string& source, const std::string& label) {
  if (match.is_file) {
    const std::string path = text;
    auto content = read_file(path);
    if (!content.ok()) {
      problems.push_back(label + ": " + content.error().message());
      return;
    }
    text = std::move(content).value();
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    if (text.empty()) {  // an empty file is not taken for "no secret"
      problems.push_back(label + ": file \"" + path + "\" is empty: write the secret into it, or " +
                         "leave this setting away");
      return;
    }
  }
  accept(from_text(settings[match.setting].rule, text), match.setting, origin, source, label);
}

std::vector<std::string> Schema::Impl::known_names() const {
  std::vector<std::string> known;
  for (const Setting& setting : settings) known.push_back(setting.name);
  return known;
}

std::vector<std::string> Schema::Impl::known_flags() const {
  std::vector<std::string> known = {"--config", "--help", "--help-all", "--version",
                                    "--print-config"};
  for (const Setting& setting : settings) known.push_back("--" + flag_of(setting.name));
  return known;
}

bool Schema::Impl::read_own_flag(std::string_view name) {
  shows_help |= name == "help" || name == "help-all";
  shows_all |= name == "help-all";
  shows_version |= name == "version";
  prints_config |= name == "print-config";
  return name == "config" || name == "help" || name == "help-all" || name == "version" ||
         name == "print-config";
}

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
                         did_you_mean(leaf.path, known_names()));
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
      problems.push_back("unknown environment variable " + name + did_you_mean(name, known));
    }
  }
}

void Schema::Impl::read_flags(int argc, const char* const* argv,
                              std::optional<std::string>& config_path) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument == "-h") {
      shows_help = true;
      continue;
    }
    if (!argument.starts_with("--") || argument == "--") {
      problems.push_back("positional argument \"" + std::string(argument) +
                         "\"; every setting has the form --name value" +
                         did_you_mean(argument, known_flags()));
      continue;
    }
    const auto equals = argument.find('=');
    const std::string written(argument.substr(0, equals));
    const std::string key = written.substr(2);
    std::optional<std::string> value;
    if (equals != argument.npos) value = std::string(argument.substr(equals + 1));
    const bool is_own = read_own_flag(key);
    bool takes_next = key == "config" && !value;
    std::optional<Match> match;
    bool is_negated = false;
    if (!is_own) {
      match = find(flags, key, kFileFlag);
      if (!match && key.starts_with("no-") && !value) {
        match = find(flags, std::string_view(key).substr(3), kFileFlag);
        is_negated = match && std::holds_alternative<bool>(settings[match->setting].rule.initial);
        if (!is_negated) match.reset();
      }
      if (!match) {
        problems.push_back("unknown flag " + written + did_you_mean(written, known_flags()));
        // The next argument is most likely its value: one complaint is enough.
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
      if (config_path) problems.push_back("--config is set twice");
      config_path = *value;
    } else if (is_own && value) {
      problems.push_back(written + " takes no value");
    } else if (match) {
      accept_text(*match, *value, Origin::kFlag, written, written);
    }
  }
}

}  // namespace centroid::config
