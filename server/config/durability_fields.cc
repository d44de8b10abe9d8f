#include "server/config/server_config.h"

/// Settings of checkpoints and of the journal.
namespace centroid::server {

void register_durability(config::Schema& s, ServerConfig& c) {
  s.field("checkpoint.every_rounds", &c.checkpoint.every_rounds,
          {.text = "rounds between checkpoints; 0: only at the end",
           .unit = "rounds",
           .live = true,
           .basic = true});
  s.field("checkpoint.every_epochs", &c.checkpoint.every_epochs,
          {.text = "epochs between checkpoints, in addition to every_rounds; 0: none",
           .unit = "epochs",
           .live = true});
  s.field("checkpoint.interval", &c.checkpoint.interval,
          {.text = "time between checkpoints while something changes; 0: none",
           .unit = "ms",
           .min = 0});
  s.field("resume", &c.resume,
          {.text = "continue from the newest valid checkpoint and the journal", .basic = true});
  s.field("journal.mode", &c.journal.mode,
          {.text = "exchange star: write each round, and each push to an embedding table, to a "
                   "journal before it is confirmed, so that a killed server loses nothing",
           .choices = {"off", "on"},
           .basic = true});
  s.field("checkpoint.dir", &c.checkpoint.dir,
          {.text = "folder of the checkpoints; empty: run_dir/checkpoints"});
  s.field("journal.dir", &c.journal.dir, {.text = "folder of the journal; empty: run_dir/journal"});
  s.field("checkpoint.keep", &c.checkpoint.keep,
          {.text = "number of checkpoints to keep", .unit = "checkpoints", .min = 1, .live = true});
  s.field("checkpoint.keep_every", &c.checkpoint.keep_every,
          {.text = "never delete a checkpoint whose round is a multiple of this; 0: none",
           .unit = "rounds",
           .live = true});
  s.field(
      "journal.sync", &c.journal.sync,
      {.text = "time between two fdatasync of the journal, the most that a power loss may cost; 0: "
               "one fdatasync for each round and each group of pushes, before they are confirmed",
       .unit = "ms",
       .min = 0,
       .max = 600'000});
  s.field("journal.full", &c.journal.full,
          {.text = "reaction when the journal cannot be written, such as to a full disk: wait, or "
                   "go-on = continue without a journal until the next checkpoint",
           .choices = {"wait", "go-on"}});
  s.field("checkpoint.shard_bytes", &c.checkpoint.shard_bytes,
          {.text = "largest file of a checkpoint; a larger model is split into several files and "
                   "an index; 0: one file",
           .unit = "bytes"});
  s.field("journal.rows_bytes", &c.journal.rows_bytes,
          {.text = "embedding tables: write a checkpoint when their journal reaches this size; 0: "
                   "never for this reason",
           .unit = "bytes"});
}
}  // namespace centroid::server
