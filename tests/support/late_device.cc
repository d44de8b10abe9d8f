#include "tests/support/late_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/support/late_cublas_lt.h"
#include "tests/support/simt.h"
#include "worker/model/cuda/cuda_backend.h"

namespace centroid::simt {

namespace {

using Clock = std::chrono::steady_clock;
using Task = std::function<bool()>;

class LateStream;

/// State that all devices share: simt runs one kernel at a time.
struct World {
  std::mutex mutex;
  std::vector<LateStream*> streams;
  CounterRng random{1};
  std::uint64_t copies_to_failure = 0;
  Traffic traffic;
  std::size_t pushed = 0;  // unfinished pushed work
  std::size_t pinned = 0, most_pinned = std::size_t{1} << 40;
  std::byte* arena = nullptr;
  std::size_t freed = 0, used = 0;  // of the arena; what lies between may be in use
  std::size_t live = 0;             // allocations
};
constexpr std::size_t kArenaBytes = std::size_t{16} << 30;  // of addresses

World& world() {
  static World only;
  return only;
}

std::byte* arena() {
  World& w = world();
  if (w.arena == nullptr) {
    void* const at =
        ::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) fail("no addresses for the devices' memory");
    w.arena = static_cast<std::byte*>(at);
  }
  return w.arena;
}

bool is_on_device(const std::byte* at) { return at >= arena() && at < arena() + kArenaBytes; }

/// Makes the devices' memory accessible for its lifetime, while tasks run.
class Opened {
 public:
  Opened() { protect(PROT_READ | PROT_WRITE); }
  ~Opened() { protect(PROT_NONE); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

 private:
  static void protect(int how) {
    const World& w = world();
    if (w.used > w.freed && ::mprotect(arena() + w.freed, w.used - w.freed, how) != 0)
      fail("mprotect refuses the devices' memory");
  }
};

class LateStream final : public Stream, public Queue {
 public:
  LateStream() {
    const std::lock_guard lock(world().mutex);
    world().streams.push_back(this);
  }
  ~LateStream() override {
    (void)wait();
    const std::lock_guard lock(world().mutex);
    std::erase(world().streams, this);
  }
  LateStream(const LateStream&) = delete;
  LateStream& operator=(const LateStream&) = delete;

  void push(Task task) override {
    const std::lock_guard lock(world().mutex);
    tasks_.push_back(std::move(task));
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    {
      const std::lock_guard lock(world().mutex);
      if (world().copies_to_failure > 0 && --world().copies_to_failure == 0)
        return Error(ErrorCode::kInternal, "cudaMemcpyAsync: an illegal memory access");
      const bool from_device = is_on_device(from), into_device = is_on_device(to);
      if (into_device && !from_device) world().traffic.to_device += bytes;
      if (from_device && !into_device) world().traffic.to_host += bytes;
    }
    push([=] {
      if (bytes > 0) std::memmove(to, from, bytes);
      return true;
    });
    return {};
  }
  Result<bool> done() override;
  Status wait() override;
  void* native() const override { return static_cast<Queue*>(const_cast<LateStream*>(this)); }

