#pragma once

#include "tests/component/sharded_checkpoint_fixture.h"
#include "worker/parallel/stages.h"

namespace centroid::parallel::testing {

/// A rank of a job with stages, each of whose layers is a tensor.
struct Staged {
  Staged(const Group& group, const char* mesh_text, const Manifest& of,
         std::vector<double> costs = {})
      : mesh(std::move(Mesh::parse(mesh_text, group.world())).value()), model(of) {
    const std::uint32_t index = mesh.place_of(group.rank()).pipeline,
                        stages = mesh.size(Axis::kPipeline);
    costs.resize(model.size(), 1);
    const Range own = std::move(split_into_stages(costs, stages)).value()[index];
    for (std::size_t i = 0; i < own.begin; ++i) first += model[i].elements();
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(own.begin);
    tensors.assign(begin, begin + static_cast<std::ptrdiff_t>(own.count));
    auto ranks = group.subgroup(mesh.ranks_along(Axis::kData, group.rank()));
    parameters = own;
    if (stages > 1) stage = CheckpointStage{std::move(*ranks), own, index, stages};
  }

  const Group& data(const Group& group) const { return stage ? stage->ranks : group; }
  ShardedOptions options(const char* sharding, const char* rule = "adam") const {
    return options_of(sharding, mesh.size(Axis::kData), rule);
  }
  std::unique_ptr<ShardedCheckpoints> open(const Group& group, const fs::path& root) const {
    ShardedCheckpointOptions options;
    options.folder = root;
    options.timeout = 30s;
    options.stage = stage;
    auto opened = ShardedCheckpoints::open(group, model, options);
    EXPECT_TRUE(opened.ok()) << refusal(opened);
    return std::move(*opened);
  }
  std::unique_ptr<ShardedParameters> make(const Group& group, const char* sharding) const {
    const auto initial = [&](std::size_t index, std::span<float> out) {
      std::uint64_t element = first;
      for (std::size_t i = 0; i < index; ++i) element += tensors[i].elements();
      for (float& value : out) value = initial_of(element++);
      return Status();
    };
    auto made =
        ShardedParameters::make(data(group), shapes_of(tensors), options(sharding), initial);
    EXPECT_TRUE(made.ok()) << refusal(made);
    return std::move(*made);
  }

  const Mesh mesh;
  const Manifest model;
  Manifest tensors;  ///< of this rank's stage
  Range parameters;  ///< so too: of the model
  std::uint64_t first = 0;
  std::optional<CheckpointStage> stage;
};

struct MeshCase {
  const char* mesh;
  std::uint32_t world;
  const char* sharding;
  std::vector<double> costs{};  ///< of layers
};
inline const MeshCase kMeshes[] = {
    {"pp=2", 2, "none"},
    {"pp=5", 5, "none"},
    {"dp=2,pp=2", 4, "full"},
    {"dp=2,pp=2", 4, "none"},
    {"dp=4,pp=2", 8, "hybrid:2"},
    {"dp=3,pp=2", 6, "grad"},
    {"dp=3", 3, "full"},
    {"dp=2", 2, "none"},
    {"dp=1", 1, "full"},
    {"pp=2", 2, "none", {9}},
    {"dp=2,pp=2", 4, "full", {1, 1, 1, 1, 9}},
};

}  // namespace centroid::parallel::testing
