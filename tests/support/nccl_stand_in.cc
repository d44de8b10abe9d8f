// A shared library with NCCL's entry points for machines without GPUs: the ranks of one process add
// in host memory, each rank's operations in order on a thread in place of its stream, or on the
// streams of tests/support/late_device.h. Tests observe and break it through the stand_in_
// functions.

#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSuccess = 0, kUnhandledCudaError = 1, kInvalidUsage = 5, kFirstOwnOp = 5;
enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast };

struct Operation {
  Kind kind;
  const float* from;
  float* into;
  std::size_t count;
  float factor;
  int root;
  void* stream = nullptr;
};

struct Team;
struct Communicator {
  std::shared_ptr<Team> team;
  int rank = 0, device = 0;
  int async_error = kSuccess;
  bool is_aborted = false, is_stopping = false;
  std::size_t aborts = 0;
  std::deque<Operation> queue;
  std::size_t queued = 0, done = 0;
  std::map<int, float> ops;
  int next_op = kFirstOwnOp;
  std::thread stream;
};

/// One mutex for all: this is a model of behaviour, not of speed.
std::mutex mutex;
std::condition_variable changed;
int version = 21805;
int fail_init = kSuccess;
int fail_call_of = -1;  // device
std::string calls;      // "start all_reduce*3 end ..." of device 0
std::vector<std::unique_ptr<Communicator>> all;
/// Queue poll(of) on a stream: it is called again until it returns true. Null: threads.
void (*push_to_stream)(void* stream, bool (*poll)(void*), void* of) = nullptr;

struct Team {
  std::vector<Communicator*> members;
  std::vector<const Operation*> here;
  std::vector<float> result;
  std::size_t arrived = 0, left = 0, turn = 0;
  std::size_t ending = 0;  // ranks that have called ncclCommDestroy or ncclCommAbort
  bool is_broken = false;

  /// As in releases in which these calls are collective.
  void await_all(std::unique_lock<std::mutex>& lock);
};

void Team::await_all(std::unique_lock<std::mutex>& lock) {
  ++ending;
  changed.notify_all();
  changed.wait(lock, [this] { return ending >= members.size(); });
}

void compute(Team& team) {
  const std::size_t n = team.members.size();
  const Operation& first = *team.here.front();
  const bool scatters = first.kind == Kind::kReduceScatter;
  team.result.clear();
  if (first.kind == Kind::kAllReduce || scatters) {
    team.result.assign(first.count * (scatters ? n : 1), 0.0f);
    for (const Operation* const one : team.here)
      for (std::size_t i = 0; i < team.result.size(); ++i)
        team.result[i] += one->factor * one->from[i];
  } else if (first.kind == Kind::kAllGather) {
    for (const Operation* const one : team.here)
      team.result.insert(team.result.end(), one->from, one->from + one->count);
  } else {
    const Operation& root = *team.here[static_cast<std::size_t>(first.root)];
    team.result.assign(root.from, root.from + root.count);
  }
}

void take_result(const Communicator& self, const Operation& operation) {
  const Team& team = *self.team;
  const bool scatters = operation.kind == Kind::kReduceScatter;
  const std::size_t offset = scatters ? operation.count * static_cast<std::size_t>(self.rank) : 0;
  const std::size_t size = scatters ? operation.count : team.result.size();
  std::memcpy(operation.into, team.result.data() + offset, size * sizeof(float));
}

/// An operation on a stream of the test.
struct Streamed {
  Communicator* self;
  Operation operation;
  bool has_arrived = false;
  std::size_t turn = 0;
};

bool poll_streamed(void* of) {
  auto* const one = static_cast<Streamed*>(of);
  const std::lock_guard lock(mutex);
  Team& team = *one->self->team;
  const std::size_t n = team.members.size();
  if (!team.is_broken && !one->has_arrived) {
    if (team.left > 0) return false;  // all must have left the last round
    team.here.resize(n);
    team.here[static_cast<std::size_t>(one->self->rank)] = &one->operation;
    one->turn = team.turn;
    one->has_arrived = true;
    if (++team.arrived == n) {
      compute(team);
      team.arrived = 0;
      team.left = n;
      ++team.turn;
    }
  }
  if (!team.is_broken) {
    if (team.turn == one->turn) return false;
    take_result(*one->self, one->operation);
    --team.left;
  }
  delete one;
  return true;
}

