#include "worker/model/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <climits>

#include "common/base/log.h"
#include "common/device/host_memory.h"
#include "common/optim/cuda/kernels.h"
#include "worker/model/cuda/attention_cut.h"
#include "worker/model/cuda/kernels.h"
#include "worker/model/cuda/pinned_batches.h"
#include "worker/model/cuda/space.h"

namespace centroid::worker::cuda {

namespace {

/// Work space of cuBLAS, as its documentation recommends for the newest GPUs. Without it cuBLAS
/// allocates its own.
constexpr std::size_t kCublasBytes = 32u << 20;
/// Rows whose logits are in memory at a time: enough for every processor of the largest GPU.
constexpr std::size_t kHeadRows = 4096;

/// The address that a rehearsal returns.
template <class T>
T* nowhere() {
  return reinterpret_cast<T*>(std::uintptr_t{1} << 12);
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(Device& device, Stream& stream, Matmul matmul,
              std::shared_ptr<const cublas::Library> library)
      : device_(device), stream_(stream), library_(std::move(library)) {
    queue_ = {device.processors(), stream.native()};
    compute_ = matmul == Matmul::kF32    ? cublas::kComputeF32
               : matmul == Matmul::kTf32 ? cublas::kComputeTf32
                                         : cublas::kComputeBf16;
  }
  ~CudaBackend() override {
    (void)stream_.wait();  // queued work uses the memory
    if (handle_ != nullptr) (void)library_->destroy(handle_);
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  Status start() {
    CENTROID_TRY(stream_.wait());  // makes it the thread's GPU
    CENTROID_TRY(library_->status_of(library_->create(&handle_), "cublasCreate"));
    CENTROID_ASSIGN(cublas_memory_, device_.allocate(kCublasBytes));
    CENTROID_TRY(said(library_->set_stream(handle_, queue_.stream), "cublasSetStream"));
    CENTROID_TRY(said(library_->set_workspace(handle_, cublas_memory_->data(), kCublasBytes),
                      "cublasSetWorkspace"));
    CENTROID_ASSIGN(totals_, device_.allocate(sizeof(Totals)));
    seen_ = pinned_.take(2 * sizeof(Totals) + sizeof(centroid::cuda::Clip));
    std::ranges::fill(seen_.bytes(), std::byte{0});
    return {};
  }

  /// Without cuBLASLt layers are a product and a kernel.
  Status start_layers(std::shared_ptr<const cublas_lt::Library> library) {
    CENTROID_ASSIGN(auto layers, cublas_lt::ReluLayers::make(std::move(library), compute_,
                                                             cublas_memory_->data(), kCublasBytes,
                                                             device_, stream_));
    CENTROID_TRY(layers->check());
    layers_ = std::move(layers);
    return {};
  }

  // Memory.
  float* work_space(std::size_t count) override {
    if (grow(work_, count * sizeof(float))) return floats(work_);
    return is_rehearsal_ ? nowhere<float>() : nullptr;
  }
  const float* keep(std::span<const float> host) override {
    const auto is_of = [&](const Kept& one) { return one.host == host.data(); };
    if (const auto known = std::ranges::find_if(kept_, is_of); known != kept_.end())
      return floats(known->memory);
    if (is_rehearsal_) {
      masked_ = host;
      return nowhere<float>();
    }
    auto memory = device_.allocate(host.size_bytes());
    if (!memory.ok()) {
      note(std::move(memory).error());
      return nullptr;
    }
    note(stream_.copy((*memory)->data(), reinterpret_cast<const std::byte*>(host.data()),
                      host.size_bytes()));
    kept_.push_back({host.data(), std::move(memory).value()});
    return floats(kept_.back().memory);
  }

  /// One copy for the whole batch, from pinned memory that no earlier copy still reads.
  Inputs bring(const Batch& batch, std::size_t context) override {
    Inputs in;
    std::size_t bytes = 0;
    const auto place = [&](std::size_t of) {
      const std::size_t at = bytes;
      bytes += (of + 63) / 64 * 64;
      return at;
    };
    const std::size_t samples = batch.samples;
    const bool is_here = batch.resident != nullptr;
    const std::size_t x = place(is_here ? 0 : batch.x.size_bytes());
    const std::size_t y = place(is_here ? 0 : batch.y.size_bytes());
    const std::size_t tokens = place(is_here ? 0 : batch.tokens.size_bytes());
    const std::size_t keys = place(context > 0 ? samples * sizeof(std::uint64_t) : 0);
    const std::size_t last = place(context > 0 ? samples * sizeof(std::uint32_t) : 0);
    if (is_here && bytes == 0) return *batch.resident;
    if (is_rehearsal_) {
      (void)grow(batch_, bytes);
      return {nowhere<float>(), nowhere<std::uint32_t>(), nowhere<std::uint32_t>(),
              nowhere<std::uint64_t>(), nowhere<std::uint32_t>()};
    }
    if (!grow(batch_, bytes)) return in;
    std::byte* to = nullptr;
    run([&]() -> Status {
      CENTROID_ASSIGN(to, batches_.next(bytes));
      return {};
    });
    if (to == nullptr) return in;
    const auto put = [&](std::size_t at, const auto& values) {
      if (!values.empty()) std::memcpy(to + at, values.data(), values.size_bytes());
    };
    if (!is_here) {
      put(x, batch.x);
      put(y, batch.y);
      put(tokens, batch.tokens);
    }
    if (context > 0) {
      dropout_keys(batch, {reinterpret_cast<std::uint64_t*>(to + keys), samples});
      last_rows(batch, context, {reinterpret_cast<std::uint32_t*>(to + last), samples});
    }
    run([&] { return stream_.copy(batch_.memory->data(), to, bytes); });
    run([&] { return batches_.note_copy(); });
    const std::byte* const at = batch_.memory->data();
    if (is_here) in = *batch.resident;
    if (!is_here) in.x = reinterpret_cast<const float*>(at + x);
    if (!is_here) in.y = reinterpret_cast<const std::uint32_t*>(at + y);
    if (!is_here) in.tokens = reinterpret_cast<const std::uint32_t*>(at + tokens);
    in.keys = reinterpret_cast<const std::uint64_t*>(at + keys);
    in.last = reinterpret_cast<const std::uint32_t*>(at + last);
    return in;
  }
  void zero(std::size_t elements, float* out) override {
    run([&] { return cuda::zero(elements, out, queue_); });
  }
  void copy(std::size_t elements, const float* in, float* out) override {
    run([&] {
      return stream_.copy(reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(in),
                          elements * sizeof(float));
    });
  }
  void pick_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of, const float* in,
                 float* out) override {
    run([&] { return move_rows(false, rows, width, rows_of, in, out, queue_); });
  }
  void place_rows(std::size_t rows, std::size_t width, const std::uint32_t* rows_of,
                  const float* in, float* out) override {
    run([&] { return move_rows(true, rows, width, rows_of, in, out, queue_); });
  }

  // Matrices. Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T, and transposing does
  // not move memory.
  void gemm(bool transpose_a, bool transpose_b, std::size_t m, std::size_t n, std::size_t k,
            float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb,
            float beta, float* c, std::size_t ldc) override {
    if (m * n == 0 || !fits({m, n, k, lda, ldb, ldc})) return;
    run([&] {
      return said(library_->gemm(handle_, op(transpose_b), op(transpose_a), narrow(n), narrow(m),
                                 narrow(k), &alpha, b, cublas::kFloat32, narrow(ldb), a,
                                 cublas::kFloat32, narrow(lda), &beta, c, cublas::kFloat32,
                                 narrow(ldc), compute_, cublas::kDefaultAlgorithm),
                  "cublasGemmEx");
    });
  }
  void sum_rows(std::size_t rows, std::size_t width, const float* values, float* sums) override {
    if (!grow(scratch_, sum_rows_scratch(rows, width) * sizeof(float))) return;
    run([&] { return cuda::sum_rows(rows, width, values, sums, floats(scratch_), queue_); });
  }

  void layer(Activation activation, std::size_t m, std::size_t n, std::size_t k, const float* x,
             const float* w, const float* bias, float* z, float* slope) override {
    bool is_queued = false;
    if (is_rehearsal_ && activation == Activation::kRelu)
      widest_layer_ = std::max(widest_layer_, n);
    if (layers_ && activation == Activation::kRelu && m * n * k > 0)
      run([&]() -> Status {
        CENTROID_ASSIGN(is_queued, layers_->run(m, n, k, x, w, bias, z));
        return {};
      });
    if (!is_queued) Backend::layer(activation, m, n, k, x, w, bias, z, slope);
  }

  // Loops.
  void add_bias_activate(Activation activation, std::size_t rows, std::size_t width,
                         const float* bias, float* z, float* slope) override {
    const bool is_gelu = activation == Activation::kGelu;
    run([&] { return bias_activate(is_gelu, rows, width, bias, z, slope, queue_); });
  }
  void scale_by_slope(Activation activation, std::size_t elements, const float* output,
                      const float* slope, float* gradient) override {
    const bool is_gelu = activation == Activation::kGelu;
    run([&] {
      return cuda::scale_by_slope(is_gelu, elements, is_gelu ? slope : output, gradient, queue_);
    });
  }
  void drop(const kernels::Dropout& dropout, std::size_t rows, std::size_t width, const float* in,
            float* out) override {
    run([&] { return cuda::drop(on_device(dropout), false, rows, width, in, out, queue_); });
  }
  void add(const kernels::Dropout& dropout, std::size_t rows, std::size_t width, const float* in,
           float* out) override {
    run([&] {
      if (!dropout) return cuda::add(rows * width, in, out, queue_);
      return cuda::drop(on_device(dropout), true, rows, width, in, out, queue_);
    });
  }
  void embed(const kernels::Dropout& dropout, std::size_t rows, const std::uint32_t* tokens,
             std::size_t context, std::size_t width, const float* table, const float* positions,
             float* out) override {
    run([&] {
      return cuda::embed(on_device(dropout), rows, tokens, context, width, table, positions, out,
                         queue_);
    });
  }
  void embed_back(std::size_t rows, const std::uint32_t* tokens, std::size_t width,
                  const float* gradient, float* table) override {
    run([&] { return cuda::embed_back(rows, tokens, width, gradient, table, queue_); });
  }
  void add_norm(const kernels::Norm& norm, const kernels::Dropout& dropout, std::size_t rows,
                std::size_t width, const float* residual, const float* branch, float* x, float* y,
                float* stats) override {
    run([&] {
      return cuda::add_norm({norm.weight, norm.bias}, on_device(dropout), rows, width, residual,
                            branch, x, y, stats, queue_);
    });
  }
  void norm_back(const kernels::Norm& norm, std::size_t rows, std::size_t width, const float* x,
                 const float* stats, const float* dy, float* gradient, float* weight_gradient,
                 float* bias_gradient) override {
    if (!grow(scratch_, norm_back_scratch(rows, width) * sizeof(float))) return;
    run([&] {
      return cuda::norm_back({norm.weight, norm.bias}, rows, width, x, stats, dy, gradient,
                             weight_gradient, bias_gradient, floats(scratch_), queue_);
    });
  }
  void batch_norm(const worker::BatchNorm& norm, Activation activation, float* mean_change,
                  float* var_change, float* out, float* slope) override {
    if (!grow(scratch_, norm_back_scratch(norm.rows, norm.width) * sizeof(float))) return;
    const bool is_gelu = activation == Activation::kGelu;
    run([&] {
      return cuda::batch_norm(on_device(norm), is_gelu, mean_change, var_change, out, slope,
                              floats(scratch_), queue_);
    });
  }
  void batch_norm_back(const worker::BatchNorm& norm, float* gradient, float* weight_gradient,
                       float* bias_gradient) override {
    if (!grow(scratch_, norm_back_scratch(norm.rows, norm.width) * sizeof(float))) return;
    run([&] {
      return cuda::batch_norm_back(on_device(norm), gradient, weight_gradient, bias_gradient,
                                   floats(scratch_), queue_);
    });
  }
  void gelu(std::size_t elements, const float* in, float* out) override {
    run([&] { return cuda::gelu(elements, in, out, queue_); });
  }
  void gelu_back(std::size_t elements, const float* in, float* gradient) override {
    run([&] { return cuda::gelu_back(elements, in, gradient, queue_); });
  }
  void swiglu(std::size_t rows, std::size_t width, const float* gate_up, float* out) override {
    run([&] { return cuda::swiglu(rows, width, gate_up, out, queue_); });
  }
  void swiglu_back(std::size_t rows, std::size_t width, const float* gradient,
                   float* gate_up) override {
    run([&] { return cuda::swiglu_back(rows, width, gradient, gate_up, queue_); });
  }

  std::size_t attention_scratch(std::size_t samples, std::size_t context,
                                std::size_t heads) const override {
    const Cut cut = cut_of(samples, context, heads);
    return 2 * cut.samples * heads * cut.queries * context;
  }
  void attend(const Attention& attention, float* out) override;
  void attend_back(const Attention& attention, const float* out, const float* dout, float* delta,
                   float* dqkv) override;

  std::size_t head_rows() const override { return kHeadRows; }
  void cross_entropy(std::size_t rows, std::size_t classes, const std::uint32_t* labels,
                     const float* bias, float share, bool needs_gradient, float* logits) override {
    if (!grow(losses_, rows * (sizeof(float) + sizeof(std::uint32_t)))) return;
    float* const losses = floats(losses_);
    auto* const correct = reinterpret_cast<std::uint32_t*>(losses + rows);
    auto* const totals = reinterpret_cast<Totals*>(totals_->data());
    run([&] {
      return cuda::cross_entropy(labels, rows, classes, bias, share, needs_gradient, logits, losses,
                                 correct, queue_);
    });
    run([&] { return add_up(labels, rows, losses, correct, totals, queue_); });
  }
  void update(const Update& step) override {
    centroid::cuda::UpdateArguments of{.rule = step.rule,
                                       .n = step.elements,
                                       .gradient = step.gradient,
                                       .params = step.params,
                                       .slots = step.slots};
    if (step.clip_norm > 0) {
      if (!grow(scratch_, centroid::cuda::clip_bytes(of.n))) return;
      of.factor = &reinterpret_cast<const centroid::cuda::Clip*>(scratch_.memory->data())->factor;
      run([&] {
        return centroid::cuda::clip(of.gradient, of.n, step.clip_norm, scratch_.memory->data(),
                                    queue_);
      });
    }
    run([&] { return centroid::cuda::update(of, queue_); });
  }
  double norm(const float* numbers, std::size_t elements) override {
    using centroid::cuda::Clip;
    if (!grow(scratch_, centroid::cuda::clip_bytes(elements))) return 0;
    run([&] { return stream_.wait(); });  // makes it the thread's GPU
    std::byte* const scratch = scratch_.memory->data();
    run([&] { return centroid::cuda::clip(numbers, elements, 0, scratch, queue_); });
    std::byte* const seen = seen_.data() + 2 * sizeof(Totals);
    run([&] { return stream_.copy(seen, scratch, sizeof(Clip)); });
    note(stream_.wait());
    return failed_ ? 0 : reinterpret_cast<const Clip*>(seen)->norm;
  }
  Result<Memory> rehearse(const std::function<void()>& steps) override {
    if (failed_) return *failed_;
    for (Space* const space : spaces()) space->wanted = 0;
    {
      const Rehearsal end{is_rehearsal_ = true};
      steps();
    }
    if (failed_) return *std::exchange(failed_, std::nullopt);
    Memory memory;
    if (layers_) memory.taken = layers_->reserved();
    for (const Kept& kept : kept_) memory.taken += kept.memory->size();
    memory.needed = memory.alone = memory.taken + masked_.size_bytes();
    if (const std::uint64_t row = widest_layer_ * sizeof(float); layers_) {
      const std::uint64_t more = row - std::min(row, layers_->reserved());
      memory.needed += more;
      memory.alone += more;
    }
    for (const Space* const space : spaces()) {
      memory.needed += std::max(space->wanted, space->size());
      memory.alone += space->wanted;
      memory.taken += space->size();
    }
    return memory;
  }
  Status reserve() override {
    for (Space* const space : spaces()) (void)grow(*space, space->wanted);
    if (!masked_.empty()) (void)keep(std::exchange(masked_, {}));
    if (batch_.wanted > 0) run([&] { return batches_.reserve(batch_.wanted); });
    if (layers_) run([&] { return layers_->reserve(widest_layer_); });
    note(stream_.wait());
    return status();
  }
  StepResult result() override {
    auto* const seen = reinterpret_cast<Totals*>(seen_.data());  // followed by zeros
    run([&] { return stream_.copy(seen_.data(), totals_->data(), sizeof(Totals)); });
    run([&] {
      return stream_.copy(totals_->data(), seen_.data() + sizeof(Totals), sizeof(Totals));
    });
    note(stream_.wait());
    if (failed_) return {};
    return {seen->loss, seen->correct, seen->targets};
  }
  Status status() const override { return failed_ ? Status(*failed_) : Status(); }

 private:
  static int op(bool is_transposed) {
    return is_transposed ? cublas::kTranspose : cublas::kNoTranspose;
  }
  static int narrow(std::size_t n) { return static_cast<int>(n); }
  static Dropout on_device(const kernels::Dropout& d) {
    return {d.threshold, d.scale, d.keys.data(), d.context, d.site};
  }
  static BatchNorm on_device(const worker::BatchNorm& n) {
    return {n.rows, n.width, n.z, n.weight, n.bias, n.running_mean, n.running_var, n.moments};
  }
  bool fits(std::initializer_list<std::size_t> sizes) {
    if (std::max(sizes) <= INT_MAX) return true;
    note(Error(ErrorCode::kInvalidArgument,
               device_.name() + ": a matrix has more than 2^31 - 1 rows or columns"));
    return false;
  }

  void note(Status status) {
    if (!status.ok() && !failed_)
      failed_ = std::move(status).error().with_context("device " + device_.name());
  }
  template <class Call>
  void run(const Call& call) {
    if (!failed_ && !is_rehearsal_) note(call());
  }
  Status said(int code, const char* what) const { return library_->status_of(code, what); }

  std::array<Space*, 5> spaces() { return {&work_, &batch_, &scratch_, &losses_, &pointers_}; }
  struct Rehearsal {
    bool& is_now;
    ~Rehearsal() { is_now = false; }
  };

  /// Grow to at least `bytes`. Waits for queued work before old memory is freed. Never needed for
  /// rehearsed steps.
  bool grow(Space& space, std::size_t bytes) {
    if (failed_) return false;
    if (is_rehearsal_) {
      space.wanted = std::max(space.wanted, bytes);
      return false;
    }
    auto& memory = space.memory;
    if (memory && memory->size() >= bytes) return true;
    note(stream_.wait());
    memory.reset();
    auto made = device_.allocate(bytes);
    if (!made.ok()) {
      note(std::move(made).error());
      return false;
    }
    memory = std::move(made).value();
    return !failed_;
  }
  /// C = alpha op(A) op(B) + beta C for every head of some samples; row-major.
  struct Product {
    bool transpose_a = false, transpose_b = false;
    std::size_t m = 0, n = 0, k = 0;
    Many a;
    std::size_t lda = 0;
    Many b;
    std::size_t ldb = 0;
    float beta = 0;
    Many c;
    std::size_t ldc = 0;
  };
  void multiply(const Product& p, std::size_t samples, std::size_t heads);

  Device& device_;
  Stream& stream_;
  Queue queue_;
  int compute_ = cublas::kComputeF32;
  std::shared_ptr<const cublas::Library> library_;
  cublas::Handle handle_ = nullptr;
  std::unique_ptr<cublas_lt::ReluLayers> layers_;
  std::unique_ptr<DeviceMemory> cublas_memory_, totals_;
  Space work_, batch_, scratch_, losses_, pointers_;
  HostMemory pinned_{device_, std::numeric_limits<std::size_t>::max()};
  PinnedBatches batches_{device_, stream_};
  Buffer seen_;  // of the host: losses, zeros and a norm
  struct Kept {
    const float* host = nullptr;
    std::unique_ptr<DeviceMemory> memory;
  };
  std::vector<Kept> kept_;
  // Of a rehearsal:
  bool is_rehearsal_ = false;
  std::span<const float> masked_;
  std::size_t widest_layer_ = 0;
  std::optional<Error> failed_;
};

void CudaBackend::multiply(const Product& p, std::size_t samples, std::size_t heads) {
  const std::size_t count = samples * heads;
  if (count * p.m * p.n == 0 || !fits({count, p.m, p.n, p.k, p.lda, p.ldb, p.ldc})) return;
  // For batches cuBLAS chooses a kernel before it knows the addresses, and its fast kernels require
  // alignment to 16 bytes. Unaligned matrices are multiplied one by one.
  const auto is_even = [](const Many& of) {
    return reinterpret_cast<std::uintptr_t>(of.first) % 16 == 0 && of.of_sample % 4 == 0 &&
           of.of_head % 4 == 0;
  };
  if (!is_even(p.a) || !is_even(p.b) || !is_even(p.c)) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = [&](const Many& of) {
        return const_cast<float*>(of.first) + i / heads * of.of_sample + i % heads * of.of_head;
      };
      gemm(p.transpose_a, p.transpose_b, p.m, p.n, p.k, 1, at(p.a), p.lda, at(p.b), p.ldb, p.beta,
           at(p.c), p.ldc);
    }
    return;
  }
  if (!grow(pointers_, 3 * count * sizeof(float*))) return;
  auto* const pointers = reinterpret_cast<const float**>(pointers_.memory->data());
  run([&] { return point(samples, heads, p.a, p.b, p.c, pointers, queue_); });
  run([&] {
    constexpr float kOne = 1;
    const auto* const a = reinterpret_cast<const void* const*>(pointers);
    auto* const c = reinterpret_cast<void* const*>(pointers_.memory->data()) + 2 * count;
    return said(library_->gemm_batched(handle_, op(p.transpose_b), op(p.transpose_a), narrow(p.n),
                                       narrow(p.m), narrow(p.k), &kOne, a + count, cublas::kFloat32,
                                       narrow(p.ldb), a, cublas::kFloat32, narrow(p.lda), &p.beta,
                                       c, cublas::kFloat32, narrow(p.ldc), narrow(count), compute_,
                                       cublas::kDefaultAlgorithm),
                "cublasGemmBatchedEx");
  });
}

