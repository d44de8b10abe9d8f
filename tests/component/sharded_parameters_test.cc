#include <algorithm>
#include <latch>
#include <map>
#include <mutex>

#include "tests/component/chain_model.h"
#include "tests/conformance/collective_fixture.h"

namespace centroid::parallel::testing::sharded_parameters_test {
namespace {

using namespace std::chrono_literals;
using collective::Group;
using collective::testing::Carrier;
using collective::testing::Floats;
using collective::testing::Job;
using collective::testing::succeeds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Values;

ShardedOptions options_of(std::string_view sharding, std::uint32_t world, OptimizerConfig rule,
                          std::uint64_t least_elements = 1) {
  ShardedOptions options;
  options.sharding = std::move(Sharding::parse(sharding, world)).value();
  options.optimizer = std::move(rule);
  options.least_elements = least_elements;
  options.timeout = 30s;
  return options;
}

ShardedOptions with_codecs(ShardedOptions options, const char* codec, const char* codec_down) {
  options.codec = std::move(PartCodec::parse("codec", codec)).value();
  options.codec_down = std::move(PartCodec::parse("codec_down", codec_down)).value();
  return options;
}

OptimizerConfig rule(const char* name, double rate = 0.1, double clip = 0) {
  OptimizerConfig config;
  config.name = name;
  config.learning_rate = rate;
  config.clip_norm = clip;
  return config;
}

template <class T>
std::string refusal(const Result<T>& result) {
  return result.ok() ? "not refused" : result.error().to_string();
}

std::vector<const char*> shardings_of(std::uint32_t world) {
  if (world == 4) return {"full", "grad", "none", "hybrid:2", "hybrid:1", "hybrid:4"};
  return {"full", "grad", "none"};
}

struct Sharded : ::testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(All, Sharded, Values(Carrier::kInProcess, Carrier::kTcp),
                         ::testing::PrintToStringParamName());

/// What the ranks of a job have after training.
struct Outcome {
  std::vector<double> losses, norms;  ///< by step, mean of the ranks' losses
  std::vector<Floats> values;         ///< by rank: all parameters
  std::vector<ShardedMemory> most;    ///< by rank
};

Floats values_of(ShardedParameters& parameters) {
  Floats out;
  for (std::size_t unit = 0; unit < parameters.layout().units().size(); ++unit) {
    EXPECT_TRUE(succeeds(parameters.gather(unit)));
    const Range range = parameters.layout().units()[unit].parameters;
    for (std::uint64_t i = range.begin; i < range.end(); ++i) {
      const auto values = parameters.parameter(i);
      EXPECT_TRUE(values.ok());
      if (values.ok()) out.insert(out.end(), values->begin(), values->end());
    }
    EXPECT_TRUE(succeeds(parameters.release(unit)));
  }
  return out;
}

/// Train the chain; the ranks' seeds differ, rank 0's counts.
Outcome train(Job& job, const Chain& chain, const ShardedOptions& options, std::uint64_t steps,
              bool prefetches) {
  Outcome out;
  out.losses.resize(steps);
  out.norms.resize(steps);
  out.values.resize(job.world());
  out.most.resize(job.world());
  std::vector<std::vector<double>> losses(job.world(), std::vector<double>(steps));
  job.run([&](Group& group) {
    const std::uint32_t rank = group.rank();
    const auto initial = [&](std::size_t index, std::span<float> to) {
      return Chain::initial(7 + rank, index, to);
    };
    auto made = ShardedParameters::make(group, chain.shapes(), options, initial);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    ShardedModel model(**made, prefetches);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      losses[rank][step - 1] = chain.run(model, step, rank, 3);
      ASSERT_TRUE(succeeds(model.status));
      const auto report = (*made)->step();
      ASSERT_TRUE(report.ok()) << report.error().to_string();
      ASSERT_EQ(report->step, step);
      if (rank == 0) out.norms[step - 1] = report->gradient_norm.value_or(0);
    }
    out.most[rank] = model.most;
    out.values[rank] = values_of(**made);
  });
  for (std::uint64_t step = 0; step < steps; ++step)
    for (const auto& of_rank : losses) out.losses[step] += of_rank[step] / job.world();
  return out;
}

void expect_near(const Floats& is, const Floats& should, double relative) {
  ASSERT_EQ(is.size(), should.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < is.size(); ++i) {
    difference += std::pow(double{is[i]} - should[i], 2);
    norm += std::pow(double{should[i]}, 2);
  }
  EXPECT_LE(std::sqrt(difference), relative * std::sqrt(norm));
}

struct Case {
  OptimizerConfig config;
  double relative;  ///< of losses
};

TEST_P(Sharded, TrainsAsOneProcessDoes) {
  const Chain chain;
  const std::vector<Case> cases = {{rule("sgd"), 1e-5},
                                   {rule("sgd", 0.1, 0.2), 1e-5},
                                   {rule("nesterov", 0.02), 1e-5},
                                   {rule("adam", 0.01, 0.5), 1e-3}};
  constexpr std::uint64_t kSteps = 50;
  for (std::uint32_t world = 1; world <= 5; ++world) {
    for (const Case& one : cases) {
      WholeModel whole(chain, 7, one.config);
      std::vector<double> losses, norms;
      for (std::uint64_t step = 1; step <= kSteps; ++step) {
        losses.push_back(whole.step(step, world, 3));
        norms.push_back(whole.norm);
      }
      ASSERT_LT(losses.back(), 0.9 * losses.front()) << "the model learns nothing";
      for (const char* sharding : shardings_of(world)) {
        SCOPED_TRACE(std::to_string(world) + " ranks, " + sharding + ", " + one.config.name);
        Job job(GetParam(), world);
        const Outcome out =
            train(job, chain, options_of(sharding, world, one.config), kSteps, true);
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          ASSERT_NEAR(out.losses[step], losses[step], one.relative * losses[step]) << step;
          if (one.config.clip_norm > 0) {
            ASSERT_NEAR(out.norms[step], norms[step], 10 * one.relative * norms[step]) << step;
          }
        }
        for (const Floats& values : out.values) {
          EXPECT_EQ(values, out.values[0]);
          expect_near(values, whole.values(), 10 * one.relative);
        }
      }
    }
  }
}

