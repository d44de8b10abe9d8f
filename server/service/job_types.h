#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/result.h"
#include "common/base/scalars.h"
#include "common/checkpoint/checkpoint.h"
#include "common/proto/messages.h"
#include "common/proto/servers.h"
#include "server/aggregate/contribution_stage.h"
#include "server/aggregate/round_policy.h"
#include "server/api/view.h"
#include "server/config/server_config.h"
#include "server/coordinate/epoch_tallies.h"
#include "server/coordinate/returned_shares.h"
#include "server/service/fetched_versions.h"
#include "server/service/operator_file.h"
#include "server/store/duty_cycle.h"

namespace centroid::server {

/// A checkpoint that an operator wants back.
struct RestoreWanted {
  Version version;
  bool deletes_newer = false;
  bool is_half = false;                         ///< the old state is gone
  std::string doing;                            ///< once it is begun
  bool is_begun = false, is_abandoned = false;  ///< nobody waits for the outcome any more
  std::optional<Result<RestoreView>> outcome;
};

/// A contribution to a round that may close without some members.
struct StagedPart {
  std::unique_ptr<StagedContribution> staged;
  proto::WeighedContribution counts;  ///< which one, and with what weight
  ReportedShare told;                 ///< of a late one: it is of the round that counts it
  DataPart share;      ///< of a late one, until it is committed: what is lost with it
  double squares = 0;  ///< of its numbers on this server, when they have been summed
};

/// Names of the numbers that training programs record: as many as one worker may have, the first
/// since the start, whatever others call theirs.
class KnownScalars {
 public:
  /// Those of a contribution for whose names there is room.
  Scalars of(const proto::PushEnd& end);

 private:
  std::set<std::string, std::less<>> names_;
  bool is_told_ = false;
};

/// A worker may ask whether its contribution to one of so many last rounds counted.
inline constexpr std::uint64_t kCountedRounds = 4096;

/// Estimates the size of contributions while no worker has said how it encodes them.
inline constexpr const char* kUnknownCodec = "f32";

/// Training data, as workers tell of it.
struct DataIdentity {
  std::uint64_t samples = 0, fingerprint = 0;
};

/// Where in the data a round begins.
struct DataPosition {
  std::uint64_t epoch = 0, offset = 0;
};

/// As the settings say, which `finish` has checked.
RoundPolicy policy_of(const ServerConfig& config);

/// For GET /v1/waits, of a worker.
std::string state_on_its_way(Version version, std::size_t piece, std::size_t pieces);

}  // namespace centroid::server
