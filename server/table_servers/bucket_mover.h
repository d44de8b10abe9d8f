#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/table_servers/table_group.h"

namespace centroid::server {

/// Moves buckets of tables from server to server while clients pull and push. The leader plans each
/// step and takes it: some buckets are blocked at the giver, copied through the leader, taken by
/// the taker, and released by the giver. A client that waited there is refused then; it asks for
/// the route, and continues. Of one thread.
class BucketMover {
 public:
  /// Some buckets go from one server to another.
  struct Move {
    std::string from, to;
    std::vector<std::uint16_t> buckets;
  };
  struct Share {
    std::size_t buckets = 0, moves = 0;  ///< that it has; that will come or go
    std::uint64_t rows = 0, bytes = 0;   ///< by its last report; the leader reports none
  };

  explicit BucketMover(TableGroup& group) : group_(group) {}

  /// Move buckets to their servers, until cancelled.
  Task<void> run();
  /// Wait until no bucket is between two servers; none moves before `resume`. False: cancelled.
  Task<bool> pause();
  void resume();
  /// Between `pause` and `resume`: the route changes, so another `pause` waits for that.
  void set_moving(bool is_moving);

  Share share_of(const std::string& server) const;
  std::optional<Move> next_move() const;
  /// Why the last move failed; empty: it did not.
  const std::string& problem() const { return problem_; }
  /// When there was nothing to move last.
  TimePoint settled_at() const { return settled_at_; }

 private:
  std::vector<std::uint16_t> target() const;
  bool can_move(const std::string& from, const std::string& to) const;
  Task<void> move(Move move);
  Task<Result<std::vector<std::uint64_t>>> find(std::string from,
                                                std::vector<std::uint16_t> buckets);
  Task<Status> move_some(std::string from, std::string to, std::vector<std::uint16_t> some);
  Task<Status> block(std::string from, std::vector<std::uint16_t> some);
  Task<Status> copy(std::string from, std::string to);
  Task<Status> send_route(std::string server, proto::TablesKind kind, const proto::Route& route,
                          std::vector<std::uint16_t> some);

  TableGroup& group_;
  bool is_moving_ = false;  ///< some are between two servers
  std::size_t pauses_ = 0;  ///< callers that need the route to stay as it is
  TimePoint retry_at_ = {};
  TimePoint settled_at_ = {};
  std::string problem_;
};

}  // namespace centroid::server