  std::deque<Task> tasks_;  // under the world's mutex
};

/// Run one task of some stream; false: none can run. Call with the mutex.
bool progress(std::optional<Opened>& opened) {
  World& w = world();
  if (w.streams.empty()) return false;
  const std::size_t first = w.random.below(w.streams.size());
  for (std::size_t i = 0; i < w.streams.size(); ++i) {
    LateStream& stream = *w.streams[(first + i) % w.streams.size()];
    if (stream.tasks_.empty()) continue;
    if (!opened) opened.emplace();
    if (!stream.tasks_.front()()) continue;
    stream.tasks_.pop_front();
    return true;
  }
  return false;
}

/// Poll `over` after some tasks have run.
template <class Over>
bool is_over(const Over& over) {
  constexpr std::uint64_t kMost = 12;
  const std::lock_guard lock(world().mutex);
  std::optional<Opened> opened;  // once for all these tasks: it is slow
  for (std::uint64_t moves = world().random.below(kMost); moves > 0; --moves)
    if (!progress(opened)) break;
  return over();
}

template <class Over>
Status wait_until(const Over& over) {
  const auto deadline = Clock::now() + std::chrono::seconds(60);
  {
    const std::lock_guard lock(world().mutex);
    if (!over()) ++world().traffic.waits;
  }
  while (!is_over(over)) {
    if (Clock::now() > deadline)
      return Error(ErrorCode::kDeadlineExceeded, "a stream stands still for 60 s");
    std::this_thread::yield();
  }
  return {};
}

Result<bool> LateStream::done() {
  return is_over([this] { return tasks_.empty(); });
}
Status LateStream::wait() {
  return wait_until([this] { return tasks_.empty(); });
}

class LateEvent final : public StreamEvent {
 public:
  Status record(Stream& stream) override {
    const std::uint64_t number = ++recorded_;
    queue_of(stream).push([reached = reached_, number] {
      *reached = std::max(*reached, number);
      return true;
    });
    return {};
  }
  Status hold(Stream& stream) override {
    queue_of(stream).push([reached = reached_, number = recorded_] { return *reached >= number; });
    return {};
  }
  Result<bool> done() override {
    return is_over([this] { return *reached_ >= recorded_; });
  }
  Status wait() override {
    return wait_until([this] { return *reached_ >= recorded_; });
  }

 private:
  static Queue& queue_of(Stream& stream) { return *static_cast<Queue*>(stream.native()); }
  std::uint64_t recorded_ = 0;
  std::shared_ptr<std::uint64_t> reached_ = std::make_shared<std::uint64_t>(0);
};

/// Call with the mutex.
void note_allocation() {
  World& w = world();
  ++w.traffic.allocations;
  if (w.pushed > 0) ++w.traffic.beside;
}

class LateMemory final : public DeviceMemory {
 public:
  LateMemory(std::byte* data, std::size_t size, std::shared_ptr<std::atomic<std::size_t>> used)
      : data_(data), size_(size), used_(std::move(used)) {
    *used_ += size_;
  }
  ~LateMemory() override {
    const std::lock_guard lock(world().mutex);
    *used_ -= size_;
    World& w = world();
    if (--w.live > 0) return;
    ::madvise(arena() + w.freed, w.used - w.freed, MADV_DONTNEED);
    w.freed = w.used;
  }
  LateMemory(const LateMemory&) = delete;
  LateMemory& operator=(const LateMemory&) = delete;
  std::byte* data() const override { return data_; }
  std::size_t size() const override { return size_; }

 private:
  std::byte* data_;
  std::size_t size_;
  std::shared_ptr<std::atomic<std::size_t>> used_;
};

/// Counted pinned memory of the host.
class PinnedMemory final : public DeviceMemory {
 public:
  explicit PinnedMemory(std::unique_ptr<DeviceMemory> of) : memory_(std::move(of)) {}
  ~PinnedMemory() override {
    const std::lock_guard lock(world().mutex);
    world().pinned -= size();
    if (world().pushed > 0) ++world().traffic.beside;
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const override { return memory_->data(); }
  std::size_t size() const override { return memory_->size(); }

 private:
  std::unique_ptr<DeviceMemory> memory_;
};

class LateDevice final : public Device {
 public:
  LateDevice(unsigned number, std::size_t bytes)
      : name_("cuda:" + std::to_string(number)), bytes_(bytes) {}
  std::string name() const override { return name_; }
  bool is_host() const override { return false; }
  unsigned processors() const override { return 2; }

