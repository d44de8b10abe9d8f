#include "server/service/job_parts.h"

namespace centroid::server {

JobParts::JobParts(JobContext& c, metrics::Registry& registry)
    : shards(c.executor, c.clock, 2 * c.config.timeouts.stall, shard_hooks(c)),
      rows(c.config.tables, c.config.timeouts.lease, c.clock, registry),
      data(c),
      local(c),
      round_servers(c, shards, local),
      servers(c, shards, round_servers, table_servers),
      round_journal(c, data, local),
      images(c, servers),
      elastic(c, data, local, round_servers),
      contributions(c, data, local, round_servers, elastic, *this),
      initial_values(c),
      moves(c, local, servers, elastic, images, *this),
      loader(c, servers, images, rows, *this),
      checkpointer(c, data, shards, servers, round_servers, moves, loader, rows, table_servers),
      exchange(c, data, checkpointer, loader, *this),
      wait_report(c, shards, round_servers, data, rows, table_servers, exchange.upload()),
      attempts(c, data, local, round_servers, elastic, wait_report),
      departures(c, data, round_servers, attempts),
      merge(c, local, round_servers, round_journal, images, elastic, moves, attempts),
      start(c, table_servers, shards, local, servers, round_journal, images, checkpointer),
      server_changes(c, table_servers, shards, servers, moves, loader, checkpointer, *this,
                     attempts, start),
      restoration(c, rows, servers, round_journal, moves, loader, checkpointer, *this, start),
      outbox(c, round_servers, servers, images, elastic, attempts),
      admission(c, shards, servers, contributions, initial_values, loader, *this, start),
      rounds(c, shards, data, servers, round_journal, elastic, initial_values, checkpointer,
             exchange, attempts, merge, start, server_changes, restoration),
      pulls(c, loader, images, servers) {
  rows.bound_payload(2 * c.config.transfer.chunk_bytes);
}

ShardGroup::Hooks JobParts::shard_hooks(JobContext& c) {
  return {.changed =
              [this, &c] {
                c.changed.notify_all();
                if (table_servers) table_servers->servers_changed();
              },
          .reported =
              [this, &c](ShardSession& server) {
                c.probe.shard(server.name, server.report);
                servers.tell_tokens(server);
              },
          .gone = [this, &c](const ShardSession& server) { c.probe.shard_gone(server.name); },
          .whole = [this, &c](
                       const ShardSession& server,
                       const proto::Whole& whole) { contributions.whole_elsewhere(server, whole); },
          .refused =
              [this, &c](const ShardSession& server, const proto::Refused& refused) {
                server_changes.refused_elsewhere(server, refused);
              },
          .leaving =
              [this, &c](const ShardSession& server) {
                if (auto shard = shards.find(server.name))
                  c.tasks.spawn(servers.drain_leaving(std::move(shard)));
              }};
}

}  // namespace centroid::server
