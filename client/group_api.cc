#include "client/group_api.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>

#include "client/c_boundary.h"
#include "client/centroid.h"
#include "client/group.h"
#include "transport/collective/collectives.h"
#include "transport/fork.h"
#include "transport/tls/tls.h"

/// The C interface of collectives (c_api.cc has the rest).

namespace collective = centroid::collective;
using collective::CallOptions;
using collective::ConstElements;
using collective::Elements;
using collective::Handle;
using namespace centroid::c_boundary;
using centroid::DType;
using centroid::Error;
using centroid::ErrorCode;
using centroid::Status;

struct centroid_group {
  std::unique_ptr<centroid::client::PeerGroup> it;
  const pid_t process = ::getpid();
};

struct centroid_work {
  collective::Group group;  // its connections stay until the end
  Handle handle;
};

namespace {

class EndedQueue {
 public:
  void push(std::uint64_t context) {
    {
      const std::lock_guard lock(mutex_);
      contexts_.push_back(context);
    }
    changed_.notify_one();
  }
  void shut_down() {
    {
      const std::lock_guard lock(mutex_);
      is_shut_down_ = true;
    }
    changed_.notify_all();
  }
  centroid::Result<std::uint64_t> next(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    const auto has_news = [this] { return !contexts_.empty() || is_shut_down_; };
    if (time.count() == 0) {
      changed_.wait(lock, has_news);
    } else if (!changed_.wait_for(lock, time, has_news)) {
      return Error(ErrorCode::kDeadlineExceeded, "no operation has ended");
    }
    if (contexts_.empty()) return Error(ErrorCode::kCancelled, "the queue was shut down");
    const std::uint64_t context = contexts_.front();
    contexts_.pop_front();
    return context;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> contexts_;
  bool is_shut_down_ = false;
};

}  // namespace

centroid::Result<centroid::client::PeerOptions> centroid::c_boundary::peer_options_of(
    const centroid_group_options* given) {
  quiet_logs();
  centroid::transport::close_sockets_in_children();
  CENTROID_TRY(asked(given, "options", offsetof(centroid_group_options, tls_authority)));
  const centroid_group_options all = known(*given);
  centroid::client::PeerOptions options;
  options.rank = all.rank;
  options.world = all.world;
  options.host = text(all.host);
  options.token = text(all.token);
  if (all.timeout_ms > 0) options.timeout = time_of(all.timeout_ms);
  if (all.tls_authority == nullptr && all.tls_certificate == nullptr && all.tls_key == nullptr)
    return options;
  centroid::transport::TlsOptions tls;
  tls.authority = text(all.tls_authority);
  tls.certificate = text(all.tls_certificate);
  tls.key = text(all.tls_key);
  tls.is_server = tls.any_name = true;
  if (tls.authority.empty()) return bad("tls has no authority: whose certificates count?");
  CENTROID_ASSIGN(options.layer, centroid::transport::make_tls(std::move(tls)));
  return options;
}

struct centroid_ended {
  std::shared_ptr<EndedQueue> it = std::make_shared<EndedQueue>();
};

namespace {

Status check_process(const centroid_group* group) {
  CENTROID_TRY(given(group, "group"));
  if (group->process == ::getpid()) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "a forked child cannot use its parent's group: let it join one of its own");
}

Status check_connected(const centroid_group* group) {
  CENTROID_TRY(check_process(group));
  if (group->it->is_connected()) return {};
  return Error(ErrorCode::kFailedPrecondition, "centroid_group_connect comes first");
}

/// One operation of a caller, checked.
class Operation {
 public:
  Operation(centroid_group* group, const centroid_call* call, centroid_work** work)
      : group_(group), work_(work), status_(prepare(call)) {}

  std::span<const std::uint64_t> counts(const std::uint64_t* given) const {
    if (given == nullptr || !status_.ok()) return {};
    return {given, group_->it->group().world()};
  }
  ConstElements input(const void* memory, std::uint64_t count) {
    return {dtype_, {static_cast<const std::byte*>(memory), checked(memory, count, "input")}};
  }
  Elements output(void* memory, std::uint64_t count) {
    return {dtype_, {static_cast<std::byte*>(memory), checked(memory, count, "output")}};
  }
  std::uint64_t part(std::uint64_t count, const std::uint64_t* counts) const {
    if (!status_.ok()) return 0;
    const auto& group = group_->it->group();
    if (counts != nullptr) return counts[group.rank()];
    return count / group.world() + (group.rank() < count % group.world() ? 1 : 0);
  }
  std::uint64_t world() const { return status_.ok() ? group_->it->group().world() : 0; }

