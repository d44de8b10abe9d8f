#include "worker/plan.h"

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

#include "common/base/exit_status.h"
#include "common/base/memory_limit.h"
#include "common/device/blas.h"
#include "worker/node/job_plan.h"

namespace centroid::worker {

namespace {

struct Plan {
  std::string model, codec, codec_down;
  PlanQuestion question;
  std::vector<PlanRow> rows;
};

Result<Plan> make_plan(const WorkerConfig& config) {
  Plan out;
  CENTROID_ASSIGN(out.question.bandwidth, parse_bandwidth(config.sharded.plan_bandwidth));
  out.question.workers = static_cast<std::uint32_t>(config.sharded.world);
  out.question.batch = config.batch;
  out.question.optimizer = config.optimizer;
  out.codec = config.codec;
  out.codec_down = config.sharded.codec_down;
  CENTROID_ASSIGN(out.question.codec, parallel::PartCodec::parse("codec", out.codec));
  CENTROID_ASSIGN(out.question.codec_down,
                  parallel::PartCodec::parse("codec_down", out.codec_down));
  out.question.memory = memory_limit(config.memory_limit).bytes;
  blas::set_threads(static_cast<int>(config.blas_threads));
  CENTROID_ASSIGN(const auto model, make_model(config.model));
  out.model = config.model;
  const std::chrono::duration<double> given = config.sharded.plan_step_time;
  auto speed = given.count() > 0 ? speed_of(*model, out.question, given.count())
                                 : measure_speed(*model, out.question, memory_limit(0).bytes);
  if (!speed.ok()) return std::move(speed).error();
  CENTROID_ASSIGN(out.rows, plan_job(*model, out.question, *speed));
  return out;
}

std::string command_of(const Plan& plan, const PlanRow& row) {
  std::string out = "centroid-worker --exchange sharded --world " +
                    std::to_string(plan.question.workers) + " " + row.flags;
  const bool has_own = row.micro_batches > 0 && row.micro_batches == row.batch;
  if (has_own) out += " --micro-batches " + std::to_string(row.micro_batches);
  if (plan.codec != "f32") out += " --codec " + plan.codec;
  if (plan.codec_down != "f32" && !row.flags.ends_with("none"))
    out += " --codec-down " + plan.codec_down;
  return out + " --model " + plan.model + " --optimizer " + plan.question.optimizer.name +
         " --batch " + std::to_string(row.batch) +
         " --rendezvous HOST:PORT --rank RANK --data DATA --epochs 1";
}

double samples_per_second(const Plan& plan, const PlanRow& row) {
  return static_cast<double>(plan.question.workers * plan.question.batch) / row.time.all;
}

void print_table(const Plan& plan) {
  constexpr double kMebibyte = 1 << 20;
  const auto mebibytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMebibyte; };
  std::printf("%-36s %10s %9s %9s %11s %10s %8s %8s %10s\n", "", "parameters", "gradients",
              "optimizer", "activations", "all, MiB", "step, s", "computes", "samples/s");
  for (const PlanRow& row : plan.rows) {
    const parallel::ShardedMemory& need = row.memory;
    std::printf("%-36s %10.1f %9.1f %9.1f %11.1f %10.1f %8.3f %8.3f %10.1f%s\n", row.flags.c_str(),
                mebibytes(need.parameters), mebibytes(need.gradients), mebibytes(need.state),
                mebibytes(need.other), mebibytes(need.total()), row.time.all, row.time.computing,
                samples_per_second(plan, row), row.fits ? "" : "  does not fit");
  }
  std::printf("\nOf each worker, which also holds the data set. A step trains %llu samples.\n",
              static_cast<unsigned long long>(plan.question.workers * plan.question.batch));
  if (const PlanRow* const best = recommended(plan.rows))
    std::printf("The fastest that fits, on each worker with its RANK from 0 to %u:\n\n%s\n",
                plan.question.workers - 1, command_of(plan, *best).c_str());
  else
    std::printf("Nothing fits into %.1f MiB: take more workers, lower --batch, or see tp.\n",
                mebibytes(plan.question.memory));
}

void print_json(const Plan& plan) {
  const PlanRow* const best = recommended(plan.rows);
  nlohmann::ordered_json out;
  out["rows"] = nlohmann::ordered_json::array();
  for (const PlanRow& row : plan.rows)
    out["rows"].push_back({{"flags", row.flags},
                           {"batch", row.batch},
                           {"micro_batches", row.micro_batches},
                           {"parameter_bytes", row.memory.parameters},
                           {"gradient_bytes", row.memory.gradients},
                           {"optimizer_bytes", row.memory.state},
                           {"activation_bytes", row.memory.other},
                           {"bytes", row.memory.total()},
                           {"fits", row.fits},
                           {"computing_seconds", row.time.computing},
                           {"step_seconds", row.time.all},
                           {"command", command_of(plan, row)}});
  if (best == nullptr)
    out["recommended"] = nullptr;
  else
    out["recommended"] = best->flags;
  std::printf("%s\n", out.dump().c_str());
}

}  // namespace

int print_plan(const WorkerConfig& config) {
  const auto plan = make_plan(config);
  if (!plan.ok()) {
    std::fprintf(stderr, "centroid-worker: %s\n", plan.error().message().c_str());
    return exit_status_of(plan.error());
  }
  if (config.log.format == "json")
    print_json(*plan);
  else
    print_table(*plan);
  return recommended(plan->rows) == nullptr ? kExitFailed : kExitDone;
}

}  // namespace centroid::worker
