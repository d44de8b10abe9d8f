#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/bytes.h"
#include "common/tensor/dtype.h"

namespace centroid::collective {

/// The numbers are on the wire: never change one.
enum class Reduction : std::uint8_t {
  kNone = 0,
  kSum = 1,
  kMean = 2,
  kWeightedMean = 3,  ///< sum of weight * x over the sum of the weights
  kMin = 4,
  kMax = 5,
  kProduct = 6
};
std::string_view to_string(Reduction reduction);  ///< "weighted_mean"

enum class Operation : std::uint8_t {
  kAllReduce = 1,
  kReduceScatter = 2,
  kAllGather = 3,
  kBroadcast = 4,
  kAllToAll = 5,
  kGather = 6,
  kScatter = 7,
  kBarrier = 8,
  kSend = 9,
  kExchange = 10,
};
inline constexpr Operation kLastOperation = Operation::kExchange;
std::string_view to_string(Operation operation);  ///< "all_reduce"

/// Algorithm of an all-reduce (docs/explanation/rounds.md#all-reduce-algorithms). Every rank must
/// use the same.
enum class Algorithm : std::uint8_t {
  kAuto = 0,               ///< by size, ranks and nodes
  kRing = 1,               ///< 2(N-1)/N of the bytes; sums in ring order
  kRecursiveDoubling = 2,  ///< log2 N steps of all the bytes; for two ranks a direct exchange
  kChain = 3,              ///< sums in rank order, as a parameter server does; 2 times the bytes
  kHierarchical = 4,       ///< a ring in each node, then one across nodes: the fewest bytes there
  kHalvingDoubling = 5,    ///< the bytes of a ring in 2 log2 N steps
};
inline constexpr Algorithm kLastAlgorithm = Algorithm::kHalvingDoubling;
std::string_view to_string(Algorithm algorithm);  ///< "recursive doubling"

template <class T>
concept Element = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                  std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::int64_t>;

template <Element T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, std::int32_t>) return DType::kI32;
  return DType::kI64;
}

/// Elements in the caller's memory: read only.
struct ConstElements {
  DType dtype = DType::kF32;
  Bytes bytes;

  ConstElements() = default;
  ConstElements(DType type, Bytes raw) : dtype(type), bytes(raw) {}
  template <class T, std::size_t N>
    requires Element<std::remove_const_t<T>>
  ConstElements(std::span<T, N> values)
      : dtype(dtype_of<std::remove_const_t<T>>()), bytes(std::as_bytes(values)) {}
  std::uint64_t count() const { return bytes.size() / size_of(dtype); }
};

/// Elements in the caller's memory: written.
struct Elements {
  DType dtype = DType::kF32;
  MutableBytes bytes;

  Elements() = default;
  Elements(DType type, MutableBytes raw) : dtype(type), bytes(raw) {}
  template <Element T, std::size_t N>
  Elements(std::span<T, N> values) : dtype(dtype_of<T>()), bytes(std::as_writable_bytes(values)) {}
  operator ConstElements() const { return {dtype, bytes}; }
  std::uint64_t count() const { return bytes.size() / size_of(dtype); }
};

/// Bytes for one rank, or from one.
struct Parcel {
  std::uint64_t begin = 0;  ///< position in the memory
  std::uint64_t bytes = 0;  ///< to send; ignored in a receiving one
  std::uint64_t most = 0;   ///< known to sender and receiver; 0: nothing, not even a frame
};

/// Options of one call. Every rank of the group must use the same, except `timeout`, `weight` and
/// `preserve_input`.
struct CallOptions {
  Reduction reduction = Reduction::kSum;
  double weight = 1;  ///< of this rank, for weighted_mean; not negative
  Algorithm algorithm = Algorithm::kAuto;
  std::chrono::milliseconds timeout{0};  ///< 0: the mesh's
  std::uint32_t turns = 1;  ///< it may take so many timeouts, for others come before it
  /// Calls with different tags never mix: threads that share a group use one each. Within a tag
  /// every rank issues the same calls in the same order.
  std::uint64_t tag = 0;
  /// In place: copy the input and restore it if the call fails.
  bool preserve_input = false;
  /// Called when the operation has ended here, on the thread that moves its bytes or in the call
  /// that begins it: `Handle::wait` then returns soon. Not called by an operation that is refused.
  /// Asynchronous operations only.
  std::function<void()> on_end{};
  /// The caller of an asynchronous operation calls `Handle::wait` next, and moves its bytes itself.
  bool waits_next = false;
};

/// Bytes of one segment, the unit of pipelining: it is summed while it is still in cache. 64 MiB
/// ring over loopback: 1 MiB is at the limit, 256 KiB 5-10 % and 64 KiB 50 % slower.
inline constexpr std::uint64_t kSegmentBytes = 1 << 20;

}  // namespace centroid::collective
