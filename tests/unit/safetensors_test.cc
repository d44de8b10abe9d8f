#include "common/checkpoint/safetensors.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/checkpoint/safetensors_header.h"
#include "common/storage/file.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::safetensors_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string with_length(const std::string& json, const std::string& data = {}) {
  const std::uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + data;
}

const Manifest kManifest = {{"b.weight", DType::kF32, {2, 3}},
                            {"empty", DType::kF32, {0, 4}},
                            {"a \"quoted\" größe", DType::kBF16, {5}},
                            {"scalar", DType::kI64, {}},
                            {"bytes", DType::kU8, {3}}};

std::vector<std::byte> random_bytes(std::size_t n) {
  CounterRng rng(3);
  std::vector<std::byte> out(n);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.next());
  return out;
}

std::size_t data_bytes(const Manifest& manifest) {
  std::size_t total = 0;
  for (const TensorInfo& tensor : manifest) total += tensor.bytes();
  return total;
}

TEST(Safetensors, WrittenFileHasTheLayoutOfTheFormat) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  auto writer = SafetensorsWriter::create(
      path, {{"w", DType::kF32, {1, 2}}, {"b", DType::kU8, {3}}}, {{"step", "7"}});
  ASSERT_TRUE(writer.ok()) << writer.error().message();
  ASSERT_TRUE(writer->append(as_bytes("01234567")).ok());
  ASSERT_TRUE(writer->append(as_bytes("abc")).ok());
  const auto written = writer->finish();
  ASSERT_TRUE(written.ok());

  const std::string file = slurp(path);
  std::string json =
      R"({"__metadata__":{"step":"7"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (json.size() % 8 != 0) json += ' ';
  EXPECT_EQ(file, with_length(json, "01234567abc"));
  EXPECT_EQ(written->bytes, file.size());
  EXPECT_EQ(written->crc32c, crc32c(as_bytes(file)));
  EXPECT_EQ(*file_crc32c(path), written->crc32c);
}

TEST(Safetensors, EveryByteOfEveryTensorComesBack) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  const auto data = random_bytes(data_bytes(kManifest));
  {
    auto writer = SafetensorsWriter::create(path, kManifest, {{"who", "größe"}});
    ASSERT_TRUE(writer.ok());
    for (std::size_t at = 0; at < data.size(); at += 7)
      ASSERT_TRUE(
          writer->append(Bytes(data).subspan(at, std::min<std::size_t>(7, data.size() - at))).ok());
    ASSERT_TRUE(writer->finish().ok());
  }
  const auto reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.error().message();
  EXPECT_EQ(reader->manifest(), kManifest);
  EXPECT_EQ(reader->metadata().at("who"), "größe");
  std::size_t at = 0;
  for (const TensorInfo& tensor : kManifest) {
    std::vector<std::byte> back(tensor.bytes());
    ASSERT_TRUE(reader->read(tensor.name, 0, back).ok());
    EXPECT_EQ(back, std::vector<std::byte>(data.begin() + at, data.begin() + at + back.size()));
    at += back.size();
  }
  std::vector<std::byte> part(4);
  ASSERT_TRUE(reader->read("b.weight", 8, part).ok());
  EXPECT_EQ(std::memcmp(part.data(), data.data() + 8, 4), 0);

  EXPECT_EQ(reader->read("nothing", 0, part).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(reader->read("b.weight", 21, part).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(reader->read("b.weight", ~std::uint64_t{0}, part).error().code(),
            ErrorCode::kInvalidArgument);
}

TEST(Safetensors, TruncationAfterOpeningIsDataLoss) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "x.safetensors";
  spill(path, with_length(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "1234"));
  const auto reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<std::byte> back(4);
  const Status status = reader->read("a", 0, back);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(status.error().message(), AllOf(HasSubstr(path.string()), HasSubstr("1 more")));
}

TEST(Safetensors, ForeignOrderOfTheHeaderIsSortedByData) {
  const auto header = parse_safetensors(as_bytes(with_length(
      R"({"z":{"data_offsets":[2,4],"dtype":"U8","shape":[2]},"a":{"shape":[2],"dtype":"U8","data_offsets":[0,2]}}   )",
      "abcd")));
  ASSERT_TRUE(header.ok()) << header.error().message();
  EXPECT_EQ(header->manifest[0].name, "a");
  EXPECT_EQ(header->offsets, (std::vector<std::uint64_t>{0, 2}));
  EXPECT_TRUE(parse_safetensors(as_bytes(with_length("{}"))).ok());
}

struct BadFile {
  std::string bytes;
  std::string reason;
};

