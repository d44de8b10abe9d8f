// Where a request ends: what two readers may understand differently is refused, and nothing of
// what follows it is executed.
#include <cstring>

#include "tests/component/api_fixture.h"

namespace centroid::test {
namespace {

class ApiFramingTest : public ApiTest {
 protected:
  /// Send `head` and a call that pauses the job in one go: only a refusal may come back.
  void expect_refused(const std::string& head, const std::string& mentions) {
    SCOPED_TRACE(head);
    HttpClient client(port());
    client.send(head + "\r\n" + kPause);
    expect_refusal(client, mentions);
  }

  void expect_refusal(HttpClient& client, const std::string& mentions) {
    auto reply = client.receive();
    ASSERT_TRUE(reply.has_value());
    expect_problem(*reply, 400, "invalid_argument", mentions);
    EXPECT_EQ(reply->fields["connection"], "close");
    EXPECT_FALSE(client.receive().has_value()) << "something else was answered, too";
    EXPECT_TRUE(client.wait_closed());
    EXPECT_EQ(control.actions(), "") << "what followed was executed";
  }

  const std::string kPause = http_request_text("POST", "/v1/job:pause");
};

TEST_F(ApiFramingTest, ATransferEncodingOtherThanChunkedIsRefused) {
  start();
  const std::string get = "GET /livez HTTP/1.1\r\nHost: localhost\r\n";
  for (const char* coding : {"xchunked", "identity", "gzip", "gzip, chunked", "chunked, gzip",
                             "chunked, chunked", "chunked,", "\"chunked\"", "chunked;q=1", ""})
    expect_refused(get + "Transfer-Encoding: " + coding + "\r\n",
                   "field 'Transfer-Encoding': expected 'chunked', got '" + std::string(coding));
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  expect_refused(get + chunked + chunked, "field 'Transfer-Encoding' appears twice");
  expect_refused(get + chunked + "transfer-encoding: x\r\n",
                 "field 'transfer-encoding' appears twice");
  expect_refused("GET /livez HTTP/1.0\r\n" + chunked, "field 'Transfer-Encoding': HTTP/1.0");
}

TEST_F(ApiFramingTest, TwoLengthsAreRefused) {
  start();
  const std::string post = "POST /v1/job:stop HTTP/1.1\r\nHost: localhost\r\n";
  const std::string length = "Content-Length: 0\r\n", chunked = "Transfer-Encoding: chunked\r\n";
  const char* const both = "fields 'Content-Length' and 'Transfer-Encoding' stand together";
  expect_refused(post + length + chunked, both);
  expect_refused(post + chunked + length, both);
  expect_refused(post + length + "Transfer-Encoding: identity\r\n", "'Transfer-Encoding'");
  expect_refused(post + length + length, "field 'Content-Length' appears twice");
  expect_refused(post + length + "Content-Length: 1\r\n", "field 'Content-Length' appears twice");
  for (const char* digits : {"0, 0", "+0", "-1", "0x0", "0 0"})
    expect_refused(post + "Content-Length: " + digits + "\r\n",
                   "field 'Content-Length': expected digits, got '" + std::string(digits) + "'");
}

TEST_F(ApiFramingTest, FieldsThatMayStandOnceOnlyAreRefusedTwice) {
  start();
  const std::string get = "GET /livez HTTP/1.1\r\nHost: localhost\r\n";
  for (const char* field : {"Host: localhost", "Authorization: Bearer a", "Origin: http://a"}) {
    const std::string line = std::string(field) + "\r\n", name = line.substr(0, line.find(':'));
    expect_refused(get + line + (name == "Host" ? "" : line), "field '" + name + "' appears twice");
  }
  expect_refused("GET /livez HTTP/1.1\r\n", "HTTP/1.1 needs the field 'Host'");
}

TEST_F(ApiFramingTest, FoldedLinesAndSpaceBeforeAColonAreRefused) {
  start();
  const std::string get = "GET /livez HTTP/1.1\r\nHost: localhost\r\n";
  const char* const folded = "continues in a line that begins with space or tab";
  expect_refused(get + "X-Fill: a\r\n b\r\n", "field 'X-Fill' " + std::string(folded));
  expect_refused(get + "X-Fill:\r\n\tb\r\n", "field 'X-Fill' " + std::string(folded));
  expect_refused(get + "Transfer-Encoding:\r\n chunked\r\n", "field 'Transfer-Encoding'");
  expect_refused("GET /livez HTTP/1.1\r\n Host: localhost\r\n", folded);
  for (const char* name : {"Content-Length ", "Transfer-Encoding\t", "X-Fill "})
    expect_refused(get + name + ": 0\r\n", "field '" + std::string(name, std::strlen(name) - 1) +
                                               "': there is space or tab before the colon");
}

TEST_F(ApiFramingTest, AHeadThatComesInPiecesIsRefusedToo) {
  start();
  HttpClient client(port());
  for (const char c : std::string("GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"))
    client.send(std::string(1, c));
  client.send(kPause);
  expect_refusal(client, "field 'X' continues");
}

TEST_F(ApiFramingTest, WhatEndsInOneWayOnlyIsExecuted) {
  start();
  HttpClient client(port());
  client.send("POST /v1/job:stop HTTP/1.1\r\nhost:localhost\r\ntransfer-encoding:\tChunked \r\n" +
              std::string(kJson) + "\r\n2\r\n{}\r\n0\r\n\r\n" + kPause);
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 202);
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 202);
  client.send("GET /livez HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().value_or(HttpReply()).status, 200);
  EXPECT_EQ(control.actions(), "stop;pause;");
}

}  // namespace
}  // namespace centroid::test
