#include <cstdio>

#include "client/online.h"

/// completion: a script generated from the program's own options.
namespace centroid::client {

namespace {

std::vector<const CLI::App*> children(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
}

std::vector<const CLI::Option*> shown_options(const CLI::App& app) {
  return app.get_options([](const CLI::Option* one) { return !one->get_group().empty(); });
}

/// "--limit" and "-n" of an option; nothing for a positional one.
std::vector<std::string> flags_of(const CLI::Option& option) {
  std::vector<std::string> flags;
  for (const std::string& name : option.get_lnames()) flags.push_back("--" + name);
  for (const std::string& name : option.get_snames()) flags.push_back("-" + name);
  return flags;
}

std::string words_of(const CLI::App& app) {
  std::string words;
  for (const CLI::App* child : children(app)) words += child->get_name() + " ";
  for (const CLI::Option* option : shown_options(app))
    for (const std::string& flag : flags_of(*option)) words += flag + " ";
  return words;
}

/// One branch of the shell's `case` for each command: the words that may follow it.
void add_cases(std::string& out, const CLI::App& app, const std::string& path,
               const std::string& common) {
  out += "    '" + path + "') words='" + words_of(app) + common + "' ;;\n";
  for (const CLI::App* child : children(app))
    add_cases(out, *child, path + " " + child->get_name(), common);
}

std::string bash_completion(const CLI::App& app) {
  std::string names, common;
  const auto collect = [&](const auto& self, const CLI::App& one) -> void {
    for (const CLI::App* child : children(one)) {
      names += child->get_name() + "|";
      self(self, *child);
    }
  };
  collect(collect, app);
  names.pop_back();
  for (const CLI::Option* option : shown_options(app))
    for (const std::string& flag : flags_of(*option)) common += flag + " ";
  std::string out =
      "# bash completion of centroidctl; zsh: autoload -U bashcompinit && bashcompinit first\n"
      "_centroidctl() {\n"
      "  local word path=centroidctl words= current=${COMP_WORDS[COMP_CWORD]}\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    case $word in " +
      names +
      ") path+=\" $word\" ;; esac\n"
      "  done\n"
      "  case $path in\n";
  add_cases(out, app, "centroidctl", common);
  out +=
      "  esac\n"
      "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "}\n"
      "complete -F _centroidctl centroidctl\n";
  return out;
}

}  // namespace

void add_completion(CLI::App& app, int& status) {
  CLI::App* const completion =
      app.add_subcommand("completion", "Completion of the shell, for a file that it reads.");
  const auto shell = std::make_shared<std::string>("bash");
  completion->add_option("SHELL", *shell, "which shell")->check(CLI::IsMember({"bash"}));
  completion->callback([&app, &status, shell] {  // keeps the target of the option alive
    if (*shell == "bash") std::fputs(bash_completion(app).c_str(), stdout);
    status = kExitDone;
  });
}

}  // namespace centroid::client
