#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace centroid::server {

/// What operators asked for and a restart must not forget.
struct OperatorState {
  struct Eviction {
    std::string name, why;
    double since_unix_seconds = 0, until_unix_seconds = 0;  ///< until 0: until it is allowed
    bool operator==(const Eviction&) const = default;
  };
  std::vector<Eviction> evictions;
  struct ScaleHint {
    std::uint64_t workers = 0;  ///< 0: there is none
    std::string why;
    double since_unix_seconds = 0;
    bool operator==(const ScaleHint&) const = default;
  } scale;
  /// POST /v1/job:stop, or a halt of a server that stays up, until POST /v1/job:resume.
  struct Stop {
    std::string run_id;
    std::string halted;         ///< why the job halted itself; empty: an operator stopped it
    std::uint64_t version = 0;  ///< of the newest checkpoint; 0: there was none
    double since_unix_seconds = 0;
    bool operator==(const Stop&) const = default;
  };
  std::optional<Stop> stop;
  /// Whose pause and settings these are; empty where there are none.
  struct Job {
    std::string run_id;
    std::uint64_t version = 0;  ///< of the newest checkpoint; 0: there was none
    bool operator==(const Job&) const = default;
  } job;
  /// POST /v1/job:pause, until POST /v1/job:resume.
  struct Pause {
    double since_unix_seconds = 0;
    bool operator==(const Pause&) const = default;
  };
  std::optional<Pause> pause;
  /// PATCH /v1/config; values are JSON scalars.
  struct Setting {
    std::string name, value;
    std::string instead_of;  ///< what was configured
    bool operator==(const Setting&) const = default;
  };
  std::vector<Setting> settings;
  /// There is something that is of one job only.
  bool has_job() const { return pause || !settings.empty(); }
  bool operator==(const OperatorState&) const = default;
};

inline constexpr std::size_t kMaxEvictions = 1000, kMaxSettings = 1000;

/// Beside the checkpoints, so that whichever server has those has this too.
inline constexpr const char* kOperatorFile = "operator.json";

/// fails   data_loss: it is none of ours, with what is wrong
Result<OperatorState> parse_operator_state(std::string_view json);
std::string to_json(const OperatorState& state);

/// Of a folder; what is empty where there is no file. Blocks.
/// fails  data_loss, failed_precondition
Result<OperatorState> read_operator_state(const std::string& folder);
/// Whole or not at all, and on the disk when it returns. `may` is asked last; `writer`: of several
/// servers that may lead, by name. Blocks.
/// fails  as replace_file
Status write_operator_state(const std::string& folder, const OperatorState& state,
                            const std::function<Status()>& may = {},
                            const std::string& writer = {});

}  // namespace centroid::server