  /// `begin(group, options)` gives the handle.
  template <class F>
  Status run(const F& begin) {
    CENTROID_TRY(status_);
    const collective::Group& group = group_->it->group();
    if (work_ == nullptr) {
      options_.waits_next = true;
      return Handle(begin(group, options_)).wait();
    }
    auto made = std::make_unique<centroid_work>(centroid_work{group, Handle()});
    made->handle = begin(group, options_);
    *work_ = made.release();
    return {};
  }

 private:
  Status prepare(const centroid_call* call) {
    if (work_ != nullptr) *work_ = nullptr;
    CENTROID_TRY(check_connected(group_));
    if (call == nullptr) return {};
    CENTROID_TRY(asked(call, "call"));
    if (call->dtype != 0) {
      if (call->dtype > 0xFF) return bad("call.dtype is " + std::to_string(call->dtype));
      CENTROID_ASSIGN(dtype_, centroid::dtype_from_wire(static_cast<std::uint8_t>(call->dtype)));
    }
    if (call->reduction != 0) {
      constexpr std::array kKnown{CENTROID_SUM, CENTROID_MEAN, CENTROID_MIN, CENTROID_MAX,
                                  CENTROID_PRODUCT};
      if (std::ranges::find(kKnown, call->reduction) == kKnown.end())
        return bad("call.reduction is " + std::to_string(call->reduction));
      options_.reduction = static_cast<collective::Reduction>(call->reduction);
    }
    options_.tag = call->tag;
    options_.timeout = time_of(call->timeout_ms);
    options_.waits_next = call->waits_next != 0;
    if (call->ended != nullptr && work_ != nullptr)
      options_.on_end = [queue = call->ended->it, context = call->context] {
        queue->push(context);
      };
    return {};
  }

  std::size_t checked(const void* memory, std::uint64_t count, const char* name) {
    if (status_.ok() && memory == nullptr && count > 0) status_ = given(memory, name);
    if (status_.ok() && count > kMostElements)
      status_ = bad(std::string(name) + " has " + std::to_string(count) + " elements");
    return status_.ok() ? count * centroid::size_of(dtype_) : 0;
  }

  centroid_group* const group_;
  centroid_work** const work_;
  CallOptions options_;
  DType dtype_ = DType::kF32;
  Status status_;
};

}  // namespace

extern "C" {

int centroid_group_open(const centroid_group_options* options, centroid_group** group) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(group, "group"));
    *group = nullptr;
    CENTROID_ASSIGN(auto known, peer_options_of(options));
    CENTROID_ASSIGN(auto made, centroid::client::PeerGroup::open(std::move(known)));
    *group = new centroid_group{std::move(made)};
    return {};
  });
}

const char* centroid_group_address(const centroid_group* group) {
  return group != nullptr ? group->it->address().c_str() : "";
}

int centroid_group_connect(centroid_group* group, const char* const* addresses, uint64_t count) {
  return guarded([&]() -> Status {
    CENTROID_TRY(check_process(group));
    CENTROID_TRY(given(addresses, "addresses"));
    std::vector<std::string> all;
    for (std::uint64_t i = 0; i < count; ++i) {
      CENTROID_TRY(given(addresses[i], "an address"));
      all.emplace_back(addresses[i]);
    }
    return group->it->connect(all);
  });
}

int centroid_group_join(const centroid_group_options* options, const char* rendezvous,
                        centroid_group** group) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(group, "group"));
    *group = nullptr;
    CENTROID_TRY(given(rendezvous, "rendezvous"));
    CENTROID_ASSIGN(auto known, peer_options_of(options));
    CENTROID_ASSIGN(auto made, centroid::client::PeerGroup::join(std::move(known), rendezvous));
    *group = new centroid_group{std::move(made)};
    return {};
  });
}

uint32_t centroid_group_rank(const centroid_group* group) {
  return group != nullptr && group->it->is_connected() ? group->it->group().rank() : 0;
}
uint32_t centroid_group_world(const centroid_group* group) {
  return group != nullptr && group->it->is_connected() ? group->it->group().world() : 0;
}

int centroid_group_subgroup(const centroid_group* group, const uint32_t* ranks, uint64_t count,
                            centroid_group** subgroup) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(subgroup, "subgroup"));
    *subgroup = nullptr;
    CENTROID_TRY(check_connected(group));
    CENTROID_TRY(given(ranks, "ranks"));
    CENTROID_ASSIGN(auto made, group->it->subgroup({ranks, ranks + count}));
    *subgroup = new centroid_group{std::move(made)};
    return {};
  });
}

int centroid_group_abort(centroid_group* group, const char* why) {
  return guarded([&]() -> Status {
    CENTROID_TRY(check_connected(group));
    group->it->group().abort(Error(ErrorCode::kAborted, text(why, "the program aborted it")));
    return {};
  });
}

