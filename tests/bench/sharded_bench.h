#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/optim/optimizer_config.h"
#include "worker/model/model.h"
#include "worker/parallel/sharded_parameters.h"

/// Parts of centroid-bench-sharded. Each returns the number of missed bars.
namespace centroid::bench {

struct ShardedSettings {
  std::string only;  ///< a part; empty: all
  std::string ranks = "2,3,4,6,8";
  std::string shardings = "none,grad,full,hybrid:2", codec = "f32", codec_down = "f32";
  std::uint64_t steps = 50, parameters = 25'000'000, batch = 16, repeats = 8;
};

std::unique_ptr<worker::Model> model_of(const std::string& spec);
parallel::ShardedOptions sharded_options(const std::string& sharding, std::uint32_t world,
                                         const char* rule, double rate);
std::vector<std::string> words_of(const std::string& text);  ///< between commas
/// Ends the program with the reason.
[[noreturn]] void die(const std::string& why);

/// Losses and gradients beside those of one process.
int bench_equality(const ShardedSettings& settings);
/// Memory, traffic and time of each strategy.
int bench_costs(const ShardedSettings& settings);
/// Time of a step with TLS beside one without.
void bench_tls(const ShardedSettings& settings);
/// Speed of a pipeline of two stages beside one process.
int bench_pipeline(const ShardedSettings& settings);
/// Time of a step of a model that is often measured with PyTorch's FSDP. It has no bar: FSDP does
/// not run beside it.
void bench_layers(const ShardedSettings& settings);

}  // namespace centroid::bench
