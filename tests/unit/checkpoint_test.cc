#include "common/checkpoint/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/checkpoint/manifest_json.h"
#include "common/checkpoint/shards.h"
#include "tests/support/faulty_storage.h"
#include "tests/unit/temporary_directory.h"

namespace centroid {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const Manifest kManifest = {{"layer.weight", DType::kF32, {300, 1001}},
                            {"nothing", DType::kF32, {0}},
                            {"layer.bias", DType::kF32, {7}}};
const Manifest kSmall = {{"w", DType::kF32, {5}}};

using Planes = std::vector<std::vector<float>>;

std::size_t elements_of(const Manifest& manifest) {
  std::size_t total = 0;
  for (const TensorInfo& tensor : manifest) total += tensor.elements();
  return total;
}

// Any bits, among them NaNs and infinities.
Planes random_planes(const Manifest& manifest, std::size_t count, std::uint64_t seed) {
  Planes planes(count, std::vector<float>(elements_of(manifest)));
  CounterRng rng(seed);
  for (auto& plane : planes)
    for (float& x : plane) x = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
  return planes;
}

PlaneReader reader_of(const Planes& planes) {
  return [&planes](std::size_t plane, std::uint64_t offset, std::span<float> into) -> Status {
    std::memcpy(into.data(), planes.at(plane).data() + offset, into.size_bytes());
    return {};
  };
}

PlaneWriter writer_to(Planes& planes) {
  return [&planes](std::size_t plane, std::uint64_t offset, std::span<const float> from) -> Status {
    std::memcpy(planes.at(plane).data() + offset, from.data(), from.size_bytes());
    return {};
  };
}

bool same_bits(const Planes& a, const Planes& b) {
  for (std::size_t p = 0; p < a.size(); ++p)
    if (std::memcmp(a[p].data(), b[p].data(), a[p].size() * sizeof(float)) != 0) return false;
  return a.size() == b.size();
}

CheckpointInfo info_of(std::uint64_t version, std::size_t slots = 0) {
  CheckpointInfo info;
  info.run_id = "run \"7\" größe";
  info.version = Version(version);
  info.round = Round(~std::uint64_t{0} - 1);
  info.epoch = 3;
  info.offset = 4000;
  info.optimizer_step = 99;
  info.seed = ~std::uint64_t{0};
  info.optimizer = slots > 0 ? "adam" : "";
  for (std::size_t s = 0; s < slots; ++s) info.slot_names.push_back("slot" + std::to_string(s));
  info.created_unix_seconds = 1790000000.123456;
  info.extra = {{"note", "before the change"}};
  return info;
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(root)) names.push_back(item.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

class Checkpoints : public ::testing::Test {
 protected:
  CheckpointDirectory opened(std::size_t keep = 3) {
    auto directory = CheckpointDirectory::open(root(), keep);
    EXPECT_TRUE(directory.ok()) << directory.error().message();
    return std::move(directory).value();
  }
  CheckpointEntry written(CheckpointDirectory& directory, std::uint64_t version) {
    const Planes planes = random_planes(kSmall, 1, version);
    auto entry = directory.write(info_of(version), kSmall, reader_of(planes));
    EXPECT_TRUE(entry.ok()) << entry.error().message();
    return std::move(entry).value();
  }
  std::optional<std::uint64_t> newest(const CheckpointDirectory& directory) {
    refused_.clear();
    const auto entry =
        directory.newest_valid([&](const CheckpointEntry& e) { refused_.push_back(e.problem); });
    if (!entry.ok()) return std::nullopt;
    Planes back(1, std::vector<float>(5));
    EXPECT_TRUE(directory.read(*entry, kSmall, writer_to(back)).ok());
    EXPECT_TRUE(same_bits(back, random_planes(kSmall, 1, entry->version.value)));
    return entry->version.value;
  }
  fs::path root() const { return temporary_.path() / "deep" / "checkpoints"; }

  TemporaryDirectory temporary_;
  std::vector<std::string> refused_;
};

TEST_F(Checkpoints, EveryBitAndEveryFieldComesBack) {
  auto directory = opened();
  const Planes planes = random_planes(kManifest, 3, 1);
  const CheckpointInfo info = info_of(42, 2);
  const auto entry = directory.write(info, kManifest, reader_of(planes));
  ASSERT_TRUE(entry.ok()) << entry.error().message();
  EXPECT_EQ(entry->path.filename(), "checkpoint-000000000042");
  EXPECT_EQ(entry->problem, "");
  EXPECT_THAT(names_in(entry->path), ::testing::ElementsAre("manifest.json", "model.safetensors",
                                                            "optimizer.safetensors"));

  const auto found = directory.newest_valid(nullptr);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->bytes, fs::file_size(entry->path / "manifest.json") +
                              fs::file_size(entry->path / "model.safetensors") +
                              fs::file_size(entry->path / "optimizer.safetensors"));
  const CheckpointInfo& back = found->info;
  EXPECT_EQ(back.run_id, info.run_id);
  EXPECT_EQ(back.version, info.version);
  EXPECT_EQ(back.round, info.round);
  EXPECT_EQ(back.epoch, info.epoch);
  EXPECT_EQ(back.offset, info.offset);
  EXPECT_EQ(back.optimizer_step, info.optimizer_step);
  EXPECT_EQ(back.seed, info.seed);
  EXPECT_EQ(back.optimizer, info.optimizer);
  EXPECT_EQ(back.slot_names, info.slot_names);
  EXPECT_EQ(back.created_unix_seconds, info.created_unix_seconds);
  EXPECT_EQ(back.extra, info.extra);

  Planes loaded(3, std::vector<float>(elements_of(kManifest)));
  const Status read = directory.read(*found, kManifest, writer_to(loaded));
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_TRUE(same_bits(loaded, planes));
  EXPECT_EQ(*directory.manifest_of(*found), kManifest);
}

TEST_F(Checkpoints, ModelFileCanBeReadByHand) {
  auto directory = opened();
  const Planes planes = {{1.0f, 2.0f, 3.0f, 4.0f, 5.0f}};
  const auto entry = directory.write(info_of(1), kSmall, reader_of(planes));
  ASSERT_TRUE(entry.ok());
  const std::string file = slurp(entry->path / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_THAT(file.substr(8, header),
              HasSubstr(R"("w":{"dtype":"F32","shape":[5],"data_offsets":[0,20]})"));
  EXPECT_THAT(file.substr(8, header), HasSubstr(R"("__metadata__":{"format":"pt"})"))
      << "from_pretrained of Hugging Face refuses it";
  ASSERT_EQ(file.size(), 8 + header + 20);
  EXPECT_EQ(std::memcmp(file.data() + 8 + header, planes[0].data(), 20), 0);
}

TEST_F(Checkpoints, NewestAreKeptAndListedFirst) {
  auto directory = opened(2);
  EXPECT_EQ(directory.newest_valid(nullptr).error().code(), ErrorCode::kNotFound);
  for (const std::uint64_t version : {5u, 100u, 20u, 7u}) written(directory, version);
  const auto entries = directory.list(true);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].version, Version(100));
  EXPECT_EQ(entries[1].version, Version(20));
  EXPECT_EQ(names_in(root()).size(), 2u);
}

