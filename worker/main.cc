#include <cstdio>

#include "common/base/exit_status.h"
#include "common/base/log.h"
#include "worker/app.h"
#include "worker/plan.h"

int main(int argc, char** argv) {
  using namespace centroid;
  worker::WorkerConfig config;
  config::Schema schema("centroid-worker",
                        "Trains a model replica on this machine as part of a cluster, or alone.");
  worker::register_fields(schema, config);
  schema.ignore_environment("CENTROID_TEST_");
  auto outcome = schema.load(argc, argv);
  if (outcome.ok() && *outcome == config::Schema::Outcome::kPrinted) return kExitDone;
  const Status ready = outcome.ok() ? worker::finish(config) : Status(outcome.error());
  if (!ready.ok()) {
    std::fprintf(stderr, "centroid-worker: %s\n", ready.error().message().c_str());
    return kExitUsage;
  }
  const auto level = log::parse_level(config.log.level);
  const auto format = log::parse_format(config.log.format);
  if (const Status set = log::configure(level.value(), format.value()); !set.ok()) {
    std::fprintf(stderr, "centroid-worker: %s\n", set.error().message().c_str());
    return kExitUsage;
  }
  return config.sharded.plan_bandwidth.empty() ? worker::run_worker(config)
                                               : worker::print_plan(config);
}
