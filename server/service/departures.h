#pragma once

#include <optional>

#include "server/service/job_part.h"
#include "server/service/round_attempts.h"

namespace centroid::server {

/// What the end of a member means for the round that it takes part in, for its samples and for what
/// other servers keep of it. Of one thread.
class Departures : private JobPart {
 public:
  Departures(JobContext& context, DataShares& data, RoundServers& round_servers,
             RoundAttempts& attempts)
      : JobPart(context), data_(data), round_servers_(round_servers), attempts_(attempts) {}

  /// `tell`: with this, where it does not know.
  void member_gone(MemberId member, std::optional<Error> tell);

 private:
  DataShares& data_;
  RoundServers& round_servers_;
  RoundAttempts& attempts_;
};

}  // namespace centroid::server