CheckpointPart part_of(const std::string& text) {
  return {rows_file_name("emb"), [text](const fs::path& path) -> Result<FileRecord> {
            CENTROID_TRY(write_text_file(path, text));
            return FileRecord{text.size(), crc32c(as_bytes(text))};
          }};
}

TEST_F(Checkpoints, PartsAreVerifiedAndSeveralOfAVersionAreNumberedNewestFirst) {
  auto directory = opened(2);
  const Planes planes = random_planes(kSmall, 1, 5);
  for (const char* const text : {"first", "second", "third"})
    ASSERT_TRUE(directory.write(info_of(4), kSmall, reader_of(planes), {part_of(text)}).ok());
  CheckpointInfo without_model;
  without_model.run_id = "r";
  ASSERT_TRUE(directory.write(without_model, {}, reader_of({}), {part_of("alone")}).ok());
  const auto entries = directory.list(true);
  ASSERT_EQ(entries.size(), 2u);  // two are kept
  EXPECT_EQ(entries[0].path.filename(), "checkpoint-000000000004-000002");
  EXPECT_EQ(entries[1].path.filename(), "checkpoint-000000000004-000001");
  EXPECT_EQ(entries[0].problem, "");
  EXPECT_THAT(directory.parts_of(entries[0]).value(),
              ::testing::ElementsAre("rows-emb.safetensors"));
  std::ofstream(entries[0].path / "rows-emb.safetensors", std::ios::in).put('T');
  EXPECT_THAT(directory.list(true)[0].problem, HasSubstr("rows-emb.safetensors: CRC-32C differs"));
  EXPECT_EQ(directory.newest_valid({}).value().number, 1u);
  CheckpointPart wrong = part_of("x");
  wrong.name = "others.safetensors";
  EXPECT_THAT(directory.write(info_of(5), kSmall, reader_of(planes), {wrong}).error().to_string(),
              HasSubstr("others.safetensors"));
}

