#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "client/centroid.h"
#include "tests/unit/temporary_directory.h"

/// The library as a C program sees it: what is wrong with arguments is an error with a text.
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

template <class S>
S sized() {
  S out{};
  out.size = sizeof out;
  return out;
}

struct CApi : ::testing::Test {
  centroid_server server = sized<centroid_server>();
  centroid_training training = sized<centroid_training>();
  std::uint64_t shape[1] = {2};
  float values[2] = {1, 2};
  centroid_tensor tensor{"w", shape, 1, values};
  centroid_trainer* trainer = nullptr;

  CApi() {
    server.servers = "127.0.0.1:9";
    server.timeout_ms = 50;
    training.samples = 10;
    training.batch = 2;
  }
  int open() { return centroid_trainer_open(&server, &training, &tensor, 1, &trainer); }
  void refused(int code, const std::string& text) {
    EXPECT_EQ(code, CENTROID_INVALID_ARGUMENT);
    EXPECT_THAT(centroid_error(), HasSubstr(text));
  }
};

TEST_F(CApi, SaysWhatItIs) {
  EXPECT_EQ(centroid_abi(), static_cast<std::uint32_t>(CENTROID_ABI));
  EXPECT_GT(std::strlen(centroid_version()), 0u);
  EXPECT_EQ(centroid_log_level("error"), CENTROID_OK);
  refused(centroid_log_level("loud"), "loud");
  EXPECT_EQ(centroid_is_buffer("norm.running_mean"), 1);
  EXPECT_EQ(centroid_is_buffer("norm.weight"), 0);
  EXPECT_EQ(centroid_is_buffer(nullptr), 0);
}

TEST_F(CApi, OpenLooksAtEveryArgument) {
  refused(centroid_trainer_open(nullptr, &training, &tensor, 1, &trainer), "server is NULL");
  refused(centroid_trainer_open(&server, nullptr, &tensor, 1, &trainer), "training is NULL");
  refused(centroid_trainer_open(&server, &training, nullptr, 1, &trainer), "tensors is NULL");
  refused(centroid_trainer_open(&server, &training, &tensor, 1, nullptr), "trainer is NULL");
  refused(centroid_trainer_open(&server, &training, &tensor, 0, &trainer), "tensor");
  server.size = 0;
  refused(open(), "server.size is 0");
  server.size = sizeof server;
  tensor.shape = nullptr;
  refused(open(), "w has no shape");
  tensor.shape = shape;
  tensor.initial = nullptr;
  refused(open(), "w has no initial values");
  tensor.initial = values;
  tensor.rank = 9;
  refused(open(), "rank 9");
  tensor.rank = 1;
  shape[0] = std::uint64_t{1} << 62;
  refused(open(), "too large");
  shape[0] = 2;
  server.tls_key = "key.pem";
  refused(open(), "authority");
  server.tls_key = nullptr;
  training.samples = ~std::uint64_t{0};
  refused(open(), "2^62");
  training.samples = 10;
  training.state_dir = "state";
  refused(open(), "give one");
  EXPECT_EQ(trainer, nullptr);
}

/// A program that was built for a newer library has more in its structs: what it leaves 0 it does
/// not ask for.
TEST_F(CApi, WhatThisLibraryDoesNotKnowIsRefused) {
  struct Newer {
    centroid_training known;
    std::uint64_t more = 0;
  } newer{.known = training};
  newer.known.size = sizeof newer;
  const auto open_newer = [&] {
    return centroid_trainer_open(&server, &newer.known, &tensor, 1, &trainer);
  };
  newer.more = 1;
  EXPECT_EQ(open_newer(), CENTROID_UNIMPLEMENTED);
  EXPECT_THAT(centroid_error(), HasSubstr("training has a field at byte " +
                                          std::to_string(sizeof training) + " that this"));
  EXPECT_EQ(trainer, nullptr);
  newer.known.size = 1 << 20;  // no struct's
  refused(open_newer(), "training.size is 1048576");
  newer.known.size = sizeof newer;
  newer.more = 0;
  EXPECT_EQ(open_newer(), CENTROID_OK) << centroid_error();
  centroid_trainer_close(trainer, "done");
  EXPECT_EQ(centroid_struct_size("training"), sizeof training);
  EXPECT_EQ(centroid_struct_size("server"), sizeof server);
  EXPECT_EQ(centroid_struct_size("step"), sizeof(centroid_step));
  EXPECT_EQ(centroid_struct_size("other"), 0u);
  EXPECT_EQ(centroid_struct_size(nullptr), 0u);
}

