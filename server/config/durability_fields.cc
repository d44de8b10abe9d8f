#include "server/config/server_config.h"

/// Settings of checkpoints and of the journal.
namespace centroid::server {

void register_durability(config::Schema& s, ServerConfig& c) {
  s.field(
      "checkpoint.every_rounds", &c.checkpoint.every_rounds,
      {.text = "rounds between checkpoints; 0: only at the end", .unit = "rounds", .live = true},
      "checkpoint-every");
  s.field("checkpoint.every_epochs", &c.checkpoint.every_epochs,
          {.text = "epochs between checkpoints, beside those by rounds; 0: none by epochs",
           .unit = "epochs",
           .live = true},
          "checkpoint-every-epochs");
  s.field("checkpoint.interval", &c.checkpoint.interval,
          {.text = "time between checkpoints, while something changes; 0: none by time",
           .unit = "ms",
           .min = 0},
          "checkpoint-interval");
  s.field("resume", &c.resume,
          {.text = "go on from the newest valid checkpoint and the journal behind it"});
  s.field(
      "journal.mode", &c.journal.mode,
      {.text = "exchange star: write every round to a journal before workers hear of its end, and "
               "every push to tables of sparse rows before it is answered, so that a killed server "
               "loses none (docs/durability.md)",
       .choices = {"off", "on"}},
      "journal");
  s.field("checkpoint.dir", &c.checkpoint.dir,
          {.text = "folder of checkpoints; empty: run_dir/checkpoints"}, "checkpoint-dir");
  s.field("journal.dir", &c.journal.dir, {.text = "folder of the journal; empty: run_dir/journal"},
          "journal-dir");
  s.field("checkpoint.keep", &c.checkpoint.keep,
          {.text = "checkpoints to keep", .unit = "checkpoints", .min = 1, .live = true},
          "checkpoint-keep");
  s.field("checkpoint.keep_every", &c.checkpoint.keep_every,
          {.text = "checkpoints whose round is a multiple of this are kept for ever; 0: none",
           .unit = "rounds",
           .live = true},
          "checkpoint-keep-every");
  s.field(
      "journal.sync", &c.journal.sync,
      {.text = "time between two fdatasync of the journal: what power loss may cost; 0: one for "
               "each round, before workers hear of its end, and for each group of pushes to "
               "tables, before they are answered",
       .unit = "ms",
       .min = 0,
       .max = 600'000},
      "journal-sync");
  s.field(
      "journal.full", &c.journal.full,
      {.text = "what a round or a push does whose journal cannot be written (a full disk): wait "
               "until it can, or go on without a journal until the next checkpoint",
       .choices = {"wait", "go-on"}},
      "journal-full");
  s.field("checkpoint.shard_bytes", &c.checkpoint.shard_bytes,
          {.text = "largest file of a checkpoint: a larger model becomes several and an index; 0: "
                   "always one",
           .unit = "bytes"},
          "checkpoint-shard-bytes");
  s.field("checkpoint.processor_share", &c.checkpoint.processor_share,
          {.text = "part of the machine's processor time that writing a checkpoint takes at most "
                   "while rounds go on and nobody waits for it; 1: no bound",
           .min = 0.001,
           .max = 1},
          "checkpoint-processor-share");
  s.field("journal.rows_bytes", &c.journal.rows_bytes,
          {.text = "tables of sparse rows: a checkpoint is written when their journal has so many "
                   "bytes; 0: never for that",
           .unit = "bytes"},
          "journal-rows-bytes");
}

}  // namespace centroid::server
