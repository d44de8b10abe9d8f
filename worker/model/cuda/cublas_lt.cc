#include "worker/model/cuda/cublas_lt.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "common/base/log.h"
#include "worker/model/cuda/cublas.h"

namespace centroid::worker::cublas_lt {

namespace {

/// Shapes whose algorithms are cached: layers times the batch sizes that occur.
constexpr std::size_t kMostPlans = 256;

constexpr int kNotSupported = 15;  // CUBLAS_STATUS_NOT_SUPPORTED

/// The largest power of two that divides the address, at most 256, the library's default.
std::uint32_t alignment_of(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address) | 256U;
  return static_cast<std::uint32_t>(at & (0U - at));
}

}  // namespace

Result<std::shared_ptr<const Library>> Library::load(const std::vector<std::string>& names) {
  auto opened = SharedLibrary::open(names);
  if (!opened.ok())
    return Error(ErrorCode::kFailedPrecondition,
                 "cuBLASLt cannot be loaded: " + opened.error().message());
  const auto library = std::make_shared<Library>();
  SharedLibrary& in = library->opened_ = std::move(opened).value();
  in.find(library->create, "cublasLtCreate");
  in.find(library->destroy, "cublasLtDestroy");
  in.find(library->product_create, "cublasLtMatmulDescCreate");
  in.find(library->product_set, "cublasLtMatmulDescSetAttribute");
  in.find(library->product_destroy, "cublasLtMatmulDescDestroy");
  in.find(library->layout_create, "cublasLtMatrixLayoutCreate");
  in.find(library->layout_destroy, "cublasLtMatrixLayoutDestroy");
  in.find(library->preference_create, "cublasLtMatmulPreferenceCreate");
  in.find(library->preference_set, "cublasLtMatmulPreferenceSetAttribute");
  in.find(library->preference_destroy, "cublasLtMatmulPreferenceDestroy");
  in.find(library->find, "cublasLtMatmulAlgoGetHeuristic");
  in.find(library->multiply, "cublasLtMatmul");
  in.find(library->status_text, "cublasLtGetStatusString");
  if (!in.missing().empty())
    return Error(ErrorCode::kFailedPrecondition, in.name() + " has no " + in.missing());
  return std::shared_ptr<const Library>(library);
}

Status Library::status_of(int code, const std::string& call) const {
  if (code == 0) return {};
  return Error(ErrorCode::kInternal,
               call + ": " + status_text(code) + " (cuBLASLt " + std::to_string(code) + ")");
}

