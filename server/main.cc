#include <cstdio>
#include <string_view>

#include "common/base/exit_status.h"
#include "common/base/log.h"
#include "server/api/routes.h"
#include "server/app.h"

int main(int argc, char** argv) {
  using namespace centroid;
  if (argc >= 2 && std::string_view(argv[1]) == "--print-openapi") {
    std::fputs(server::openapi_document().c_str(), stdout);
    return kExitDone;
  }
  server::ServerConfig config;
  config.exchange = "auto";  // programs that use the classes name theirs
  config::Schema schema("centroid-server",
                        "Parameter server and coordinator of one training cluster. "
                        "`centroid-server --print-openapi` describes its REST API.");
  server::register_fields(schema, config);
  schema.ignore_environment("CENTROID_TEST_");
  auto outcome = schema.load(argc, argv);
  if (outcome.ok() && *outcome == config::Schema::Outcome::kPrinted) return kExitDone;
  Status ready = outcome.ok() ? server::finish(config) : Status(outcome.error());
  if (ready.ok()) ready = server::check_shard_settings(config, schema.effective_json());
  if (!ready.ok()) {
    std::fprintf(stderr, "centroid-server: %s\n", ready.error().message().c_str());
    return kExitUsage;
  }
  const auto level = log::parse_level(config.log.level);
  const auto format = log::parse_format(config.log.format);
  if (const Status set = log::configure(level.value(), format.value()); !set.ok()) {
    std::fprintf(stderr, "centroid-server: %s\n", set.error().message().c_str());
    return kExitUsage;
  }
  return server::run_server(config, schema);
}
