#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/base/result.h"

namespace centroid::server {

/// Whether requests for rows are served now.
///
/// thread  the service's
class RowsGate {
 public:
  /// Refuse all requests for now, for this reason; empty: serve them.
  void hold(std::string why) { why_ = std::move(why); }
  bool is_held() const { return !why_.empty(); }
  /// Of one server of several that may lead: whether it does, asked before each request, and
  /// again when a push is in the journal. A leader that was stopped does not know yet that another
  /// one leads: by its own clock its lease is out.
  void lead_by(std::function<Status()> leads) { leads_ = std::move(leads); }
  /// fails  unavailable
  Status check() const {
    if (!why_.empty()) return Error(ErrorCode::kUnavailable, why_);
    return check_lead();
  }
  /// Whether this server led until now.
  /// fails  unavailable
  Status check_lead() const {
    if (const Status leads = leads_ ? leads_() : Status(); !leads.ok())
      return Error(ErrorCode::kUnavailable, leads.error().message());
    return {};
  }

 private:
  std::string why_;
  std::function<Status()> leads_;
};

}  // namespace centroid::server