/// Column-major: D [n, m] = W^T [n, k] X [k, m].
struct ReluLayers::Plan {
  Plan(std::shared_ptr<const Library> of, std::array<std::uint64_t, 7> of_key)
      : library(std::move(of)), key(of_key) {}
  ~Plan() {
    for (const Layout layout : {w, x, z})
      if (layout != nullptr) (void)library->layout_destroy(layout);
    if (product != nullptr) (void)library->product_destroy(product);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  std::shared_ptr<const Library> library;
  std::array<std::uint64_t, 7> key;  // m, n, k; alignments of x, w, bias and z
  Product product = nullptr;
  Layout w = nullptr, x = nullptr, z = nullptr;
  Found found{};
  bool is_there = false;  // an algorithm
};

Result<std::unique_ptr<ReluLayers>> ReluLayers::make(std::shared_ptr<const Library> library,
                                                     int compute, std::byte* workspace,
                                                     std::size_t workspace_bytes, Device& device,
                                                     Stream& stream) {
  std::unique_ptr<ReluLayers> layers(
      new ReluLayers(std::move(library), compute, workspace, workspace_bytes, device, stream));
  CENTROID_TRY(
      layers->library_->status_of(layers->library_->create(&layers->handle_), "cublasLtCreate"));
  return layers;
}

ReluLayers::ReluLayers(std::shared_ptr<const Library> library, int compute, std::byte* workspace,
                       std::size_t workspace_bytes, Device& device, Stream& stream)
    : library_(std::move(library)),
      compute_(compute),
      workspace_(workspace),
      workspace_bytes_(workspace_bytes),
      device_(device),
      stream_(stream) {}

ReluLayers::~ReluLayers() {
  plans_.clear();
  if (handle_ != nullptr) (void)library_->destroy(handle_);
}

/// Describe the product and request an algorithm.
Status ReluLayers::choose(Plan& plan, const float* bias) {
  const Library& of = *library_;
  const auto [m, n, k, x_line, w_line, bias_line, z_line] = plan.key;
  const auto said = [&](int code, const char* call) { return of.status_of(code, call); };
  CENTROID_TRY(said(of.product_create(&plan.product, compute_, cublas::kFloat32),
                    "cublasLtMatmulDescCreate"));
  const auto set = [&](int attribute, const auto& value) {
    return said(of.product_set(plan.product, attribute, &value, sizeof value),
                "cublasLtMatmulDescSetAttribute");
  };
  CENTROID_TRY(set(kTransposeA, std::int32_t{cublas::kTranspose}));
  CENTROID_TRY(set(kEpilogue, std::int32_t{kReluBias}));
  CENTROID_TRY(set(kBiasPointer, bias));  // its alignment matters too
  const auto lay = [&](Layout& out, std::uint64_t rows, std::uint64_t columns) {
    return said(
        of.layout_create(&out, cublas::kFloat32, rows, columns, static_cast<std::int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  };
  CENTROID_TRY(lay(plan.w, k, n));
  CENTROID_TRY(lay(plan.x, k, m));
  CENTROID_TRY(lay(plan.z, n, m));
  Preference preference = nullptr;
  CENTROID_TRY(said(of.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const std::unique_ptr<SearchPreference, int (*)(Preference)> kept(preference,
                                                                    of.preference_destroy);
  const auto prefer = [&](int attribute, const auto& value) {
    return said(of.preference_set(preference, attribute, &value, sizeof value),
                "cublasLtMatmulPreferenceSetAttribute");
  };
  CENTROID_TRY(prefer(kMaxWorkspace, std::uint64_t{workspace_bytes_}));
  CENTROID_TRY(prefer(kMinAlignmentA, static_cast<std::uint32_t>(w_line)));
  CENTROID_TRY(prefer(kMinAlignmentB, static_cast<std::uint32_t>(x_line)));
  CENTROID_TRY(prefer(kMinAlignmentC, static_cast<std::uint32_t>(z_line)));
  CENTROID_TRY(prefer(kMinAlignmentD, static_cast<std::uint32_t>(z_line)));
  int count = 0;
  const int code = of.find(handle_, plan.product, plan.w, plan.x, plan.z, plan.z, preference, 1,
                           &plan.found, &count);
  plan.is_there = code == 0 && count > 0 && plan.found.state == 0;
  return {};
}

int ReluLayers::multiply(const Plan& plan, const float* x, const float* w, float* z) const {
  constexpr float kOne = 1, kZero = 0;
  return library_->multiply(handle_, plan.product, &kOne, w, plan.w, x, plan.x, &kZero, z, plan.z,
                            z, plan.z, &plan.found.algorithm, workspace_, workspace_bytes_,
                            stream_.native());
}

void ReluLayers::give_up(Plan& plan, const std::string& why) {
  plan.is_there = false;
  if (std::exchange(is_told_, true)) return;
  log::warn("cublaslt.shape_rejected",
            {{"device", device_.name()},
             {"rows", plan.key[0]},
             {"outputs", plan.key[1]},
             {"inputs", plan.key[2]},
             {"why", why},
             {"instead", "bias and ReLU are a pass after cuBLAS's product"}});
}

Status ReluLayers::reserve(std::size_t outputs) {
  const std::size_t bytes = outputs * sizeof(float);
  if (nan_ && nan_->size() >= bytes) return {};
  nan_.reset();
  CENTROID_ASSIGN(nan_, device_.allocate(bytes));
  const std::vector<float> host(outputs, std::numeric_limits<float>::quiet_NaN());
  CENTROID_TRY(stream_.copy(nan_->data(), reinterpret_cast<const std::byte*>(host.data()), bytes));
  return stream_.wait();
}

/// Check the algorithm of a new shape: with a bias of NaN every input of its ReLU is NaN, so every
/// output must be NaN. Overwrites z.
Status ReluLayers::look(Plan& plan, const float* x, const float* w, float* z) {
  const std::size_t m = plan.key[0], n = plan.key[1];
  if (const Status taken = reserve(n); !taken.ok()) {
    if (taken.error().code() != ErrorCode::kResourceExhausted) return taken;
    give_up(plan, "no memory to check its results: " + taken.error().message());
    return {};
  }
  std::vector<float> host(2 * n);
  auto* const bytes = reinterpret_cast<std::byte*>(host.data());
  const std::byte* const nan = nan_->data();
  CENTROID_TRY(
      library_->status_of(library_->product_set(plan.product, kBiasPointer, &nan, sizeof nan),
                          "cublasLtMatmulDescSetAttribute"));
  const int code = multiply(plan, x, w, z);
  if (code == kNotSupported) {
    give_up(plan, library_->status_of(code, "cublasLtMatmul").error().message());
    return {};
  }
  CENTROID_TRY(library_->status_of(code, "cublasLtMatmul"));
  const auto* const out = reinterpret_cast<const std::byte*>(z);
  CENTROID_TRY(stream_.copy(bytes, out, n * sizeof(float)));
  CENTROID_TRY(stream_.copy(bytes + n * sizeof(float), out + (m - 1) * n * sizeof(float),
                            n * sizeof(float)));
  CENTROID_TRY(stream_.wait());
  const auto is_number = [](float value) { return value == value; };
  if (std::ranges::any_of(std::span(host).first(2 * n), is_number))
    give_up(plan, "its ReLU hides NaN");
  return {};
}

Result<bool> ReluLayers::run(std::size_t m, std::size_t n, std::size_t k, const float* x,
                             const float* w, const float* bias, float* z) {
  const std::array<std::uint64_t, 7> key{
      m, n, k, alignment_of(x), alignment_of(w), alignment_of(bias), alignment_of(z)};
  const auto known = std::ranges::find_if(plans_, [&](const auto& one) { return one->key == key; });
  Plan* chosen = known == plans_.end() ? nullptr : known->get();
  if (chosen == nullptr) {
    if (plans_.size() >= kMostPlans) plans_.clear();
    auto made = std::make_unique<Plan>(library_, key);
    CENTROID_TRY(choose(*made, bias));
    if (made->is_there) CENTROID_TRY(look(*made, x, w, z));
    chosen = plans_.emplace_back(std::move(made)).get();
  }
  Plan& plan = *chosen;
  if (!plan.is_there) return false;
  CENTROID_TRY(
      library_->status_of(library_->product_set(plan.product, kBiasPointer, &bias, sizeof bias),
                          "cublasLtMatmulDescSetAttribute"));
  const int code = multiply(plan, x, w, z);
  if (code == kNotSupported) {
    give_up(plan, library_->status_of(code, "cublasLtMatmul").error().message());
    return false;
  }
  CENTROID_TRY(library_->status_of(code, "cublasLtMatmul"));
  return true;
}

Status ReluLayers::check() {
  constexpr std::size_t kSide = 16, kMatrix = kSide * kSide;
  constexpr std::size_t kFloats = 3 * kMatrix + kSide;  // x, w, z; bias
  CENTROID_ASSIGN(const auto memory, device_.allocate(kFloats * sizeof(float)));
  std::array<float, kFloats> host{};
  const auto x = std::span(host).first(kMatrix), w = std::span(host).subspan(kMatrix, kMatrix);
  const auto z = std::span(host).subspan(2 * kMatrix, kMatrix), bias = std::span(host).last(kSide);
  for (std::size_t r = 0; r < kSide; ++r)
    for (std::size_t c = 0; c < kSide; ++c) {  // integers: exact in every precision
      x[r * kSide + c] = static_cast<float>((r + 2 * c) % 5) - 2;
      w[r * kSide + c] = static_cast<float>((r * c) % 3) - 1;
      bias[c] = static_cast<float>(c) - 8;
    }
  x[0] = std::numeric_limits<float>::quiet_NaN();
  auto* const there = reinterpret_cast<float*>(memory->data());
  auto* const bytes = reinterpret_cast<std::byte*>(host.data());
  CENTROID_TRY(stream_.copy(memory->data(), bytes, sizeof host));
  CENTROID_TRY(stream_.wait());
  CENTROID_ASSIGN(const bool has_run, run(kSide, kSide, kSide, there, there + kMatrix,
                                          there + 3 * kMatrix, there + 2 * kMatrix));
  CENTROID_TRY(stream_.wait());
  if (!has_run) return Error(ErrorCode::kFailedPrecondition, "cuBLASLt has no algorithm");
  CENTROID_TRY(stream_.copy(bytes, memory->data(), sizeof host));
  CENTROID_TRY(stream_.wait());
  for (std::size_t r = 0; r < kSide; ++r)
    for (std::size_t c = 0; c < kSide; ++c) {
      float right = bias[c];
      for (std::size_t k = 0; k < kSide; ++k) right += x[r * kSide + k] * w[c * kSide + k];
      const float got = z[r * kSide + c];
      if (r == 0 && got == got) return Error(ErrorCode::kFailedPrecondition, "its ReLU hides NaN");
      if (r > 0 && got != (right < 0 ? 0.0F : right))
        return Error(ErrorCode::kFailedPrecondition,
                     "its ReLU returns " + std::to_string(got) + " of " + std::to_string(right));
    }
  return {};
}

}  // namespace centroid::worker::cublas_lt
