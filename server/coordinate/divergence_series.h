#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// What members say of their divergence at the averages of one fragment, put together until it can
/// be compared with what was there before. Pure.
///
/// when     every member that tells has told anew, however many rounds that takes; one that others
///          have told `kPatience` times without is left out until it tells again
/// steps    those of the member that made the fewest
class DivergenceSeries {
 public:
  static constexpr unsigned kPatience = 8;
  struct Observation {
    std::vector<double> divergences;  ///< the newest of each member
    std::uint64_t steps = 0;          ///< from the average observed before to this one
    std::uint64_t since = 0;          ///< made after this one
    bool is_of_others = false;        ///< not of the members of the observation before
  };

  void told(MemberId member, double divergence);
  /// It made so many steps after the last average of which it has told.
  void worked(MemberId member, double steps);
  void gone(MemberId member) { members_.erase(member); }
  /// Once there is one.
  std::optional<Observation> take();

 private:
  struct Told {
    std::optional<double> divergence;
    unsigned times = 0;  ///< since the last observation
    double steps = 0, since = 0;
  };
  std::map<MemberId, Told> members_;
  std::set<MemberId> before_;
};

}  // namespace centroid::server
