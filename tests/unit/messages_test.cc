#include "common/proto/messages.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/proto/about.h"
#include "common/proto/pulls.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "common/proto/tables.h"

namespace centroid::proto {
namespace {

constexpr const char* kPage = "docs/reference/wire.md";

Join sample_join() {
  Join join;
  join.name = "worker-3";
  join.exchange = "star";
  join.codec = "f32";
  join.devices = 2;
  join.batch = 32;
  join.train_samples = 1438;
  join.data_fingerprint = 0x1122334455667788;
  join.sample_tokens = 256;
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
  open.overlap = 2;
  open.count = 200, open.rates.learning_rate = 0x1p-4;
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

/// The same head after a trip through the structs.
template <class M>
void expect_documented(const std::string& name) {
  SCOPED_TRACE(name);
  const auto bytes = documented(name);
  ASSERT_FALSE(bytes.empty());
  const auto message = decode<M>(bytes);
  ASSERT_TRUE(message.ok()) << message.error().to_string();
  EXPECT_EQ(encode(*message), bytes);
}

PushEnd sample_end() {
  PushEnd end;
  end.generation = Generation(3);
  end.round = Round(17);
  end.attempt = 1;
  end.weight = 32;
  end.samples = 32;
  end.correct = 30;
  end.loss_sum = 16;
  end.compute_seconds = 0.25;
  end.wait_seconds = 0.125;
  end.nonfinite = true;
  end.nonfinite_tensor = "bias";
  end.encode_seconds = 0x1p-10;
  end.decode_seconds = 0x1p-11;
  end.residual_norm = 1.5;
  end.raw_bytes = 1 << 20;
  end.encoded_bytes = 32 << 10;
  end.chunks = 5;
  end.dense_chunks = 1;
  end.exchange_seconds = 0x1p-5;
  end.divergence = 0x1p-6;
  end.norm = 3.25;
  end.parameter_norm = 10;
  end.send_seconds = 0x1p-7, end.addition_seconds = 0x1p-8, end.apply_seconds = 0x1p-9;
  end.scalars = {{"ppl", 6, 4}};
  return end;
}

TEST(Messages, EveryKindWithAHeadHasAnExampleInTheContract) {
  expect_documented<Join>("join");
  expect_documented<JoinReply>("join-reply");
  expect_documented<InitChunk>("init-chunk");
  expect_documented<StateChunk>("state-chunk");
  expect_documented<RoundOpen>("round-open");
  expect_documented<Push>("push");
  expect_documented<PushEnd>("push-end");
  expect_documented<ResultChunk>("result");
  expect_documented<RoundClosed>("round-closed");
  expect_documented<Leave>("leave");
  expect_documented<Finish>("finish");
  expect_documented<Report>("report");
  expect_documented<Peers>("peers");
  expect_documented<StateMark>("state-request");
  expect_documented<Computed>("computed");
  expect_documented<Computed>("ready");
  expect_documented<ExchangeFailed>("exchange-failed");
  expect_documented<Keep>("keep");
  expect_documented<Wait>("wait");
  expect_documented<Beat>("beat");
  expect_documented<BeatReply>("beat-reply"), expect_documented<Kept>("kept");
  expect_documented<Measure>("measure"), expect_documented<Measured>("measured");
  expect_documented<RowsOpen>("rows-open");
  expect_documented<RowsOpenReply>("rows-open-reply");
  expect_documented<RowsPull>("rows-pull");
  expect_documented<RowsPush>("rows-push");
  expect_documented<RowsPush>("rows-push-step");
  expect_documented<RowsPushReply>("rows-push-reply");
  expect_documented<Pull>("pull");
  expect_documented<PullReply>("pull-reply");
  expect_documented<Values>("values");
  expect_documented<ServerJoin>("server-join");
  expect_documented<ServerTerms>("server-terms");
  expect_documented<ServerModel>("server-model");
  expect_documented<Route>("route");
  expect_documented<ServerChunk>("server-chunk");
  expect_documented<ServerState>("server-state");
  expect_documented<Whole>("whole");
  expect_documented<Tokens>("tokens");
  expect_documented<Merge>("merge");
  expect_documented<MergeReply>("merge-reply");
  expect_documented<Statistics>("statistics");
  expect_documented<Step>("step");
  for (const char* name : {"opened", "opened-summed"}) expect_documented<Opened>(name);
  expect_documented<Forget>("forget");
  expect_documented<Refused>("refused");
  expect_documented<Enter>("enter");
  expect_documented<Recall>("recall");
  expect_documented<RecallReply>("recall-reply");
  expect_documented<OptimizerChange>("optimizer-change");
  expect_documented<ServerReport>("server-report");
  expect_documented<MemoryPlan>("reckon");
  expect_documented<RowsBlock>("rows-block");
  expect_documented<Buckets>("buckets");
  expect_documented<RowsFrozen>("rows-frozen");
}

TEST(Messages, TablesThatDoNotSayWhoHasEachBucketAreRefused) {
  Tables tables;
  tables.tables = "emb:dim=4";
  tables.route.servers = {{"leader", ""}, {"b", "10.0.0.2:7070"}};
  tables.route.owners.assign(kRowBuckets, 1);
  const auto told = decode<Tables>(encode(tables));
  ASSERT_TRUE(told.ok()) << told.error().to_string();
  EXPECT_EQ(told->route.owners, tables.route.owners);
  tables.route.owners.pop_back();
  EXPECT_THAT(decode<Tables>(encode(tables)).error().message(),
              testing::HasSubstr("one of each of the 4096 buckets"));
  tables.route.owners.push_back(2);
  EXPECT_THAT(decode<Tables>(encode(tables)).error().message(), testing::HasSubstr("Route.owners"));
  RowsBlock block;
  block.rows = kMaxRows + 1;
  EXPECT_FALSE(decode<RowsBlock>(encode(block)).ok());
}

TEST(Messages, ServersAreAsTheContractSays) {
  Route route;
  route.version = 3;
  route.servers = {{"leader", ""}, {"b", "10.0.0.2:7070"}};
  route.owners = {0, 1, 0};
  EXPECT_EQ(encode(route), documented("route"));
  const auto told = decode<Route>(documented("route")).value();
  EXPECT_EQ(told.servers, route.servers);
  EXPECT_EQ(told.owners, route.owners);
  route.owners = {2};
  EXPECT_FALSE(decode<Route>(encode(route)).ok()) << "an owner that is no server";
  route.servers.clear();
  route.owners.clear();
  EXPECT_FALSE(decode<Route>(encode(route)).ok()) << "no leader";
  const auto merge = decode<Merge>(documented("merge")).value();
  ASSERT_EQ(merge.parts.size(), 1u);
  EXPECT_EQ(merge.parts[0].key.member, MemberId(4));
  EXPECT_EQ(merge.parts[0].weight, 32.0);
  const std::vector<ContributionKey> kept{{MemberId(5), Generation(2), Round(6), 0}};
  EXPECT_EQ(merge.keeps, kept);
  EXPECT_EQ(merge.members, std::vector<MemberId>{MemberId(4)});
  EXPECT_FALSE(merge.needs_norm);
  Merge wrong = merge;
  wrong.total_weight = 0;
  EXPECT_FALSE(decode<Merge>(encode(wrong)).ok());
  const auto whole = decode<Whole>(documented("whole")).value();
  EXPECT_EQ(whole.weight, 32.0);
  EXPECT_EQ(whole.squares, 10.5625);
  Whole below = whole;
  below.squares = -1;
  EXPECT_FALSE(decode<Whole>(encode(below)).ok());
  const auto told_tokens = decode<Tokens>(documented("tokens")).value();
  ASSERT_EQ(told_tokens.tokens.size(), 1u);
  const Token& token = told_tokens.tokens[0];
  EXPECT_EQ(token.id + token.salt + token.hash, "ab01ff");
  const auto enter = decode<Enter>(documented("enter")).value();
  EXPECT_EQ(enter.route, 3u);
}

TEST(Messages, ACountBeyondTheHeadIsRefusedBeforeMemoryIsTaken) {
  auto bytes = encode(MergeReply());
  const std::uint32_t many = ~std::uint32_t{0};
  std::memcpy(bytes.data(), &many, sizeof many);
  EXPECT_FALSE(decode<MergeReply>(bytes).ok());
}

TEST(Messages, TheExamplesOfTheContractAreWhatTheCodeWrites) {
  Join join;
  join.name = "w0";
  join.exchange = "star";
  join.codec = "f32";
  join.batch = 32;
  join.train_samples = 1438;
  join.data_fingerprint = 0x0102030405060708;
  join.sample_tokens = 128;
  join.model = "m";
  join.manifest = {{.name = "w", .dtype = DType::kF32, .shape = {10, 64}}};
  EXPECT_EQ(encode(join), documented("join"));
  EXPECT_EQ(encode_manifest(join.manifest), documented("manifest"));
  std::uint64_t hash = 0;
  std::memcpy(&hash, documented("hello").data() + 24, sizeof hash);
  EXPECT_EQ(manifest_hash(join.manifest), hash) << "of the same model in Hello";
  EXPECT_EQ(encode(sample_open()), documented("round-open"));
  Push push;
  push.generation = Generation(3);
  push.round = Round(17);
  push.attempt = 1;
  push.chunk = ChunkId(5);
  push.weight = 32;
  EXPECT_EQ(encode(push), documented("push"));
  EXPECT_EQ(encode(sample_end()), documented("push-end"));
  RoundClosed closed;
  closed.round = Round(17);
  closed.attempt = 1;
  closed.outcome = Outcome::kSkipped;
  closed.version = Version(16);
  closed.optimizer_step = 15;
  closed.reason = "nan";
  EXPECT_EQ(encode(closed), documented("round-closed"));
  Finish finish;
  finish.evaluate = true;
  finish.version = Version(17);
  finish.text = "bye";
  EXPECT_EQ(encode(finish), documented("finish"));
  Report report;
  report.version = Version(17);
  report.samples = 359;
  report.correct = 351;
  report.loss_sum = 40.5;
  EXPECT_EQ(encode(report), documented("report"));
  const JoinReply reply = decode<JoinReply>(documented("join-reply")).value();
  EXPECT_EQ(reply.member, MemberId(7));
  EXPECT_EQ(reply.optimizer.name, "adam");
  EXPECT_EQ(reply.optimizer.epsilon, 1e-8);
  EXPECT_EQ(reply.optimizer.ftrl_beta, 1);
  EXPECT_EQ(reply.optimizer.schedule, "constant");
  EXPECT_EQ(reply.optimizer.clip_norm, 1.5);
  EXPECT_EQ(reply.peer_timeout_ms, 0u);
  EXPECT_TRUE(reply.ring_by_bandwidth);
  EXPECT_EQ(reply.codec_down, "topk:0.01");
  EXPECT_EQ(reply.checkpoint_rounds, 50u);
  EXPECT_EQ(reply.counted, Round(41));
  EXPECT_TRUE(reply.no_payload_crc);
  EXPECT_EQ(reply.local_steps, 20u);
  EXPECT_EQ(reply.fragments, 4u);
  EXPECT_EQ(reply.weight_by, WeightBy::kSteps);
  EXPECT_EQ(reply.term, 42u);
  const StateChunk state = decode<StateChunk>(documented("state-chunk")).value();
  EXPECT_EQ(state.plane, 1);
  EXPECT_EQ(state.chunk, ChunkId(5));
  EXPECT_EQ(encode(sample_peers()), documented("peers"));
  EXPECT_EQ(encode(sample_failure()), documented("exchange-failed"));
}

TEST(Messages, RowsAreAsTheContractSays) {
  RowsOpen open;
  open.client = 0x0102030405060708;
  open.table = "emb";
  EXPECT_EQ(encode(open), documented("rows-open"));
  const auto reply = decode<RowsOpenReply>(documented("rows-open-reply")).value();
  EXPECT_EQ(reply.table, 1u);
  EXPECT_EQ(reply.dim, 16u);
  EXPECT_EQ(reply.max_rows, 4096u);
  EXPECT_EQ(reply.incarnation, 9u);
  EXPECT_EQ(reply.newest, 5u);
  EXPECT_EQ(reply.optimizer, "adagrad");
  EXPECT_EQ(reply.lease_ms, 10'000u);
  EXPECT_EQ(reply.restored_from, "c7");
  RowsPush push{.table = 1, .rows = 2, .sequence = 6, .step = 0};
  EXPECT_EQ(encode(push), documented("rows-push"));
  for (const std::uint32_t rows : {0u, kMaxRows + 1}) {
    push.rows = rows;
    EXPECT_FALSE(decode<RowsPush>(encode(push)).ok());
    RowsPull pull;
    pull.rows = rows;
    EXPECT_FALSE(decode<RowsPull>(encode(pull)).ok());
  }
  push.rows = 1;
  push.sequence = 0;
  EXPECT_FALSE(decode<RowsPush>(encode(push)).ok());
  open.client = 0;
  EXPECT_FALSE(decode<RowsOpen>(encode(open)).ok());
  EXPECT_FALSE(check_frame(64, false, 15, 0).ok());
  EXPECT_FALSE(check_frame(64, true, 15, 8).ok());
  EXPECT_TRUE(check_frame(66, true, 16, 72).ok());
}

TEST(Messages, EveryFieldSurvivesTheWire) {
  const Join join = decode<Join>(encode(sample_join())).value();
  EXPECT_EQ(join.name, "worker-3");
  EXPECT_EQ(decode_manifest(encode_manifest(sample_join().manifest)).value(),
            sample_join().manifest);
  EXPECT_EQ(join.data_fingerprint, 0x1122334455667788u);
  EXPECT_EQ(join.train_samples, 1438u);
  EXPECT_EQ(join.sample_tokens, 256u);
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
  std::vector<std::byte> longer(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), longer.begin());
  EXPECT_FALSE(decode<M>(longer).ok());
}

TEST(Messages, ShortAndLongHeadsAreRefused) {
  expect_every_cut_refused(sample_join());
  expect_every_cut_refused(RoundOpen{});
  expect_every_cut_refused(RoundClosed{});
  expect_every_cut_refused(PushEnd{});
  expect_every_cut_refused(sample_peers());
  expect_every_cut_refused(sample_failure());
}

TEST(Messages, AManifestsCountThatCannotFitIsRefusedBeforeMemoryIsTaken) {
  auto bytes = encode_manifest(sample_join().manifest);
  for (const std::uint32_t count : {0xFFFFFFFFu, 100'001u, 100'000u, 50u, 3u, 1u}) {
    std::memcpy(bytes.data(), &count, 4);
    EXPECT_FALSE(decode_manifest(bytes).ok()) << count;
  }
}

TEST(Messages, ShortAndLongManifestsAreRefused) {
  const auto bytes = encode_manifest(sample_join().manifest);
  for (std::size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(decode_manifest(Bytes(bytes).first(n)).ok()) << n;
  auto longer = bytes;
  longer.emplace_back();
  EXPECT_FALSE(decode_manifest(longer).ok());
}

TEST(Messages, TheLongestManifestIsWithinItsLimit) {
  Manifest manifest;
  for (std::size_t i = 0; i < kMaxTensors; ++i) {
    std::string name = std::to_string(i);
    name.resize(kMaxNameBytes, 'n');
    manifest.push_back({std::move(name), DType::kF32, Shape(8, 1)});
  }
  const auto bytes = encode_manifest(manifest);
  EXPECT_EQ(bytes.size(), kMaxManifestBytes);
  EXPECT_EQ(decode_manifest(bytes).value(), manifest);
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
  open[open.size() - 29] = std::byte{2};  // evaluate, before overlap, count and rates
  EXPECT_FALSE(decode<RoundOpen>(open).ok());
  auto reply = encode(JoinReply{});
  reply[reply.size() - 9] = std::byte{4};  // weight_by
  EXPECT_FALSE(decode<JoinReply>(reply).ok());
  auto closed = encode(RoundClosed{});
  closed[12] = std::byte{5};
  EXPECT_FALSE(decode<RoundClosed>(closed).ok());
  Push push;
  push.weight = std::nan("");
  EXPECT_FALSE(decode<Push>(encode(push)).ok());
}

template <class M>
std::string refusal(const M& message) {
  const auto decoded = decode<M>(encode(message));
  if (decoded.ok()) return "";
  EXPECT_EQ(decoded.error().code(), ErrorCode::kInvalidArgument);
  return decoded.error().message();
}

TEST(Messages, NumbersOutOfRangeAreRefusedWithFieldAndValue) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double nan = std::nan("");
  const auto expect = [](const auto& message, const std::string& start) {
    EXPECT_EQ(refusal(message).substr(0, start.size()), start);
  };
  const auto end_with = [](auto field, auto value) {
    PushEnd end = sample_end();
    end.*field = value;
    return end;
  };
  expect(sample_end(), "");
  expect(end_with(&PushEnd::weight, nan), "PushEnd.weight is nan, it must be from 0");
  expect(end_with(&PushEnd::weight, -1.0), "PushEnd.weight is -1, it must be from 0");
  expect(end_with(&PushEnd::correct, 33u),
         "PushEnd.correct is 33, it must be at most the number of samples, 32");
  expect(end_with(&PushEnd::parameter_norm, -2.0), "PushEnd.parameter_norm is -2");
  const auto scalars = [&](std::vector<Scalar> all) { return end_with(&PushEnd::scalars, all); };
  expect(scalars({{"a", nan, 1}}), "PushEnd.scalars.a is nan, it must be a finite");
  expect(scalars({{"a", 1e301, 1}}), "PushEnd.scalars.a is 1.0000000000000001e+301");
  expect(scalars({{"a", 1, 0}}), "PushEnd.scalars.a is of 0 numbers");
  expect(scalars({{"b", 1, 1}, {"a", 1, 1}}), "PushEnd.scalars.name is a, it must be after b");
  expect(scalars({{"a", 1, 1}, {"a", 1, 1}}), "PushEnd.scalars.name is a, it must be after a");
  expect(scalars({{"", 1, 1}}), "PushEnd.scalars.name is of 0 bytes");
  expect(scalars({{"a b", 1, 1}}), "PushEnd.scalars.name is of 3 bytes");
  std::vector<Scalar> many;
  for (char c = 'a'; c < 'a' + 17; ++c) many.push_back({std::string(1, c), 1, 1});
  expect(scalars(many), "PushEnd.scalars is 17 scalars, it must be at most 16");
  expect(end_with(&PushEnd::loss_sum, -kInf), "PushEnd.loss_sum is -inf, it must be a finite");
  expect(end_with(&PushEnd::loss_sum, nan), "PushEnd.loss_sum is nan, it must be a finite");
  expect(end_with(&PushEnd::loss_sum, 1e301), "PushEnd.loss_sum is 1.0000000000000001e+301");
  expect(end_with(&PushEnd::compute_seconds, 1e10),
         "PushEnd.compute_seconds is 10000000000, it must");
  expect(end_with(&PushEnd::compute_seconds, -0.5), "PushEnd.compute_seconds is -0.5, it must");
  expect(end_with(&PushEnd::wait_seconds, kInf), "PushEnd.wait_seconds is inf");
  expect(end_with(&PushEnd::encode_seconds, nan), "PushEnd.encode_seconds is nan");
  expect(end_with(&PushEnd::decode_seconds, -1.0), "PushEnd.decode_seconds is -1");
  expect(end_with(&PushEnd::residual_norm, kInf), "PushEnd.residual_norm is inf");
  expect(end_with(&PushEnd::norm, kInf), "PushEnd.norm is inf");
  expect(end_with(&PushEnd::norm, -2.0), "PushEnd.norm is -2");
  expect(end_with(&PushEnd::exchange_seconds, -1.0), "PushEnd.exchange_seconds is -1");
  expect(end_with(&PushEnd::send_seconds, -1.0), "PushEnd.send_seconds is -1");
  expect(end_with(&PushEnd::addition_seconds, nan), "PushEnd.addition_seconds is nan");
  expect(end_with(&PushEnd::apply_seconds, kInf), "PushEnd.apply_seconds is inf");
  expect(end_with(&PushEnd::divergence, -0.5), "PushEnd.divergence is -0.5");
  expect(end_with(&PushEnd::divergence, nan), "PushEnd.divergence is nan");
  expect(end_with(&PushEnd::divergence, -1.0), "");
  expect(end_with(&PushEnd::dense_chunks, 6u), "PushEnd.dense_chunks is 6, it must be at most");
  Push push;
  expect(push, "Push.weight is 0, it must be above 0");
  push.weight = kInf;
  expect(push, "Push.weight is inf");
  push.weight = 1;
  expect(push, "");
  RoundClosed closed;
  closed.weight = -1;
  expect(closed, "RoundClosed.weight is -1");
  Report report;
  report.correct = 1;
  expect(report, "Report.correct is 1, it must be at most the number of samples, 0");
  report.samples = 1;
  report.loss_sum = nan;
  expect(report, "Report.loss_sum is nan");
  report.loss_sum = 3;
  expect(report, "");
  JoinReply reply;
  reply.optimizer.beta2 = nan;
  expect(reply, "malformed JoinReply");
  reply.optimizer.beta2 = 0;
  reply.local_steps = 6;
  reply.fragments = 4;
  expect(reply, "JoinReply.fragments is 4, it must be a divisor of local_steps, 6");
  reply.fragments = 3;
  expect(reply, "");
  reply.local_steps = 0;
  expect(reply, "JoinReply.local_steps is 0, it must be at least 1");
}

TEST(Messages, ALossThatIsNotFiniteGoesAsTheLargest) {
  EXPECT_EQ(wire_loss(1.5), 1.5);
  EXPECT_EQ(wire_loss(std::nan("")), kMaxLoss);
  EXPECT_EQ(wire_loss(-std::numeric_limits<double>::infinity()), kMaxLoss);
  EXPECT_EQ(wire_loss(-1e305), -kMaxLoss);
}

TEST(Messages, RequestFlagAndPayloadAreThoseOfTheKind) {
  const auto text = [](Kind kind, bool is_request, std::uint64_t payload) {
    const Status status = check_frame(static_cast<std::uint16_t>(kind), is_request, 0, payload);
    return status.ok() ? std::string() : status.error().message();
  };
  EXPECT_EQ(text(Kind::kLeave, true, 0), "");
  EXPECT_EQ(text(Kind::kLeave, false, 0),
            "Leave (27) arrived without the request flag, but is a request");
  EXPECT_EQ(text(Kind::kJoin, false, 0),
            "Join (16) arrived without the request flag, but is a request");
  EXPECT_EQ(text(Kind::kPushEnd, true, 0),
            "PushEnd (23) arrived with the request flag, but is one-way");
  EXPECT_EQ(text(Kind::kPushEnd, false, 9),
            "PushEnd (23) arrived with a payload of 9 bytes, but has none");
  EXPECT_EQ(text(Kind::kPush, false, 9), "");
  EXPECT_EQ(text(Kind::kJoin, true, 9), "");
  const Status headed = check_frame(static_cast<std::uint16_t>(Kind::kInitDone), false, 5, 0);
  EXPECT_EQ(headed.error().message(), "InitDone (19) arrived with a head of 5 bytes, but has none");
  EXPECT_TRUE(check_frame(static_cast<std::uint16_t>(Kind::kHeartbeat), false, 9, 0).ok());
  EXPECT_TRUE(check_frame(4711, true, 9, 9).ok());
}

TEST(Messages, WhatCannotBeMeasuredIsRefused) {
  const auto refusal = [](std::uint32_t ms, std::uint32_t bytes) {
    Measure measure;
    measure.endpoint = "h:71";
    measure.ms = ms;
    measure.bytes = bytes;
    const auto decoded = decode<Measure>(encode(measure));
    return decoded.ok() ? std::string() : decoded.error().message();
  };
  EXPECT_EQ(refusal(300, 1u << 20), "");
  EXPECT_NE(refusal(0, 1).find("Measure.ms is 0"), std::string::npos);
  EXPECT_NE(refusal(3001, 1).find("from 1 to 3000"), std::string::npos);
  EXPECT_NE(refusal(1, 0).find("Measure.bytes is 0"), std::string::npos);
  EXPECT_NE(refusal(1, (1u << 20) + 1).find("1 MiB"), std::string::npos);
  Beat beat;
  beat.unix_seconds = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(decode<Beat>(encode(beat)).ok());
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
