#include "common/proto/messages.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace centroid::proto {
namespace {

constexpr const char* kPage = "docs/wire.md";

Join sample_join() {
  Join join;
  join.name = "worker-3";
  join.exchange = "star";
  join.codec = "f32";
  join.devices = 2;
  join.batch = 32;
  join.train_samples = 1438;
  join.data_fingerprint = 0x1122334455667788;
  join.model = "mlp:64-10,relu";
  join.manifest = {{.name = "layers.0.weight", .dtype = DType::kF32, .shape = {10, 64}},
                   {.name = "scale", .dtype = DType::kF32, .shape = {}}};
  return join;
}

RoundOpen sample_open() {
  RoundOpen open;
  open.generation = Generation(3);
  open.round = Round(17);
  open.attempt = 1;
  open.rank = Rank(2);
  open.world = 4;
  open.version = Version(16);
  open.optimizer_step = 15;
  open.epoch = 1;
  open.begin = 64;
  open.end = 96;
  open.resend = true;
  return open;
}

Peers sample_peers() {
  Peers peers;
  peers.generation = Generation(3);
  peers.ranks = {{.endpoint = "10.0.0.1:71", .node = "a"},
                 {.endpoint = "10.0.0.2:71", .node = "b"}};
  return peers;
}

ExchangeFailed sample_failure() {
  ExchangeFailed failed;
  failed.generation = Generation(3);
  failed.round = Round(17);
  failed.attempt = 1;
  failed.has_culprit = true;
  failed.culprit = Rank(2);
  failed.reason = "gone";
  return failed;
}

/// The bytes of "```hex NAME" blocks of the contract: hex pairs, comments behind '#'.
std::vector<std::byte> documented(const std::string& name) {
  std::ifstream page(kPage);
  std::vector<std::byte> bytes;
  std::string line;
  while (std::getline(page, line) && line != "```hex " + name) {
  }
  while (std::getline(page, line) && line != "```") {
    std::istringstream pairs(line.substr(0, line.find('#')));
    for (std::string pair; pairs >> pair;)
      bytes.push_back(static_cast<std::byte>(std::stoi(pair, nullptr, 16)));
  }
  return bytes;
}

TEST(Messages, TheExamplesOfTheContractAreWhatTheCodeWrites) {
  Join join;
  join.name = "w0";
  join.exchange = "star";
  join.codec = "f32";
  join.batch = 32;
  join.train_samples = 1438;
  join.data_fingerprint = 0x0102030405060708;
  join.model = "m";
  join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {10, 64}}};
  EXPECT_EQ(encode(join), documented("join"));
  EXPECT_EQ(encode(sample_open()), documented("round-open"));
  Push push;
  push.generation = Generation(3);
  push.round = Round(17);
  push.attempt = 1;
  push.chunk = ChunkId(5);
  push.weight = 32;
  EXPECT_EQ(encode(push), documented("push"));
  EXPECT_EQ(encode(sample_peers()), documented("peers"));
  EXPECT_EQ(encode(sample_failure()), documented("exchange-failed"));
}

TEST(Messages, EveryFieldSurvivesTheWire) {
  const Join join = decode<Join>(encode(sample_join())).value();
  EXPECT_EQ(join.name, "worker-3");
  EXPECT_EQ(join.manifest, sample_join().manifest);
  EXPECT_EQ(join.data_fingerprint, 0x1122334455667788u);
  EXPECT_EQ(join.train_samples, 1438u);
  const RoundOpen open = decode<RoundOpen>(encode(sample_open())).value();
  EXPECT_EQ(open.rank, Rank(2));
  EXPECT_EQ(open.end, 96u);
  EXPECT_TRUE(open.resend);
  EXPECT_FALSE(open.evaluate);
  PushEnd end;
  end.weight = 32;
  end.loss_sum = 1.5;
  end.nonfinite = true;
  end.nonfinite_tensor = "layers.0.bias";
  const PushEnd back = decode<PushEnd>(encode(end)).value();
  EXPECT_EQ(back.loss_sum, 1.5);
  EXPECT_EQ(back.nonfinite_tensor, "layers.0.bias");
  const Peers peers = decode<Peers>(encode(sample_peers())).value();
  EXPECT_EQ(peers.ranks.at(1).endpoint, "10.0.0.2:71");
  EXPECT_EQ(peers.ranks.at(0).node, "a");
}

template <class M>
void expect_every_cut_refused(const M& message) {
  const auto bytes = encode(message);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(decode<M>(Bytes(bytes).first(n)).ok()) << n;
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode<M>(longer).ok());
}

TEST(Messages, ShortAndLongHeadsAreRefused) {
  expect_every_cut_refused(sample_join());
  expect_every_cut_refused(sample_open());
  expect_every_cut_refused(RoundClosed{});
  expect_every_cut_refused(PushEnd{});
  expect_every_cut_refused(sample_peers());
  expect_every_cut_refused(sample_failure());
}

TEST(Messages, ACountThatCannotFitIsRefusedBeforeMemoryIsTaken) {
  auto bytes = encode(sample_join());
  const std::size_t manifest_at = bytes.size() - (4 + 15 + 1 + 1 + 16) - (4 + 5 + 1 + 1) - 4;
  for (const std::uint32_t count : {0xFFFFFFFFu, 100'000u, 50u}) {
    std::memcpy(bytes.data() + manifest_at, &count, 4);
    EXPECT_FALSE(decode<Join>(bytes).ok()) << count;
  }
}

TEST(Messages, MorePeersThanBytesAreRefused) {
  auto bytes = encode(sample_peers());
  for (const std::uint32_t count : {0xFFFFFFFFu, 4097u, 3u}) {
    std::memcpy(bytes.data() + 8, &count, 4);
    EXPECT_FALSE(decode<Peers>(bytes).ok()) << count;
  }
}

TEST(Messages, BadBooleansEnumerationsAndNaNAreRefused) {
  auto open = encode(sample_open());
  open.back() = std::byte{2};
  EXPECT_FALSE(decode<RoundOpen>(open).ok());
  auto closed = encode(RoundClosed{});
  closed[12] = std::byte{4};
  EXPECT_FALSE(decode<RoundClosed>(closed).ok());
  Push push;
  push.weight = std::nan("");
  EXPECT_FALSE(decode<Push>(encode(push)).ok());
}

TEST(Messages, RandomBytesNeverCrash) {
  CounterRng rng(99);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(rng.below(120));
    for (auto& b : bytes) b = static_cast<std::byte>(rng.next());
    (void)decode<Join>(bytes);
    (void)decode<JoinReply>(bytes);
    (void)decode<RoundClosed>(bytes);
    (void)decode<Peers>(bytes);
  }
}

}  // namespace
}  // namespace centroid::proto
