#include "transport/frame.h"

#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "transport/transport.h"

namespace centroid::transport {
namespace {

using ::testing::HasSubstr;

FrameHeader sample() {
  FrameHeader header;
  header.kind = 17;
  header.flags = kFlagRequest;
  header.head_bytes = 5;
  header.id = 0x0102030405060708;
  header.payload_bytes = 3;
  header.head_crc = crc32c(as_bytes("hello"));
  header.payload_crc = crc32c(as_bytes("abc"));
  return header;
}

std::array<std::byte, kFrameHeaderBytes> with(std::size_t at, std::uint32_t value) {
  auto raw = encode_header(sample());
  std::memcpy(raw.data() + at, &value, sizeof value);
  const std::uint32_t crc = crc32c(Bytes(raw).first(44));
  std::memcpy(raw.data() + 44, &crc, sizeof crc);
  return raw;
}

void expect_same(const FrameHeader& a, const FrameHeader& b) {
  EXPECT_EQ(encode_header(a), encode_header(b));
}

TEST(FrameHeader, DecodesWhatWasEncoded) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng rng(seed);
  const FrameLimits all{kMaxHeadBytes, ~std::uint64_t{0}, true};
  for (int i = 0; i < 1000; ++i) {
    FrameHeader header;
    header.kind = static_cast<std::uint16_t>(rng.next());
    header.flags = static_cast<std::uint32_t>(rng.next());
    header.head_bytes = static_cast<std::uint32_t>(rng.below(kMaxHeadBytes + 1));
    header.id = rng.next();
    header.payload_bytes = rng.next();
    header.head_crc = static_cast<std::uint32_t>(rng.next());
    header.payload_crc = static_cast<std::uint32_t>(rng.next());
    if ((header.flags & kFlagNoPayloadCrc) != 0) header.payload_crc = 0;
    const auto back = decode_header(encode_header(header), all);
    ASSERT_TRUE(back.ok());
    expect_same(*back, header);
  }
}

TEST(FrameHeader, APayloadWithoutChecksumIsRefusedUnlessAgreed) {
  FrameHeader header;
  header.flags = kFlagNoPayloadCrc;
  EXPECT_EQ(decode_header(encode_header(header), FrameLimits()).error().code(),
            ErrorCode::kDataLoss);
  FrameLimits agreed;
  agreed.accepts_without_crc = true;
  EXPECT_TRUE(decode_header(encode_header(header), agreed).ok());
  header.payload_crc = 1;
  EXPECT_FALSE(decode_header(encode_header(header), agreed).ok());
}

TEST(FrameHeader, AnyFlippedBitIsDataLoss) {
  const auto raw = encode_header(sample());
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    auto bad = raw;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    const auto result = decode_header(bad, FrameLimits());
    ASSERT_FALSE(result.ok()) << "bit " << bit;
    EXPECT_EQ(result.error().code(), ErrorCode::kDataLoss);
  }
}

TEST(FrameHeader, ShortInputIsDataLoss) {
  const auto raw = encode_header(sample());
  for (std::size_t n = 0; n < kFrameHeaderBytes; ++n) {
    EXPECT_EQ(decode_header(Bytes(raw).first(n), FrameLimits()).error().code(),
              ErrorCode::kDataLoss);
  }
}

TEST(FrameHeader, OtherVersionIsNamed) {
  const auto result = decode_header(with(4, 2), FrameLimits());
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(result.error().message(), HasSubstr("version 2, expected 1"));
}

TEST(FrameHeader, ReservedFieldMustBeZero) {
  EXPECT_EQ(decode_header(with(40, 1), FrameLimits()).error().code(), ErrorCode::kDataLoss);
}

TEST(FrameHeader, LimitsAreNamed) {
  const FrameLimits limits{4, 2};
  const auto head = decode_header(encode_header(sample()), limits);
  EXPECT_EQ(head.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(head.error().message(), HasSubstr("head of 5 bytes is over the limit of 4"));
  const FrameLimits roomy{5, 2};
  const auto payload = decode_header(encode_header(sample()), roomy);
  EXPECT_EQ(payload.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(payload.error().message(), HasSubstr("payload of 3 bytes is over the limit of 2"));
  EXPECT_TRUE(decode_header(encode_header(sample()), FrameLimits{5, 3}).ok());
  const FrameLimits careless{~0u, 3};
  EXPECT_EQ(decode_header(with(12, kMaxHeadBytes + 1), careless).error().code(),
            ErrorCode::kResourceExhausted);
}

/// The hex blocks of docs/reference/wire.md: "```hex name", bytes with comments behind '#', "```".
std::map<std::string, std::vector<std::byte>> examples() {
  std::ifstream file("docs/reference/wire.md");
  std::map<std::string, std::vector<std::byte>> found;
  std::string line, name;
  while (std::getline(file, line)) {
    if (line.starts_with("```")) {
      name = line.starts_with("```hex ") ? line.substr(7) : "";
    } else if (!name.empty()) {
      std::istringstream words(line.substr(0, line.find('#')));
      for (std::string word; words >> word;)
        found[name].push_back(static_cast<std::byte>(std::stoi(word, nullptr, 16)));
    }
  }
  return found;
}

TEST(FrameHeader, BytesAreThoseOfTheDocument) {
  const auto golden = examples();
  ASSERT_TRUE(golden.contains("frame")) << "docs/reference/wire.md has no example named frame";
  ByteWriter frame;
  frame.put_bytes(encode_header(sample()));
  frame.put_bytes(as_bytes("hello"));
  frame.put_bytes(as_bytes("abc"));
  EXPECT_EQ(frame.bytes(), golden.at("frame"));
  ASSERT_TRUE(golden.contains("empty-frame"));
  const auto empty = encode_header(FrameHeader{});
  EXPECT_EQ(std::vector<std::byte>(empty.begin(), empty.end()), golden.at("empty-frame"));
}

TEST(Endpoint, ParsesWhatItPrints) {
  for (const std::string text : {"127.0.0.1:7070", "[::1]:80", "host.example:0", "server:65535"}) {
    const auto endpoint = Endpoint::parse(text);
    ASSERT_TRUE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint->to_string(), text);
  }
}

TEST(Endpoint, SaysWhatWasExpected) {
  for (const std::string text :
       {"", "host", ":80", "host:", "host:65536", "host:-1", "host:8a", "::1:80", "[::1]80",
        "[::1:80", "a b:80", "[]:80", "http://host:80"}) {
    const auto endpoint = Endpoint::parse(text);
    ASSERT_FALSE(endpoint.ok()) << text;
    EXPECT_EQ(endpoint.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(endpoint.error().message(), HasSubstr("expected host:port"));
  }
}

}  // namespace
}  // namespace centroid::transport