TEST_F(Checkpoints, OneWithoutAModelIsWrittenAndRead) {
  auto directory = opened(3);
  CheckpointInfo info;
  info.run_id = "r";
  ASSERT_TRUE(directory.write(info, {}, reader_of({}), {part_of("a")}).ok());
  ASSERT_TRUE(directory.write(info, {}, reader_of({}), {part_of("b")}).ok());
  const auto newest = directory.newest_valid({});
  ASSERT_TRUE(newest.ok()) << newest.error().to_string();
  EXPECT_EQ(newest->path.filename(), "checkpoint-000000000000-000001");
  EXPECT_TRUE(directory.manifest_of(*newest).value().empty());
  EXPECT_FALSE(directory.write(info, kSmall, reader_of({}), {part_of("b")}).ok());
}

TEST_F(Checkpoints, KeepZeroKeepsAll) {
  auto directory = opened(0);
  for (std::uint64_t version = 1; version <= 5; ++version) written(directory, version);
  EXPECT_EQ(directory.list(true).size(), 5u);
}

TEST_F(Checkpoints, SoundOneOfTheSameVersionIsNotOverwritten) {
  auto directory = opened();
  written(directory, 4);
  const Planes other = random_planes(kSmall, 1, 77);
  EXPECT_EQ(directory.write(info_of(4), kSmall, reader_of(other)).error().code(),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(newest(directory), 4u);
}

TEST_F(Checkpoints, ManifestThatNobodyCouldReadIsNotWritten) {
  auto directory = opened(1);
  written(directory, 1);
  CheckpointInfo info = info_of(2);
  info.extra["long"] = std::string(17u << 20, 'x');
  const Planes planes = random_planes(kSmall, 1 + info.slot_names.size(), 7);
  const auto refused = directory.write(info, kSmall, reader_of(planes));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("manifest.json would have"));
  EXPECT_EQ(newest(directory), 1u);
}

TEST_F(Checkpoints, DamagedOneOfTheSameVersionIsReplacedAndDoesNotCountAsKept) {
  auto directory = opened(2);
  for (std::uint64_t version = 1; version <= 2; ++version) written(directory, version);
  fs::resize_file(root() / "checkpoint-000000000002" / "model.safetensors", 9);
  written(directory, 3);
  EXPECT_EQ(directory.list(false).size(), 3u);  // 1 and 3 are sound
  fs::resize_file(root() / "checkpoint-000000000003" / "model.safetensors", 9);
  written(directory, 3);
  EXPECT_EQ(newest(directory), 3u);
}

