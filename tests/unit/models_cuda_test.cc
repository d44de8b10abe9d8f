// Models on a GPU against the same models on the CPU. Built twice: on the CPU, with
// tests/support/late_device.h, whose streams run late; and (CENTROID_TEST_GPU) for a GPU.

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/examples.h"
#include "worker/model/cuda/cublas.h"
#include "worker/model/cuda/cuda_backend.h"
#include "worker/model/transformer.h"
#include "worker/node/replica.h"
#if __has_include(<cublasLt.h>) && defined(CENTROID_TEST_GPU)
#include <cublasLt.h>
#define CENTROID_HAS_CUBLASLT_HEADER
#endif
#if defined(CENTROID_TEST_GPU)
#include "tests/gpu/gpu.h"
#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#define CENTROID_HAS_CUBLAS_HEADER
#endif
#else
#include "tests/support/late_cublas_lt.h"
#include "tests/support/late_device.h"
#include "tests/support/simt.h"
#endif

namespace centroid::worker {
namespace {

using namespace test;

using testing::HasSubstr;

#if defined(CENTROID_HAS_CUBLAS_HEADER)
// What cublas.h declares is what the toolkit has.
static_assert(CUBLAS_OP_N == cublas::kNoTranspose && CUBLAS_OP_T == cublas::kTranspose);
static_assert(CUDA_R_32F == cublas::kFloat32 && CUBLAS_GEMM_DEFAULT == cublas::kDefaultAlgorithm);
static_assert(CUBLAS_COMPUTE_32F == cublas::kComputeF32);
static_assert(CUBLAS_COMPUTE_32F_FAST_TF32 == cublas::kComputeTf32);
static_assert(CUBLAS_COMPUTE_32F_FAST_16BF == cublas::kComputeBf16);
static_assert(sizeof(cublasOperation_t) == sizeof(int) && sizeof(cublasStatus_t) == sizeof(int));
#endif

#if defined(CENTROID_HAS_CUBLASLT_HEADER)
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == cublas_lt::kTransposeA);
static_assert(CUBLASLT_MATMUL_DESC_EPILOGUE == cublas_lt::kEpilogue);
static_assert(CUBLASLT_MATMUL_DESC_BIAS_POINTER == cublas_lt::kBiasPointer);
static_assert(CUBLASLT_EPILOGUE_RELU_BIAS == cublas_lt::kReluBias);
static_assert(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == cublas_lt::kMaxWorkspace);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == cublas_lt::kMinAlignmentA);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES == cublas_lt::kMinAlignmentB);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES == cublas_lt::kMinAlignmentC);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == cublas_lt::kMinAlignmentD);
static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(cublas_lt::Algorithm));
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == sizeof(cublas_lt::Found));
static_assert(offsetof(cublasLtMatmulHeuristicResult_t, state) ==
              offsetof(cublas_lt::Found, state));
#endif

std::unique_ptr<Model> model_of(const std::string& spec) {
  if (spec.find("lora") == std::string::npos) return make_model(spec).value();
  auto config = TransformerConfig::parse(spec).value();
  auto base =
      std::make_shared<const BaseWeights>(random_floats(elements_of(config.whole()), 77, 0.3));
  return std::make_unique<Transformer>(std::move(config), std::move(base));
}

struct Case {
  const char* spec;
  std::size_t samples;
};

class CudaModel : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
#if defined(CENTROID_TEST_GPU)
    SKIP_WITHOUT_GPU();
#else
    simt::use_seed(3);
    simt::use_stream_seed(11);
#endif
  }
  static Result<Compute> open(Matmul matmul = Matmul::kF32) {
#if defined(CENTROID_TEST_GPU)
    return open_compute(centroid::test::gpu_name(), matmul);
#else
    return simt::open_late("cuda:0", matmul);
#endif
  }
  /// Parameters that make every gradient count.
  static std::vector<float> params_of(const Model& model) {
    auto params = random_floats(elements_of(model.manifest()), 2, 0.3);
    std::size_t at = 0;
    for (const auto& tensor : model.manifest()) {
      if (tensor.shape.size() == 1 &&
          (tensor.name.ends_with("weight") || tensor.name.ends_with("running_var")))
        for (std::size_t i = 0; i < tensor.elements(); ++i) params[at + i] += 1;
      at += tensor.elements();
    }
    return params;
  }
};

/// Tensor by tensor, relative to the tensor's largest number.
void expect_near(const Manifest& manifest, const std::vector<float>& got,
                 const std::vector<float>& right, float bound) {
  std::size_t at = 0;
  for (const auto& tensor : manifest) {
    float largest = 0, worst = 0;
    for (std::size_t i = 0; i < tensor.elements(); ++i, ++at) {
      largest = std::max(largest, std::abs(right[at]));
      worst = std::max(worst, std::abs(right[at] - got[at]));
    }
    EXPECT_LE(worst, bound * largest) << tensor.name;
    EXPECT_GT(largest, 0) << tensor.name;
  }
}

