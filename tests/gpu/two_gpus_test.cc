// Two GPUs of one process that add through NCCL. Built twice (tests/support/test_gpu.h): for GPUs
// and NCCL, and for what stands in for both.

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/optim/optimizer.h"
#include "tests/support/examples.h"
#include "tests/support/test_gpu.h"
#if !defined(CENTROID_TEST_GPU)
#include "tests/support/nccl_stand_in.h"
#endif
#include "worker/node/nccl_group.h"
#include "worker/node/replica_group.h"

namespace centroid::worker {
namespace {

using namespace test;

using testing::Each;
using testing::HasSubstr;

class TwoGpus : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
#if defined(CENTROID_TEST_GPU)
    const unsigned gpus = cuda::device_count().value();
    if (gpus < 2) GTEST_SKIP() << "one GPU here, this takes two";
    second_ = (centroid::test::gpu_number() + 1) % gpus;
    first_ = centroid::test::gpu_number();
#endif
    auto library = nccl::Library::load(nccl_);
    if (!library.ok()) GTEST_SKIP() << "no NCCL here: " << library.error().to_string();
    library_ = std::move(library).value();
  }

  std::unique_ptr<NcclGroup> make(std::chrono::milliseconds timeout) {
    NcclGroup::Options options;
    options.timeout = timeout;
    const std::vector<int> devices{static_cast<int>(first_), static_cast<int>(second_)};
    return NcclGroup::make(library_, devices, options).value();
  }
  std::string name(std::size_t rank) const {
    return "cuda:" + std::to_string(rank == 0 ? first_ : second_);
  }

  /// Numbers on a GPU, and a stream of it.
  struct Numbers {
    Numbers(const std::string& gpu, const std::vector<float>& values)
        : compute(centroid::test::open_gpu(gpu, Matmul::kF32).value()), count(values.size()) {
      memory = compute.device->allocate(bytes()).value();
      const auto* from = reinterpret_cast<const std::byte*>(values.data());
      CENTROID_CHECK(compute.stream->copy(memory->data(), from, bytes()).ok());
      CENTROID_CHECK(compute.stream->wait().ok());
    }
    std::size_t bytes() const { return count * sizeof(float); }
    std::span<float> span() const { return {reinterpret_cast<float*>(memory->data()), count}; }
    std::vector<float> read() const {
      std::vector<float> out(count);
      auto* to = reinterpret_cast<std::byte*>(out.data());
      CENTROID_CHECK(compute.stream->copy(to, memory->data(), bytes()).ok());
      CENTROID_CHECK(compute.stream->wait().ok());
      return out;
    }
    Compute compute;
    std::size_t count;
    std::unique_ptr<DeviceMemory> memory;
  };
  static Status add(NcclGroup& group, std::size_t rank, const Numbers& of, double weight,
                    double total) {
    const std::array<std::span<float>, 1> tensors{of.span()};
    Stream& stream = *of.compute.stream;
    CENTROID_TRY(group.all_reduce(rank, tensors, weight, total, stream.native()));
    return group.wait(rank, [&] { return stream.done(); });
  }

#if defined(CENTROID_TEST_GPU)
  const std::string nccl_ = "libnccl.so.2";
#else
  const std::string nccl_ = NCCL_STAND_IN;
  centroid::test::StandIn stand_in_;
#endif
  unsigned first_ = 0, second_ = 1;
  std::shared_ptr<const nccl::Library> library_;
};

/// (1 * 1 + 3 * 5) / 4.
TEST_F(TwoGpus, AddTheMeanByWeight) {
  constexpr std::size_t kNumbers = 100'003;
  const auto group = make(std::chrono::seconds(60));
  const Numbers ones(name(0), std::vector<float>(kNumbers, 1)),
      fives(name(1), std::vector<float>(kNumbers, 5));
  Status second;
  std::thread other([&] { second = add(*group, 1, fives, 3, 4); });
  const Status first = add(*group, 0, ones, 1, 4);
  other.join();
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  EXPECT_THAT(ones.read(), Each(4.0F));
  EXPECT_THAT(fives.read(), Each(4.0F));
}