TEST_F(CApi, CallsLookAtEveryArgumentAndAnErrorComesAgain) {
  auto share = sized<centroid_share>();
  auto step = sized<centroid_step>();
  auto round = sized<centroid_round>();
  refused(centroid_trainer_next(nullptr, &share), "trainer is NULL");
  refused(centroid_trainer_record(nullptr, "a", 1), "trainer is NULL");
  refused(centroid_trainer_report(nullptr, 1, 1, 1, 1), "trainer is NULL");
  EXPECT_EQ(centroid_trainer_gradient(nullptr, 0), nullptr);
  centroid_trainer_stop(nullptr, nullptr);
  centroid_trainer_close(nullptr, nullptr);
  ASSERT_EQ(open(), CENTROID_OK) << centroid_error();
  EXPECT_THAT(centroid_error(), StrEq(""));
  refused(centroid_trainer_next(trainer, nullptr), "share is NULL");
  share.size = 8;
  refused(centroid_trainer_next(trainer, &share), "share.size is 8");
  share.size = sizeof share;
  EXPECT_EQ(centroid_trainer_parameters(trainer, 1), nullptr);
  EXPECT_THAT(centroid_error(), HasSubstr("tensor 1 of 1"));
  EXPECT_EQ(centroid_trainer_indices(trainer, nullptr), CENTROID_FAILED_PRECONDITION);
  refused(centroid_trainer_finish(trainer, &step, nullptr), "round is NULL");
  refused(centroid_trainer_record(trainer, nullptr, 1), "name is NULL");
  refused(centroid_trainer_record(trainer, "a b", 1), "a scalar's name has 1 to 64");
  refused(centroid_trainer_record(trainer, "a", HUGE_VAL), "scalar a is not finite");
  EXPECT_EQ(centroid_trainer_record(trainer, "a", 1), CENTROID_OK);
  refused(centroid_trainer_finish(trainer, nullptr, &round), "step is NULL");
  EXPECT_EQ(centroid_trainer_finish(trainer, &step, &round), CENTROID_FAILED_PRECONDITION);
  const int first = centroid_trainer_next(trainer, &share);
  EXPECT_NE(first, CENTROID_OK);
  EXPECT_THAT(centroid_error(), HasSubstr("127.0.0.1:9"));
  EXPECT_EQ(centroid_trainer_next(trainer, &share), first);  // and does not wait
  centroid_trainer_close(trainer, "done");
}

TEST_F(CApi, RowsLookAtEveryArgument) {
  centroid_rows* rows = nullptr;
  refused(centroid_rows_open(nullptr, "t", &rows), "server is NULL");
  refused(centroid_rows_open(&server, "t", nullptr), "rows is NULL");
  EXPECT_NE(centroid_rows_open(&server, "t", &rows), CENTROID_OK);
  EXPECT_EQ(rows, nullptr);
  refused(centroid_rows_pull(nullptr, nullptr, 0, nullptr), "rows is NULL");
  refused(centroid_rows_push_at(nullptr, nullptr, 0, nullptr, 1), "rows is NULL");
  refused(centroid_rows_push_rest(nullptr), "rows is NULL");
  EXPECT_EQ(centroid_rows_rest(nullptr), 0u);
  EXPECT_EQ(centroid_rows_dim(nullptr), 0u);
  centroid_rows_close(nullptr);
}