void CudaBackend::attend(const Attention& a, float* out) {
  const std::size_t width = a.heads * a.head_width, stride = 3 * width, t = a.context;
  const Cut cut = cut_of(a.samples, t, a.heads);
  for (std::size_t first = 0; first < a.samples; first += cut.samples) {
    const std::size_t samples = std::min(cut.samples, a.samples - first), row = first * t;
    const float* const qkv = a.qkv + row * stride;
    const auto input = [&](std::size_t which, std::size_t from) {  // 0: queries, keys, values
      return Many{qkv + which * width + from * stride, t * stride, a.head_width};
    };
    for (std::size_t begin = 0; begin < t; begin += cut.queries) {
      const std::size_t rows = std::min(cut.queries, t - begin), keys = begin + rows;
      const Many scores{a.scratch, a.heads * rows * keys, rows * keys};
      multiply({false, true, rows, keys, a.head_width, input(0, begin), stride, input(1, 0), stride,
                0, scores, keys},
               samples, a.heads);
      const RowNumbers numbers{a.heads, t * a.heads, a.heads};
      run([&] {
        return causal_softmax(samples * a.heads, rows, begin, keys, scale_of(a.head_width),
                              a.scratch, a.lse + (row + begin) * a.heads, numbers, queue_);
      });
      const Many to{out + (row + begin) * width, t * width, a.head_width};
      multiply(
          {false, false, rows, a.head_width, keys, scores, keys, input(2, 0), stride, 0, to, width},
          samples, a.heads);
    }
  }
}

