#include <cstdio>

#include "client/command.h"
#include "common/base/log.h"
#include "common/base/version.h"

int main(int argc, char** argv) {
  using namespace centroid;
  // What libraries have to say must not mix with the answer.
  if (!log::configure(log::Level::kOff, log::Format::kText).ok()) return client::kExitFailed;
  CLI::App app("Looks at and steers clusters, and works on their files.", "centroidctl");
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(1);
  int status = client::kExitDone;
  client::add_checkpoints(app, status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& why) {
    return app.exit(why) == 0 ? client::kExitDone : client::kExitUsage;
  }
  return status;
}
