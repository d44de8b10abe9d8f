#include "transport/collective/reduce.h"

#include <cmath>
#include <cstring>

#include "common/tensor/multiversion.h"

namespace centroid::collective {

namespace {

template <class T>
struct Plain {
  using Stored = T;
  using Number = T;
  CENTROID_KERNEL T load(T x) { return x; }
  CENTROID_KERNEL T store(T x) { return x; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Number = float;
  CENTROID_KERNEL float load(std::uint16_t x) { return f32_from_bf16(x); }
  CENTROID_KERNEL std::uint16_t store(float x) { return bf16_from_f32(x); }
};
struct F16 {
  using Stored = std::uint16_t;
  using Number = float;
  CENTROID_KERNEL float load(std::uint16_t x) { return f32_from_f16(x); }
  CENTROID_KERNEL std::uint16_t store(float x) { return f16_from_f32(x); }
};

// Integers wrap around, as unsigned ones of the same width do.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>,
                                             std::type_identity<T>>::type;

struct Add {
  template <class T>
  CENTROID_KERNEL T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};
struct Multiply {
  template <class T>
  CENTROID_KERNEL T of(T a, T b) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  }
};
// NaN wins in every position: one bad number must not vanish.
struct Least {
  template <class T>
  CENTROID_KERNEL T of(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Most {
  template <class T>
  CENTROID_KERNEL T of(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

// Payloads and parts of a buffer have no alignment of their own: every access is a memcpy, which
// compiles to a plain unaligned load or store.
template <class Format>
CENTROID_KERNEL typename Format::Number load(const std::byte* at, std::size_t i) {
  typename Format::Stored stored;
  std::memcpy(&stored, at + i * sizeof(stored), sizeof(stored));
  return Format::load(stored);
}
template <class Format>
CENTROID_KERNEL void store(std::byte* at, std::size_t i, typename Format::Number x) {
  const typename Format::Stored stored = Format::store(x);
  std::memcpy(at + i * sizeof(stored), &stored, sizeof(stored));
}

template <class Format, class Op>
struct Combine {
  CENTROID_KERNEL void run(std::byte* to, const std::byte* first, const std::byte* second,
                           std::size_t n) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i)
      store<Format>(to, i, Op::of(load<Format>(first, i), load<Format>(second, i)));
  }
};
template <class Format>
struct CombineWeighed {
  CENTROID_KERNEL void run(std::byte* to, const std::byte* payload, const std::byte* own,
                           std::size_t n, typename Format::Number weight) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i)
      store<Format>(to, i, load<Format>(payload, i) + weight * load<Format>(own, i));
  }
};
template <class Format>
struct Scale {
  CENTROID_KERNEL void run(std::byte* to, const std::byte* from, std::size_t n,
                           typename Format::Number factor) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i) store<Format>(to, i, load<Format>(from, i) * factor);
  }
};
template <class Format>
struct Divide {
  CENTROID_KERNEL void run(std::byte* to, const std::byte* from, std::size_t n,
                           typename Format::Number divisor) {
    CENTROID_INDEPENDENT
    for (std::size_t i = 0; i < n; ++i)
      store<Format>(to, i, static_cast<typename Format::Number>(load<Format>(from, i) / divisor));
  }
};

template <class Format, class Op>
void combine(std::byte* to, const std::byte* first, const std::byte* second, std::size_t n) {
  run_multiversioned<Combine<Format, Op>>(to, first, second, n);
}

template <class Format>
Arithmetic with(Reduction reduction) {
  using Number = typename Format::Number;
  Arithmetic out;
  out.combine = &combine<Format, Add>;
  if (reduction == Reduction::kMin) out.combine = &combine<Format, Least>;
  if (reduction == Reduction::kMax) out.combine = &combine<Format, Most>;
  if (reduction == Reduction::kProduct) out.combine = &combine<Format, Multiply>;
  out.divide = [](std::byte* to, const std::byte* from, std::size_t n, double divisor) {
    run_multiversioned<Divide<Format>>(to, from, n, static_cast<Number>(divisor));
  };
  if constexpr (std::is_floating_point_v<Number>) {
    out.combine_weighed = [](std::byte* to, const std::byte* payload, const std::byte* own,
                             std::size_t n, double weight) {
      run_multiversioned<CombineWeighed<Format>>(to, payload, own, n, static_cast<Number>(weight));
    };
    out.scale = [](std::byte* to, const std::byte* from, std::size_t n, double factor) {
      run_multiversioned<Scale<Format>>(to, from, n, static_cast<Number>(factor));
    };
  }
  return out;
}

}  // namespace

std::string_view to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::kNone:
      return "none";
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kWeightedMean:
      return "weighted_mean";
    case Reduction::kMin:
      return "min";
    case Reduction::kMax:
      return "max";
    case Reduction::kProduct:
      return "product";
  }
  return "unknown";
}

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kSend:
      return "send";
    case Operation::kExchange:
      return "exchange";
  }
  return "unknown";
}

std::string_view to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
      return "auto";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursiveDoubling:
      return "recursive doubling";
    case Algorithm::kChain:
      return "chain";
    case Algorithm::kHierarchical:
      return "hierarchical";
    case Algorithm::kHalvingDoubling:
      return "halving and doubling";
  }
  return "unknown";
}

Result<Arithmetic> arithmetic_of(DType dtype, Reduction reduction) {
  const bool is_complete = dtype == DType::kI32 || dtype == DType::kI64;
  if (is_complete && reduction == Reduction::kWeightedMean) {
    return Error(ErrorCode::kInvalidArgument, "reduction: a weighted mean of " +
                                                  std::string(to_string(dtype)) +
                                                  " would lose its fractions; use f32 or f64");
  }
  switch (dtype) {
    case DType::kF32:
      return with<Plain<float>>(reduction);
    case DType::kF64:
      return with<Plain<double>>(reduction);
    case DType::kF16:
      return with<F16>(reduction);
    case DType::kBF16:
      return with<Bf16>(reduction);
    case DType::kI32:
      return with<Plain<std::int32_t>>(reduction);
    case DType::kI64:
      return with<Plain<std::int64_t>>(reduction);
    case DType::kU8:
      break;
  }
  return Error(ErrorCode::kInvalidArgument,
               "dtype: " + std::string(to_string(dtype)) +
                   " cannot be reduced; f32, f64, bf16, f16, i32 and i64 can");
}

}  // namespace centroid::collective