TEST_P(Sharded, TheSameRunHasTheSameBits) {
  const Chain chain;
  for (const char* sharding : shardings_of(4)) {
    SCOPED_TRACE(sharding);
    const ShardedOptions options = options_of(sharding, 4, rule("adam", 0.01, 0.5));
    Job job(GetParam(), 4), again(GetParam(), 4);
    const Outcome first = train(job, chain, options, 10, true);
    const Outcome second = train(again, chain, options, 10, false);
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.norms, second.norms);
    EXPECT_EQ(first.values, second.values);
  }
}

// Four equal layers of 56 elements and one of 1, on 4 ranks.
TEST_P(Sharded, OnlyUnitsInUseAreInMemory) {
  const Chain chain;
  const std::uint64_t all = 4 * 56 + 1, largest = 56;
  Job job(GetParam(), 4);
  const auto most = [&](const char* sharding, bool prefetches) {
    const auto options = options_of(sharding, 4, rule("adam", 0.01));
    std::vector<ShardedMemory> out = train(job, chain, options, 3, prefetches).most;
    job.join();
    return out;
  };
  const std::vector<ShardedMemory> none = most("none", false), grad = most("grad", false),
                                   full = most("full", false), ahead = most("full", true);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const std::uint64_t own = shard_of(4 * 56, 4, rank).count + (rank == 0 ? 1 : 0);
    EXPECT_EQ(none[rank].parameters, 4 * all);
    EXPECT_EQ(none[rank].state, 2 * 4 * all);
    EXPECT_EQ(grad[rank].parameters, 4 * all);
    EXPECT_EQ(grad[rank].state, 2 * 4 * own);
    EXPECT_EQ(full[rank].parameters, 4 * (own + largest));
    EXPECT_EQ(full[rank].state, 2 * 4 * own);
    EXPECT_EQ(ahead[rank].parameters, 4 * (own + 2 * largest));
    // One that is written, two on their way.
    EXPECT_LE(full[rank].gradients, 4 * (own + 3 * largest));
    EXPECT_LE(grad[rank].gradients, 4 * (own + 3 * largest));
  }
}