TEST_F(CApi, GroupsLookAtEveryArgument) {
  auto options = sized<centroid_group_options>();
  centroid_group* group = nullptr;
  centroid_group* part = nullptr;
  centroid_work* work = nullptr;
  const std::uint32_t ranks[1] = {0};
  refused(centroid_group_open(nullptr, &group), "options is NULL");
  refused(centroid_group_open(&options, nullptr), "group is NULL");
  refused(centroid_group_open(&options, &group), "rank 0 of world 0");
  options.world = 1;
  refused(centroid_group_join(&options, nullptr, &group), "rendezvous is NULL");
  refused(centroid_group_join(&options, "nowhere", &group), "nowhere");
  refused(centroid_group_barrier(nullptr, nullptr, nullptr), "group is NULL");
  refused(centroid_work_wait(nullptr, 1), "work is NULL");
  refused(centroid_ended_next(nullptr, 1, nullptr), "ended is NULL");
  ASSERT_EQ(centroid_group_open(&options, &group), CENTROID_OK) << centroid_error();
  EXPECT_EQ(centroid_group_barrier(group, nullptr, nullptr), CENTROID_FAILED_PRECONDITION);
  EXPECT_THAT(centroid_error(), HasSubstr("centroid_group_connect comes first"));
  const char* address = "127.0.0.1:9 0 0";
  refused(centroid_group_connect(group, &address, 1), "is not the one of this rank");
  address = centroid_group_address(group);
  ASSERT_EQ(centroid_group_connect(group, &address, 1), CENTROID_OK) << centroid_error();
  refused(centroid_group_subgroup(group, nullptr, 1, &part), "ranks is NULL");
  refused(centroid_group_all_reduce(group, values, nullptr, 2, nullptr, nullptr), "output is NULL");
  refused(centroid_group_broadcast(group, values, std::uint64_t{1} << 60, 0, nullptr, &work),
          "output has 1152921504606846976 elements");
  auto call = sized<centroid_call>();
  call.reduction = 3;
  refused(centroid_group_all_reduce(group, values, values, 2, &call, &work), "call.reduction is 3");
  EXPECT_EQ(work, nullptr);
  ASSERT_EQ(centroid_group_subgroup(group, ranks, 1, &part), CENTROID_OK);
  EXPECT_EQ(centroid_group_all_reduce(part, values, values, 2, nullptr, &work), CENTROID_OK);
  EXPECT_EQ(centroid_work_wait(work, 0), CENTROID_OK);
  centroid_group_close(group);
  centroid_group_close(part);
  centroid_work_free(work);  // the last that uses the connections
  centroid_group_close(nullptr);
  centroid_work_free(nullptr);
  centroid_ended_close(nullptr);
}

TEST(CApiTrace, LooksAtEveryArgument) {
  const auto refused = [](int code, const std::string& text) {
    EXPECT_EQ(code, CENTROID_INVALID_ARGUMENT);
    EXPECT_THAT(centroid_error(), HasSubstr(text));
  };
  refused(centroid_trace_open(nullptr, nullptr, 0), "path is NULL");
  refused(centroid_trace_open("/nowhere/at/all.json", nullptr, 0), "/nowhere/at/all.json");
  refused(centroid_trace_begin(nullptr), "name is NULL");
  refused(centroid_trace_begin(""), "1 to 64 bytes");
  refused(centroid_trace_mark(std::string(65, 'x').c_str(), nullptr), "1 to 64 bytes");
  refused(centroid_trace_lane(""), "1 to 64 bytes");
  EXPECT_EQ(centroid_trace_end(), CENTROID_FAILED_PRECONDITION);
  EXPECT_THAT(centroid_error(), HasSubstr("no span"));
}

