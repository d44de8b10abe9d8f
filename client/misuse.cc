#include "client/misuse.h"

#include <vector>

#include "common/base/nearest.h"

namespace centroid::client {

namespace {

/// The command that was recognised last: the words after it were not.
const CLI::App* innermost(const CLI::App* app) {
  for (;;) {
    const auto chosen = app->get_subcommands();
    if (chosen.empty()) return app;
    app = chosen.back();
  }
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  const auto is_named = [](const CLI::App* one) { return !one->get_name().empty(); };
  for (const CLI::App* one : app.get_subcommands(is_named)) names.push_back(one->get_name());
  return names;
}

/// Flags of a command and of its parents, which are valid after it too.
std::vector<std::string> flag_names(const CLI::App* app) {
  std::vector<std::string> names;
  const auto is_shown = [](const CLI::Option* one) { return !one->get_group().empty(); };
  for (; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options(is_shown))
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::string path_of(const CLI::App* app) {
  std::string path = app->get_name();
  while ((app = app->get_parent()) != nullptr) path = app->get_name() + " " + path;
  return path;
}

std::string joined(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& one : names) list += (list.empty() ? "" : ", ") + one;
  return list;
}

/// A suggestion, or the possible words if they are few.
std::string hint(const CLI::App& at, const std::string& word,
                 const std::vector<std::string>& commands) {
  const std::string meant = did_you_mean(word, commands);
  if (!meant.empty() || at.get_parent() == nullptr) return meant;
  return "; `" + path_of(&at) + "` has " + joined(commands);
}

std::string quoted(const std::string& word) { return "\"" + word + "\""; }

}  // namespace

std::string explain_misuse(const CLI::App& app, const CLI::Error& why) {
  const bool is_extra = dynamic_cast<const CLI::ExtrasError*>(&why) != nullptr;
  if (!is_extra && dynamic_cast<const CLI::RequiredError*>(&why) == nullptr) return why.what();
  const CLI::App* const at = innermost(&app);
  const std::vector<std::string> commands = command_names(*at);
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string word = extras.front().substr(0, extras.front().find('='));
    if (word.starts_with("-"))
      return "unknown option " + quoted(word) + " of `" + path_of(at) + "`" +
             did_you_mean(word, flag_names(at));
    if (!commands.empty()) return "unknown command " + quoted(word) + hint(*at, word, commands);
    return "`" + path_of(at) + "` takes no " + quoted(extras.front());
  }
  if (commands.empty() || is_extra) return why.what();
  return "`" + path_of(at) + "` needs a command: " + joined(commands);
}

}  // namespace centroid::client
