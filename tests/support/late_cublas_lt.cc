#include "tests/support/late_cublas_lt.h"

#include <array>
#include <atomic>
#include <cstring>

#include "tests/support/simt.h"
#include "worker/model/cuda/cublas.h"

namespace centroid::simt {

namespace {

namespace lt = worker::cublas_lt;
constexpr int kInvalidValue = 7, kNotSupported = 15, kExecutionFailed = 13;
std::atomic<LtMode> mode{LtMode::kGood};
std::atomic<std::uint64_t> products{0};

struct ProductOf {
  std::int32_t transpose_a = 0, epilogue = 1;
  const float* bias = nullptr;
};
struct LayoutOf {
  std::uint64_t rows, columns;
};
struct PreferenceOf {
  std::uint64_t workspace = 0;
  std::array<std::uint32_t, 4> lines{256, 256, 256, 256};  // of A, B, C and D
};

template <class T, class Handle>
T& at(Handle handle) {
  return *reinterpret_cast<T*>(handle);
}
template <class T, class Handle>
int make(Handle* out, T of) {
  *out = reinterpret_cast<Handle>(new T(of));
  return 0;
}
template <class T, class Handle>
int destroy(Handle handle) {
  delete &at<T>(handle);
  return 0;
}
template <class T>
int read(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof to) return kInvalidValue;
  std::memcpy(&to, value, bytes);
  return 0;
}

int product_set(lt::Product product, int attribute, const void* value, std::size_t bytes) {
  auto& of = at<ProductOf>(product);
  if (attribute == lt::kTransposeA) return read(of.transpose_a, value, bytes);
  if (attribute == lt::kEpilogue) return read(of.epilogue, value, bytes);
  if (attribute == lt::kBiasPointer) return read(of.bias, value, bytes);
  return kInvalidValue;
}
int preference_set(lt::Preference preference, int attribute, const void* value, std::size_t bytes) {
  auto& of = at<PreferenceOf>(preference);
  if (attribute == lt::kMaxWorkspace) return read(of.workspace, value, bytes);
  const int which = attribute - lt::kMinAlignmentA;
  return which < 0 || which > 3 ? kInvalidValue
                                : read(of.lines[static_cast<std::size_t>(which)], value, bytes);
}

/// D [n, m] = relu(A^T [n, k] B [k, m] + bias).
bool is_right(const ProductOf& product, const LayoutOf& a, const LayoutOf& b, const LayoutOf& c,
              const LayoutOf& d) {
  return product.transpose_a == 1 && product.epilogue == lt::kReluBias && product.bias != nullptr &&
         a.rows == b.rows && a.columns == d.rows && b.columns == d.columns && c.rows == d.rows &&
         c.columns == d.columns;
}

int find(lt::Handle, lt::Product product, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d,
         lt::Preference preference, int most, lt::Found* found, int* count) {
  *count = 0;
  if (most < 1 || !is_right(at<ProductOf>(product), at<LayoutOf>(a), at<LayoutOf>(b),
                            at<LayoutOf>(c), at<LayoutOf>(d)))
    return kInvalidValue;
  if (mode == LtMode::kNoAlgorithm) return kNotSupported;
  const PreferenceOf& of = at<PreferenceOf>(preference);
  for (std::size_t i = 0; i < of.lines.size(); ++i) found->algorithm.data[i] = of.lines[i];
  found->workspace_bytes = of.workspace;
  found->state = 0;
  *count = 1;
  return 0;
}

int multiply(lt::Handle, lt::Product product, const void* alpha, const void* a, lt::Layout of_a,
             const void* b, lt::Layout of_b, const void* beta, const void* c, lt::Layout of_c,
             void* d, lt::Layout of_d, const lt::Algorithm* algorithm, void* workspace,
             std::size_t bytes, void* stream) {
  const ProductOf of = at<ProductOf>(product);
  const LayoutOf left = at<LayoutOf>(of_a), right = at<LayoutOf>(of_b);
  const std::array<const void*, 4> all{a, b, c, d};
  for (std::size_t i = 0; i < all.size(); ++i)
    if (reinterpret_cast<std::uintptr_t>(all[i]) % algorithm->data[i] != 0) return kInvalidValue;
  const bool is_plain =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0 && c == d;
  if (!is_plain || !is_right(of, left, right, at<LayoutOf>(of_c), at<LayoutOf>(of_d)) ||
      (bytes > 0 && workspace == nullptr))
    return kInvalidValue;
  const LtMode how = mode;
  if (how == LtMode::kFails) return kExecutionFailed;
  const bool is_square = left.columns == 16 && right.columns == 16 && left.rows == 16;
  if (how == LtMode::kNotSupported && !is_square) return kNotSupported;
  const bool hides_nan = how == LtMode::kHidesNan || (how == LtMode::kHidesNanLater && !is_square);
  ++products;
  static_cast<Queue*>(stream)->push([=] {
    const std::uint64_t n = left.columns, m = right.columns, k = left.rows;
    for (std::uint64_t j = 0; j < m; ++j)
      for (std::uint64_t i = 0; i < n; ++i) {
        double sum = how == LtMode::kWrong ? 0 : double{of.bias[i]};
        for (std::uint64_t l = 0; l < k; ++l)
          sum += double{static_cast<const float*>(a)[l + i * k]} *
                 double{static_cast<const float*>(b)[l + j * k]};
        const bool is_zero = hides_nan ? !(sum > 0) : sum < 0;
        static_cast<float*>(d)[i + j * n] = is_zero ? 0.0F : static_cast<float>(sum);
      }
    return true;
  });
  return 0;
}

}  // namespace

std::shared_ptr<const lt::Library> host_cublas_lt() {
  const auto library = std::make_shared<lt::Library>();
  library->create = [](lt::Handle* out) { return make(out, 0); };
  library->destroy = destroy<int, lt::Handle>;
  library->product_create = [](lt::Product* out, int, int scale) {
    return scale == worker::cublas::kFloat32 ? make(out, ProductOf{}) : kInvalidValue;
  };
  library->product_set = product_set;
  library->product_destroy = destroy<ProductOf, lt::Product>;
  library->layout_create = [](lt::Layout* out, int type, std::uint64_t rows, std::uint64_t columns,
                              std::int64_t stride) {
    const bool is_dense = stride == static_cast<std::int64_t>(rows);
    return type == worker::cublas::kFloat32 && is_dense ? make(out, LayoutOf{rows, columns})
                                                        : kInvalidValue;
  };
  library->layout_destroy = destroy<LayoutOf, lt::Layout>;
  library->preference_create = [](lt::Preference* out) { return make(out, PreferenceOf{}); };
  library->preference_set = preference_set;
  library->preference_destroy = destroy<PreferenceOf, lt::Preference>;
  library->find = find;
  library->multiply = multiply;
  library->status_text = [](int) { return "CUBLAS_STATUS_EXECUTION_FAILED"; };
  return library;
}

void use_lt_mode(LtMode how) { mode = how; }
std::uint64_t lt_products() { return products; }

}  // namespace centroid::simt