  /// Returns addresses that were never used before, so the memory is zero.
  Result<std::unique_ptr<DeviceMemory>> allocate(std::size_t bytes) override {
    const std::lock_guard lock(world().mutex);
    World& w = world();
    const std::size_t taken = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
    if (bytes > bytes_ - std::min(bytes_, used_->load()) || taken > kArenaBytes - w.used)
      return Error(ErrorCode::kResourceExhausted, "cudaMallocFromPoolAsync: out of memory")
          .with_context(name_ + ": " + std::to_string(bytes) + " bytes");
    note_allocation();
    std::byte* const at = arena() + w.used;
    w.used += taken;
    ++w.live;
    return std::unique_ptr<DeviceMemory>(new LateMemory(at, bytes, used_));
  }
  Result<std::unique_ptr<DeviceMemory>> allocate_pinned(std::size_t bytes) override {
    const std::lock_guard lock(world().mutex);
    World& w = world();
    if (bytes > w.most_pinned - std::min(w.most_pinned, w.pinned))
      return Error(ErrorCode::kResourceExhausted, "cudaHostAlloc: out of memory")
          .with_context(name_ + ": " + std::to_string(bytes) + " bytes");
    CENTROID_ASSIGN(auto memory, host_->allocate(bytes));
    w.pinned += bytes;
    note_allocation();
    return std::unique_ptr<DeviceMemory>(new PinnedMemory(std::move(memory)));
  }
  Result<std::unique_ptr<Stream>> make_stream(Priority) override {
    return std::unique_ptr<Stream>(new LateStream);
  }
  Result<std::unique_ptr<StreamEvent>> make_event() override {
    return std::unique_ptr<StreamEvent>(new LateEvent);
  }
  Result<DeviceRoom> room() const override {
    return DeviceRoom{bytes_ - std::min(bytes_, used_->load()), bytes_};
  }
  Status share_with(Device& other) override {
    const std::lock_guard lock(world().mutex);
    world().traffic.shared += name_ + ">" + other.name() + " ";
    return {};
  }

 private:
  std::string name_;
  std::size_t bytes_;
  std::shared_ptr<std::atomic<std::size_t>> used_ = std::make_shared<std::atomic<std::size_t>>(0);
  std::unique_ptr<Device> host_ = make_device("cpu").value();
};

// cuBLAS.

using worker::cublas::Handle;
using worker::cublas::kFloat32;
using worker::cublas::kSuccess;
constexpr int kInvalidValue = 7;
std::atomic<int> computed_as{0};

struct Context {
  void* stream = nullptr;
  bool has_workspace = false;
};
Context& context_of(Handle handle) { return *reinterpret_cast<Context*>(handle); }

struct Gemm {
  bool transpose_a, transpose_b;
  std::size_t m, n, k;
  float alpha;
  std::size_t lda, ldb;
  float beta;
  std::size_t ldc;