TEST_F(TwoGpus, ARankThatNeverComesEndsTheWaitOfTheOther) {
  constexpr std::chrono::milliseconds kTimeout{2000};
  const auto group = make(kTimeout);
  const Numbers ones(name(0), std::vector<float>(1000, 1)), fives(name(1), {5});
  const auto begun = std::chrono::steady_clock::now();
  const Status ended = add(*group, 0, ones, 1, 4);
  const auto took = std::chrono::steady_clock::now() - begun;
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), ErrorCode::kAborted);
  EXPECT_THAT(ended.error().message(),
              HasSubstr("ncclAllReduce of device 0 has not ended within 2000 ms"));
  EXPECT_THAT(ended.error().message(), HasSubstr("not started by device 1"));
  EXPECT_GE(took, kTimeout);
  EXPECT_LT(took, 10 * kTimeout);
  EXPECT_FALSE(add(*group, 1, fives, 3, 4).ok());  // nothing goes on after it
}

/// An odd number of numbers has no equal parts: it is refused with the numbers, and padded it is
/// the sum.
TEST_F(TwoGpus, PartsOfASumAreEqual) {
  const auto group = make(std::chrono::seconds(60));
  const Numbers odd(name(0), {1, 2, 3});
  const Numbers here(name(0), {1, 2, 3, 0}), there(name(1), {5, 6, 7, 0});
  const Numbers part_here(name(0), {9, 9}), part_there(name(1), {9, 9});
  const Status refused =
      group->reduce_scatter(0, odd.span(), part_here.span(), 1, 2, odd.compute.stream->native());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("3 numbers are not 2 equal parts of 2"));
  const auto both = [&](std::size_t rank) -> Status {
    const Numbers &all = rank == 0 ? here : there, &part = rank == 0 ? part_here : part_there;
    Stream& stream = *all.compute.stream;
    const double weight = rank == 0 ? 1 : 3;  // of samples
    CENTROID_TRY(group->reduce_scatter(rank, all.span(), part.span(), weight, 4, stream.native()));
    CENTROID_TRY(group->all_gather(rank, part.span(), all.span(), stream.native()));
    return group->wait(rank, [&] { return stream.done(); });
  };
  Status second;
  std::thread other([&] { second = both(1); });
  const Status first = both(0);
  other.join();
  ASSERT_TRUE(first.ok()) << first.error().to_string();
  ASSERT_TRUE(second.ok()) << second.error().to_string();
  for (const Numbers* const all : {&here, &there})
    EXPECT_EQ(all->read(), (std::vector<float>{4, 5, 6, 0}));
}

/// Training that stays on the GPUs: parameters and slots are the same bits on both.
TEST_F(TwoGpus, HaveTheSameBitsAfterStepsOfTheirOwn) {
  const auto model = make_model("mlp:12-40-5,relu").value();
  const Dataset data = random_data(60, 1);
  const auto optimizer = make_optimizer({.name = "adamw", .learning_rate = 0.02}).value();
  GroupOptions options;
  options.devices = name(0) + "," + name(1);
  options.nccl = nccl_;
  options.bucket_bytes = 1024;
  options.open = centroid::test::open_gpu;
  const auto group = make_replica_group(*model, std::move(options)).value();
  model->initialize(7, group->params());
  ResidentTraining* const there = group->resident();
  ASSERT_NE(there, nullptr) << "they add on the host";
  ASSERT_TRUE(there->reserve(2).ok() && there->load(group->params()).ok());
  const std::vector<std::uint64_t> batch = first(31);
  for (std::uint64_t number = 1; number <= 5; ++number) {
    const std::span<const std::uint64_t> samples = batch;
    const OptimizerStep step{optimizer->at(number), 0.5};
    const auto made = there->advance(data, {&samples, 1}, {&step, 1});
    ASSERT_TRUE(made.ok()) << made.error().to_string();
  }
  const std::vector<float> begun(group->params().begin(), group->params().end());
  const auto all_of = [&](std::size_t device) {
    std::vector<std::vector<float>> all(3, std::vector<float>(begun.size()));
    EXPECT_TRUE(there->store(all[0], device).ok());
    for (std::size_t slot = 0; slot < 2; ++slot)
      EXPECT_TRUE(there->store_slot(slot, all[slot + 1], device).ok());
    return all;
  };
  const auto here = all_of(0), other = all_of(1);
  EXPECT_EQ(here, other);
  EXPECT_NE(here[0], begun);
  for (const std::size_t slot : {1, 2})
    EXPECT_THAT(here[slot], testing::Contains(testing::Ne(0.0F)));
}

}  // namespace
}  // namespace centroid::worker