void centroid_group_close(centroid_group* group) {
  // In a forked child there is no thread that could end it.
  if (group != nullptr && group->process == ::getpid()) delete group;
}

int centroid_group_all_reduce(centroid_group* group, const void* input, void* output,
                              uint64_t count, const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const ConstElements in = operation.input(input, count);
    const Elements out = operation.output(output, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::all_reduce_async(peers, in, out, options);
    });
  });
}

int centroid_group_reduce_scatter(centroid_group* group, const void* input, uint64_t count,
                                  void* output, const uint64_t* counts, const centroid_call* call,
                                  centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const ConstElements in = operation.input(input, count);
    const Elements out = operation.output(output, operation.part(count, counts));
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::reduce_scatter_async(peers, in, out, options, operation.counts(counts));
    });
  });
}

int centroid_group_all_gather(centroid_group* group, const void* input, void* output,
                              uint64_t count, const uint64_t* counts, const centroid_call* call,
                              centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const ConstElements in = operation.input(input, operation.part(count, counts));
    const Elements out = operation.output(output, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::all_gather_async(peers, in, out, options, operation.counts(counts));
    });
  });
}

int centroid_group_broadcast(centroid_group* group, void* memory, uint64_t count, uint32_t root,
                             const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const Elements values = operation.output(memory, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::broadcast_async(peers, values, root, options);
    });
  });
}

int centroid_group_all_to_all(centroid_group* group, const void* input, uint64_t send_count,
                              const uint64_t* send_counts, void* output, uint64_t receive_count,
                              const uint64_t* receive_counts, const centroid_call* call,
                              centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const ConstElements in = operation.input(input, send_count);
    const Elements out = operation.output(output, receive_count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::all_to_all_async(peers, in, out, options, operation.counts(send_counts),
                                          operation.counts(receive_counts));
    });
  });
}

int centroid_group_gather(centroid_group* group, const void* input, uint64_t count, void* output,
                          uint32_t root, const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const bool is_root = group != nullptr && centroid_group_rank(group) == root;
    const ConstElements in = operation.input(input, count);
    const Elements out = operation.output(output, is_root ? count * operation.world() : 0);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::gather_async(peers, in, out, root, options);
    });
  });
}

int centroid_group_scatter(centroid_group* group, const void* input, void* output, uint64_t count,
                           uint32_t root, const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const bool is_root = group != nullptr && centroid_group_rank(group) == root;
    const ConstElements in = operation.input(input, is_root ? count * operation.world() : 0);
    const Elements out = operation.output(output, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::scatter_async(peers, in, out, root, options);
    });
  });
}

int centroid_group_send(centroid_group* group, const void* memory, uint64_t count, uint32_t to,
                        const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const ConstElements values = operation.input(memory, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::send_async(peers, values, to, options);
    });
  });
}

int centroid_group_receive(centroid_group* group, void* memory, uint64_t count, uint32_t from,
                           const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    Operation operation(group, call, work);
    const Elements values = operation.output(memory, count);
    return operation.run([&](const auto& peers, const CallOptions& options) {
      return collective::receive_async(peers, values, from, options);
    });
  });
}

int centroid_group_barrier(centroid_group* group, const centroid_call* call, centroid_work** work) {
  return guarded([&] {
    return Operation(group, call, work).run([](const auto& peers, const CallOptions& options) {
      return collective::barrier_async(peers, options);
    });
  });
}

int centroid_work_wait(centroid_work* work, uint64_t timeout_ms) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(work, "work"));
    if (timeout_ms > 0 && !work->handle.wait_for(time_of(timeout_ms)))
      return Error(ErrorCode::kDeadlineExceeded,
                   "the operation goes on after " + std::to_string(timeout_ms) + " ms");
    return work->handle.wait();
  });
}

int centroid_work_done(const centroid_work* work) {
  return work == nullptr || work->handle.test() ? 1 : 0;
}

void centroid_work_free(centroid_work* work) { delete work; }

int centroid_ended_open(centroid_ended** ended) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(ended, "ended"));
    *ended = new centroid_ended();
    return {};
  });
}

int centroid_ended_next(centroid_ended* ended, uint64_t timeout_ms, uint64_t* context) {
  return guarded([&]() -> Status {
    CENTROID_TRY(given(ended, "ended"));
    CENTROID_TRY(given(context, "context"));
    CENTROID_ASSIGN(*context, ended->it->next(time_of(timeout_ms)));
    return {};
  });
}

void centroid_ended_shutdown(centroid_ended* ended) {
  if (ended != nullptr) ended->it->shut_down();
}

void centroid_ended_close(centroid_ended* ended) { delete ended; }

}  // extern "C"
