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

/// Answers by Idempotency-Key, so that a request that is sent again is not done again. Pure; one
/// thread.
///
/// bounds  `most` keys of `lifetime`; the oldest give way. One that still runs is never forgotten.
/// source  draft-ietf-httpapi-idempotency-key-header-07
class IdempotencyTable {
 public:
  IdempotencyTable(std::size_t most, Duration lifetime) : most_(most), lifetime_(lifetime) {}

  enum class Verdict : std::uint8_t {
    kNew,      ///< do it, then `finish` or `forget`
    kReplay,   ///< `response` is what the first one got
    kRunning,  ///< the first one has no answer yet
    kOther,    ///< the key came with another request before
    kFull,     ///< nothing but running ones is there
  };
  struct Found {
    Verdict verdict = Verdict::kNew;
    std::optional<HttpResponse> response;
  };
  /// `key` holds who sent it too; `request` is what must be the same: method, path and body.
  Found begin(const std::string& key, const std::string& request, TimePoint now);
  void finish(const std::string& key, HttpResponse response);
  /// It was not done: the same key may try again.
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
