#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>

#include "client/rows_client.h"
#include "common/async/task_group.h"
#include "common/async/wait_on.h"
#include "common/base/thread.h"
#include "common/proto/rows.h"
#include "common/proto/servers.h"
#include "transport/connector.h"
#include "transport/session.h"

/// The inside of RowsClient: lanes.cc has connections and the route, pushes.cc the unapplied rest
/// of a push, ../rows_client.cc the calls.
namespace centroid::client {

inline constexpr std::chrono::milliseconds kFirstPause{20}, kLongestPause{1000};
/// A wait of this length is logged, and the interval of that check.
inline constexpr std::chrono::milliseconds kStalled{2000}, kCheckInterval{250};

/// Largest magnitude in a push, and of the sum of a key's gradients in one message
/// (docs/reference/wire.md).
inline constexpr float kMaxGradient = 1e18f;

inline TimePoint in(std::chrono::milliseconds time) { return centroid::now() + time; }

/// Never 0, which means no client.
std::uint64_t draw_client();

/// One of the servers with rows of the table. To it this is a separate client, whose pushes have
/// numbers of their own and go one at a time: so the server's newest number decides for every push
/// whether it was applied.
struct Lane {
  std::string name;  ///< of the server; empty: the leader, which has the route
  transport::Endpoint endpoint;
  const std::uint64_t client = draw_client();
  std::uint64_t sequence = 0;                  ///< of the last push
  std::uint64_t answered = 0;                  ///< highest that was answered as applied
  std::optional<proto::RowsOpenReply> opened;  ///< the last
  TimePoint used{};                            ///< time of the last frame sent
  std::size_t waiting = 0;                     ///< requests without an answer
  bool has_open_part = false;                  ///< a part of `Rest` has no answer from it
  bool is_gone = false;                        ///< it has no rows any more
  bool is_connecting = false, is_beating = false;
  std::unique_ptr<TaskGroup> tasks;
  std::unique_ptr<transport::Session> session;

  /// The wait of a call here, for the log. Of nested waits the outer one counts.
  struct StalledCall {
    std::size_t depth = 0;
    const char* asked = "";
    std::size_t rows = 0;
    TimePoint since{};
    bool is_reported = false;
  } stalled;
  std::string trouble;  ///< why there is no connection, or what the server waits for

  bool is_open() const { return session && !session->is_closed(); }
};

/// During its lifetime a call waits for `asked` of this server.
class StalledScope {
 public:
  StalledScope(Lane& lane, const char* asked, std::size_t rows = 0)
      : StalledScope(lane, asked, rows, in(std::chrono::milliseconds(0)), false) {}
  /// For a wait that continues.
  StalledScope(Lane& lane, const char* asked, std::size_t rows, TimePoint since, bool is_reported)
      : call_(lane.stalled) {
    if (call_.depth++ > 0) return;
    call_.asked = asked;
    call_.rows = rows;
    call_.since = since;
    call_.is_reported = is_reported;
    lane.trouble.clear();
  }
  ~StalledScope() { --call_.depth; }
  StalledScope(const StalledScope&) = delete;
  StalledScope& operator=(const StalledScope&) = delete;

 private:
  Lane::StalledCall& call_;
};

/// The part of a call for one server.
struct Part {
  Lane* lane = nullptr;
  std::vector<std::uint32_t> rows;  ///< of the call's keys
  std::vector<std::byte> payload;
  std::uint64_t sequence = 0;
  bool is_alone = false, is_sent = false, is_moved = false;
  bool is_refused = false;  ///< by the server: it was not applied
  Status status;
};

std::string human(const Lane& lane);

/// Keys by server, by its displayed name.
using Tally = std::map<std::string, std::size_t>;

/// A call with one message's rows.
struct Call {
  proto::RowsKind kind;
  std::span<const std::uint64_t> keys;
  std::span<const float> gradients;
  std::span<float> out;
  TimePoint deadline;
  std::uint64_t step = 0;                ///< of a push
  bool has_done = false;                 ///< a part of it
  std::vector<std::uint32_t> left = {};  ///< rows that are not done
  /// Parts of `left` that a server may have applied: they are sent again unchanged.
  std::vector<std::unique_ptr<Part>> open = {};
  Tally done = {}, refused = {};
};

/// The part of a failed push that may not be applied.
struct Rest {
  std::vector<std::uint64_t> keys;
  std::vector<float> gradients;
  std::uint64_t step = 0;
  std::size_t begun = 0;  ///< of the keys, the message that failed
  std::vector<std::uint32_t> left;
  std::vector<std::unique_ptr<Part>> open;
  TimePoint since{};