// Each damage to the newer of two is refused, and the older is offered.
TEST_F(Checkpoints, DamagedOnesAreRefusedAndTheOlderOffered) {
  auto directory = opened(0);
  written(directory, 1);
  const fs::path path = written(directory, 2).path;
  const std::string model = slurp(path / "model.safetensors");
  const std::string manifest = slurp(path / "manifest.json");
  const auto replaced = [](std::string text, const std::string& from, const std::string& to) {
    EXPECT_THAT(text, HasSubstr(from));
    return text.replace(text.find(from), from.size(), to);
  };
  const auto refuses = [&](const char* file, const std::string& bytes, const std::string& reason) {
    spill(path / file, bytes);
    EXPECT_EQ(newest(directory), 1u) << reason;
    EXPECT_THAT(refused_, ::testing::ElementsAre(HasSubstr(reason)));
    EXPECT_THAT(directory.list(true).front().problem, HasSubstr(reason));
    spill(path / "model.safetensors", model);
    spill(path / "manifest.json", manifest);
    EXPECT_EQ(newest(directory), 2u);
  };
  std::string flipped = model;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  refuses("model.safetensors", flipped, "CRC-32C differs");
  refuses("model.safetensors", model.substr(0, model.size() - 1), "manifest.json expects");
  refuses("model.safetensors", model + "x", "manifest.json expects");
  refuses("manifest.json", "", "not a JSON object");
  refuses("manifest.json", manifest.substr(0, manifest.size() / 2), "not a JSON object");
  refuses("manifest.json", replaced(manifest, "4000", "4001"), "altered");
  refuses("manifest.json", replaced(manifest, "centroid-checkpoint", "something"), "\"format\"");
  refuses("manifest.json", std::string(1'000'000, '['), "nested deeper");
  refuses("manifest.json", "{\"a\":" + std::string(1'000'000, '['), "nested deeper");
  fs::remove(path / "model.safetensors");
  EXPECT_EQ(newest(directory), 1u);
  spill(path / "model.safetensors", model);
  fs::rename(path, root() / "checkpoint-000000000009");
  EXPECT_EQ(newest(directory), 1u);
  EXPECT_THAT(refused_, ::testing::ElementsAre(HasSubstr("does not fit the directory's name")));
}

TEST_F(Checkpoints, OneOfALaterFormatIsNeitherPassedOverNorReplaced) {
  auto directory = opened();
  written(directory, 1);
  const fs::path path = written(directory, 2).path;
  std::string later = slurp(path / "manifest.json");
  const std::string field = "\"format_version\": ";
  later[later.find(field) + field.size()] = '3';
  spill(path / "manifest.json", later);
  const auto named = AllOf(HasSubstr(path.string()), HasSubstr("this program reads up to 2"));
  const auto found = directory.newest_valid({});
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(found.error().message(), named);
  const Planes planes = random_planes(kSmall, 1, 2);
  const auto again = directory.write(info_of(2), kSmall, reader_of(planes));
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), named);
  EXPECT_EQ(slurp(path / "manifest.json"), later);
}

TEST_F(Checkpoints, ManifestFieldsOfTheWrongKindAreNamed) {
  CheckpointManifest manifest;
  manifest.info = info_of(1);
  manifest.files["model.safetensors"] = FileRecord{10, 0xDEADBEEF};
  const std::string text = *to_json(manifest);
  const auto back = parse_checkpoint_manifest(text);
  ASSERT_TRUE(back.ok()) << back.error().message();
  EXPECT_EQ(back->files.at("model.safetensors").crc32c, 0xDEADBEEFu);
  EXPECT_EQ(back->files.at("model.safetensors").bytes, 10u);
  EXPECT_FALSE(back->has_columns);
  // Programs that know no columns refuse their files by this number.
  manifest.has_columns = true;
  const std::string columns = *to_json(manifest);
  EXPECT_THAT(columns, HasSubstr("\"format_version\": 2"));
  EXPECT_TRUE(parse_checkpoint_manifest(columns)->has_columns);
  manifest.info.run_id = "\xFF";
  EXPECT_EQ(to_json(manifest).error().code(), ErrorCode::kInvalidArgument);
  manifest.info.run_id = "";
  manifest.info.created_unix_seconds = HUGE_VAL;
  EXPECT_THAT(to_json(manifest).error().message(), HasSubstr("created_unix_seconds"));
}

TEST_F(Checkpoints, AnotherModelIsRefusedWithBothShapes) {
  auto directory = opened();
  const CheckpointEntry entry = written(directory, 1);
  Planes back(1, std::vector<float>(6));
  const Status status = directory.read(entry, {{"w", DType::kF32, {6}}}, writer_to(back));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(status.error().message(), AllOf(HasSubstr("ours is f32 [6]"), HasSubstr("f32 [5]")));
  EXPECT_THAT(back[0], ::testing::Each(0.0f));
}

