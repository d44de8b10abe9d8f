#pragma once

#include <cstdint>
#include <string>

#include "common/base/metrics.h"

namespace centroid::metrics {

/// Series of one bounded resource: `centroid_budget_limit`, `centroid_budget_used` and
/// `centroid_budget_refused_total`, with its name as their label. A default one does nothing.
struct Budget {
  Gauge limit, used;
  Counter refused;  ///< refused, displaced or left out, because the limit was reached

  void show(std::uint64_t used_now, std::uint64_t limit_now) const {
    used.set(static_cast<double>(used_now));
    limit.set(static_cast<double>(limit_now));
  }
  /// Refusals that another place counts from its own start on.
  void follow_refused(std::uint64_t count) const;
};

enum class BudgetKind : std::uint8_t {
  kShared,
  kOfEach,     ///< of many clients: nobody counts what all use
  kUnguarded,  ///< nothing is refused: a disk
};
/// `resource` names its unit, unless it is a number of things: "stranger_bytes".
Budget budget(Registry& registry, const std::string& resource,
              BudgetKind kind = BudgetKind::kShared);

}  // namespace centroid::metrics