  std::uint64_t size() const { return left.size() + keys.size() - begun; }
};

struct RowsClient::Impl final : transport::FrameSink {
  RowsClientOptions options;
  std::string table;
  std::string run_id;  ///< of the first server: rows of another run are never trained
  std::uint64_t answered_before = 0;  ///< of departed lanes
  std::uint64_t lost = 0;             ///< answered pushes that are not in the rows
  std::optional<Error> notice;        ///< of a loss, for the call that found it or the next
  std::map<std::string, std::unique_ptr<Lane>> lanes;  ///< by name
  std::optional<proto::Route> route;
  std::uint32_t dim = 0;
  std::optional<Rest> rest;

  // Run by the caller: a thread of its own would cost each call two wake-ups.
  boost::asio::io_context context{1};
  std::optional<transport::Connector> connector;  ///< to the server that leads
  Mutex turn;                                     ///< of running the context
  std::unique_ptr<transport::Transport> transport;

  // Sends heartbeats between calls.
  Thread beats;
  Condition ended;
  bool is_ending = false;

  Lane& leader() { return *lanes.at(""); }

  /// Run a coroutine to its end; the caller has the turn.
  template <class T>
  T run(Task<T> task) {
    Pending<T> result(context.get_executor(), std::move(task));
    TimePoint look = in(kStalled);
    while (!result.is_done()) {
      run_one_until(context, look);
      if (now() < look) continue;
      report_stalled();
      look = in(kCheckInterval);
    }
    return result.get();
  }

  // rows_client/lanes.cc: connections, and where the rows are
  Task<Status> on_frame(transport::Session& session, transport::InFrame frame) override;
  static Task<void> read(Impl* self, transport::Session* session);
  static Task<void> watch(Impl* self, Lane* lane, transport::Session* session);
  void report_stalled();
  void tell(Lane& lane, TimePoint since) const;
  void keep(std::chrono::milliseconds every);
  static Task<void> beat(Lane* lane, transport::Session* session, TimePoint deadline);
  static Task<Status> drop(Lane* lane);
  static Task<Status> connect(Impl* self, Lane* lane, TimePoint deadline);
  static Task<Result<transport::Reply>> ask(Lane* lane, proto::RowsKind kind, Bytes head,
                                            Bytes payload, TimePoint deadline);
  static Task<Status> open_table(Impl* self, Lane* lane, TimePoint deadline);
  void compare(Lane& lane, const proto::RowsOpenReply& reply);
  static Task<Status> ensure(Impl* self, Lane* lane, TimePoint deadline);
  Error named(const Lane& lane, const Error& why) const;
  static Task<Status> request_route(Impl* self, TimePoint deadline);
  Status adopt(proto::Route found);
  static Task<Status> refresh_route(Impl* self, Lane* lane, TimePoint deadline);
  static Task<Status> settle_lost(Impl* self, TimePoint deadline);

  // ../rows_client.cc: calls
  std::vector<std::unique_ptr<Part>> split(const Call& call,
                                           const std::vector<std::uint32_t>& left);
  void fill(Part& part, const Call& call);
  Status take(const Part& part, const transport::Reply& reply, const Call& call);
  static Task<void> send(Impl* self, const Call* call, Part* part);
  static Task<Status> serve(Impl* self, Call* call);
  Status make(Call& call);
  Status check_size(std::size_t keys, std::size_t floats) const;

  // pushes.cc: those of any number of messages
  Status check_gradients(std::span<const std::uint64_t> keys, std::span<const float> gradients,
                         std::string_view what) const;
  Status check_sums(std::span<const std::uint64_t> keys, std::span<const float> gradients) const;
  Status push_all(std::span<const std::uint64_t> keys, std::span<const float> gradients,
                  std::uint64_t step, std::optional<Rest> begun);
  void discard_rest();
};

}  // namespace centroid::client
