#include "server/service/buffers.h"

#include <algorithm>
#include <string>

#include "server/aggregate/round_policy.h"

namespace centroid::server {

Status check_buffers(const ServerConfig& c, const Manifest& manifest) {
  const auto buffer = std::ranges::find_if(manifest, is_buffer);
  if (buffer == manifest.end()) return {};
  const auto refuse = [&](const std::string& setting, const std::string& why) {
    return Error(ErrorCode::kFailedPrecondition,
                 "tensor " + buffer->name + " is a buffer, of which workers give what it has " +
                     "changed by, and " + setting + " " + why +
                     " (docs/how-to/built-in-models.md#buffers, \"Buffers\")");
  };
  RoundPolicy policy;
  CENTROID_TRY(parse_policy(c.policy, c.late, policy));
  if (policy.applies_each())
    return refuse("policy " + c.policy,
                  "adds up the changes that several workers made to the same values: take policy "
                  "bsp, backup or quorum");
  if (policy.is_elastic() && policy.late != LateRule::kDrop)
    return refuse("late " + c.late, "adds a change of values that are no more: set late to drop");
  return {};
}

}  // namespace centroid::server
