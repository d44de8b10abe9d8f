#include "server/tables/bucket_route.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/proto/rows.h"

namespace centroid::server {

void BucketRoute::set(proto::Route route, std::size_t self) {
  route_ = std::move(route);
  self_ = static_cast<std::uint16_t>(self);
}

Result<std::size_t> BucketRoute::place_in(const proto::Route& route) const {
  const auto self =
      std::ranges::find(route.servers, route_.servers[self_].name, &proto::RouteServer::name);
  if (self == route.servers.end() || route.owners.size() != proto::kRowBuckets)
    return Error(ErrorCode::kInvalidArgument,
                 "the route does not name server '" + route_.servers[self_].name + "'");
  return static_cast<std::size_t>(self - route.servers.begin());
}

Status BucketRoute::check_keys(const RowTable& table, std::span<const std::uint64_t> keys) const {
  if (route_.servers.size() <= 1) return {};
  for (const std::uint64_t key : keys) {
    const std::uint16_t owner = route_.owners[proto::row_bucket(key)];
    if (owner == self_) continue;
    return Error(ErrorCode::kAborted,
                 "key " + std::to_string(key) + " of table '" + table.spec().name +
                     "' lies by route " + std::to_string(route_.version) + " on server '" +
                     route_.servers[owner].name + "', not on '" + route_.servers[self_].name +
                     "': the leader tells the route (RowsRoute)");
  }
  return {};
}

void BucketRoute::claim(const std::vector<std::uint16_t>& buckets, std::uint64_t version) {
  for (const std::uint16_t bucket : buckets) claims_[bucket] = version;
}

void BucketRoute::begin_claims() {
  claims_.assign(proto::kRowBuckets, 0);
  for (std::size_t bucket = 0; bucket < route_.owners.size(); ++bucket)
    if (route_.owners[bucket] == self_) claims_[bucket] = route_.version;
}

BucketRoute::Claims BucketRoute::compare(const proto::Route& route, std::size_t self) const {
  Claims found;
  for (std::size_t bucket = 0; bucket < route.owners.size(); ++bucket) {
    if (route.owners[bucket] == self)
      found.mine.push_back(static_cast<std::uint16_t>(bucket));
    else if (claims_[bucket] != 0)
      found.lost.push_back(static_cast<std::uint16_t>(bucket));
  }
  return found;
}

}  // namespace centroid::server
