#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace centroid::server {

/// By worker the round of its last contribution that counted. A worker that comes back asks for it.
///
/// bounds  `kMost` names: when there are more, those of the oldest rounds are forgotten
class CountedRounds {
 public:
  /// Twice as many as there may be workers.
  static constexpr std::size_t kMost = 32'768;

  /// Its last one is this or a later one.
  void add(const std::string& worker, Round round);
  /// Nothing if none is known.
  std::optional<Round> of(const std::string& worker) const;
  void forget_before(Round round);
  /// Those from `least` on, newest first, whose names have at most so many bytes as JSON.
  std::vector<std::pair<std::string, Round>> newest(Round least, std::size_t bytes) const;
  const std::map<std::string, Round>& all() const { return rounds_; }

 private:
  std::map<std::string, Round> rounds_;
};

}  // namespace centroid::server