std::vector<BadFile> bad_files() {
  const auto tensor = [](const std::string& fields, const std::string& data = "1234") {
    return with_length("{\"a\":{" + fields + "}}", data);
  };
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  std::string too_long = with_length("{}");
  const std::uint64_t huge = 100'000'001;
  std::memcpy(too_long.data(), &huge, 8);
  std::string wrapping = with_length("{}");
  std::memset(wrapping.data(), 0xFF, 8);
  std::string beyond = with_length("{}");
  beyond[0] = 3;
  const std::string nested(200'000, '[');
  return {
      {"", "file ends at byte 0"},
      {"1234567", "file ends at byte 7"},
      {too_long, "above the limit"},
      {wrapping, "above the limit"},
      {beyond, "does not fit a file of 10 bytes"},
      {with_length(""), "does not begin with '{'"},
      {with_length("[]"), "does not begin with '{'"},
      {with_length(" {}"), "does not begin with '{'"},
      {with_length("{"), "header: byte"},
      {with_length("{} x"), "header: byte"},
      {with_length(std::string("{}\0\0", 4)), "zero byte"},
      {with_length("{\"\xC3\x28\":{}}"), "header: byte"},
      {with_length("{\"a\":" + nested), "an array is not expected"},
      {with_length("{\"a\":{\"shape\":" + nested), "an array is not expected"},
      {with_length("{\"a\":{\"dtype\":{}}}"), "an object is not expected"},
      {with_length("{\"a\":1}"), "a number is not expected"},
      {with_length("{\"a\":null}"), "null is not expected"},
      {with_length("{\"a\":true}"), "a boolean is not expected"},
      {with_length("{\"a\":\"x\"}"), "a string is not expected"},
      {with_length("{\"__metadata__\":{\"k\":1}}"), "\"k\": a number is not expected"},
      {with_length("{\"__metadata__\":{\"k\":{}}}"), "an object is not expected"},
      {with_length("{\"__metadata__\":[]}"), "an array is not expected"},
      {with_length("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}"), "\"k\": appears twice"},
      {with_length("{\"__metadata__\":{},\"__metadata__\":{}}"), "appears twice"},
      {with_length("{\"\":{" + good + "}}", "1234"), "name of 0 bytes"},
      {with_length("{\"a\":{" + good + "},\"a\":{" + good + "}}", "1234"), "\"a\": appears twice"},
      {tensor(good + ",\"shape\":[4]"), "\"shape\": appears twice"},
      {tensor(good + ",\"color\":[4]"), "\"color\": is no field"},
      {tensor(R"("dtype":"U8","shape":[4])"), "lacks"},
      {tensor(R"("shape":[4],"data_offsets":[0,4])"), "lacks"},
      {tensor(R"("dtype":"U8","data_offsets":[0,4])"), "lacks"},
      {tensor(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), "\"F8_E4M3\" is unknown"},
      {tensor(R"("dtype":"u8","shape":[4],"data_offsets":[0,4])"), "\"u8\" is unknown"},
      {tensor(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "a negative number"},
      {tensor(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "not an integer"},
      {tensor(R"("dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4])"),
       "not an integer"},
      {tensor(R"("dtype":"U8","shape":"4","data_offsets":[0,4])"), "a string is not expected"},
      {tensor(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"),
       "more than 8 numbers"},
      {tensor(R"("dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,4])"), "overflows"},
      {tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), "overflows"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[-1,4])"), "a negative number"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "do not lie in"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,5])"), "do not lie in the 4 bytes"},
      {tensor(
           R"("dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,18446744073709551615])"),
       "do not lie in"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "expected are two"},
      {tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "more than 2"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), "do not fit u8 [3] of 3 bytes"},
      {tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,4])"), "do not fit f32 [4]"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "hole"},
      {tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), "hole"},
      {with_length("{}", "1"), "hole"},
      {with_length(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                   R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                   "1234"),
       "\"b\": data begins at byte 2, overlap"},
  };
}

TEST(Safetensors, ForeignBytesAreRefusedWithFileAndCause) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "foreign.safetensors";
  for (const BadFile& bad : bad_files()) {
    spill(path, bad.bytes);
    const auto reader = SafetensorsReader::open(path);
    ASSERT_FALSE(reader.ok()) << bad.reason << "\n" << bad.bytes.substr(0, 200);
    EXPECT_THAT(reader.error().message(), AllOf(HasSubstr(path.string()), HasSubstr(bad.reason)));
    EXPECT_THAT(reader.error().code(),
                ::testing::AnyOf(ErrorCode::kDataLoss, ErrorCode::kUnimplemented));
    EXPECT_FALSE(parse_safetensors(as_bytes(bad.bytes)).ok());
  }
}