TEST_F(Checkpoints, ReadingComparesTheChecksumAgain) {
  auto directory = opened();
  const CheckpointEntry entry = written(directory, 1);
  std::string model = slurp(entry.path / "model.safetensors");
  model.back() = static_cast<char>(model.back() ^ 1);
  spill(entry.path / "model.safetensors", model);
  Planes back(1, std::vector<float>(5));
  EXPECT_EQ(directory.read(entry, kSmall, writer_to(back)).error().code(), ErrorCode::kDataLoss);
  const auto refused = directory.list(true).front();
  EXPECT_EQ(directory.read(refused, kSmall, writer_to(back)).error().code(),
            ErrorCode::kFailedPrecondition);
}

TEST_F(Checkpoints, BadInputIsRefusedBeforeAnythingIsWritten) {
  auto directory = opened();
  const Planes planes = random_planes(kSmall, 3, 1);
  const auto message = [&](const CheckpointInfo& info, const Manifest& manifest) {
    const auto entry = directory.write(info, manifest, reader_of(planes));
    EXPECT_FALSE(entry.ok());
    return entry.ok() ? "" : entry.error().message();
  };
  CheckpointInfo twice = info_of(1);
  twice.slot_names = {"a", "a"};
  EXPECT_THAT(message(twice, kSmall), HasSubstr("slot_names: \"a\""));
  EXPECT_THAT(message(info_of(1), {}), HasSubstr("no tensor"));
  EXPECT_THAT(message(info_of(1), {{"w", DType::kF16, {5}}}), HasSubstr("f16"));
  EXPECT_TRUE(names_in(root()).empty());
  spill(temporary_.path() / "file", "x");
  EXPECT_FALSE(CheckpointDirectory::open(temporary_.path() / "file", 1).ok());
}

TEST_F(Checkpoints, FailureOfTheReaderLeavesNothingBehind) {
  auto directory = opened();
  written(directory, 1);
  const PlaneReader fails = [](std::size_t, std::uint64_t, std::span<float>) -> Status {
    return Error(ErrorCode::kCancelled, "server is stopping");
  };
  const auto entry = directory.write(info_of(2), kSmall, fails);
  ASSERT_FALSE(entry.ok());
  EXPECT_EQ(entry.error().code(), ErrorCode::kCancelled);
  EXPECT_THAT(names_in(root()), ::testing::ElementsAre("checkpoint-000000000001"));
}

// The n-th file operation fails, for every n until the write goes through.
TEST_F(Checkpoints, AnyFailingOperationLeavesTheOlderOneAndNoTrace) {
  auto directory = opened();
  written(directory, 1);
  const Planes planes = random_planes(kSmall, 2, 2);
  int operations = 0;
  for (int fail_at = 1;; ++fail_at) {
    ASSERT_LT(fail_at, 200);
    operations = 0;
    std::string failed;
    bool is_written = false;
    {
      const test::ScopedFaults hook([&](std::string_view operation, const fs::path&) {
        if (test::is_query(operation) || ++operations != fail_at) return 0;
        failed = operation;
        return ENOSPC;
      });
      const auto entry = directory.write(info_of(2, 1), kSmall, reader_of(planes));
      is_written = entry.ok();
      if (!entry.ok()) {
        EXPECT_THAT(entry.error().message(),
                    AllOf(HasSubstr("checkpoint-000000000002"), HasSubstr("bytes are free there")))
            << failed;
      }
    }
    SCOPED_TRACE("operation " + std::to_string(fail_at) + ": " + failed);
    if (is_written) break;
    EXPECT_THAT(names_in(root()), ::testing::ElementsAre("checkpoint-000000000001"));
    EXPECT_EQ(newest(directory), 1u);
  }
  EXPECT_GT(operations, 15);
  EXPECT_EQ(names_in(root()).size(), 2u);
}

