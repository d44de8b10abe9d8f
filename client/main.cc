#include <cstdio>

#include "client/misuse.h"
#include "client/online.h"
#include "common/base/log.h"
#include "common/base/version.h"

int main(int argc, char** argv) {
  using namespace centroid;
  // Messages of libraries must not mix with the answer.
  if (!log::configure(log::Level::kOff, log::Format::kText).ok()) return client::kExitFailed;
  CLI::App app("Inspects and controls clusters, and works on their files.", "centroidctl");
  app.set_version_flag("--version", std::string(kVersion));
  app.require_subcommand(1);
  int status = client::kExitDone;
  const auto session = client::add_session(app);
  client::add_views(app, session, status);  // first, as in --help: the state
  client::add_checkpoints(app, session, status);
  client::add_actions(app, session, status);
  client::add_events(app, session, status);
  client::add_tokens(app, session, status);
  client::add_top(app, session, status);
  client::add_trace(app, session, status);
  client::add_bench(app, session, status);
  client::add_plan(app, session, status);
  client::add_doctor(app, session, status);
  client::add_completion(app, status);
  app.failure_message([](const CLI::App* program, const CLI::Error& why) {
    return "centroidctl: " + client::explain_misuse(*program, why) +
           "\nRun with --help for more information.\n";
  });
  app.parse_complete_callback([session] {
    if (const Status opened = session->open(); !opened.ok())
      throw CLI::ValidationError(opened.error().message());
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& why) {
    return app.exit(why) == 0 ? client::kExitDone : client::kExitUsage;
  }
  return status;
}