TEST_P(CudaModel, LearnsAsOnTheCpu) {
  const auto model = model_of(GetParam().spec);
  const Manifest& manifest = model->manifest();
  const auto cpu = model->clone();
  std::vector<float> params = params_of(*model), right(params.size()), got(params.size());
  ReplicaOptions options;
  options.gradient = got;
  options.bucket_bytes = 4000;  // several
  const auto replica = make_replica(*model, open().value(), options).value();
  const std::size_t most = GetParam().samples;
  for (const std::size_t samples : {most, std::size_t{1}, std::size_t{0}, most + 2}) {
    SCOPED_TRACE(std::to_string(samples) + " samples");
    const Example e = random_example(*model, samples, samples);
    const StepResult expected = cpu->step(e.batch(), params, right, [](TensorId) {});
    std::vector<std::uint32_t> order;
    std::vector<float> at_delivery(params.size());
    ASSERT_TRUE(replica->use(params).ok());
    const auto result = replica->train(e.batch(), samples, [&](TensorId tensor) {
      order.push_back(tensor.value);
      std::size_t begin = 0;
      for (std::size_t t = 0; t < tensor.value; ++t) begin += manifest[t].elements();
      std::copy_n(got.begin() + static_cast<std::ptrdiff_t>(begin),
                  manifest[tensor.value].elements(),
                  at_delivery.begin() + static_cast<std::ptrdiff_t>(begin));
    });
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(at_delivery, got);  // delivered is final
    EXPECT_EQ(order.size(), manifest.size());
    EXPECT_TRUE(std::ranges::is_sorted(order, std::greater()));
    EXPECT_EQ(result->targets, expected.targets);
    EXPECT_EQ(result->correct, expected.correct);
    EXPECT_NEAR(result->loss_sum, expected.loss_sum, 1e-5 * (1 + expected.loss_sum));
    if (samples > 1) expect_near(manifest, got, right, 1e-4F);
    if (samples == 0) {
      EXPECT_EQ(got, right);
    }
    const auto before = got;
    ASSERT_TRUE(replica->train(e.batch(), samples, [](TensorId) {}).ok());
    EXPECT_EQ(got, before);             // the same input, the same bits
    for (float& p : params) p *= 0.9F;  // and other parameters
  }
}

#if !defined(CENTROID_TEST_GPU)
/// What is said is what is taken, and steps then take no more.
TEST_P(CudaModel, TakesTheMemoryOfStepsBeforeThem) {
  const auto model = model_of(GetParam().spec);
  std::vector<float> params = params_of(*model), got(params.size());
  ReplicaOptions options;
  options.gradient = got;
  const auto replica = make_replica(*model, open().value(), options).value();
  const std::size_t most = GetParam().samples + 2;
  const auto memory = replica->memory_of(most).value();
  EXPECT_GE(memory.step, model->work_bytes(most, true));
  EXPECT_GE(memory.with_evaluation, memory.step);
  const std::uint64_t free = replica->room()->free;
  ASSERT_TRUE(replica->make_room(most).ok());
  EXPECT_EQ(free - replica->room()->free, memory.with_evaluation - memory.taken);
  const auto again = replica->memory_of(most).value();
  EXPECT_EQ(again.taken, memory.with_evaluation);
  EXPECT_EQ(again.with_evaluation, memory.with_evaluation);
  EXPECT_EQ(again.step, memory.step);  // though there is more now
  const auto before = simt::traffic().allocations;
  ASSERT_TRUE(replica->use(params).ok());
  for (const std::size_t samples : {most, std::size_t{1}, most - 1}) {
    const Example e = random_example(*model, samples, samples);
    ASSERT_TRUE(replica->train(e.batch(), samples, [](TensorId) {}).ok());
    ASSERT_TRUE(replica->residence()->queue(e.batch(), samples, {{}, 0.5}).ok());
    ASSERT_TRUE(replica->residence()->collect().ok());
    ASSERT_TRUE(replica->evaluate(random_example(*model, samples + 3, 5).batch()).ok());
  }
  ASSERT_TRUE(replica->gradient_norm().ok());
  EXPECT_EQ(simt::traffic().allocations, before);
}
#endif

