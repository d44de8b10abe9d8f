#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/rows_client.h"
#include "tests/bench/bench_run.h"

/// What the parts of centroid-bench-rows share.
namespace centroid::bench {

struct RowsOptions {
  std::uint64_t rows = 1'000'000, batch = 4096, clients = 2, batches = 1000, dim = 16;
  std::uint64_t turns = 6;
  std::chrono::milliseconds turn{3000};
  std::string optimizer = "adagrad", only;
  bool json = false, check = false;
};

/// A server and its clients.
struct RowsSetup {
  Folder folder;
  ServerProcess started;
  std::vector<std::unique_ptr<client::RowsClient>> clients;

  /// `flags` beside the table. With `log_name` what the server says goes to that file in the
  /// folder.
  RowsSetup(const RowsOptions& options, const std::vector<std::string>& flags,
            const std::string& log_name = "");
};

/// Keys and gradients of one call, by its number.
class RowsCalls {
 public:
  explicit RowsCalls(const RowsOptions& options);
  /// The rows one after another, so that all are there after rows / batch calls.
  void first_use(client::RowsClient& client, std::uint64_t call) const;
  void update(client::RowsClient& client, std::uint64_t call) const;
  void read(client::RowsClient& client, std::uint64_t call) const;

 private:
  std::vector<std::uint64_t> random_keys(std::uint64_t call) const;
  const RowsOptions& options_;
  std::vector<float> gradients_;
};

/// Pushes alone and while checkpoints are written, one after another, as `checkpoint.interval` has
/// them: two servers in turns.
struct BesideCheckpoints {
  double alone = 0, beside = 0;  ///< pushes a second, medians of the turns
  double slower = 0;             ///< alone / beside of neighbouring turns, median
  double slower_least = 0, slower_most = 0;
  double alone_cpu = 0, beside_cpu = 0;  ///< ms of the server's processor time a push, medians
  double alone_longest = 0, beside_longest = 0;  ///< call, ms: median of the turns' longest
  double written_share = 0;       ///< of the time of its turns in which one was written
  double checkpoint_seconds = 0;  ///< one, median
  std::size_t checkpoints = 0;
  double alone_memory = 0, beside_memory = 0;  ///< most resident bytes, times the values
};
BesideCheckpoints measure_beside_checkpoints(const RowsOptions& options);

}  // namespace centroid::bench