/// Spans of a thread are within each other, those of another thread have a lane of their own.
TEST(CApiTrace, AFileHasTheProgramsOwnSpansAndMarks) {
  const centroid::TemporaryDirectory directory;
  const std::string path = directory.path() / "trace.json";
  ASSERT_EQ(centroid_trace_open(path.c_str(), "my program", 0), CENTROID_OK) << centroid_error();
  EXPECT_EQ(centroid_trace_open(path.c_str(), nullptr, 0), CENTROID_ALREADY_EXISTS);
  EXPECT_EQ(centroid_trace_begin("step"), CENTROID_OK);
  EXPECT_EQ(centroid_trace_begin("compute"), CENTROID_OK);
  std::thread other([] {
    EXPECT_EQ(centroid_trace_end(), CENTROID_FAILED_PRECONDITION) << "another thread's";
    EXPECT_EQ(centroid_trace_lane("loader"), CENTROID_OK);
    EXPECT_EQ(centroid_trace_begin("load"), CENTROID_OK);
    EXPECT_EQ(centroid_trace_end(), CENTROID_OK);
  });
  other.join();
  EXPECT_EQ(centroid_trace_mark("diverged", "loss is \"nan\""), CENTROID_OK);
  EXPECT_EQ(centroid_trace_end(), CENTROID_OK);
  EXPECT_EQ(centroid_trace_end(), CENTROID_OK);
  EXPECT_EQ(centroid_trace_begin("never ends"), CENTROID_OK);
  EXPECT_EQ(centroid_trace_close(), CENTROID_OK);
  EXPECT_EQ(centroid_trace_close(), CENTROID_OK);

  std::ifstream file(path);
  const auto events = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(events.is_array());
  std::map<std::uint64_t, std::string> lanes;
  std::map<std::string, nlohmann::json> spans;
  std::string process, text;
  for (const auto& event : events) {
    if (event["name"] == "thread_name") lanes[event["tid"]] = event["args"]["name"];
    if (event["name"] == "process_name") process = event["args"]["name"];
    if (event["ph"] == "X") spans[event["name"]] = event;
    if (event["ph"] == "i" && event["name"] == "diverged") text = event["args"]["text"];
  }
  EXPECT_EQ(process, "my program");
  EXPECT_EQ(text, "loss is \"nan\"");
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(lanes[spans["load"]["tid"]], "loader");
  EXPECT_EQ(spans["compute"]["tid"], spans["step"]["tid"]);
  EXPECT_THAT(lanes[spans["step"]["tid"]], testing::StartsWith("program"));
  const auto end = [&](const char* name) {
    return spans[name]["ts"].get<double>() + spans[name]["dur"].get<double>();
  };
  EXPECT_GE(spans["compute"]["ts"].get<double>(), spans["step"]["ts"].get<double>());
  EXPECT_LE(end("compute"), end("step") + 1);  // each is told to the microsecond
}

/// Numbers that differ in magnitude, of which the last chunk is a short one.
std::vector<float> numbers(std::size_t count, float factor) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = factor * std::sin(static_cast<float>(i * i % 1009)) * (i % 7 == 0 ? 10.0F : 1.0F);
  return out;
}

TEST_F(CApi, WhatAPayloadLacksIsInTheResidual) {
  constexpr std::size_t kCount = (1 << 18) + 1000;
  for (const char* spec : {"topk:0.01", "int8:feedback=on", "bf16:feedback=on", "sign"}) {
    SCOPED_TRACE(spec);
    centroid_codec* codec = nullptr;
    ASSERT_EQ(centroid_codec_open(spec, kCount, &codec), CENTROID_OK) << centroid_error();
    std::vector<std::byte> payload(centroid_codec_room(codec));
    std::vector<float> residual(kCount), given(kCount), arrived(kCount, 5.0F);
    for (int step = 0; step < 3; ++step) {
      const std::vector<float> fresh = numbers(kCount, static_cast<float>(1 + step));
      std::uint64_t bytes = 0;
      const int coded =
          centroid_codec_encode(codec, fresh.data(), residual.data(), payload.data(), &bytes);
      ASSERT_EQ(coded, CENTROID_OK) << centroid_error();
      EXPECT_LT(payload.size(), kCount * sizeof(float) * 6 / 10);
      if (std::string_view(spec).starts_with("topk"))
        EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(payload.size()),
                    0.05 * static_cast<double>(bytes));
      else
        EXPECT_EQ(bytes, payload.size());
      ASSERT_EQ(centroid_codec_decode(codec, payload.data(), payload.size(), 1, step == 0,
                                      arrived.data()),
                CENTROID_OK);
      for (std::size_t i = 0; i < kCount; ++i) given[i] += fresh[i];
    }
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(arrived[i] + residual[i], given[i], 1e-4) << i;
    centroid_codec_close(codec);
  }
}

