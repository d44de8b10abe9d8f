#include "common/base/budget.h"

namespace centroid::metrics {

void Budget::follow_refused(std::uint64_t count) const {
  if (const double more = static_cast<double>(count) - refused.value(); more > 0) refused.add(more);
}

Budget budget(Registry& registry, const std::string& resource, BudgetKind kind) {
  const Labels labels{{"resource", resource}};
  Budget made;
  made.limit = registry.gauge("centroid_budget_limit",
                              "The most that may be used of a resource; what one client may use a "
                              "second (0: no limit), of rest_requests and rest_handshakes.",
                              labels);
  if (kind != BudgetKind::kOfEach)
    made.used = registry.gauge("centroid_budget_used", "How much of a resource is used.", labels);
  if (kind != BudgetKind::kUnguarded)
    made.refused = registry.counter(
        "centroid_budget_refused_total",
        "Requests refused, connections closed, lines left out and events dropped, because a "
        "resource was used up.",
        labels);
  return made;
}

}  // namespace centroid::metrics