/// One parameter [10, 20, 30, 40] with the rule w -= gradient.
class OneParameter {
 public:
  OneParameter(Group& group, const char* sharding, std::uint32_t world, const char* codec = "f32") {
    const auto initial = [](std::size_t, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = 10 * static_cast<float>(i + 1);
      return Status();
    };
    const auto options = with_codecs(options_of(sharding, world, rule("mean")), codec, codec);
    auto made = ShardedParameters::make(group, {{"w", 4, 0}}, options, initial);
    EXPECT_TRUE(made.ok());
    parameters = std::move(*made);
  }
  Floats shard() const { return {parameters->shard(0).begin(), parameters->shard(0).end()}; }
  /// What this rank's shard loses in a step with this gradient.
  Floats step(const Floats& gradient) {
    Floats before = shard();
    std::copy(gradient.begin(), gradient.end(), parameters->gradient(0)->begin());
    EXPECT_TRUE(succeeds(parameters->reduce(0)));
    EXPECT_TRUE(parameters->step().ok());
    const Floats after = shard();
    for (std::size_t i = 0; i < before.size(); ++i) before[i] -= after[i];
    return before;
  }
  std::unique_ptr<ShardedParameters> parameters;
};

TEST_P(Sharded, FullDividesParametersAndGradients) {
  Job job(GetParam(), 2);
  job.run([](Group& group) {
    OneParameter one(group, "full", 2);
    const bool is_first = group.rank() == 0;
    EXPECT_EQ(one.shard(), is_first ? (Floats{10, 20}) : (Floats{30, 40}));
    EXPECT_EQ(values_of(*one.parameters), (Floats{10, 20, 30, 40}));
    EXPECT_EQ(one.parameters->memory().parameters, 2 * sizeof(float));
    EXPECT_EQ(one.step({1, 2, 3, 4}), is_first ? (Floats{1, 2}) : (Floats{3, 4}));
    EXPECT_EQ(values_of(*one.parameters), (Floats{9, 18, 27, 36}));
  });
}

TEST_P(Sharded, GradGathersWhatOthersUpdated) {
  Job job(GetParam(), 2);
  job.run([](Group& group) {
    OneParameter one(group, "grad", 2);
    EXPECT_EQ(one.parameters->memory().parameters, 4 * sizeof(float));
    EXPECT_EQ(one.step({1, 2, 3, 4}), group.rank() == 0 ? (Floats{1, 2}) : (Floats{3, 4}));
    EXPECT_EQ(values_of(*one.parameters), (Floats{9, 18, 27, 36}));
  });
}

TEST_P(Sharded, NoneAndOneRankHaveTheWholeGradient) {
  for (const std::uint32_t world : {1u, 2u}) {
    for (const char* sharding : {"none", world == 1 ? "full" : "none"}) {
      Job job(GetParam(), world);
      job.run([&](Group& group) {
        OneParameter one(group, sharding, world);
        EXPECT_EQ(one.step({1, 2, 3, 4}), (Floats{1, 2, 3, 4}));
        EXPECT_EQ(values_of(*one.parameters), (Floats{9, 18, 27, 36}));
      });
    }
  }
}

TEST_P(Sharded, HybridIsTheMeanOfAllRanks) {
  Job job(GetParam(), 4);
  job.run([](Group& group) {
    OneParameter one(group, "hybrid:2", 4);
    const bool is_even = group.rank() % 2 == 0;
    EXPECT_EQ(one.shard(), is_even ? (Floats{10, 20}) : (Floats{30, 40}));
    EXPECT_EQ(one.step({1, 2, 3, 4}), is_even ? (Floats{1, 2}) : (Floats{3, 4}));
    const Floats gradient = group.rank() < 2 ? Floats{2, 4, 6, 8} : Floats{10, 20, 30, 40};
    EXPECT_EQ(one.step(gradient), is_even ? (Floats{6, 12}) : (Floats{18, 24}));
  });
}

TEST_P(Sharded, MicroBatchesAccumulateWithAndWithoutCommunication) {
  Job job(GetParam(), 2);
  job.run([](Group& group) {
    OneParameter one(group, "full", 2);
    ShardedParameters& parameters = *one.parameters;
    const auto add = [&](float value) {
      const auto gradient = parameters.gradient(0);
      ASSERT_TRUE(gradient.ok());
      for (float& element : *gradient) element += value;
      EXPECT_TRUE(succeeds(parameters.reduce(0)));
    };
    const Floats before = one.shard();
    parameters.set_sync(false);
    add(1);
    add(2);
    EXPECT_EQ((*parameters.gradient(0))[3], 3);  // it is still here
    parameters.set_sync(true);
    add(3);
    add(4);
    EXPECT_TRUE(parameters.step().ok());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(one.shard()[i], before[i] - 10);
    // What no reduce was called for is reduced by step.
    parameters.set_sync(false);
    add(5);
    EXPECT_TRUE(parameters.step().ok());
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(one.shard()[i], before[i] - 15);
  });
}

