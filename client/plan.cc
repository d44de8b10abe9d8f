#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "client/online.h"

/// plan: memory and time of a model that is divided among workers.
namespace centroid::client {

namespace {

constexpr const char* kWorker = "centroid-worker";

struct PlanOptions {
  std::uint32_t workers = 0;
  std::uint64_t memory = 0, batch = 32;
  std::string model, bandwidth, optimizer = "adam", step_time, codec = "f32", codec_down = "f32";
};

/// The worker knows models and measures itself, so it makes the plan: the one beside this program,
/// else that of PATH. Returns only if there is none.
int run_worker(const std::vector<std::string>& arguments) {
  std::vector<char*> words;
  for (const std::string& one : arguments) words.push_back(const_cast<char*>(one.c_str()));
  words.push_back(nullptr);
  std::array<char, 4096> self{};
  ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  const std::filesystem::path beside = std::filesystem::path(self.data()).parent_path() / kWorker;
  ::execv(beside.c_str(), words.data());
  ::execvp(kWorker, words.data());
  std::fprintf(stderr,
               "centroidctl: a plan is made by %s, which is neither beside this program nor in "
               "PATH: %s\n",
               kWorker, std::strerror(errno));
  return kExitFailed;
}

int plan(const Session& session, const PlanOptions& options) {
  std::vector<std::string> arguments = {kWorker,
                                        "--plan.bandwidth",
                                        options.bandwidth,
                                        "--world",
                                        std::to_string(options.workers),
                                        "--model",
                                        options.model,
                                        "--optimizer",
                                        options.optimizer,
                                        "--codec",
                                        options.codec,
                                        "--codec-down",
                                        options.codec_down,
                                        "--batch",
                                        std::to_string(options.batch),
                                        "--memory-limit",
                                        std::to_string(options.memory),
                                        "--log.format",
                                        session.style.is_json ? "json" : "text"};
  if (!options.step_time.empty())
    arguments.insert(arguments.end(), {"--plan.step-time", options.step_time});
  return run_worker(arguments);
}

}  // namespace

void add_plan(CLI::App& app, std::shared_ptr<Session> session, int& status) {
  CLI::App* const plan_app = app.add_subcommand(
      "plan",
      "Memory and time of each way to divide a model among workers, and the fastest that fits.");
  const auto options = std::make_shared<PlanOptions>();
  plan_app->add_option("--model", options->model, "the model, as centroid-worker takes it")
      ->required();
  plan_app->add_option("--workers", options->workers, "number of workers")
      ->required()
      ->check(CLI::Range(2u, 4096u));
  plan_app
      ->add_option("--bandwidth", options->bandwidth,
                   "of a worker's link, each way: 1Gb/s (bits) or 125MB/s (bytes)")
      ->required();
  plan_app->add_option("--memory", options->memory, "of a worker, such as 8GiB; default: as here")
      ->transform(CLI::AsSizeValue(false));
  plan_app->add_option("--optimizer", options->optimizer, "its state needs memory")
      ->capture_default_str();
  plan_app->add_option("--codec", options->codec, "of gradients: f32, bf16 or int8")
      ->capture_default_str();
  plan_app->add_option("--codec-down", options->codec_down, "of parameters: f32, bf16 or int8")
      ->capture_default_str();
  plan_app->add_option("--batch", options->batch, "samples of a worker in a step")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32))
      ->capture_default_str();
  plan_app->add_option(
      "--step-time", options->step_time,
      "in which a worker computes its batch, such as 800ms; default: measured here");
  plan_app->callback([=, &status] { status = plan(*session, *options); });
}

}  // namespace centroid::client