TEST(Safetensors, EveryTruncationAndBitFlipOfTheHeaderIsSafe) {
  const auto built = build_safetensors_header(kManifest, {{"k", "v"}});
  ASSERT_TRUE(built.ok());
  const std::string file = *built + std::string(data_bytes(kManifest), 'x');
  ASSERT_TRUE(parse_safetensors(as_bytes(file)).ok());
  for (std::size_t n = 0; n < file.size(); ++n)
    EXPECT_FALSE(parse_safetensors(as_bytes(file.substr(0, n))).ok()) << n;
  for (std::size_t i = 0; i < built->size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = file;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      (void)parse_safetensors(as_bytes(flipped))
          .ok();  // a name may change; memory checkers look on
    }
  }
}

TEST(Safetensors, OddPathsAreRefused) {
  const TemporaryDirectory directory;
  EXPECT_EQ(SafetensorsReader::open(directory.path() / "none").error().code(),
            ErrorCode::kNotFound);
  EXPECT_FALSE(SafetensorsReader::open(directory.path()).ok());
  EXPECT_FALSE(SafetensorsReader::open("/dev/zero").ok());
  const auto pipe = directory.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsReader::open(pipe).error().message(), HasSubstr("not a regular file"));
}

TEST(SafetensorsWriter, RefusesBadManifestsAndExistingFiles) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "x";
  const auto create = [&](const Manifest& manifest,
                          const std::map<std::string, std::string>& meta = {}) {
    return SafetensorsWriter::create(path, manifest, meta);
  };
  EXPECT_THAT(create({{"", DType::kF32, {}}}).error().message(), HasSubstr("name must have"));
  EXPECT_THAT(create({{"a\xFF", DType::kF32, {}}}).error().message(), HasSubstr("UTF-8"));
  EXPECT_THAT(create({{"__metadata__", DType::kF32, {}}}).error().message(), HasSubstr("reserved"));
  EXPECT_THAT(create({{"a", DType::kF32, {}}, {"a", DType::kF32, {}}}).error().message(),
              HasSubstr("twice"));
  EXPECT_THAT(create({{"a", DType::kF32, {std::uint64_t{1} << 62}}}).error().message(),
              HasSubstr("overflow"));
  EXPECT_THAT(create({}, {{"k", "\xFF"}}).error().message(), HasSubstr("metadata \"k\""));
  EXPECT_FALSE(std::filesystem::exists(path));
  spill(path, "precious");
  EXPECT_EQ(create({{"a", DType::kF32, {}}}).error().code(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(slurp(path), "precious");
}

TEST(SafetensorsWriter, WantsExactlyTheBytesOfItsTensors) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "x";
  {
    auto writer = SafetensorsWriter::create(path, {{"a", DType::kF32, {}}}, {});
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->append(as_bytes("12345")).error().code(), ErrorCode::kFailedPrecondition);
    ASSERT_TRUE(writer->append(as_bytes("123")).ok());
    EXPECT_THAT(writer->finish().error().message(),
                HasSubstr("1 bytes of the tensors are missing"));
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "an unfinished file stays behind";
}

/// A file system of `size_bytes`, seen by this thread only.
class SmallDisk {
 public:
  explicit SmallDisk(std::size_t size_bytes) {
    const std::string options = "size=" + std::to_string(size_bytes);
    is_mounted_ = ::unshare(CLONE_FS | CLONE_NEWNS) == 0 &&
                  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  ::mount("tmpfs", directory_.path().c_str(), "tmpfs", 0, options.c_str()) == 0;
    if (!is_mounted_) reason_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (is_mounted_) ::umount2(directory_.path().c_str(), MNT_DETACH);
  }
  bool is_mounted() const { return is_mounted_; }
  const std::string& reason() const { return reason_; }
  const std::filesystem::path& path() const { return directory_.path(); }

 private:
  TemporaryDirectory directory_;
  bool is_mounted_ = false;
  std::string reason_;
};

TEST(SafetensorsWriter, FullDiskSaysSoWithTheFreeSpace) {
  const SmallDisk disk(64 << 10);
  if (!disk.is_mounted()) GTEST_SKIP() << "cannot mount a small tmpfs: " << disk.reason();
  const auto path = disk.path() / "x.safetensors";
  {
    auto writer = SafetensorsWriter::create(path, {{"a", DType::kU8, {1 << 20}}}, {});
    ASSERT_TRUE(writer.ok()) << writer.error().message();
    const Status status = writer->append(std::vector<std::byte>(1 << 20));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(status.error().message(),
                AllOf(HasSubstr(path.string()), HasSubstr("0 bytes are free there")));
  }
  EXPECT_FALSE(std::filesystem::exists(path)) << "the partial file fills the disk";
}

}  // namespace
}  // namespace centroid::safetensors_test
