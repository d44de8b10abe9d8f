#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "server/api/access.h"
#include "server/api/api_metrics.h"
#include "server/api/http.h"

namespace centroid::server {

/// Resources of answers while their clients read them: memory, and streams, which may last long.
///
/// thread  one
/// bounds  `max_bytes` of bodies in total, except small ones and a single one; streams of events
///         and files `max_streams` each, and one token at most half of either, so that no token
///         excludes the others
/// owns    resources are returned when the response is destroyed; it outlives all of them
class PendingAnswers {
 public:
  /// Small enough for every connection to have one.
  static constexpr std::size_t kSmallBytes = 8 * 1024;

  PendingAnswers(std::size_t max_bytes, const ApiMetrics& metrics);

  /// Replace a response beyond the bounds by 503, else count it for its lifetime. A stream calls
  /// `is_allowed` repeatedly and ends when it is false.
  void take(HttpResponse& response, const Caller& caller, std::size_t max_streams,
            std::string_view instance, std::function<bool()> is_allowed);

 private:
  class Stream;
  struct Count {
    std::size_t all = 0;
    std::map<std::string, std::size_t> of;  ///< by caller
  };
  void show() const;
  void give_back(bool is_file, const std::string& caller);

  const std::size_t max_bytes_;
  const ApiMetrics& metrics_;
  std::size_t max_streams_ = 0;  ///< of the last call
  std::size_t bytes_ = 0;
  Count events_, files_;
};

}  // namespace centroid::server
