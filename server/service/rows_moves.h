#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/service/rows_group.h"

namespace centroid::server {

/// Buckets of tables that move from server to server while clients pull and push: the leader plans,
/// and takes each step. Some buckets at a time are held at the one server, copied through the
/// leader, taken by the other, and given away by the first; a client that waited there is refused
/// then, asks for the route, and goes on. Of one thread.
class RowsMoves {
 public:
  /// Some buckets go from one server to another.
  struct Move {
    std::string from, to;
    std::vector<std::uint16_t> buckets;
  };
  struct Share {
    std::size_t buckets = 0, moves = 0;  ///< that lie there; that are to come or go
    std::uint64_t rows = 0, bytes = 0;   ///< as it told last; of the leader not told here
  };

  explicit RowsMoves(RowsGroup& group) : group_(group) {}

  /// Move buckets to where they are to lie, until cancelled.
  Task<void> run();
  Task<bool> pause();
  void resume() { --pauses_; }
  /// Between `pause` and `resume`: the route changes, so another `pause` waits for that.
  void set_moving(bool is_moving) { is_moving_ = is_moving; }

  Share share_of(const std::string& server) const;
  std::optional<Move> next_move() const;
  const std::string& trouble() const { return move_trouble_; }
  /// When nothing was to move last.
  TimePoint since() const { return moves_since_; }

 private:
  std::vector<std::uint16_t> target() const;
  bool may_move(const std::string& from, const std::string& to) const;
  Task<void> move_buckets();
  Task<Result<std::vector<std::uint64_t>>> find(std::string from,
                                                std::vector<std::uint16_t> buckets);
  Task<Status> move_some(std::string from, std::string to, std::vector<std::uint16_t> some);
  Task<Status> hold(std::string from, std::vector<std::uint16_t> some);
  Task<Status> copy(std::string from, std::string to);
  Task<Status> tell(std::string server, proto::TablesKind kind, const proto::Route& route,
                    std::vector<std::uint16_t> some);

  RowsGroup& group_;
  bool is_moving_ = false;  ///< some are between two servers
  std::size_t pauses_ = 0;  ///< who needs the route to stay as it is
  TimePoint move_again_ = {};
  TimePoint moves_since_ = {};
  std::string move_trouble_;
};

}  // namespace centroid::server