TEST_P(Sharded, FiftyParametersArePrefetchedAtOnce) {
  Job job(GetParam(), 3);
  job.run([](Group& group) {
    std::vector<ParameterShape> shapes;
    for (std::uint32_t i = 0; i < 50; ++i) shapes.push_back({"p", 1 + 977 * i % 5000, i});
    const auto initial = [](std::size_t index, std::span<float> out) {
      std::fill(out.begin(), out.end(), static_cast<float>(index));
      return Status();
    };
    auto made = ShardedParameters::make(group, shapes, options_of("full", 3, rule("sgd")), initial);
    ASSERT_TRUE(made.ok()) << made.error().to_string();
    for (std::size_t unit = 0; unit < 50; ++unit) {
      EXPECT_TRUE(succeeds((*made)->prefetch(unit)));
      EXPECT_TRUE((*made)->is_prefetched(unit));
    }
    for (std::size_t unit = 50; unit-- > 0;) {
      EXPECT_TRUE(succeeds((*made)->gather(unit)));
      EXPECT_FALSE((*made)->is_prefetched(unit));
      const auto values = *(*made)->parameter(unit);
      EXPECT_EQ(Floats(values.begin(), values.end()),
                Floats(shapes[unit].elements, static_cast<float>(unit)));
    }
  });
}

TEST_P(Sharded, WithCodecsAllRanksHaveTheSameBitsAndLearnAsWithout) {
  const Chain chain;
  constexpr std::uint64_t kSteps = 20;
  for (const std::uint32_t world : {3u, 4u}) {
    for (const char* sharding : shardings_of(world)) {
      const ShardedOptions exact = options_of(sharding, world, rule("adam", 0.02, 0.5));
      Job plain(GetParam(), world);
      const Outcome should = train(plain, chain, exact, kSteps, true);
      ASSERT_LT(should.losses.back(), 0.9 * should.losses.front()) << "the model learns nothing";
      for (const auto& [codec, down, bound] :
           {std::tuple("bf16", "bf16", 0.01), std::tuple("int8", "int8", 0.03)}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, " + sharding + ", " + codec);
        const ShardedOptions options = with_codecs(exact, codec, down);
        Job job(GetParam(), world), again(GetParam(), world);
        const Outcome out = train(job, chain, options, kSteps, true);
        for (const Floats& values : out.values) EXPECT_EQ(values, out.values[0]);
        EXPECT_NE(out.values, should.values);
        EXPECT_NEAR(out.losses.back(), should.losses.back(), bound * should.losses.front());
        EXPECT_EQ(out.values, train(again, chain, options, kSteps, false).values);
      }
    }
  }
}

/// All ranks' values of the parameter, as the shards have them.
Floats exact_values(ShardedParameters& parameters) {
  EXPECT_TRUE(succeeds(parameters.gather_exact(0)));
  const auto values = parameters.parameter(0);
  EXPECT_TRUE(values.ok());
  Floats out(values->begin(), values->end());
  EXPECT_TRUE(succeeds(parameters.release(0)));
  return out;
}

// 256.5 and 128.25 have 9 bits, bf16 has 8.
TEST_P(Sharded, Bf16IsSummedInFloat32AndShardsStayFloat32) {
  for (const char* sharding : {"full", "grad", "hybrid:2"}) {
    SCOPED_TRACE(sharding);
    Job job(GetParam(), 2);
    job.run([&](Group& group) {
      OneParameter one(group, sharding, 2, "bf16");
      const bool is_first = group.rank() == 0;
      const Floats gradient = is_first ? Floats{256, 0, 257, 0} : Floats{0.5, 1, 0.5, 1};
      // 257 is sent as 256.
      EXPECT_EQ(one.step(gradient), is_first ? (Floats{128.25, 0.5}) : (Floats{128.25, 0.5}));
      EXPECT_EQ(one.shard(), is_first ? (Floats{-118.25, 19.5}) : (Floats{-98.25, 39.5}));
      const Floats sent = {-118, 19.5, -98, 39.5};
      EXPECT_EQ(values_of(*one.parameters), sent);
      EXPECT_EQ(exact_values(*one.parameters), (Floats{-118.25, 19.5, -98.25, 39.5}));
      EXPECT_EQ(values_of(*one.parameters), sent);
    });
  }
}