void run_stream(Communicator* self) {
  Team& team = *self->team;
  const std::size_t n = team.members.size();
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return self->is_stopping || team.is_broken || !self->queue.empty(); });
    if (self->is_stopping || team.is_broken) return;
    const Operation operation = self->queue.front();
    // All must have left the last round.
    changed.wait(lock, [&] { return team.is_broken || self->is_stopping || team.left == 0; });
    if (team.is_broken || self->is_stopping) return;
    team.here.resize(n);
    team.here[static_cast<std::size_t>(self->rank)] = &operation;
    const std::size_t turn = team.turn;
    if (++team.arrived == n) {
      compute(team);
      team.arrived = 0;
      team.left = n;
      ++team.turn;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return team.is_broken || self->is_stopping || team.turn != turn; });
    if (team.is_broken || self->is_stopping) return;
    take_result(*self, operation);
    self->queue.pop_front();
    ++self->done;
    --team.left;
    changed.notify_all();
  }
}

thread_local int depth = 0;
thread_local std::vector<std::pair<Communicator*, Operation>> grouped;

void note(const Communicator& comm, const std::string& word) {
  if (comm.device == 0) calls += calls.empty() ? word : " " + word;
}

int submit(Communicator* comm, const Operation& operation, const char* word) {
  const std::lock_guard lock(mutex);
  if (comm->is_aborted) return kInvalidUsage;
  if (fail_call_of == comm->device) return kUnhandledCudaError;
  note(*comm, word);
  grouped.emplace_back(comm, operation);
  return depth > 0 ? kSuccess : kInvalidUsage;  // the caller always begins a group
}

}  // namespace

#define ENTRY extern "C" __attribute__((visibility("default")))

