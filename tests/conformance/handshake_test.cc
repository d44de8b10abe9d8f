#include "transport/handshake.h"

#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include <gmock/gmock.h>

#include "common/base/crc32c.h"
#include "common/base/random.h"
#include "common/base/refusal.h"
#include "transport/session_credit.h"

namespace centroid::transport {
namespace {

using ::testing::HasSubstr;

/// The blocks "```hex <name>" of the protocol's page.
std::map<std::string, std::vector<std::byte>> examples() {
  std::map<std::string, std::vector<std::byte>> out;
  std::ifstream page("docs/reference/wire.md");
  std::string line, name;
  while (std::getline(page, line)) {
    if (line.starts_with("```")) {
      name = line.starts_with("```hex ") ? line.substr(7) : "";
      continue;
    }
    if (name.empty()) continue;
    std::istringstream row(line.substr(0, line.find('#')));
    for (std::string pair; row >> pair;)
      out[name].push_back(static_cast<std::byte>(std::stoi(pair, nullptr, 16)));
  }
  return out;
}

std::string hex(Bytes bytes) {
  std::string out;
  char pair[4];
  for (const std::byte b : bytes) {
    std::snprintf(pair, sizeof pair, "%02x ", static_cast<unsigned>(b));
    out += pair;
  }
  return out;
}

Greeting example_greeting() {
  Greeting out;
  out.role = "worker";
  out.name = "worker-2";
  out.token = "s3cret";
  out.credit_bytes = 4u << 20;
  out.manifest_hash = 0xc1a64af30297d5f7;
  return out;
}

std::vector<std::byte> whole_frame(std::uint16_t kind, std::uint32_t flags, Bytes head) {
  FrameHeader header;
  header.kind = kind;
  header.flags = flags;
  header.head_bytes = static_cast<std::uint32_t>(head.size());
  header.head_crc = crc32c(head);
  const auto raw = encode_header(header);
  std::vector<std::byte> out(raw.begin(), raw.end());
  out.insert(out.end(), head.begin(), head.end());
  return out;
}

TEST(SessionWire, heads_are_those_of_the_page) {
  auto page = examples();
  Welcome welcome;
  welcome.role = "server";
  welcome.name = "server-0";
  welcome.run_id = "run-1";
  welcome.credit_bytes = 4u << 20;
  EXPECT_EQ(hex(page["hello"]), hex(encode_hello(example_greeting())));
  EXPECT_EQ(hex(page["hello-frame"]),
            hex(whole_frame(kHello, kFlagRequest, encode_hello(example_greeting()))));
  EXPECT_EQ(hex(page["hello-reply"]), hex(encode_welcome(welcome)));
  EXPECT_EQ(hex(page["credit"]), hex(encode_credit(1u << 20)));
  EXPECT_EQ(hex(page["error"]),
            hex(encode_error(Error(ErrorCode::kAborted, "round 7 has moved on"))));
  EXPECT_EQ(hex(page["not-leader"]), hex(encode_error(not_leader("b", "10.0.0.2:7070"))));
  EXPECT_EQ(hex(page["not-ready"]), hex(encode_error(not_ready("wait"))));
}

TEST(SessionWire, refusals_come_back_as_values) {
  const auto sent = [](const Error& error) { return decode_error(encode_error(error)); };
  const Error standby = sent(not_leader("b", "[::1]:7070")).with_context("goodbye");
  EXPECT_EQ(standby.code(), ErrorCode::kUnavailable);
  ASSERT_NE(refusal_of<NotLeader>(standby), nullptr);
  EXPECT_EQ(refusal_of<NotLeader>(standby)->endpoint, "[::1]:7070");
  EXPECT_EQ(refusal_of<NotReady>(standby), nullptr);
  EXPECT_NE(refusal_of<NotReady>(sent(not_ready("a checkpoint is read"))), nullptr);
  EXPECT_EQ(sent(Error(ErrorCode::kUnavailable, "not yet: text only")).refusal(), nullptr);
}

TEST(SessionWire, other_versions_are_refused_with_both_versions_and_what_to_do) {
  Greeting ours = example_greeting(), theirs = example_greeting();
  theirs.min_version = 2, theirs.max_version = 3;
  const auto refused = judge_hello(ours, theirs, "10.0.0.3:1");
  ASSERT_FALSE(refused.ok());
  const Error error = decode_error(encode_error(refused.error()));
  EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(error.message(), ::testing::AllOf(HasSubstr("1..1"), HasSubstr("2..3"),
                                                HasSubstr("run the same release")));
  const auto* const mismatch = refusal_of<VersionMismatch>(error);
  ASSERT_NE(mismatch, nullptr);
  EXPECT_EQ(mismatch->mine, (VersionMismatch::Range{1, 1}));
  EXPECT_EQ(mismatch->yours, (VersionMismatch::Range{2, 3}));
}

TEST(SessionWire, a_role_that_is_not_accepted_is_refused_by_name_after_the_token) {
  Greeting ours = example_greeting(), theirs = example_greeting();
  EXPECT_TRUE(judge_hello(ours, theirs, "10.0.0.3:1").ok()) << "no role is refused";
  ours.name = "server";
  ours.accepts_roles = {"client", "server"};
  EXPECT_EQ(judge_hello(ours, theirs, "10.0.0.3:1").error().message(),
            "server refuses worker-2 at 10.0.0.3:1: its role is \"worker\", not one of \"client\", "
            "\"server\"");
  theirs.role = "server";
  EXPECT_TRUE(judge_hello(ours, theirs, "10.0.0.3:1").ok());
  theirs.role = "";
  theirs.token = "another";
  EXPECT_THAT(judge_hello(ours, theirs, "10.0.0.3:1").error().message(),
              HasSubstr("token refused"));
}

TEST(SessionWire, a_refusal_that_a_later_release_added_is_skipped) {
  auto head = encode_error(Error(ErrorCode::kUnavailable, "text"));
  head.insert(head.end(), 9, std::byte{99});
  const Error error = decode_error(head);
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(error.message(), "text");
  EXPECT_EQ(error.refusal(), nullptr);
}

TEST(SessionWire, a_refusal_survives_a_text_that_is_cut) {
  const Error error = not_ready(std::string(10'000, 'x'));
  const auto head = encode_error(error, kMinHeadLimit);
  EXPECT_EQ(head.size(), kMinHeadLimit);
  EXPECT_NE(refusal_of<NotReady>(decode_error(head)), nullptr);
}

TEST(SessionWire, heads_of_the_page_decode) {
  auto page = examples();
  const auto hello = decode_hello(page["hello"]);
  ASSERT_TRUE(hello.ok());
  EXPECT_EQ(hello.value().name, "worker-2");
  EXPECT_EQ(hello.value().token, "s3cret");
  EXPECT_EQ(hello.value().manifest_hash, 0xc1a64af30297d5f7);
  EXPECT_EQ(hello.value().credit_bytes, 4u << 20);
  const auto welcome = decode_welcome(page["hello-reply"]);
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome.value().run_id, "run-1");
  EXPECT_EQ(decode_credit(page["credit"]).value(), 1u << 20);
  const Error error = decode_error(page["error"]);
  EXPECT_EQ(error.code(), ErrorCode::kAborted);
  EXPECT_EQ(error.message(), "round 7 has moved on");
}

TEST(SessionWire, cut_or_lengthened_heads_are_refused) {
  const auto hello = encode_hello(example_greeting());
  const auto welcome = encode_welcome(Welcome());
  const auto credit = encode_credit(9);
  const auto error = encode_error(Error(ErrorCode::kAborted, "text"));
  for (std::size_t n = 0; n < hello.size(); ++n)
    EXPECT_FALSE(decode_hello(Bytes(hello).first(n)).ok()) << n;
  for (std::size_t n = 0; n < welcome.size(); ++n)
    EXPECT_FALSE(decode_welcome(Bytes(welcome).first(n)).ok()) << n;
  for (std::size_t n = 0; n < credit.size(); ++n)
    EXPECT_FALSE(decode_credit(Bytes(credit).first(n)).ok()) << n;
  for (std::size_t n = 0; n < error.size(); ++n)
    EXPECT_EQ(decode_error(Bytes(error).first(n)).code(), ErrorCode::kDataLoss) << n;
  auto longer = hello;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello(longer).ok());
}

TEST(SessionWire, later_version_may_append_fields_to_hello) {
  Greeting later = example_greeting();
  later.max_version = kWireVersion + 1;
  auto head = encode_hello(later);
  head.insert(head.end(), 12, std::byte{9});
  const auto decoded = decode_hello(head);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(judge_hello(Greeting(), *decoded, "a").value().version, kWireVersion);
}

TEST(SessionWire, random_heads_never_break_the_decoders) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng random(seed);
  const auto hello = encode_hello(example_greeting());
  for (int i = 0; i < 20'000; ++i) {
    auto head = hello;
    head.resize(random.below(hello.size() * 2));
    for (std::uint64_t flips = random.below(6); flips != 0 && !head.empty(); --flips)
      head[random.below(head.size())] = static_cast<std::byte>(random.next());
    const auto decoded = decode_hello(head);
    if (decoded.ok() && decoded.value().max_version <= kWireVersion) {
      EXPECT_EQ(hex(encode_hello(decoded.value())), hex(head));
    }
    (void)decode_welcome(head);
    (void)decode_credit(head);
    (void)decode_error(head);
  }
}

TEST(SessionWire, unknown_error_code_keeps_its_text) {
  auto head = encode_error(Error(ErrorCode::kAborted, "text"));
  head[0] = std::byte{200};
  const Error error = decode_error(head);
  EXPECT_EQ(error.code(), ErrorCode::kInternal);
  EXPECT_THAT(error.message(), ::testing::AllOf(HasSubstr("200"), HasSubstr("text")));
}

TEST(SessionWire, error_text_is_cut_at_its_limit) {
  const auto head = encode_error(Error(ErrorCode::kAborted, std::string(10'000, 'x')));
  EXPECT_EQ(decode_error(head).message().size(), kMaxErrorBytes);
}

TEST(SessionWire, largest_greeting_fits_before_authentication) {
  Greeting greeting;
  greeting.role = std::string(kMaxRoleBytes, 'r');
  greeting.name = std::string(kMaxNameBytes, 'n');
  greeting.run_id = std::string(kMaxRunIdBytes, 'i');
  greeting.token = std::string(kMaxTokenBytes, 't');
  ASSERT_TRUE(check_greeting(greeting).ok());
  EXPECT_LE(encode_hello(greeting).size() + kFrameHeaderBytes, kMaxGreetingBytes);
  // The longest refusal fits as well.
  Greeting ours = greeting;
  ours.run_id[0] = 'j';
  const auto refused =
      judge_hello(ours, greeting, "[0000:0000:0000:0000:0000:0000:0000:0000]:65535");
  ASSERT_FALSE(refused.ok());
  EXPECT_LE(encode_error(refused.error()).size() + kFrameHeaderBytes, kMaxGreetingBytes);
}

TEST(SessionWire, secrets_are_the_same_only_when_equal) {
  EXPECT_TRUE(is_same_secret("abc", "abc"));
  for (const char* other : {"", "a", "ab", "abd", "xbc", "abcabc", "abca", "ab\0"})
    EXPECT_FALSE(is_same_secret("abc", other)) << other;
  EXPECT_FALSE(is_same_secret("", "a"));
  EXPECT_TRUE(is_same_secret("", ""));
}

TEST(SessionCredit, sender_and_receiver_agree_in_every_sequence) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  CounterRng random(seed);
  for (int round = 0; round < 200; ++round) {
    const std::uint64_t window = 1 + random.below(1000);
    SendCredit sender(window);
    ReceiveCredit receiver(window);
    std::uint64_t on_the_way = 0;  // granted, not yet booked
    for (int step = 0; step < 500; ++step) {
      const std::uint64_t bytes = 1 + random.below(window);
      if (random.below(3) != 0) {
        if (sender.try_take(bytes)) {
          ASSERT_TRUE(receiver.take(bytes).ok());
        }
      } else {
        receiver.release(random.below(receiver.held() + 1));
      }
      ASSERT_LE(receiver.held(), window);
      if (receiver.is_grant_due()) on_the_way += receiver.take_grant();
      if (random.below(2) == 0 && on_the_way != 0) {
        ASSERT_TRUE(sender.add(std::exchange(on_the_way, 0)).ok());
      }
    }
    // Nothing held: the sender gets its whole window back, so it never waits for ever.
    receiver.release(receiver.held());
    if (receiver.is_grant_due()) on_the_way += receiver.take_grant();
    if (on_the_way != 0) {
      ASSERT_TRUE(sender.add(on_the_way).ok());
    }
    ASSERT_EQ(sender.available(), window);
    ASSERT_FALSE(sender.add(1).ok());
    ASSERT_FALSE(receiver.take(window + 1).ok());
  }
}

TEST(SessionCredit, few_grants_under_load) {
  ReceiveCredit receiver(1000);
  ASSERT_TRUE(receiver.take(1000).ok());
  int grants = 0;
  for (int i = 0; i < 1000; ++i) {
    receiver.release(1);
    if (receiver.is_grant_due() && receiver.take_grant() != 0) ++grants;
  }
  EXPECT_EQ(grants, 4);
}

TEST(SessionCredit, unlimited_window_takes_everything_and_grants_nothing) {
  SendCredit sender(kUnlimitedCredit);
  ReceiveCredit receiver(kUnlimitedCredit);
  EXPECT_TRUE(sender.try_take(~std::uint64_t{0}) && sender.try_take(~std::uint64_t{0}));
  EXPECT_TRUE(receiver.take(~std::uint64_t{0}).ok());
  receiver.release(100);
  EXPECT_FALSE(receiver.is_grant_due());
  EXPECT_FALSE(sender.add(1).ok());
}

}  // namespace
}  // namespace centroid::transport
