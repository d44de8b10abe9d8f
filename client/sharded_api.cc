#include <unistd.h>

#include <algorithm>

#include "client/c_boundary.h"
#include "client/centroid.h"
#include "client/group_api.h"
#include "client/sharded_model.h"
#include "common/optim/optimizer_fields.h"

/// The C interface of sharded training (c_api.cc has the rest).

using namespace centroid::c_boundary;
using centroid::Error;
using centroid::ErrorCode;
using centroid::Result;
using centroid::Status;
using centroid::client::ShardedModel;
using centroid::client::ShardedModelOptions;

struct centroid_sharded {
  std::unique_ptr<ShardedModel> it;
  const pid_t process = ::getpid();
};

namespace {

Status parse_settings(const std::string& json, ShardedModelOptions& options) {
  centroid::parallel::ShardedSettings& division = options.division;
  centroid::config::Schema s("sharded", "Settings of a sharded model.");
  s.field("sharding", &division.sharding, {.text = "full, grad, none or hybrid:K"});
  s.field("shard_replicas", &division.replicas,
          {.text = "ranks that may be lost at once", .choices = {"auto", "0", "1"}});
  s.field("codec", &division.codec, {.text = "of gradients: f32, bf16 or int8"});
  s.field("codec_down", &division.codec_down, {.text = "of parameters: f32, bf16 or int8"});
  s.field("checkpoint_dir", &options.checkpoints, {.text = "a folder that all ranks share"});
  s.field("checkpoint_keep", &options.keep, {.text = "newest checkpoints; 0: all"});
  add_optimizer_fields(s, division.optimizer);
  return json.empty() ? Status() : s.load_text(json, "settings");
}

Status open_sharded(const centroid_group_options* group, const char* rendezvous,
                    const std::string& settings, const centroid_tensor* tensors,
                    const std::uint32_t* layers, std::uint64_t count, centroid_sharded** sharded) {
  ShardedModelOptions options;
  CENTROID_ASSIGN(options.group.peers, peer_options_of(group));
  options.group.rendezvous = rendezvous;
  CENTROID_TRY(parse_settings(settings, options));
  for (std::uint64_t i = 0; i < count; ++i) {
    CENTROID_ASSIGN(auto info, info_of(tensors[i]));
    if (options.group.peers.rank == 0) CENTROID_TRY(check_initial(tensors[i], info));
    options.tensors.push_back(std::move(info));
    options.layers.push_back(layers != nullptr ? layers[i] : static_cast<std::uint32_t>(i));
  }
  const auto initial = [&](std::size_t tensor, std::span<float> out) -> Status {
    std::copy_n(tensors[tensor].initial, out.size(), out.begin());
    return {};
  };
  CENTROID_ASSIGN(auto made, ShardedModel::open(std::move(options), initial));
  *sharded = new centroid_sharded{std::move(made)};
  return {};
}

Status check_process(const centroid_sharded* sharded) {
  CENTROID_TRY(given(sharded, "sharded"));
  if (sharded->process == ::getpid()) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "a forked child cannot use its parent's sharded model");
}

/// Runs `what` with the model, which has parameters.
template <class F>
int with(centroid_sharded* sharded, const F& what) noexcept {
  return guarded([&]() -> Status {
    CENTROID_TRY(check_process(sharded));
    CENTROID_TRY(sharded->it->check_ready());
    return what(*sharded->it);
  });
}

}  // namespace

extern "C" {

int centroid_sharded_open(const centroid_group_options* group, const char* rendezvous,
                          const char* settings, const centroid_tensor* tensors,
                          const uint32_t* layers, uint64_t count, centroid_sharded** sharded) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(sharded, "sharded"));
    *sharded = nullptr;
    CENTROID_TRY(given(rendezvous, "rendezvous"));
    CENTROID_TRY(given(tensors, "tensors"));
    return open_sharded(group, rendezvous, text(settings), tensors, layers, count, sharded);
  });
}

int centroid_sharded_get(centroid_sharded* sharded, centroid_sharded_state* state) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(sized(state, "state"));
    const centroid::parallel::ShardedMemory memory = model.parameters().memory();
    centroid_sharded_state out{};
    out.rank = model.group().rank();
    out.world = model.group().world();
    out.step = model.parameters().steps();
    out.position = model.position();
    out.parameter_bytes = memory.parameters;
    out.gradient_bytes = memory.gradients + memory.spare;
    out.optimizer_bytes = memory.state;
    give(state, out);
    return {};
  });
}

int centroid_sharded_prefetch(centroid_sharded* sharded, uint32_t layer) {
  return with(sharded, [&](ShardedModel& model) { return model.prefetch(layer); });
}

int centroid_sharded_gather(centroid_sharded* sharded, uint32_t layer) {
  return with(sharded, [&](ShardedModel& model) { return model.gather(layer); });
}

int centroid_sharded_release(centroid_sharded* sharded, uint32_t layer) {
  return with(sharded, [&](ShardedModel& model) { return model.release(layer); });
}

int centroid_sharded_reduce(centroid_sharded* sharded, uint32_t layer) {
  return with(sharded, [&](ShardedModel& model) { return model.reduce(layer); });
}

int centroid_sharded_parameters(centroid_sharded* sharded, uint64_t tensor, const float** values) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(given(values, "values"));
    CENTROID_ASSIGN(const auto found, model.parameter(tensor));
    *values = found.data();
    return {};
  });
}

int centroid_sharded_gradient(centroid_sharded* sharded, uint64_t tensor, float** values) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(given(values, "values"));
    CENTROID_ASSIGN(const auto found, model.gradient(tensor));
    *values = found.data();
    return {};
  });
}

int centroid_sharded_step(centroid_sharded* sharded, uint64_t position) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(model.step(position));
    return {};
  });
}

int centroid_sharded_sum(centroid_sharded* sharded, double* numbers, uint64_t count) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(given(numbers, "numbers"));
    if (count > kMostElements) return bad("numbers has " + std::to_string(count) + " elements");
    return model.sum({numbers, count});
  });
}

int centroid_sharded_regroup(centroid_sharded* sharded) {
  return guarded([&]() -> Status {
    CENTROID_TRY(check_process(sharded));
    return sharded->it->regroup();
  });
}

int centroid_sharded_save(centroid_sharded* sharded, int wait) {
  return with(sharded, [&](ShardedModel& model) -> Status {
    CENTROID_TRY(model.save());
    return wait != 0 ? model.finish_save() : Status();
  });
}

int centroid_sharded_end(centroid_sharded* sharded) {
  return with(sharded, [](ShardedModel& model) { return model.end(); });
}

void centroid_sharded_close(centroid_sharded* sharded) {
  // In a forked child there is no thread that could end it.
  if (sharded != nullptr && sharded->process == ::getpid()) delete sharded;
}

}  // extern "C"
