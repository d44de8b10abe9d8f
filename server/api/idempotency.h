#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "server/api/http.h"

namespace centroid::server {

/// Answers by Idempotency-Key, so that a repeated request is not executed again. Pure; one thread.
///
/// bounds  `most` keys of `lifetime`; the oldest are dropped, running ones never
/// source  draft-ietf-httpapi-idempotency-key-header-07
class IdempotencyTable {
 public:
  IdempotencyTable(std::size_t most, Duration lifetime) : most_(most), lifetime_(lifetime) {}

  enum class Verdict : std::uint8_t {
    kNew,      ///< execute it, then call `finish` or `forget`
    kReplay,   ///< `response` is the first one's
    kRunning,  ///< the first one has no answer yet
    kOther,    ///< another request had this key
    kFull,     ///< all keys belong to running requests
  };
  struct Found {
    Verdict verdict = Verdict::kNew;
    std::optional<HttpResponse> response;
  };
  /// `key` includes its sender; `request` must be the same: method, path and body.
  Found begin(const std::string& key, const std::string& request, TimePoint now);
  void finish(const std::string& key, HttpResponse response);
  /// It was not executed: the same key may try again.
  void forget(const std::string& key);
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    std::string request;
    TimePoint begun;
    std::optional<HttpResponse> response;
    std::list<std::string>::iterator place;
  };
  void expire(TimePoint now);

  const std::size_t most_;
  const Duration lifetime_;
  std::map<std::string, Entry> entries_;
  std::list<std::string> by_age_;  ///< keys, oldest first
};

}  // namespace centroid::server