TEST_P(CudaModel, EvaluatesAsOnTheCpu) {
  const auto model = model_of(GetParam().spec);
  const auto cpu = model->clone();
  const std::vector<float> params = params_of(*model);
  const auto replica = make_replica(*model, open().value(), {}).value();
  ASSERT_TRUE(replica->use(params).ok());
  for (const std::size_t samples : {1, 3, 0, 6}) {
    const Example e = random_example(*model, samples, 9);
    const StepResult expected = cpu->evaluate(e.batch(), params);
    const auto result = replica->evaluate(e.batch());
    ASSERT_TRUE(result.ok()) << result.error().to_string();
    EXPECT_EQ(result->targets, expected.targets);
    EXPECT_EQ(result->correct, expected.correct);
    EXPECT_NEAR(result->loss_sum, expected.loss_sum, 1e-5 * (1 + expected.loss_sum));
  }
}

#if defined(CENTROID_TEST_GPU)
TEST_P(CudaModel, CoarserProductsStayClose) {
  const auto model = model_of(GetParam().spec);
  const std::vector<float> params = params_of(*model);
  const Example e = random_example(*model, GetParam().samples, 4);
  std::vector<float> right(params.size()), got(params.size());
  model->clone()->step(e.batch(), params, right, [](TensorId) {});
  for (const auto& [matmul, bound] : {std::pair(Matmul::kTf32, 0.05F), {Matmul::kBf16, 0.2F}}) {
    ReplicaOptions options;
    options.gradient = got;
    const auto replica = make_replica(*model, open(matmul).value(), options).value();
    ASSERT_TRUE(replica->use(params).ok());
    ASSERT_TRUE(replica->train(e.batch(), e.ids.size(), [](TensorId) {}).ok());
    expect_near(model->manifest(), got, right, bound);
  }
}
#else
TEST(CudaBackend, ProductsAreAskedForAsExactlyAsTheSettingSays) {
  const auto model = model_of("mlp:5-4,relu");
  const std::vector<float> params = random_floats(24, 1, 1);
  const Example e = random_example(*model, 3, 4);
  for (const auto& [name, compute] : {std::pair("f32", 68), {"tf32", 77}, {"bf16", 75}}) {
    const auto matmul = parse_matmul(name).value();
    const auto replica =
        make_replica(*model, simt::open_late("cuda:0", matmul).value(), {}).value();
    ASSERT_TRUE(replica->use(params).ok());
    ASSERT_TRUE(replica->evaluate(e.batch()).ok());
    EXPECT_EQ(simt::last_compute(), compute);
  }
  EXPECT_THAT(parse_matmul("fp8").error().message(), HasSubstr("'fp8' is not f32, tf32 or bf16"));
}

/// Products of cuBLASLt in a step of `spec` on 9 samples, and the gradient.
std::pair<std::uint64_t, std::vector<float> > step_with(const char* spec, simt::LtMode mode) {
  const auto model = model_of(spec);
  const std::vector<float> params = random_floats(elements_of(model->manifest()), 1, 0.3);
  std::vector<float> gradient(params.size());
  ReplicaOptions options;
  options.gradient = gradient;
  simt::use_lt_mode(mode);
  const auto replica =
      make_replica(*model, simt::open_late("cuda:0", Matmul::kF32).value(), options).value();
  const Example e = random_example(*model, 9, 4);
  EXPECT_TRUE(replica->use(params).ok());
  EXPECT_TRUE(replica->train(e.batch(), 9, [](TensorId) {}).ok());  // new shapes are looked at
  const std::uint64_t before = simt::lt_products();
  EXPECT_TRUE(replica->train(e.batch(), 9, [](TensorId) {}).ok());
  const std::uint64_t count = simt::lt_products() - before;
  simt::use_lt_mode(simt::LtMode::kGood);
  return {count, gradient};
}

TEST(CudaBackend, LayersWithReluAreOneProductWhereCublasLtIsGood) {
  using simt::LtMode;
  constexpr const char* kRelu = "mlp:12-40-8-5,relu";
  const auto [count, gradient] = step_with(kRelu, LtMode::kGood);
  EXPECT_EQ(count, 2U);  // the third layer's bias is added with the loss
  for (const LtMode mode : {LtMode::kNoAlgorithm, LtMode::kHidesNan, LtMode::kWrong, LtMode::kFails,
                            LtMode::kHidesNanLater, LtMode::kNotSupported}) {
    const auto [other_count, other] = step_with(kRelu, mode);
    EXPECT_EQ(other_count, 0U);
    expect_near(model_of(kRelu)->manifest(), gradient, other, 1e-5F);
  }
  EXPECT_EQ(step_with("mlp:12-40-8-5,gelu", LtMode::kGood).first, 0U);
}

