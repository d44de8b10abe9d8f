#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/proto/servers.h"
#include "server/rows/row_table.h"

namespace centroid::server {

/// Which server has which buckets of keys, and which of them are this server's as its journal
/// knows (claims).
///
/// thread  as the store's
class BucketRoute {
 public:
  BucketRoute() { route_.servers.emplace_back(); }  // this one alone

  const proto::Route& route() const { return route_; }
  void set(proto::Route route, std::size_t self);
  /// This server's place in another route.
  /// fails  invalid_argument: it is not named there
  Result<std::size_t> place_in(const proto::Route& route) const;
  bool is_mine(std::uint16_t bucket) const { return route_.owners[bucket] == self_; }
  /// fails  aborted: a key lies on another server, which is named
  Status check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const;

  /// By bucket the newest route by which it was this server's; 0: it is not.
  const std::vector<std::uint64_t>& claims() const { return claims_; }
  /// By the present route.
  void claim(const std::vector<std::uint16_t>& buckets) { claim(buckets, route_.version); }
  void claim(const std::vector<std::uint16_t>& buckets, std::uint64_t version);
  void release(const std::vector<std::uint16_t>& buckets) { claim(buckets, 0); }
  /// Claim what the present route says, and nothing else.
  void begin_claims();
  struct Claims {
    std::vector<std::uint16_t> mine, lost;  ///< lost: claimed, and another server's by the route
  };
  Claims compare(const proto::Route& route, std::size_t self) const;
  Claims compare() const { return compare(route_, self_); }

 private:
  proto::Route route_;
  std::uint16_t self_ = 0;
  std::vector<std::uint64_t> claims_;
};

}  // namespace centroid::server