TEST_P(Sharded, MeansOfReplicasAreTheSameOnAllOfThem) {
  Job job(GetParam(), 4);
  job.run([](Group& group) {
    OneParameter one(group, "hybrid:2", 4, "bf16");
    const Floats gradient = group.rank() < 2 ? Floats{256, 1, 256, 1} : Floats{1, 1, 1, 1};
    // The mean of 256 and 1 is sent too: 128.5 has 9 bits, and becomes 128.
    EXPECT_EQ(one.step(gradient), (Floats{128, 1}));
    OneParameter none(group, "none", 4, "int8");
    const Floats parts = none.step(gradient);
    EXPECT_NEAR(parts[0], 128.5, 256 / 127.0);
    EXPECT_NEAR(parts[1], 1, 256 / 127.0);
  });
}

TEST_P(Sharded, NumbersThatAreNotFiniteArriveWithCodecs) {
  for (const char* codec : {"bf16", "int8"}) {
    for (const char* sharding : {"full", "grad", "none"}) {
      SCOPED_TRACE(std::string(codec) + ", " + sharding);
      Job job(GetParam(), 2);
      job.run([&](Group& group) {
        OneParameter one(group, sharding, 2, codec);
        const float bad = group.rank() == 1 ? INFINITY : 1.0F;
        (void)one.step({bad, 1, 1, 1});
        const Floats values = values_of(*one.parameters);
        EXPECT_FALSE(std::isfinite(values[0]));
      });
    }
  }
}

TEST(PartCodecs, OthersAreRefusedByName) {
  for (const char* spec :
       {"topk:0.01", "sign", "f16", "int8:rounding=stochastic", "bf16:feedback=on"})
    EXPECT_THAT(refusal(PartCodec::parse("codec_down", spec)),
                AllOf(HasSubstr("codec_down is f32, bf16 or int8"), HasSubstr(spec)));
  EXPECT_THAT(refusal(PartCodec::parse("codec", "bf61")), HasSubstr("bf61"));
}

/// Two gathers and a reduction of each unit: 3 (N - 1) / N of the parameters, with a codec's bytes
/// of each.
struct Traffic : ::testing::TestWithParam<std::pair<const char*, double>> {};
INSTANTIATE_TEST_SUITE_P(Codecs, Traffic,
                         Values(std::pair("f32", 4.0), std::pair("bf16", 2.0),
                                std::pair("int8", 1 + 2.0 / 256)));

TEST_P(Traffic, FullSendsThreeTimesItsShareOfTheOthers) {
  const auto [codec, bytes_of_one] = GetParam();
  Chain chain;
  chain.width = 128;
  const ShardedOptions options = with_codecs(options_of("full", 4, rule("sgd")), codec, codec);
  Job job(Carrier::kTcp, 4);
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> sent;  ///< by steps, of all ranks
  for (const std::uint64_t steps : {1u, 5u}) {
    job.run([&](Group& group) {
      const auto initial = [](std::size_t index, std::span<float> out) {
        return Chain::initial(7, index, out);
      };
      auto made = ShardedParameters::make(group, chain.shapes(), options, initial);
      ASSERT_TRUE(made.ok());
      ShardedModel model(**made, true);
      for (std::uint64_t step = 1; step <= steps; ++step) {
        (void)chain.run(model, step, group.rank(), 1);
        ASSERT_TRUE(succeeds(model.status));
        ASSERT_TRUE((*made)->step().ok());
      }
      ASSERT_TRUE(succeeds(collective::barrier(group)));
      const std::lock_guard lock(mutex);
      sent[steps] += group.traffic().bytes_out;
    });
    job.join();
  }
  // The last unit is gathered once: forward and backward follow each other.
  const double parameters = bytes_of_one * 4 * (128 * 128 + 128);
  const double bound = 4 * 3.0 * 3 / 4 * parameters * 4;  // 4 ranks, 4 steps
  const auto four_steps = static_cast<double>(sent[5] - sent[1]);
  EXPECT_LT(four_steps, 1.05 * bound);
  EXPECT_GT(four_steps, 0.95 * bound);
}

