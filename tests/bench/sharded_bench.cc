// Built-in models whose parameters are divided among ranks (worker/node/sharded_replica.h), each
// rank a process on this machine. Prints what was reached beside its bar; exit status 1 when a bar
// is missed.

#include "tests/bench/sharded_bench.h"

#include <cstdlib>
#include <sstream>

#include "tests/bench/bench_run.h"

namespace centroid::bench {

void die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(3);
}

std::unique_ptr<worker::Model> model_of(const std::string& spec) {
  auto made = worker::make_model(spec);
  if (!made.ok()) die(made.error().message());
  return std::move(made).value();
}

parallel::ShardedOptions sharded_options(const std::string& sharding, std::uint32_t world,
                                         const char* rule, double rate) {
  parallel::ShardedOptions options;
  auto parsed = parallel::Sharding::parse(sharding, world);
  if (!parsed.ok()) die(parsed.error().message());
  options.sharding = *parsed;
  options.optimizer.name = rule;
  options.optimizer.learning_rate = rate;
  return options;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string one; std::getline(in, one, ',');) out.push_back(one);
  return out;
}

namespace {

void add_fields(config::Schema& schema, ShardedSettings& settings) {
  schema.field("only", &settings.only,
               {.text = "one part: equality, costs, tls, pipeline or layers"});
  schema.field("ranks", &settings.ranks, {.text = "ranks in the equality part, with commas"});
  schema.field("steps", &settings.steps,
               {.text = "steps in the equality part", .min = 1, .max = 1000});
  schema.field("shardings", &settings.shardings,
               {.text = "strategies in the costs part, with commas"});
  schema.field("codec", &settings.codec, {.text = "codec of gradients in the costs part"});
  schema.field("codec_down", &settings.codec_down,
               {.text = "codec of parameters in the costs part"});
  schema.field("parameters", &settings.parameters,
               {.text = "parameters of the model in the costs part", .min = 100'000});
  schema.field("batch", &settings.batch,
               {.text = "samples of a rank in the costs part", .min = 1, .max = 4096});
  schema.field(
      "repeats", &settings.repeats,
      {.text = "timed steps in the costs, tls, pipeline and layers parts", .min = 1, .max = 100});
}

int run(const ShardedSettings& settings) {
  const auto is_wanted = [&](const char* part) {
    return settings.only.empty() || settings.only == part;
  };
  int missed = 0;
  if (is_wanted("equality")) missed += bench_equality(settings);
  if (is_wanted("costs")) missed += bench_costs(settings);
  if (is_wanted("tls")) bench_tls(settings);
  if (is_wanted("pipeline")) missed += bench_pipeline(settings);
  if (is_wanted("layers")) bench_layers(settings);
  return missed > 0 ? 1 : 0;
}

}  // namespace
}  // namespace centroid::bench

int main(int argc, char** argv) {
  using namespace centroid::bench;
  return bench_main<ShardedSettings>(argc, argv, "centroid-bench-sharded",
                                     "A model divided among ranks.", add_fields, run);
}
