#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

/// Every fuzzer with the files of its corpus, and with a few changes of each: without libFuzzer, so
/// that each run of the tests has them.
// clang-format off
#define CENTROID_FUZZERS(F) \
  F(checkpoint_manifest) F(codec) F(codec_spec) F(config) F(digits) \
  F(frame) F(greeting) F(http) F(idx) F(journal) \
  F(messages) F(operator_files) F(rest) F(rows_journal) F(safetensors) \
  F(trace)
// clang-format on

#define CENTROID_DECLARE(name) \
  extern "C" int fuzz_##name(const std::uint8_t* data, std::size_t size);
CENTROID_FUZZERS(CENTROID_DECLARE)
#undef CENTROID_DECLARE

namespace centroid::test {
namespace {

constexpr std::uint64_t kSeed = 20;
constexpr int kChanged = 50;  ///< copies of each file
constexpr std::size_t kMostBytes = 8192;

struct Fuzzer {
  const char* name;
  int (*run)(const std::uint8_t*, std::size_t);
};

class Corpus : public ::testing::TestWithParam<Fuzzer> {};

std::string changed(std::string bytes, std::mt19937_64& random) {
  if (bytes.empty()) return bytes;
  for (std::uint64_t i = random() % 4; i > 0; --i)
    bytes[random() % bytes.size()] ^= static_cast<char>(1u << (random() % 8));
  if (random() % 4 == 0) bytes.resize(random() % bytes.size());
  return bytes;
}

TEST_P(Corpus, IsReadWithoutHarm) {
  const std::filesystem::path folder = std::filesystem::path("tests/fuzz/corpus") / GetParam().name;
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder;
  std::mt19937_64 random(kSeed);
  const auto run = [](const std::string& bytes) {
    const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
    EXPECT_EQ(GetParam().run(data, bytes.size()), 0);
  };
  run("");
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    SCOPED_TRACE(entry.path());
    EXPECT_LE(bytes.size(), kMostBytes);
    run(bytes);
    for (int i = 0; i < kChanged; ++i) run(changed(bytes, random));
    ++files;
  }
  EXPECT_GE(files, 2u);
}

#define CENTROID_ENTRY(name) Fuzzer{#name, fuzz_##name},
const std::vector<Fuzzer> kFuzzers{CENTROID_FUZZERS(CENTROID_ENTRY)};
#undef CENTROID_ENTRY
INSTANTIATE_TEST_SUITE_P(All, Corpus, ::testing::ValuesIn(kFuzzers),
                         [](const auto& one) { return std::string(one.param.name); });

}  // namespace
}  // namespace centroid::test