/// Receivers know the size, so it is the same wherever the largest numbers are.
TEST_F(CApi, APayloadOfTheLargestNumbersFitsWhereverTheyAre) {
  constexpr std::size_t kCount = (3 << 18) + 77;
  for (const std::string stored : {"f32", "bf16", "int8"}) {
    for (const std::string ratio : {"0.000000001", "0.001", "0.01", "0.1", "0.2", "0.6", "1"}) {
      const std::string spec = "topk:" + ratio + ",values=" + stored;
      centroid_codec* codec = nullptr;
      ASSERT_EQ(centroid_codec_open(spec.c_str(), kCount, &codec), CENTROID_OK);
      std::vector<std::byte> payload(centroid_codec_room(codec));
      for (const double steep : {0.0, 1.0, 5.0, 50.0, 5000.0}) {  // towards the first chunk
        SCOPED_TRACE(spec + " " + std::to_string(steep));
        std::vector<float> fresh = numbers(kCount, 1), residual(kCount), arrived(kCount);
        for (std::size_t i = 0; i < kCount; ++i)
          fresh[i] *= static_cast<float>(std::exp(-steep * static_cast<double>(i) / kCount));
        std::uint64_t bytes = 0;
        ASSERT_EQ(
            centroid_codec_encode(codec, fresh.data(), residual.data(), payload.data(), &bytes),
            CENTROID_OK);
        ASSERT_EQ(
            centroid_codec_decode(codec, payload.data(), payload.size(), 1, 1, arrived.data()),
            CENTROID_OK);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < kCount; ++i)
          wrong += std::abs(arrived[i] + residual[i] - fresh[i]) <= 1e-4F ? 0 : 1;
        EXPECT_EQ(wrong, 0u);
      }
      centroid_codec_close(codec);
    }
  }
}

TEST_F(CApi, ANumberThatIsNotFiniteArrivesAndLeavesNoResidual) {
  constexpr std::size_t kCount = (1 << 18) + 1000;
  for (const char* spec : {"topk:0.1", "topk:1", "int8:feedback=on", "bf16:feedback=on"}) {
    SCOPED_TRACE(spec);
    centroid_codec* codec = nullptr;
    ASSERT_EQ(centroid_codec_open(spec, kCount, &codec), CENTROID_OK);
    std::vector<float> wrong = numbers(kCount, 1), residual(kCount), arrived(kCount);
    wrong[10] = INFINITY;
    std::vector<std::byte> payload(centroid_codec_room(codec));
    std::uint64_t bytes = 0;
    ASSERT_EQ(centroid_codec_encode(codec, wrong.data(), residual.data(), payload.data(), &bytes),
              CENTROID_OK);
    ASSERT_EQ(centroid_codec_decode(codec, payload.data(), payload.size(), 0.5F, 1, arrived.data()),
              CENTROID_OK);
    EXPECT_FALSE(std::isfinite(arrived[10]));
    for (const float rest : residual) ASSERT_TRUE(std::isfinite(rest));
    // The next payload is as if nothing had been.
    const std::vector<float> fresh = numbers(kCount, 1);
    ASSERT_EQ(centroid_codec_encode(codec, fresh.data(), residual.data(), payload.data(), &bytes),
              CENTROID_OK);
    ASSERT_EQ(centroid_codec_decode(codec, payload.data(), payload.size(), 1, 1, arrived.data()),
              CENTROID_OK);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_NEAR(arrived[i] + residual[i], fresh[i], 0.1) << i;
    centroid_codec_close(codec);
  }
}

