#include "server/service/job_parts.h"

namespace centroid::server {

JobParts::JobParts(JobContext& c, metrics::Registry& registry)
    : shards(c.executor, c.clock, 2 * c.config.stall_timeout, shard_hooks(c)),
      rows(c.config.tables, c.config.lease, c.clock, registry),
      data(c.config, c.clock, c.policy, c.aggregate, c.job, c.open, c.members, c.probe, c.events,
           c.totals),
      local(c.executor, c.config, c.job, c.open, c.spread, c.probe, c.totals),
      round_servers(c.config, c.policy, c.job, c.open, c.members, shards, c.spread, local),
      servers(c.executor, c.config, c.clock, c.policy, c.job, c.members, shards, c.spread,
              round_servers, c.journal, rows_servers, c.epilogue, c.waits, c.changed, c.tasks),
      round_journal(c.config, c.clock, c.job, c.open, c.members, data, local, c.gate, c.journal,
                    c.waits, c.probe),
      images(c.executor, c.config, c.clock, c.policy, c.job, c.open, servers, c.waits, c.probe,
             c.changed),
      elastic(c.config, c.clock, c.policy, c.job, c.open, c.members, data, local, round_servers,
              c.totals, c.probe, c.events, c.changed, c.outgoing),
      contributions(c.config, c.clock, c.policy, c.aggregate, c.job, c.open, c.members, c.spread,
                    data, local, round_servers, elastic, *this, c.probe, c.events, c.changed),
      initial_values(c.policy, c.job, c.members, c.phase, c.stopping, c.gate, c.probe, c.changed,
                     c.outgoing),
      moves(c.clock, c.job, c.open, c.members, c.spread, local, servers, elastic, images, *this,
            c.waits, c.changed, c.tasks),
      loader(c.config, c.policy, c.aggregate, c.job, c.open, c.members, servers, images, rows,
             c.journal, c.phase, c.gate, *this, c.checkpoints, c.disk, c.use, c.waits, c.changed),
      checkpointer(c.executor, c.config, c.clock, c.job, c.members, data, shards, c.spread, servers,
                   round_servers, moves, loader, rows, rows_servers, c.replay, c.journal, c.gate,
                   c.stopping, c.checkpoints, c.disk, c.use, c.probe, c.events, c.waits, c.changed,
                   c.outgoing, c.tasks),
      exchange(c.config, c.clock, c.job, c.open, c.members, data, checkpointer, loader, *this,
               c.stopping, c.disk, c.use, c.probe, c.events, c.waits, c.changed, c.outgoing,
               c.tasks),
      wait_report(c.config, c.clock, c.policy, c.job, c.open, c.members, c.phase, c.gate, c.waits,
                  c.journal, shards, c.spread, round_servers, data, rows, rows_servers, c.replay,
                  exchange.upload(), c.use, c.stopping, c.events, c.outgoing),
      attempts(c.config, c.clock, c.probe, c.events, c.changed, c.members, c.policy, c.aggregate,
               c.job, c.open, c.totals, c.spread, c.journal, c.outgoing, data, local, round_servers,
               elastic, wait_report),
      departures(c.config, c.clock, c.probe, c.events, c.changed, c.members, c.policy, c.job,
                 c.open, c.totals, c.outgoing, data, round_servers, attempts),
      merge(c.executor, c.config, c.clock, c.probe, c.events, c.changed, c.members, c.policy,
            c.aggregate, c.job, c.open, c.totals, c.spread, c.waits, c.journal, c.outgoing, local,
            round_servers, round_journal, images, elastic, moves, attempts),
      start(c.executor, c.config, c.clock, c.probe, rows_servers, c.phase, c.stopping, c.changed,
            c.gate, c.commands, c.members, c.policy, c.job, c.open, shards, c.spread, c.waits,
            c.journal, c.replay, local, servers, round_journal, images, checkpointer, c.disk, c.use,
            c.restore),
      server_changes(c.config, c.clock, c.probe, c.events, rows_servers, c.phase, c.stopping,
                     c.changed, c.gate, c.members, c.policy, c.job, c.open, shards, c.spread,
                     c.waits, c.journal, c.replay, servers, moves, loader, checkpointer, c.disk,
                     c.use, c.tasks, *this, attempts, start),
      restoration(c.config, c.clock, c.events, rows, c.changed, c.gate, c.members, c.policy, c.job,
                  c.open, c.spread, c.journal, c.replay, c.checkpoints, servers, round_journal,
                  moves, loader, checkpointer, c.disk, c.use, *this, c.restore, start),
      outbox(c.config, c.clock, c.probe, c.events, c.policy, c.job, c.open, c.spread, c.waits,
             c.outgoing, round_servers, servers, images, elastic, attempts),
      admission(c.config, c.clock, c.probe, c.events, c.phase, c.stopping, c.changed, c.gate,
                c.commands, c.members, c.policy, c.aggregate, c.job, shards, c.spread, c.replay,
                c.epilogue, servers, contributions, initial_values, loader, c.use, *this, start),
      rounds(c.config, c.clock, c.probe, c.events, c.phase, c.stopping, c.changed, c.gate,
             c.commands, c.members, c.policy, c.aggregate, c.job, c.open, c.totals, shards,
             c.spread, c.journal, c.replay, c.outgoing, data, servers, round_journal, elastic,
             initial_values, checkpointer, exchange, c.use, c.restore, attempts, merge, start,
             server_changes, restoration),
      pulls(c, loader, images, servers) {
  rows.bound_payload(2 * c.config.chunk_bytes);
}

ShardGroup::Hooks JobParts::shard_hooks(JobContext& c) {
  return {.changed = [this, &c] { c.changed.notify_all(); },
          .reported =
              [this, &c](ShardGroup::Link& server) {
                c.probe.shard(server.name, server.report);
                servers.tell_tokens(server);
              },
          .gone = [this, &c](const ShardGroup::Link& server) { c.probe.shard_gone(server.name); },
          .whole = [this, &c](
                       const ShardGroup::Link& server,
                       const proto::Whole& whole) { contributions.whole_elsewhere(server, whole); },
          .refused =
              [this, &c](const ShardGroup::Link& server, const proto::Refused& refused) {
                server_changes.refused_elsewhere(server, refused);
              },
          .leaving =
              [this, &c](const ShardGroup::Link& server) {
                if (auto link = shards.find(server.name))
                  c.tasks.spawn(servers.drain_leaving(std::move(link)));
              }};
}

}  // namespace centroid::server
