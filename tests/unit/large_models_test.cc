#include <unistd.h>

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/checkpoint/checkpoint.h"
#include "common/optim/optimizer.h"
#include "server/store/parameter_store.h"
#include "tests/unit/temporary_directory.h"

/// Models of unusual forms through store, snapshot, checkpoint and back: every bit.
namespace centroid::server {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<ParameterStore> store_of(const Manifest& manifest, const std::string& optimizer) {
  OptimizerConfig config;
  config.name = optimizer;
  return std::make_unique<ParameterStore>(ChunkPlan::make(manifest, 1u << 20).value(),
                                          make_optimizer(config).value());
}

float number(std::uint64_t plane, std::uint64_t i) {
  return static_cast<float>(mix64(plane, i) >> 40) * 0x1p-20f - 8;
}

/// Planes of `store` are written to `folder`, and read into it again after it was overwritten.
void round_trip(ParameterStore& store, const fs::path& folder, std::uint64_t shard_bytes) {
  const std::size_t slots = store.optimizer().slots();
  const std::uint64_t total = store.plan().total_elements();
  for (const Chunk& chunk : store.plan().chunks()) {
    const auto values = store.initial(chunk);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = number(0, chunk.position + i);
  }
  store.initialize();
  std::vector<float> piece;
  const auto fill = [&](bool with_zeros) {
    for (std::size_t plane = with_zeros ? 0 : 1; plane <= slots; ++plane)
      for (std::uint64_t at = 0; at < total; at += piece.size()) {
        piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(1u << 20, total - at)));
        for (std::size_t i = 0; i < piece.size(); ++i)
          piece[i] = with_zeros ? 0 : number(plane, at + i);
        ASSERT_TRUE(store.load(plane, at, piece).ok());
      }
  };
  fill(false);
  const std::uint64_t expected = store.fingerprint();
  CheckpointPolicy policy;
  policy.shard_bytes = shard_bytes;
  CheckpointInfo info;
  info.run_id = "r";
  info.version = store.version();
  info.slot_names = store.optimizer().slot_names();
  auto snapshot = store.begin_snapshot(1u << 20);
  const auto read = [&](std::size_t plane, std::uint64_t at, std::span<float> into) {
    return snapshot->read(plane, at, into);
  };
  auto opened = CheckpointDirectory::open(folder, policy);
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  const auto written = opened->write(info, store.plan().manifest(), read);
  ASSERT_TRUE(written.ok()) << written.error().message();
  snapshot.reset();
  fill(true);
  ASSERT_NE(store.fingerprint(), expected);
  EXPECT_EQ(opened->manifest_of(*written).value(), store.plan().manifest());
  const auto load = [&](std::size_t plane, std::uint64_t at, std::span<const float> from) {
    return store.load(plane, at, from);
  };
  const Status loaded = opened->read(*written, store.plan().manifest(), load);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message();
  EXPECT_EQ(store.fingerprint(), expected);
  for (const Chunk& chunk : store.plan().chunks())
    for (std::size_t k = 0; k < slots; ++k) {
      const auto values = store.values(1 + k, chunk);
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(values[i], number(k + 1, chunk.position + i)) << chunk.position + i;
    }
}

TEST(LargeModels, HundredThousandSmallTensorsWithEmptyAndScalarOnes) {
  Manifest manifest;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    Shape shape;  // a scalar
    if (i % 4 == 1) shape = {0, 3};
    if (i % 4 == 2) shape = {1 + i % 5};
    if (i % 4 == 3) shape = {2, 1, i % 3};
    manifest.push_back({std::string("t").append(std::to_string(i)), DType::kF32, shape});
  }
  const auto store = store_of(manifest, "momentum");
  const TemporaryDirectory folder;
  round_trip(*store, folder.path() / "checkpoints", 100'000);
}

/// Beyond 2^32 bytes and 2^31 elements, and larger than a file's part.
TEST(LargeModelsSlow, OneTensorOfNineGiB) {
  const auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::uint64_t>(::sysconf(_SC_PAGE_SIZE));
  const fs::path folder =
      fs::temp_directory_path() / ("centroid-large-" + std::to_string(::getpid()));
  if (memory < std::uint64_t{24'000'000'000})
    GTEST_SKIP() << "needs 24 GB of memory for two planes of 9 GiB and the files' cache, here are "
                 << static_cast<double>(memory) / 1e9 << " GB";
  if (fs::space(folder.parent_path()).available < (std::uint64_t{12} << 30))
    GTEST_SKIP() << "needs 12 GiB of disk in " << folder.parent_path();
  const Manifest manifest{{"one", DType::kF32, {(std::uint64_t{9} << 30) / sizeof(float)}}};
  const auto store = store_of(manifest, "mean");
  round_trip(*store, folder, std::uint64_t{4} << 30);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

}  // namespace
}  // namespace centroid::server
