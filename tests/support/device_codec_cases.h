#pragma once

// What the codecs' kernels must do, on a GPU or on the machine of tests/support/simt.h: the bytes
// of the CPU's codecs. Every function compares and reports through GoogleTest.

#include <cstddef>
#include <cstdint>

#include "common/codec/cuda/kernels.h"

namespace centroid::device_cases {

/// Whoever runs the kernels. Calls are done in order; `copy` comes after all before it.
class Machine {
 public:
  virtual ~Machine() = default;
  /// Memory of the device on a 16-byte boundary, until `free_all`.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  virtual void free_all() = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual std::size_t select_bytes(std::uint64_t n) = 0;
  virtual void select(const cuda::SelectArguments& arguments) = 0;
  virtual void settle(const std::uint32_t* index, const float* rest, std::uint64_t count, float* x,
                      float* momentum) = 0;
  virtual void encode(const cuda::EncodeArguments& arguments) = 0;
  virtual void subtract(cuda::Dense type, float* x, float* momentum, std::uint64_t n,
                        const std::uint32_t* flags) = 0;
  virtual void add_dense(cuda::Dense type, const std::byte* in, float weight, bool first,
                         float* acc, std::uint64_t n) = 0;
  virtual void add_sparse(const std::uint32_t* index, const float* value, std::uint64_t count,
                          float weight, bool first, float* acc, std::uint64_t n) = 0;
};

/// All distributions of codec_topk_cases.h, several k, every boundary, with and without addition.
void compare_selections(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Gradients with NaN and infinities, stored and not.
void compare_nonfinite(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Every dense type and rounding: bytes, flags, and what stays in the residual.
void compare_dense(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// Dense and sparse payloads of every type, first and not.
void compare_additions(Machine& machine, std::uint64_t n, std::uint64_t seed);
/// A tensor through rounds of ErrorFeedback: payloads, residual and momentum.
void compare_rounds(Machine& machine, std::uint64_t n, std::uint64_t seed);

}  // namespace centroid::device_cases