  void run(const float* a, const float* b, float* c) const {
    for (std::size_t j = 0; j < n; ++j)
      for (std::size_t i = 0; i < m; ++i) {
        double sum = 0;
        for (std::size_t l = 0; l < k; ++l)
          sum += double{a[transpose_a ? l + i * lda : i + l * lda]} *
                 double{b[transpose_b ? j + l * ldb : l + j * ldb]};
        float& out = c[i + j * ldc];
        out = static_cast<float>(alpha * sum + (beta == 0 ? 0 : beta * double{out}));
      }
  }
};

/// Check the arguments as cuBLAS does, and read the product.
bool read_arguments(int op_a, int op_b, int m, int n, int k, const void* alpha, int type_a, int lda,
                    int type_b, int ldb, const void* beta, int type_c, int ldc, int compute,
                    Gemm& out) {
  const auto at_least = [](int stride, int rows) { return stride >= std::max(rows, 1); };
  const bool is_known = (op_a | op_b) <= 1 && m >= 0 && n >= 0 && k >= 0 && type_a == kFloat32 &&
                        type_b == kFloat32 && type_c == kFloat32;
  if (!is_known || !at_least(lda, op_a == 0 ? m : k) || !at_least(ldb, op_b == 0 ? k : n) ||
      !at_least(ldc, m))
    return false;
  computed_as = compute;
  const auto size = [](int of) { return static_cast<std::size_t>(of); };
  out = {op_a == 1, op_b == 1, size(m),
         size(n),   size(k),   *static_cast<const float*>(alpha),
         size(lda), size(ldb), *static_cast<const float*>(beta),
         size(ldc)};
  return true;
}

int gemm(Handle handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a,
         int type_a, int lda, const void* b, int type_b, int ldb, const void* beta, void* c,
         int type_c, int ldc, int compute, int) {
  Gemm of{};
  if (!context_of(handle).has_workspace ||
      !read_arguments(op_a, op_b, m, n, k, alpha, type_a, lda, type_b, ldb, beta, type_c, ldc,
                      compute, of))
    return kInvalidValue;
  static_cast<Queue*>(context_of(handle).stream)->push([=] {
    of.run(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
    return true;
  });
  return kSuccess;
}

int gemm_batched(Handle handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                 const void* const a[], int type_a, int lda, const void* const b[], int type_b,
                 int ldb, const void* beta, void* const c[], int type_c, int ldc, int count,
                 int compute, int) {
  Gemm of{};
  if (count < 0 || !context_of(handle).has_workspace ||
      !read_arguments(op_a, op_b, m, n, k, alpha, type_a, lda, type_b, ldb, beta, type_c, ldc,
                      compute, of))
    return kInvalidValue;
  static_cast<Queue*>(context_of(handle).stream)->push([=] {
    const auto is_odd = [](const void* at) {
      return reinterpret_cast<std::uintptr_t>(at) % 16 != 0;
    };
    for (int i = 0; i < count; ++i) {
      // It chooses a kernel before it knows the addresses.
      if (is_odd(a[i]) || is_odd(b[i]) || is_odd(c[i]))
        fail("a matrix of cublasGemmBatchedEx is not on a 16-byte boundary");
      of.run(static_cast<const float*>(a[i]), static_cast<const float*>(b[i]),
             static_cast<float*>(c[i]));
    }
    return true;
  });
  return kSuccess;
}

}  // namespace

std::unique_ptr<Device> make_late_device(unsigned number, std::size_t bytes) {
  return std::make_unique<LateDevice>(number, bytes);
}

void use_stream_seed(std::uint64_t seed) {
  const std::lock_guard lock(world().mutex);
  world().random = CounterRng(seed, 1);
}

void fail_copy(std::uint64_t count) {
  const std::lock_guard lock(world().mutex);
  world().copies_to_failure = count;
}

void limit_pinned(std::size_t bytes) {
  const std::lock_guard lock(world().mutex);
  world().most_pinned = bytes;
}

Traffic traffic() {
  const std::lock_guard lock(world().mutex);
  return world().traffic;
}

void push(void* stream, bool (*poll)(void*), void* of) {
  {
    const std::lock_guard lock(world().mutex);
    ++world().pushed;
  }
  static_cast<Queue*>(stream)->push([poll, of] {
    if (!poll(of)) return false;
    --world().pushed;
    return true;
  });
}

std::shared_ptr<const worker::cublas::Library> host_cublas() {
  const auto library = std::make_shared<worker::cublas::Library>();
  library->create = [](Handle* out) {
    *out = reinterpret_cast<Handle>(new Context);
    return kSuccess;
  };
  library->destroy = [](Handle handle) {
    delete &context_of(handle);
    return kSuccess;
  };
  library->set_stream = [](Handle handle, void* stream) {
    context_of(handle) = {stream, false};  // cuBLAS forgets the work space
    return kSuccess;
  };
  library->set_workspace = [](Handle handle, void* memory, std::size_t) {
    context_of(handle).has_workspace = memory != nullptr;
    return kSuccess;
  };
  library->gemm = gemm;
  library->gemm_batched = gemm_batched;
  library->status_text = [](int) { return "CUBLAS_STATUS_INVALID_VALUE"; };
  return library;
}

int last_compute() { return computed_as; }

Result<worker::Compute> open_late(const std::string& spec, worker::Matmul matmul) {
  if (!spec.starts_with("cuda:")) return worker::open_compute(spec, matmul);
  worker::Compute out;
  out.device = make_late_device(static_cast<unsigned>(std::stoul(spec.substr(5))));
  CENTROID_ASSIGN(out.stream, out.device->make_stream());
  CENTROID_ASSIGN(out.backend, worker::cuda::make_cuda_backend(*out.device, *out.stream, matmul,
                                                               host_cublas(), host_cublas_lt()));
  return out;
}

}  // namespace centroid::simt
