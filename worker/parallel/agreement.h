#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "transport/collective/group.h"

namespace centroid::parallel {

/// The result of one rank's work, for the others.
struct Notice {
  Status status;
  std::string text = {};  ///< of a success; at most 1000 bytes
  std::array<std::uint64_t, 5> numbers = {};
};

/// Send this rank's notice to all, and return theirs by rank.
Result<std::vector<Notice>> exchange(const collective::Group& group, const Notice& own,
                                     std::chrono::milliseconds timeout);
/// Return rank 0's notice; `own` of the others does not count.
Result<Notice> announce(const collective::Group& group, const Notice& own,
                        std::chrono::milliseconds timeout);
/// The failure of the lowest rank that has one, "rank 2: ...".
Status first_failure(const std::vector<Notice>& notices);

}  // namespace centroid::parallel
