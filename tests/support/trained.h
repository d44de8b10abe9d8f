#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "worker/exchange/exchange.h"

namespace centroid::test {

/// Counts how often each sample of each epoch was trained. thread: any
struct Trained {
  std::mutex mutex;
  std::map<std::uint64_t, std::vector<int>> times;
  std::map<std::string, std::vector<std::uint64_t>> shares;  ///< sizes, by worker

  void note(const worker::Share& share, std::uint64_t samples, const std::string& worker) {
    const std::lock_guard lock(mutex);
    for (std::uint64_t at = share.begin; at < share.end; ++at) {
      auto& epoch = times[share.epoch + at / samples];
      epoch.resize(samples);
      ++epoch[at % samples];
    }
    shares[worker].push_back(share.samples());
  }
};

/// `one_is_under_way`: the share that a worker had when the job ended may be missing.
inline void expect_each_once(const Trained& trained, std::uint64_t epochs,
                             bool one_is_under_way = false) {
  EXPECT_EQ(trained.times.size(), epochs);
  std::vector<std::uint64_t> missing;
  for (const auto& [epoch, times] : trained.times)
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (one_is_under_way && times[i] == 0) {
        missing.push_back(epoch * times.size() + i);
      } else {
        ASSERT_EQ(times[i], 1) << "sample " << i << " of epoch " << epoch;
      }
    }
  if (!missing.empty()) {
    EXPECT_EQ(missing.back() - missing.front() + 1, missing.size()) << "more than one share";
  }
}

}  // namespace centroid::test