TEST_P(Sharded, WrongUseIsRefusedAndChangesNothing) {
  Job job(GetParam(), 2);
  job.run([](Group& group) {
    OneParameter one(group, "full", 2);
    ShardedParameters& parameters = *one.parameters;
    EXPECT_THAT(refusal(parameters.step()), HasSubstr("was backward called before it?"));
    EXPECT_THAT(refusal(parameters.parameter(0)),
                HasSubstr("w is in unit 0, which is not gathered"));
    EXPECT_THAT(refusal(parameters.parameter(1)), HasSubstr("parameter 1 of 1"));
    EXPECT_THAT(refusal(parameters.gradient(1)), HasSubstr("gradient 1 of 1"));
    for (const Status& status : {parameters.gather(1), parameters.prefetch(1),
                                 parameters.release(1), parameters.reduce(1)})
      EXPECT_THAT(refusal(status), HasSubstr("unit 1 of 1"));
    EXPECT_FALSE(parameters.is_gathered(1));
    EXPECT_TRUE(succeeds(parameters.prefetch(0)));
    EXPECT_THAT(refusal(parameters.prefetch(0)), HasSubstr("called twice"));
    (*parameters.gradient(0))[0] = 2;
    EXPECT_THAT(refusal(parameters.step()), HasSubstr("unit 0 is prefetched; release it"));
    EXPECT_TRUE(succeeds(parameters.gather(0)));
    EXPECT_TRUE(succeeds(parameters.gather(0)));
    EXPECT_THAT(refusal(parameters.prefetch(0)), HasSubstr("gathered already"));
    EXPECT_THAT(refusal(parameters.step()), HasSubstr("unit 0 is gathered; release it"));
    EXPECT_TRUE(succeeds(parameters.release(0)));
    EXPECT_TRUE(succeeds(parameters.prefetch(0)));
    EXPECT_TRUE(succeeds(parameters.release(0)));
    EXPECT_TRUE(parameters.step().ok());
    EXPECT_EQ(values_of(parameters), (Floats{8, 20, 30, 40}));
    EXPECT_EQ(parameters.steps(), 1u);
  });
}

TEST_P(Sharded, BadOptionsAreRefusedByAll) {
  Job job(GetParam(), 4);
  job.run([](Group& group) {
    const auto initial = [](std::size_t, std::span<float>) { return Status(); };
    const auto refused = [&](std::vector<ParameterShape> shapes, const ShardedOptions& options) {
      return refusal(ShardedParameters::make(group, std::move(shapes), options, initial));
    };
    EXPECT_THAT(refused({{"w", 4, 0}}, options_of("hybrid:3", 6, rule("sgd"))),
                HasSubstr("K must divide the 4 data parallel ranks, and is 3"));
    EXPECT_THAT(refused({{"w", 4, 0}}, options_of("full", 4, rule("sdg"))), HasSubstr("sdg"));
    EXPECT_THAT(refused({}, options_of("full", 4, rule("sgd"))), HasSubstr("no parameters"));
    EXPECT_TRUE(succeeds(collective::barrier(group)));
  });
}

TEST_P(Sharded, InitialValuesThatFailAreAnErrorOfAll) {
  Job job(GetParam(), 3);
  job.run([](Group& group) {
    const auto initial = [](std::size_t index, std::span<float>) -> Status {
      if (index < 1) return {};
      return Error(ErrorCode::kNotFound, "the file has no such tensor");
    };
    const auto made = ShardedParameters::make(group, {{"a", 9, 0}, {"b", 9, 1}},
                                              options_of("full", 3, rule("sgd")), initial);
    EXPECT_THAT(refusal(made), HasSubstr("initial values of b: the file has no such tensor"));
  });
}

// Rank 3 leaves before its step; the others are in both groups of hybrid:2.
TEST_P(Sharded, ALostRankIsAnErrorOfAllOthersAndStays) {
  for (const char* sharding : shardings_of(4)) {
    SCOPED_TRACE(sharding);
    Job job(GetParam(), 4);
    std::latch stepped(4);  // a rank that leaves ends operations that it has ended, but others not
    job.run([&](Group& group) {
      OneParameter one(group, sharding, 4);
      EXPECT_EQ(one.step({0, 0, 0, 0}).size(), one.shard().size());
      const Floats before = one.shard();
      stepped.arrive_and_wait();
      if (group.rank() == 3) {
        one.parameters.reset();
        return job.leave(3);
      }
      EXPECT_TRUE(one.parameters->gradient(0).ok());
      (void)one.parameters->reduce(0);
      const auto step = one.parameters->step();
      ASSERT_FALSE(step.ok());
      EXPECT_THAT(refusal(step), HasSubstr("rank 3"));
      EXPECT_EQ(one.shard(), before);
      EXPECT_EQ(refusal(one.parameters->step()), refusal(step));
      EXPECT_EQ(refusal(one.parameters->gather(0)), refusal(step));
      EXPECT_FALSE(one.parameters->parameter(0).ok());
      EXPECT_FALSE(one.parameters->gradient(0).ok());
    });
  }
}

}  // namespace
}  // namespace centroid::parallel::testing::sharded_parameters_test