TEST(CudaBackend, AProductOfCublasLtThatFailsLaterEndsTheStep) {
  const auto model = model_of("mlp:12-40-5,relu");
  const std::vector<float> params = random_floats(elements_of(model->manifest()), 1, 0.3);
  const auto replica =
      make_replica(*model, simt::open_late("cuda:0", Matmul::kF32).value(), {}).value();
  const Example e = random_example(*model, 3, 4);
  ASSERT_TRUE(replica->use(params).ok());
  ASSERT_TRUE(replica->evaluate(e.batch()).ok());
  simt::use_lt_mode(simt::LtMode::kFails);
  const auto failed = replica->evaluate(e.batch());
  simt::use_lt_mode(simt::LtMode::kGood);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().to_string(),
              HasSubstr("cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"));
}

TEST(CudaBackend, TheFirstFailureStaysAndSaysWhereItWas) {
  const auto model = model_of("mlp:5-40-4,relu");
  const std::vector<float> params = random_floats(elements_of(model->manifest()), 1, 1);
  const Example e = random_example(*model, 3, 4);
  std::vector<float> gradient(params.size());
  ReplicaOptions options;
  options.gradient = gradient;
  for (const std::uint64_t copy : {1U, 2U, 3U, 4U}) {  // parameters, batch, gradients, losses
    SCOPED_TRACE(copy);
    const auto replica =
        make_replica(*model, simt::open_late("cuda:0", Matmul::kF32).value(), options).value();
    simt::fail_copy(copy);
    int calls = 0;
    Status status = replica->use(params);
    if (status.ok()) {
      const auto result = replica->train(e.batch(), 3, [&](TensorId) { ++calls; });
      ASSERT_FALSE(result.ok());
      status = result.error();
    }
    simt::fail_copy(0);
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().message(), HasSubstr("an illegal memory access"));
  }
}

TEST(CudaBackend, ADeviceThatIsTooSmallSaysHowMuchWasFree) {
  const auto model = model_of("mlp:64-512-512-10,relu");  // 1.2 MB
  Compute compute;
  compute.device = simt::make_late_device(0, (32u << 20) + 2'000'000);
  compute.stream = compute.device->make_stream().value();
  compute.backend =
      cuda::make_cuda_backend(*compute.device, *compute.stream, Matmul::kF32, simt::host_cublas())
          .value();
  const auto replica = make_replica(*model, std::move(compute), {});
  ASSERT_FALSE(replica.ok());
  EXPECT_EQ(replica.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(replica.error().to_string(), HasSubstr("cuda:0, of whose 35554432 bytes"));
}

TEST(Cublas, ALibraryThatIsNotThereOrAnotherIsNamedWithTheRemedy) {
  const auto none = cublas::Library::load({"libcublas-that-is-not-here.so"});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(none.error().message(), HasSubstr("libcublas-that-is-not-here.so"));
  EXPECT_THAT(none.error().message(), HasSubstr("need cuBLAS 11.4 or later"));
  const auto other = cublas::Library::load({"libm.so.6"});
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message(), HasSubstr("libm.so.6 has no cublasCreate_v2"));
  EXPECT_THAT(cublas_lt::Library::load({"liblt-that-is-not-here.so"}).error().message(),
              HasSubstr("cuBLASLt cannot be loaded: liblt-that-is-not-here.so"));
  EXPECT_THAT(cublas_lt::Library::load({"libm.so.6"}).error().message(),
              HasSubstr("libm.so.6 has no cublasLtCreate"));
}
#endif

INSTANTIATE_TEST_SUITE_P(
    All, CudaModel,
    testing::Values(
        Case{"mlp:12-40-5,relu", 9}, Case{"mlp:13-17-6,gelu", 140}, Case{"mlp:7-3,relu", 4},
        Case{"mlp:12-40-8-5,relu,norm=batch", 9}, Case{"mlp:13-17-6,gelu,norm=batch", 250},
        Case{"transformer:layers=2,width=16,heads=2,context=6,vocabulary=20", 4},
        Case{"transformer:layers=2,width=12,heads=3,context=5,vocabulary=11,mlp=swiglu,norm=layer,"
             "tied=yes",
             3},
        Case{"transformer:layers=2,width=10,heads=2,context=6,vocabulary=20,dropout=0.2", 4},
        Case{"transformer:layers=1,width=8,heads=2,context=140,vocabulary=9,classes=3", 3},
        Case{"transformer:layers=2,width=8,heads=2,context=6,vocabulary=20,mlp=swiglu,lora=2,"
             "lora_alpha=3,lora_dropout=0.3,lora_targets=q_proj+o_proj+gate_proj+down_proj",
             4},
        Case{"transformer:layers=1,width=8,heads=2,context=6,vocabulary=20,classes=4,lora=3", 4}),
    [](const testing::TestParamInfo<Case>& of) { return "Case" + std::to_string(of.index); });

}  // namespace
}  // namespace centroid::worker