/// What a step could not send is not lost with the next one, which is skipped.
TEST_F(CApi, ValuesThatAreNotFiniteLeaveTheResidualAsItIs) {
  constexpr std::size_t kCount = (1 << 18) + 1000;
  for (const char* spec : {"topk:0.1", "int8:feedback=on"}) {
    centroid_codec* codec = nullptr;
    ASSERT_EQ(centroid_codec_open(spec, kCount, &codec), CENTROID_OK);
    std::vector<float> fresh = numbers(kCount, 1), residual(kCount);
    std::vector<std::byte> finite(centroid_codec_room(codec)), marked(finite.size(), std::byte{1});
    std::uint64_t bytes = 0;
    ASSERT_EQ(centroid_codec_encode(codec, fresh.data(), residual.data(), finite.data(), &bytes),
              CENTROID_OK);
    const std::vector<float> before = residual;
    for (const float wrong : {INFINITY, -INFINITY, NAN}) {
      for (const std::size_t at : {std::size_t{10}, kCount - 1}) {
        SCOPED_TRACE(std::string(spec) + " " + std::to_string(wrong) + " " + std::to_string(at));
        std::vector<float> given = fresh;
        given[at] = wrong;
        ASSERT_EQ(
            centroid_codec_encode(codec, given.data(), residual.data(), marked.data(), &bytes),
            CENTROID_OK);
        EXPECT_EQ(residual, before);
        for (const bool is_marked_first : {true, false}) {
          std::vector<float> arrived(kCount, 5.0F);
          for (const bool first : {true, false}) {
            const auto& payload = first == is_marked_first ? marked : finite;
            ASSERT_EQ(centroid_codec_decode(codec, payload.data(), payload.size(), 0.5F, first,
                                            arrived.data()),
                      CENTROID_OK);
          }
          const auto nans = std::ranges::count_if(arrived, [](float x) { return std::isnan(x); });
          EXPECT_EQ(static_cast<std::size_t>(nans), kCount);
        }
      }
    }
    centroid_codec_close(codec);
  }
}

TEST_F(CApi, CodecsLookAtEveryArgument) {
  centroid_codec* codec = nullptr;
  refused(centroid_codec_open("topk:0.01", 10, nullptr), "codec is NULL");
  refused(centroid_codec_open(nullptr, 10, &codec), "spec is NULL");
  refused(centroid_codec_open("zip", 10, &codec), "zip");
  refused(centroid_codec_open("int8", 10, &codec), "feedback");
  refused(centroid_codec_open("topk:0.01", std::uint64_t{1} << 32, &codec), "4294967296");
  EXPECT_EQ(codec, nullptr);
  EXPECT_EQ(centroid_codec_room(nullptr), 0u);
  centroid_codec_close(nullptr);

  ASSERT_EQ(centroid_codec_open("int8:feedback=on", 0, &codec), CENTROID_OK);
  std::uint64_t bytes = 7;
  EXPECT_EQ(centroid_codec_encode(codec, nullptr, nullptr, nullptr, &bytes), CENTROID_OK);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(centroid_codec_decode(codec, nullptr, 0, 1, 1, nullptr), CENTROID_OK);
  centroid_codec_close(codec);

  ASSERT_EQ(centroid_codec_open("int8:feedback=on", 2, &codec), CENTROID_OK);
  float residual[2] = {0, 0};
  std::vector<std::byte> payload(centroid_codec_room(codec));
  refused(centroid_codec_encode(codec, nullptr, residual, payload.data(), &bytes), "values");
  refused(centroid_codec_encode(codec, values, nullptr, payload.data(), &bytes), "residual");
  refused(centroid_codec_encode(codec, values, residual, nullptr, &bytes), "payload");
  refused(centroid_codec_encode(codec, values, residual, payload.data(), nullptr), "bytes");
  ASSERT_EQ(centroid_codec_encode(codec, values, residual, payload.data(), &bytes), CENTROID_OK);
  refused(centroid_codec_decode(codec, payload.data(), bytes, 1, 1, nullptr), "sum is NULL");
  refused(centroid_codec_decode(codec, payload.data(), bytes - 1, 1, 1, residual), "ends within");
  payload.resize(bytes + 1);
  EXPECT_EQ(centroid_codec_decode(codec, payload.data(), bytes + 1, 1, 1, residual), CENTROID_OK);
  payload[bytes] = std::byte{7};
  refused(centroid_codec_decode(codec, payload.data(), bytes + 1, 1, 1, residual),
          "the 1 bytes behind the payload are not 0");
  centroid_codec_close(codec);
}

}  // namespace
