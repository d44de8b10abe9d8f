#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// What members say of their divergence at the averages of one fragment, put together until it can
/// be compared with what was there before. Pure.
///
/// when     every member that tells has told anew, however many rounds that takes; one that others
///          have told `kPatience` times without is left out until it tells again
/// with     each with what it told at the last observation that it was in: who tells seldom, or is
///          new, makes none of the others incomparable. Of a new one that is its first word
/// steps    those of the member that made the fewest
class DivergenceSeries {
 public:
  static constexpr unsigned kPatience = 8;
  struct Observation {
    std::vector<double> divergences;  ///< the newest of each member that is compared
    /// The largest of the same members at the observation before; none: there was none of them,
    /// and `divergences` are the first.
    std::optional<double> before;
    std::uint64_t steps = 0;  ///< from the average observed before to this one
    std::uint64_t since = 0;  ///< made after this one
  };

  void told(MemberId member, double divergence);
  /// It made so many steps after the last average of which it has told.
  void worked(MemberId member, double steps);
  void gone(MemberId member) { members_.erase(member); }
  /// Once there is one.
  std::optional<Observation> take();

 private:
  struct Told {
    std::optional<double> divergence, before;
    unsigned times = 0;  ///< since the last observation
    double steps = 0, since = 0;
  };
  std::map<MemberId, Told> members_;
};

}  // namespace centroid::server
