#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/metrics.h"
#include "server/api/access.h"
#include "server/api/http.h"

namespace centroid::server {

/// What answers hold while their clients take them: memory, and streams, which may go on for long.
///
/// thread  one
/// bounds  `max_bytes` of bodies in all, but for small ones and for one alone; streams of events
///         and files `max_streams` each, and one token at most half of either, so that no token
///         shuts out the others
/// owns    what it has taken is given back when the response has gone; it outlives all of them
class HeldAnswers {
 public:
  /// Small enough for every connection to have one.
  static constexpr std::size_t kSmallBytes = 8 * 1024;

  HeldAnswers(std::size_t max_bytes, metrics::Gauge bytes, metrics::Gauge streams);

  /// Answer 503 in place of a response that is one too many, else count it as long as it lives.
  /// `is_allowed` is asked while a stream goes on: when the caller may no longer, it ends.
  void take(HttpResponse& response, const Caller& caller, std::size_t max_streams,
            std::string_view instance, std::function<bool()> is_allowed);

 private:
  class Stream;
  struct Count {
    std::size_t all = 0;
    std::map<std::string, std::size_t> of;  ///< by caller
  };
  void give_back(bool is_file, const std::string& caller);
  void show();

  const std::size_t max_bytes_;
  metrics::Gauge bytes_gauge_, streams_gauge_;
  std::size_t bytes_ = 0;
  Count events_, files_;
};

}  // namespace centroid::server