ENTRY int ncclGetVersion(int* out) {
  *out = version;
  return kSuccess;
}
ENTRY const char* ncclGetErrorString(int code) {
  return code == kUnhandledCudaError ? "unhandled cuda error" : "other error";
}
ENTRY int ncclCommInitAll(void** comms, int count, const int* devices) {
  if (fail_init != kSuccess) return fail_init;
  const auto team = std::make_shared<Team>();
  for (int rank = 0; rank < count; ++rank) {
    all.push_back(std::make_unique<Communicator>());
    Communicator* const comm = all.back().get();
    comm->team = team;
    comm->rank = rank;
    comm->device = devices[rank];
    team->members.push_back(comm);
    comms[rank] = comm;
  }
  for (Communicator* const comm : team->members) comm->stream = std::thread(run_stream, comm);
  return kSuccess;
}
ENTRY int ncclCommDestroy(void* handle) {
  auto* const comm = static_cast<Communicator*>(handle);
  {
    std::unique_lock lock(mutex);
    comm->is_stopping = true;
    comm->team->await_all(lock);
  }
  changed.notify_all();
  comm->stream.join();
  return kSuccess;
}
ENTRY int ncclCommAbort(void* handle) {
  auto* const comm = static_cast<Communicator*>(handle);
  {
    std::unique_lock lock(mutex);
    ++comm->aborts;
    comm->is_aborted = true;
    comm->team->is_broken = true;
    comm->team->await_all(lock);
  }
  changed.notify_all();
  if (comm->stream.joinable()) comm->stream.join();
  return kSuccess;
}
ENTRY int ncclCommGetAsyncError(void* handle, int* code) {
  const std::lock_guard lock(mutex);
  *code = static_cast<Communicator*>(handle)->async_error;
  return kSuccess;
}
ENTRY int ncclGroupStart() {
  ++depth;
  return kSuccess;
}
ENTRY int ncclGroupEnd() {
  if (depth == 0) return kInvalidUsage;
  if (--depth > 0) return kSuccess;
  std::vector<std::unique_ptr<Streamed>> streamed;
  {
    const std::lock_guard lock(mutex);
    for (auto& [comm, operation] : grouped) {
      if (push_to_stream != nullptr) {
        streamed.push_back(std::make_unique<Streamed>(Streamed{comm, operation, false, 0}));
        continue;
      }
      comm->queue.push_back(operation);
      ++comm->queued;
    }
    if (!grouped.empty()) note(*grouped.front().first, "|");
    grouped.clear();
  }
  changed.notify_all();
  for (auto& one : streamed) {  // without the lock: streams poll us with their own lock
    void* const stream = one->operation.stream;
    push_to_stream(stream, poll_streamed, one.release());
  }
  return kSuccess;
}
ENTRY int ncclRedOpCreatePreMulSum(int* op, void* scalar, int, int, void* handle) {
  const std::lock_guard lock(mutex);
  auto* const comm = static_cast<Communicator*>(handle);
  *op = comm->next_op++;
  comm->ops[*op] = *static_cast<const float*>(scalar);
  return kSuccess;
}
ENTRY int ncclRedOpDestroy(int op, void* handle) {
  const std::lock_guard lock(mutex);
  return static_cast<Communicator*>(handle)->ops.erase(op) == 1 ? kSuccess : kInvalidUsage;
}
ENTRY int ncclAllReduce(const void* from, void* into, std::size_t count, int, int op, void* handle,
                        void* stream) {
  auto* const comm = static_cast<Communicator*>(handle);
  return submit(comm,
                {Kind::kAllReduce, static_cast<const float*>(from), static_cast<float*>(into),
                 count, comm->ops.at(op), 0, stream},
                "all_reduce");
}
ENTRY int ncclReduceScatter(const void* from, void* into, std::size_t count, int, int op,
                            void* handle, void* stream) {
  auto* const comm = static_cast<Communicator*>(handle);
  return submit(comm,
                {Kind::kReduceScatter, static_cast<const float*>(from), static_cast<float*>(into),
                 count, comm->ops.at(op), 0, stream},
                "reduce_scatter");
}
ENTRY int ncclAllGather(const void* from, void* into, std::size_t count, int, void* handle,
                        void* stream) {
  return submit(static_cast<Communicator*>(handle),
                {Kind::kAllGather, static_cast<const float*>(from), static_cast<float*>(into),
                 count, 1, 0, stream},
                "all_gather");
}
ENTRY int ncclBroadcast(const void* from, void* into, std::size_t count, int, int root,
                        void* handle, void* stream) {
  return submit(static_cast<Communicator*>(handle),
                {Kind::kBroadcast, static_cast<const float*>(from), static_cast<float*>(into),
                 count, 1, root, stream},
                "broadcast");
}

// For the tests.
ENTRY void stand_in_reset() {
  const std::lock_guard lock(mutex);
  version = 21805;
  fail_init = kSuccess;
  fail_call_of = -1;
  calls.clear();
  all.clear();
  push_to_stream = nullptr;
}
ENTRY void stand_in_use_streams(void (*push)(void*, bool (*)(void*), void*)) {
  const std::lock_guard lock(mutex);
  push_to_stream = push;
}
ENTRY void stand_in_set(const char* what, int value, int device) {
  const std::lock_guard lock(mutex);
  const std::string name = what;
  if (name == "version") version = value;
  if (name == "fail_init") fail_init = value;
  if (name == "fail_call") fail_call_of = device;
  if (name == "async_error")
    for (const auto& comm : all)
      if (comm->device == device) comm->async_error = value;
}
ENTRY int stand_in_is_done(int device) {
  const std::lock_guard lock(mutex);
  for (const auto& comm : all)
    if (comm->device == device && comm->done != comm->queued) return 0;
  return 1;
}
/// Number of the device's finished operations.
ENTRY int stand_in_done(int device) {
  const std::lock_guard lock(mutex);
  for (const auto& comm : all)
    if (comm->device == device) return static_cast<int>(comm->done);
  return 0;
}
ENTRY int stand_in_aborts(int device) {
  const std::lock_guard lock(mutex);
  for (const auto& comm : all)
    if (comm->device == device) return static_cast<int>(comm->aborts);
  return -1;
}
ENTRY const char* stand_in_calls() { return calls.c_str(); }