// The process dies at the n-th file operation, for every n.
TEST_F(Checkpoints, CrashAtAnyOperationLeavesAValidOneAndOpenCleansUp) {
  {
    auto directory = opened(1);
    written(directory, 1);
  }
  bool left_something = false;
  for (int die_at = 1;; ++die_at) {
    ASSERT_LT(die_at, 200);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int operations = 0;
      const test::ScopedFaults hook([&](std::string_view, const fs::path&) {
        if (++operations == die_at) ::_exit(9);
        return 0;
      });
      auto directory = CheckpointDirectory::open(root(), 1);
      const Planes planes = random_planes(kSmall, 1, 2);
      const bool is_written =
          directory.ok() && directory->write(info_of(2), kSmall, reader_of(planes)).ok();
      ::_exit(is_written ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_NE(WEXITSTATUS(status), 1);
    for (const std::string& name : names_in(root())) left_something |= name.starts_with(".tmp-");

    auto directory = opened(1);
    for (const std::string& name : names_in(root()))
      EXPECT_FALSE(name.starts_with(".tmp-")) << name;
    const auto version = newest(directory);
    ASSERT_TRUE(version == 1u || version == 2u) << die_at;
    EXPECT_TRUE(refused_.empty()) << die_at;
    if (WEXITSTATUS(status) == 0) {
      EXPECT_EQ(version, 2u);
      EXPECT_EQ(names_in(root()).size(), 1u);  // 1 was beyond `keep`
      break;
    }
    // Back to the beginning for the next point of death.
    fs::remove_all(root());
    directory = opened(1);
    written(directory, 1);
  }
  EXPECT_TRUE(left_something);
}

TEST_F(Checkpoints, OpeningLeavesALivingWriterAlone) {
  auto directory = opened();
  const Planes planes = random_planes(kSmall, 1, 6);
  const PlaneReader read = [&](std::size_t plane, std::uint64_t offset, std::span<float> into) {
    EXPECT_TRUE(CheckpointDirectory::open(root(), 1).ok());
    return reader_of(planes)(plane, offset, into);
  };
  EXPECT_TRUE(directory.write(info_of(6), kSmall, read).ok());
  EXPECT_EQ(newest(directory), 6u);
}

TEST_F(Checkpoints, ASoleOwnerTakesAwayWhatAnotherWriterHasBegun) {
  CheckpointDirectory deposed = opened();
  const Planes planes = random_planes(kSmall, 1, 1);
  const auto read = [&](std::size_t plane, std::uint64_t offset, std::span<float> into) -> Status {
    CheckpointPolicy sole;  // another server takes over while this one writes
    sole.is_sole = true;
    EXPECT_TRUE(CheckpointDirectory::open(root(), sole).ok());
    return reader_of(planes)(plane, offset, into);
  };
  EXPECT_FALSE(deposed.write(info_of(7), kSmall, read).ok());
  EXPECT_TRUE(names_in(root()).empty());
}

TEST_F(Checkpoints, WithoutTheRightToWriteNothingGetsItsName) {
  int asked = 0, allowed = 0;
  CheckpointPolicy policy;
  policy.may_write = [&]() -> Status {
    if (++asked > allowed) return Error(ErrorCode::kAborted, "deposed");
    return {};
  };
  auto directory = CheckpointDirectory::open(root(), policy);
  ASSERT_TRUE(directory.ok());
  const Planes planes = random_planes(kSmall, 1, 1);
  for (allowed = 0; allowed < 2; ++allowed) {  // at the beginning; before the name
    asked = 0;
    const auto refused = directory->write(info_of(7), kSmall, reader_of(planes));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::kAborted);
    EXPECT_TRUE(names_in(root()).empty());
  }
  asked = 0;
  EXPECT_TRUE(directory->write(info_of(7), kSmall, reader_of(planes)).ok());
}

TEST_F(Checkpoints, ForeignNamesAreIgnored) {
  auto directory = opened();
  written(directory, 1);
  fs::create_directory(root() / "checkpoint-7");
  fs::create_directory(root() / "checkpoint-99999999999999999999999");
  fs::create_directory(root() / "other");
  spill(root() / "checkpoint-000000000008", "a file");
  EXPECT_EQ(directory.list(true).size(), 1u);
  EXPECT_EQ(newest(opened()), 1u);
  EXPECT_TRUE(fs::exists(root() / "other"));
}

}  // namespace
}  // namespace centroid
