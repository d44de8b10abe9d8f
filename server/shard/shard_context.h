#pragma once

#include <algorithm>
#include <utility>

#include "common/async/work_threads.h"
#include "common/base/clock.h"
#include "common/base/thread.h"
#include "server/aggregate/aggregator.h"
#include "server/shard/leader_session.h"
#include "server/shard/readiness.h"
#include "server/shard/shard_options.h"
#include "server/shard/shard_probe.h"
#include "server/shard/shard_progress.h"
#include "transport/strangers.h"

namespace centroid::server {

/// Shared by all parts of a shard server. It outlives them.
struct ShardContext {
  ShardContext(Executor its_executor, Executor its_files, ShardOptions its_options,
               const Clock& its_clock, metrics::Registry& registry)
      : executor(its_executor),
        files(std::move(its_files)),
        options(std::move(its_options)),
        clock(its_clock),
        combining(its_executor, "combine",
                  std::min<std::size_t>(Aggregator::kAtOnce, core_count())),
        probe(registry),
        leader(its_executor),
        strangers(transport::places_beside(options.max_workers), &registry) {}

  const Executor executor;
  const Executor files;  ///< its thread waits for the disk
  const ShardOptions options;
  const Clock& clock;
  WorkThreads combining;  ///< chunks, with another aggregate than the mean
  ShardProbe probe;
  Readiness readiness;
  LeaderSession leader;
  ShardProgress progress;
  transport::Strangers strangers;  ///< at its port
};

}  // namespace centroid::server
