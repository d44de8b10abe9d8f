// Files of checkpoints over REST: parts, tags, clients that read slowly.
#include "server/api/file_stream.h"
#include "tests/component/api_fixture.h"
#include "tests/unit/temporary_directory.h"

namespace centroid::test {
namespace {

using server::ByteRange;
using server::RangeVerdict;

TEST(ApiRange, IsReadAsTheStandardSays) {
  const auto part = [](const char* field, std::uint64_t bytes) {
    ByteRange range;
    const RangeVerdict verdict = server::parse_range(field, bytes, range);
    const char* name = verdict == RangeVerdict::kWhole     ? "whole "
                       : verdict == RangeVerdict::kOutside ? "outside "
                                                           : "part ";
    return name + std::to_string(range.begin) + "+" + std::to_string(range.count);
  };
  EXPECT_EQ(part("bytes=0-0", 10), "part 0+1");
  EXPECT_EQ(part("bytes=3-", 10), "part 3+7");
  EXPECT_EQ(part("bytes=3-99", 10), "part 3+7");
  EXPECT_EQ(part("bytes=-4", 10), "part 6+4");
  EXPECT_EQ(part("bytes=-40", 10), "part 0+10");
  EXPECT_EQ(part("bytes=10-", 10), "outside 0+10");
  EXPECT_EQ(part("bytes=-0", 10), "outside 0+10");
  EXPECT_EQ(part("bytes=0-", 0), "outside 0+0");
  for (const char* odd : {"bytes=5-3", "bytes=1-2,4-5", "lines=1-2", "bytes=", "bytes=-",
                          "bytes=x-", "bytes=1-x", "bytes=99999999999999999999-", ""})
    EXPECT_EQ(part(odd, 10), "whole 0+10") << odd;
}

class ApiFiles : public ApiTest {
 protected:
  ApiFiles() {
    const auto path = folder.path() / "model.safetensors";
    content.resize(3'000'000);
    for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 31 >> 3);
    std::ofstream(path, std::ios::binary) << content;
    control.files = {{"model.safetensors", path.string(), content.size(), 0x1234}};
  }
  static constexpr const char* kPath = "/v1/checkpoints/7/files/model.safetensors";
  TemporaryDirectory folder;
  std::string content;
};

TEST_F(ApiFiles, ComeWholeOrInPart) {
  const HttpReply whole = request("GET", kPath);
  ASSERT_EQ(whole.status, 200);
  EXPECT_EQ(whole.body, content);
  EXPECT_EQ(whole.fields.at("accept-ranges"), "bytes");
  const std::string etag = whole.fields.at("etag");
  const HttpReply part = request("GET", kPath, "Range: bytes=1000000-1999999\r\n");
  ASSERT_EQ(part.status, 206);
  EXPECT_EQ(part.body, content.substr(1'000'000, 1'000'000));
  EXPECT_EQ(part.fields.at("content-range"), "bytes 1000000-1999999/3000000");
  const HttpReply outside = request("GET", kPath, "Range: bytes=3000000-\r\n");
  expect_problem(outside, 416, "invalid_argument", "3000000 bytes");
  EXPECT_EQ(outside.fields.at("content-range"), "bytes */3000000");
  EXPECT_EQ(request("GET", kPath, "Range: bytes=0-1\r\nIf-Range: \"other\"\r\n").status, 200);
  EXPECT_EQ(request("GET", kPath, "Range: bytes=0-1\r\nIf-Range: " + etag + "\r\n").status, 206);
}

TEST_F(ApiFiles, AreNotSentToWhoHasThem) {
  start();
  HttpClient client(port());
  const HttpReply head = client.request("HEAD", kPath);
  EXPECT_EQ(head.fields.at("content-length"), "3000000");
  const std::string etag = head.fields.at("etag");
  const HttpReply known = client.request("GET", kPath, "If-None-Match: \"x\", " + etag + "\r\n");
  EXPECT_EQ(known.status, 304);
  EXPECT_EQ(known.body, "");
  EXPECT_EQ(client.request("GET", kPath, "If-None-Match: \"x\"\r\n").status, 200)
      << "and the connection is in step";
}

TEST_F(ApiFiles, AreOnlySentAsTheOnesThatWereMeant) {
  const std::string etag = request("HEAD", kPath).fields.at("etag");
  EXPECT_EQ(request("HEAD", kPath, "If-Match: \"x\", " + etag + "\r\n").status, 200);
  EXPECT_EQ(request("HEAD", kPath, "If-Match: *\r\n").status, 200);
  for (const std::string& other : {std::string("\"x\""), "W/" + etag, std::string()}) {
    const HttpReply refused = request("GET", kPath, "If-Match: " + other + "\r\n");
    expect_problem(refused, 412, "failed_precondition", "another one");
    EXPECT_EQ(refused.fields.at("etag"), etag);
  }
}

TEST_F(ApiFiles, WhatIsNotThereOrNotRightIsSaid) {
  expect_problem(request("GET", "/v1/checkpoints/7/files/other"), 404, "not_found", "other");
  expect_problem(request("GET", "/v1/checkpoints/8/files/model.safetensors"), 404, "not_found");
  expect_problem(request("GET", "/v1/checkpoints/7/files/..%2Fmodel.safetensors"), 404,
                 "not_found");
  control.files[0].bytes += 1;
  expect_problem(request("GET", kPath), 500, "data_loss", "differs from its manifest");
}

TEST_F(ApiFiles, AClientThatStopsReadingIsDropped) {
  options.write_timeout = std::chrono::milliseconds(100);
  content.resize(64'000'000);
  std::ofstream(control.files[0].path, std::ios::binary) << content;
  control.files[0].bytes = content.size();
  start();
  HttpClient deaf(port());
  deaf.send(http_request_text("GET", kPath));
  EXPECT_TRUE(eventually([this] { return is_counted_slow(); }));
}

}  // namespace
}  // namespace centroid::test
