#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/base/shared_library.h"
#include "common/device/device.h"

namespace centroid::worker::cublas_lt {

/// The part of cuBLASLt that is used, declared here and loaded at run time, as in cublas.h.
/// cuBLASLt has column-major matrices.
/// source  NVIDIA cuBLASLt, cublasLt.h (the numbers are the same in releases 11 to 13;
///         tests/unit/models_cuda_test.cc compares them with the toolkit's header)
using Handle = struct cublasLtContext*;
using Product = struct Descriptor*;
using Layout = struct MatrixLayout*;
using Preference = struct SearchPreference*;
inline constexpr int kTransposeA = 3, kEpilogue = 7, kBiasPointer = 8;  ///< of a product
inline constexpr int kReluBias = 6;                                     ///< an epilogue
inline constexpr int kMaxWorkspace = 1, kMinAlignmentA = 5, kMinAlignmentB = 6, kMinAlignmentC = 7,
                     kMinAlignmentD = 8;  ///< of a preference

struct Algorithm {
  std::uint64_t data[8];
};
struct Found {
  Algorithm algorithm;
  std::size_t workspace_bytes;
  int state;  ///< 0: usable
  float waves;
  int reserved[4];
};

struct Library {
  /// Load the first of `names` that exists.
  /// fails  failed_precondition: none, or one without the functions
  static Result<std::shared_ptr<const Library>> load(const std::vector<std::string>& names = {
                                                         "libcublasLt.so.13", "libcublasLt.so.12",
                                                         "libcublasLt.so.11", "libcublasLt.so"});
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  int (*create)(Handle*) = nullptr;
  int (*destroy)(Handle) = nullptr;
  int (*product_create)(Product*, int compute, int scale_type) = nullptr;
  int (*product_set)(Product, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*product_destroy)(Product) = nullptr;
  int (*layout_create)(Layout*, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t stride) = nullptr;
  int (*layout_destroy)(Layout) = nullptr;
  int (*preference_create)(Preference*) = nullptr;
  int (*preference_set)(Preference, int attribute, const void* value, std::size_t bytes) = nullptr;
  int (*preference_destroy)(Preference) = nullptr;
  int (*find)(Handle, Product, Layout a, Layout b, Layout c, Layout d, Preference, int most, Found*,
              int* found) = nullptr;
  int (*multiply)(Handle, Product, const void* alpha, const void* a, Layout of_a, const void* b,
                  Layout of_b, const void* beta, const void* c, Layout of_c, void* d, Layout of_d,
                  const Algorithm*, void* workspace, std::size_t bytes, void* stream) = nullptr;
  const char* (*status_text)(int) = nullptr;

  /// OK for 0, else an error with the call and the library's message.
  Status status_of(int code, const std::string& call) const;

 private:
  SharedLibrary opened_;
};

/// Layers of a network in one pass: relu(x w^T + bias). The algorithm that cuBLASLt chooses for a
/// shape is checked once and cached: NaN must give NaN.
/// thread  one at a time
class ReluLayers {
 public:
  /// Work space, device and stream outlive it; `compute`: cublas::kCompute...
  static Result<std::unique_ptr<ReluLayers>> make(std::shared_ptr<const Library> library,
                                                  int compute, std::byte* workspace,
                                                  std::size_t workspace_bytes, Device& device,
                                                  Stream& stream);
  ~ReluLayers();
  /// Compute one layer on the device and check the result.
  /// fails  failed_precondition: wrong numbers, or NaN does not give NaN, on which the detection of
  ///        NaN relies; and as `run` and the device
  Status check();
  /// z[m, n] = relu(x[m, k] w[n, k]^T + bias[n]), row-major, on the device; queued.
  /// False: cuBLASLt has no correct algorithm for this shape, and nothing was queued; the first
  /// rejected algorithm is logged. A new shape waits for the stream, and allocates memory if it has
  /// more outputs than were reserved.
  Result<bool> run(std::size_t m, std::size_t n, std::size_t k, const float* x, const float* w,
                   const float* bias, float* z);
  /// Allocate memory for layers of up to `outputs` outputs.
  Status reserve(std::size_t outputs);
  std::uint64_t reserved() const { return nan_ ? nan_->size() : 0; }  ///< bytes

 private:
  struct Plan;
  ReluLayers(std::shared_ptr<const Library> library, int compute, std::byte* workspace,
             std::size_t workspace_bytes, Device& device, Stream& stream);
  Status choose(Plan& plan, const float* bias);
  int multiply(const Plan& plan, const float* x, const float* w, float* z) const;
  Status look(Plan& plan, const float* x, const float* w, float* z);
  void give_up(Plan& plan, const std::string& why);

  std::shared_ptr<const Library> library_;
  Handle handle_ = nullptr;
  int compute_;
  std::byte* workspace_;
  std::size_t workspace_bytes_;
  Device& device_;
  Stream& stream_;
  std::unique_ptr<DeviceMemory> nan_;
  std::vector<std::unique_ptr<Plan>> plans_;
  bool is_told_ = false;  // a rejected shape was logged
};

}  // namespace centroid::worker::cublas_lt