void CudaBackend::attend_back(const Attention& a, const float* out, const float* dout, float* delta,
                              float* dqkv) {
  const std::size_t width = a.heads * a.head_width, stride = 3 * width, t = a.context;
  run([&] { return head_dots(a.samples * t * a.heads, a.head_width, out, dout, delta, queue_); });
  const Cut cut = cut_of(a.samples, t, a.heads);
  const std::size_t blocks = (t + cut.queries - 1) / cut.queries;
  for (std::size_t first = 0; first < a.samples; first += cut.samples) {
    const std::size_t samples = std::min(cut.samples, a.samples - first), row = first * t;
    const auto part = [&](const auto* base, std::size_t which, std::size_t from) {
      return Many{base + row * stride + which * width + from * stride, t * stride, a.head_width};
    };
    // Begin with the last block: it attends to all keys, so it overwrites and the others add.
    for (std::size_t block = blocks; block > 0; --block) {
      const std::size_t begin = (block - 1) * cut.queries;
      const std::size_t rows = std::min(cut.queries, t - begin), keys = begin + rows;
      float* const dp = a.scratch + samples * a.heads * rows * keys;
      const Many p{a.scratch, a.heads * rows * keys, rows * keys};
      const Many ds{dp, a.heads * rows * keys, rows * keys};
      const Many g{dout + (row + begin) * width, t * width, a.head_width};
      const float onto = block == blocks ? 0.0F : 1.0F;
      multiply({false, true, rows, keys, a.head_width, part(a.qkv, 0, begin), stride,
                part(a.qkv, 1, 0), stride, 0, p, keys},
               samples, a.heads);
      multiply(
          {false, true, rows, keys, a.head_width, g, width, part(a.qkv, 2, 0), stride, 0, ds, keys},
          samples, a.heads);
      const std::size_t at = (row + begin) * a.heads;
      run([&] {
        return causal_softmax_back(samples * a.heads, rows, begin, keys, scale_of(a.head_width),
                                   a.lse + at, delta + at, {a.heads, t * a.heads, a.heads},
                                   a.scratch, dp, queue_);
      });
      multiply({true, false, keys, a.head_width, rows, p, keys, g, width, onto, part(dqkv, 2, 0),
                stride},
               samples, a.heads);
      multiply({true, false, keys, a.head_width, rows, ds, keys, part(a.qkv, 0, begin), stride,
                onto, part(dqkv, 1, 0), stride},
               samples, a.heads);
      multiply({false, false, rows, a.head_width, keys, ds, keys, part(a.qkv, 1, 0), stride, 0,
                part(dqkv, 0, begin), stride},
               samples, a.heads);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(
    Device& device, Stream& stream, Matmul matmul, std::shared_ptr<const cublas::Library> library,
    std::shared_ptr<const cublas_lt::Library> layers) {
  auto backend = std::make_unique<CudaBackend>(device, stream, matmul, std::move(library));
  if (auto status = backend->start(); !status.ok())
    return std::move(status).error().with_context("device " + device.name());
  if (layers != nullptr)
    if (const auto status = backend->start_layers(std::move(layers)); !status.ok())
      log::warn("cublaslt.disabled", {{"device", device.name()},
                                      {"why", status.error()},
                                      {"instead", "bias and ReLU are a pass after the product"}});
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace centroid::worker::cuda
