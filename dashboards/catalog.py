"""Every panel and every alert of Centroid: the one list from which dashboards, rules and their check are made.

A query is PromQL. SELECT in it becomes the matchers that the variables of a dashboard fill in, RATE the window of a rate.
"""

from panels import BARS, STAT, Alert, Dashboard, Panel, leading, mean, quantile, rate
from sharded import SHARDED

SERVER_STAGES = "rate(centroid_server_stage_seconds_sum{SELECT}[RATE])"
WORKER_STAGES = "rate(centroid_worker_stage_seconds_sum{SELECT}[RATE])"

TRAINING = Dashboard(
    "centroid-training",
    "Centroid / Training",
    "How well and how fast a job learns, and where the time of a round goes.",
    (
        (
            "Progress",
            (
                Panel("State", "State of the job, by its server.", "none",
                      (("max by (state) (centroid_server_job_state{SELECT}) == 1", "{{state}}"),), STAT, 6),
                Panel("Epoch", "Epoch now trained, from 0.", "none",
                      ((f"max({leading('centroid_server_epoch_number')})", "epoch"),), STAT, 4),
                Panel("Version", "Version of the committed parameters: one more with each committed round.", "none",
                      ((f"max({leading('centroid_server_version_number')})", "version"),), STAT, 4),
                Panel("Workers", "Workers of the present generation.", "none",
                      ((f"sum({leading('centroid_server_world_members')})", "workers"),), STAT, 4),
                Panel("Samples per second", "Samples in committed rounds per second.", "short",
                      ((rate("centroid_server_samples_total"), "samples/s"),), STAT, 6),
            ),
        ),
        (
            "Learning",
            (
                Panel("Training loss", "Mean loss of the last committed round. Rising or NaN: lower the learning rate.", "none",
                      ((leading("centroid_server_train_loss_nats"), "all workers"),
                       ("centroid_worker_train_loss_nats{SELECT}", "{{instance}}")), width=12),
                Panel("Held-out loss", "Loss on held-out data at the last evaluation, of the job and by the workers that made one. Rises while training loss "
                      "falls: overfitting.", "none",
                      ((leading("centroid_server_test_loss_nats"), "held-out loss"),
                       ("centroid_worker_test_loss_nats{SELECT} >= 0", "{{instance}}")), width=6),
                Panel("Held-out accuracy", "Accuracy on held-out data at the last evaluation, of the job and by the workers that made one.", "percentunit",
                      ((leading("centroid_server_test_accuracy_ratio"), "accuracy"),
                       ("centroid_worker_test_accuracy_ratio{SELECT} >= 0", "{{instance}}")), width=6),
                Panel("Gradient norm", "Norm of the mean gradient before clipping: of all (only with clip_norm), and of each worker's devices.", "none",
                      ((leading("centroid_server_gradient_norm"), "all workers"),
                       ("centroid_worker_gradient_norm{SELECT} >= 0", "{{instance}}"))),
                Panel("Learning rate", "Of the last committed step, and of each worker's last local step.", "none",
                      ((leading("centroid_server_learning_rate"), "all workers"),
                       ("centroid_worker_learning_rate{SELECT} >= 0", "{{instance}}"))),
                Panel("Rounds clipped", "Share of rounds whose mean gradient was over clip_norm.", "percentunit",
                      ((rate("centroid_server_rounds_clipped_total") + " / "
                        + rate("centroid_server_rounds_total", more=',outcome="committed"'), "clipped"),)),
                Panel("Replicas that differ", "Workers per second whose parameters or optimizer state were not those of most, where workers apply the optimizer; "
                      "any means bad memory or unequal programs. And comparisons.", "ops",
                      ((rate("centroid_server_replicas_drifted_total"), "differ"), (rate("centroid_server_replicas_compared_total"), "compared")), width=12),
                Panel("Non-finite gradients", "Contributions with NaN or infinity per second; any is too many.", "ops",
                      ((rate("centroid_server_contributions_nonfinite_total"), "non-finite"),), width=12),
            ),
        ),
        (
            "Speed",
            (
                Panel("Throughput", "Samples per second: committed, and computed by each worker.", "short",
                      ((rate("centroid_server_samples_total"), "committed"),
                       (rate("centroid_worker_samples_total", "instance"), "{{instance}}"))),
                Panel("Rounds", "Rounds per second by outcome. Aborted ones were repeated after a worker was lost.", "ops",
                      ((rate("centroid_server_rounds_total", "outcome"), "{{outcome}}"),)),
                Panel("Round time", "From opening to commit of a round, as the server sees it; of a worker from its first sample to new parameters.", "s",
                      ((quantile(0.5, "centroid_server_round_seconds"), "median"),
                       (quantile(0.99, "centroid_server_round_seconds"), "99 %"),
                       (quantile(0.5, "centroid_worker_round_seconds"), "median of the workers"))),
                Panel("Rounds, by worker", "Rounds of each worker by outcome: what it computed counts only in `committed` and, with some policies, `late`.", "ops",
                      ((rate("centroid_worker_rounds_total", "instance, outcome") + " > 0", "{{instance}} {{outcome}}"),)),
                Panel("Version, by worker", "Version of the parameters: committed by the server, and given to each worker. One that stays behind hangs, or lost its connection.",
                      "none", ((leading("centroid_server_version_number"), "server"), ("centroid_worker_version_number{SELECT}", "{{instance}}"))),
                Panel("Generation, by worker", "Workers of the generation in which each trains, and its rank there. Not all the same: one is left behind.", "none",
                      (("centroid_worker_world_members{SELECT}", "{{instance}} of"), ("centroid_worker_rank_number{SELECT}", "{{instance}} is"))),
                Panel("Time of the workers by stage",
                      "Seconds per second that a worker spends in each stage, mean over the workers. `wait` is time without work; `encode`, `send` and `exchange` run "
                      "beside `compute` and `wait`, `decode` is part of `apply`.", "percentunit",
                      ((f"avg by (stage) ({WORKER_STAGES})", "{{stage}}"),), BARS, 12),
                Panel("Time of the server by stage", "Seconds per second by stage. Over 1 in sum: stages of several workers overlap; `journal` is part of `apply`.",
                      "percentunit", ((f"sum by (stage) ({SERVER_STAGES})", "{{stage}}"),), BARS, 12),
            ),
        ),
        (
            "Who waits for whom",
            (
                Panel("Computing, by worker", "Mean time of forward and backward. The slowest worker holds the others up (policy bsp).", "s",
                      ((mean("centroid_worker_stage_seconds", "instance, stage").replace("SELECT", 'SELECT,stage="compute"'), "{{instance}}"),)),
                Panel("Waiting, by worker", "Mean time from the end of backward to new parameters. The slowest worker waits least.", "s",
                      ((mean("centroid_worker_stage_seconds", "instance, stage").replace("SELECT", 'SELECT,stage="wait"'), "{{instance}}"),)),
                Panel("Contribution time", "From opening of a round to the last chunk of a worker; far apart: a straggler.", "s",
                      ((quantile(0.5, "centroid_server_contribution_seconds"), "median"),
                       (quantile(0.99, "centroid_server_contribution_seconds"), "99 %"))),
                Panel("Late contributions", "Contributions per second whose round closed without them (policies backup and quorum), and transfers of the state to a "
                      "worker that its round left behind.", "ops",
                      ((rate("centroid_server_contributions_late_total", "fate"), "{{fate}}"),
                       (rate("centroid_server_state_restarts_total"), "state begun anew")), width=12),
                Panel("Staleness", "Rounds between the parameters a contribution was computed on and those it changed. 0 with policy bsp.", "none",
                      ((quantile(0.5, "centroid_server_staleness_rounds"), "median"),
                       (quantile(0.99, "centroid_server_staleness_rounds"), "99 %")), width=12),
                Panel("Waits by cause", "How many wait, and for what; /v1/waits names who for whom.", "none",
                      (("sum by (cause) (centroid_server_waits{SELECT})", "{{cause}}"),)),
                Panel("Idle, by worker", "Part of its last round in which a worker did not compute. With cadence speed or tuned all are low.", "percentunit",
                      (("centroid_worker_idle_ratio{SELECT}", "{{instance}}"),)),
                Panel("Local steps and cost of an average", "Steps of the slowest worker between two averages; an average's time as a part of them.", "short",
                      ((leading("centroid_server_cadence_steps"), "steps"), (leading("centroid_server_exchange_overhead_ratio"), "overhead"))),
                Panel("Time of an average", "What an average takes beside computing (local steps): smoothed by the server, and each worker's last.", "s",
                      ((leading("centroid_server_exchange_seconds"), "smoothed"), ("centroid_worker_exchange_seconds{SELECT}", "{{instance}}")), width=12),
                Panel("Corrections", "Times per second that divergence halved the local steps, and samples per second of lost workers that others were given.", "ops",
                      ((rate("centroid_server_cadence_nudges_total"), "halved"), (rate("centroid_server_samples_returned_total"), "samples given to others")), width=12),
                Panel("Divergence", "How far workers are from their mean at an average (local steps), and the cosine between a worker's parameters before and after it. "
                      "The first rises, the second falls: average more often.", "percentunit",
                      ((leading("centroid_server_divergence_ratio"), "largest"),
                       ("clamp_min(centroid_worker_divergence_ratio{SELECT}, 0)", "{{instance}}"),
                       ("centroid_worker_divergence_cosine{SELECT}", "{{instance}}, cosine")), width=12),
                Panel("Age of the open round", "Grows while a round waits; /v1/waits names for whom.", "s",
                      ((leading("centroid_server_round_open_seconds"), "open since"),), width=12),
            ),
        ),
        (
            "Compression",
            (
                Panel("Compression ratio", "Bytes as float32 over bytes on the wire, by codec and direction.", "none",
                      ((rate("centroid_server_codec_raw_bytes_total", "codec, direction") + " / ("
                        + rate("centroid_server_codec_encoded_bytes_total", "codec, direction") + " > 0)", "{{codec}} {{direction}}"),)),
                Panel("Encoding and decoding", "Seconds per second in codecs, over all workers and the server.", "percentunit",
                      ((rate("centroid_server_codec_encode_seconds_total", "direction"), "encode {{direction}}"),
                       (rate("centroid_server_codec_decode_seconds_total", "direction"), "decode {{direction}}"))),
                Panel("Residual", "Norm of what error feedback has left to send. Steady growth: the codec is too coarse.", "none",
                      ((f"max by (direction) ({leading('centroid_server_codec_residual_norm')})", "{{direction}}"),
                       ("centroid_worker_codec_residual_norm{SELECT}", "{{instance}}"))),
                Panel("Chunks", "Chunks encoded per second, and those of them that top-k sent whole (the warm-up, or more numbers than it pays to list).", "ops",
                      ((rate("centroid_server_codec_chunks_total", "codec, direction") + " > 0", "{{codec}} {{direction}}"),
                       (rate("centroid_server_codec_dense_chunks_total"), "whole")), width=12),
                Panel("Payload of the workers", "Contributions that each sends to the server, results and state that it gets.", "Bps",
                      ((rate("centroid_worker_payload_sent_bytes_total", "instance"), "{{instance}} out"),
                       (rate("centroid_worker_payload_received_bytes_total", "instance"), "{{instance}} in")), width=12),
            ),
        ),
        (
            "Numbers of the programs",
            (
                Panel("Recorded", "Numbers that training programs record with their contributions (trainer.record, docs/how-to/pytorch.md): the mean of the last round with any.", "none",
                      ((leading("centroid_server_scalar"), "{{name}}"),), width=24),
            ),
        ),
    ),
)  # fmt: skip

CLUSTER = Dashboard(
    "centroid-cluster",
    "Centroid / Cluster",
    "Who is there, what moves between them, what they cost, and what went wrong.",
    (
        (
            "Members",
            (
                Panel("Processes up", "Programs that Prometheus reaches.", "none",
                      (("count by (program) (centroid_build_info{SELECT})", "{{program}}"),), STAT, 6),
                Panel("Present", "Workers with a lease, those of the present generation, and how many a person wants (0: nobody has said).", "none",
                      ((f"sum({leading('centroid_server_members')})", "present"),
                       (f"sum({leading('centroid_server_world_members')})", "in the generation"),
                       (f"sum({leading('centroid_server_scale_hint_workers')})", "wanted")), width=6),
                Panel("Workers by state", "Every admission since the server started, by what became of it.", "none",
                      ((f"sum by (state) ({leading('centroid_server_workers')})", "{{state}}"),), width=6),
                Panel("Generation", "Number of the membership; it moves when a worker comes, goes or dies.", "none",
                      ((f"max({leading('centroid_server_generation_number')})", "generation"),), width=6),
                Panel("Leases", "How long the most silent of the workers has sent nothing, and the lease, after which it is no member any more. Often above a third of it: "
                      "that worker freezes, or the network drops; centroidctl workers names it.", "s",
                      ((f"max({leading('centroid_server_silence_seconds')})", "longest silence"),
                       (f"max({leading('centroid_server_lease_seconds')})", "lease"))),
                Panel("Coming and going", "Workers admitted and ended, per second; silent: rounds were repeated without them (round_timeout).", "ops",
                      ((rate("centroid_server_members_joined_total"), "joined"), (rate("centroid_server_members_silent_total"), "silent"),
                       (rate("centroid_server_members_ended_total", "cause"), "{{cause}}"))),
                Panel("Connections between workers", "Opened per second (exchange ring and hierarchical); in a steady generation none.", "ops",
                      ((rate("centroid_worker_peer_connections_total"), "opened"),)),
            ),
        ),
        (
            "Traffic",
            (
                Panel("Payload of the server", "Contributions in; results and state out.", "Bps",
                      ((rate("centroid_server_payload_received_bytes_total"), "in"), (rate("centroid_server_payload_sent_bytes_total"), "out"))),
                Panel("Traffic by worker", "Bytes on all its connections, to the server and to other workers.", "Bps",
                      ((rate("centroid_worker_traffic_bytes_total", "instance, direction"), "{{instance}} {{direction}}"),)),
                Panel("Server: a chunk", "Median time of one chunk: to read it, to add it, to send a result. `send` grows when a worker does not read.", "s",
                      ((quantile(0.5, "centroid_server_stage_seconds", "stage").replace("SELECT", 'SELECT,stage=~"receive|aggregate|send"'),
                        "{{stage}}"),)),
                Panel("Receive buffers", "Buffers that hold chunks, of how many, and chunks that wait for lower ranks. All in use: contributions wait in the network.", "short",
                      ((f"sum({leading('centroid_server_buffers_in_use')})", "in use"), (f"sum({leading('centroid_server_buffers_capacity')})", "at most"),
                       (f"sum({leading('centroid_server_chunks_waiting')})", "waiting"))),
                Panel("Results to send", "Chunks of results that are ready and not yet sent, over all workers. Grows: some worker does not read.", "short",
                      ((f"sum({leading('centroid_server_results_unsent')})", "unsent"),)),
                Panel("Reconnects", "Times per second that workers lost the server and tried again.", "ops",
                      ((rate("centroid_worker_reconnects_total", "instance"), "{{instance}}"),)),
            ),
        ),
        (
            "What it costs",
            (
                Panel("Processor", "Cores in use by each process.", "short",
                      (("rate(process_cpu_seconds_total{SELECT}[RATE])", "{{instance}}"),)),
                Panel("Memory", "Resident memory of each process.", "bytes",
                      (("process_resident_memory_bytes{SELECT}", "{{instance}}"),)),
                Panel("Open descriptors and threads", "Open files and sockets of each process, and its threads. Either grows without workers coming: report it.", "short",
                      (("process_open_fds{SELECT}", "{{instance}}"), ("process_threads{SELECT}", "{{instance}}, threads"))),
            ),
        ),
        (
            "Checkpoints",
            (
                Panel("Newest checkpoint", "When it was written. This much is lost with the server's machine.", "dateTimeFromNow",
                      (("1000 * max(centroid_server_checkpoint_last_success_timestamp_seconds{SELECT})", "written"),), STAT, 6),
                Panel("Size", "Bytes of the newest checkpoint.", "bytes",
                      ((f"max({leading('centroid_server_checkpoint_bytes')})", "size"),), STAT, 6),
                Panel("Time to write", "Mean over those since the server started; training goes on meanwhile.", "s",
                      (("max(centroid_server_checkpoint_seconds_sum{SELECT} / centroid_server_checkpoint_seconds_count{SELECT})", "mean"),),
                      width=6),
                Panel("Checkpoints", "Written, and failed, since the server started.", "short",
                      (("sum(centroid_server_checkpoints_total{SELECT})", "written"),
                       ("sum(centroid_server_checkpoint_failures_total{SELECT})", "failed")), width=6),
            ),
        ),
        (
            "Journal",
            (
                Panel("Unsynced", "Age of the oldest commit that power loss would take; 0 without a journal.", "s",
                      ((f"max({leading('centroid_server_journal_unsynced_seconds')})", "unsynced"),)),
                Panel("Journal size", "Bytes of its segments, which a checkpoint makes short again, and copies that wait for its disk.", "bytes",
                      ((f"max({leading('centroid_server_journal_bytes')})", "size"), (f"max({leading('centroid_server_journal_queued_bytes')})", "waiting"))),
                Panel("Journal trouble", "1: a write fails and is repeated (the round waits), or the journal is broken until the next checkpoint.",
                      "none", ((f"max({leading('centroid_server_journal_waits')})", "waits"), (f"max({leading('centroid_server_journal_broken')})", "broken"))),
                Panel("Journal's disk", "Time of fdatasync. Above `journal_sync`: the disk cannot keep the bound on what power loss takes.", "s",
                      ((quantile(0.5, "centroid_server_journal_sync_seconds"), "median"),
                       (quantile(0.99, "centroid_server_journal_sync_seconds"), "99 %"))),
                Panel("Rounds wait for the journal", "How long a round's end waits until the journal has it, mean. Grows with a slow disk.", "s",
                      ((mean("centroid_server_stage_seconds", "stage").replace("SELECT", 'SELECT,stage="journal"'), "wait"),)),
                Panel("Written", "Bytes per second into the journal: 4 bytes a parameter and round.", "Bps",
                      ((rate("centroid_server_journal_written_bytes_total"), "written"),)),
            ),
        ),
        (
            "Several servers",
            (
                Panel("Shard servers", "Here, and missing: of those that `servers` asks for or that the model lies on. Missing: start it again.", "none",
                      ((f"sum({leading('centroid_server_shards')})", "here"), (f"sum({leading('centroid_server_shards_missing')})", "missing")), width=6),
                Panel("Memory of shard servers", "Parameters, slots and what is prepared; and contributions that wait for their round to close.", "bytes",
                      ((f"sum by (server) ({leading('centroid_shard_memory_bytes')})", "{{server}}"),
                       (f"sum by (server) ({leading('centroid_shard_staged_bytes')})", "{{server}}, contributions")), width=6),
                Panel("Journals of shard servers", "Bytes on each one's disk; a checkpoint makes them short again.", "bytes",
                      ((f"sum by (server) ({leading('centroid_shard_journal_bytes')})", "{{server}}"),), width=6),
                Panel("Traffic of shard servers", "Contributions from workers, and results to them.", "Bps",
                      ((rate("centroid_shard_received_bytes_total", "server"), "{{server}} in"),
                       (rate("centroid_shard_sent_bytes_total", "server"), "{{server}} out")), width=6),
                Panel("Merging on shard servers", "Time of sums, steps and journal in one round. One far above the others holds all up.", "s",
                      ((rate("centroid_shard_merge_seconds_total", "server") + " / (" + rate("centroid_shard_rounds_total", "server") + " > 0)", "{{server}}"),),
                      width=12),
                Panel("Workers of shard servers", "Sessions of workers on each; as many as there are workers.", "none",
                      ((f"sum by (server) ({leading('centroid_shard_workers')})", "{{server}}"),), width=12),
                Panel("Roles", "What each server does: it leads (or is alone), stands by, or holds a shard. Shard servers are here, and in what follows, when they have a "
                      "port of their own (metrics.listen).", "none",
                      (("max by (instance, role) (centroid_server_role{SELECT}) == 1", "{{instance}}: {{role}}"),), STAT, 12),
                Panel("Held", "Chunks of the model on each shard server and workers' sessions there; 0 has a leader: it looks for one, and holds nothing.", "none",
                      (("sum by (instance) (centroid_server_held_chunks{SELECT})", "{{instance}} chunks"),
                       ("sum by (instance) (centroid_server_worker_sessions{SELECT})", "{{instance}} sessions"),
                       ("sum by (instance) (centroid_server_has_leader{SELECT})", "{{instance}} has a leader")), width=12),
                Panel("Held memory", "Of a shard server, by itself: parameters, slots and what is prepared; contributions kept until their round closes.", "bytes",
                      (("sum by (instance) (centroid_server_held_bytes{SELECT})", "{{instance}}"),
                       ("sum by (instance) (centroid_server_staged_bytes{SELECT})", "{{instance}}, contributions")), width=8),
                Panel("Rounds on shard servers", "Sums, step and journal of a round: mean, and 99 % over all.", "s",
                      ((mean("centroid_server_merge_seconds", "instance"), "{{instance}}, mean"),
                       (quantile(0.99, "centroid_server_merge_seconds"), "99 %")), width=8),
                Panel("Stages of each server", "Time of a chunk in receive and aggregate, of a round in journal; mean. One server far above the others: its disk, its "
                      "processor, its network.", "s",
                      ((mean("centroid_server_stage_seconds", "instance, stage").replace("SELECT", 'SELECT,stage=~"receive|aggregate|journal"'),
                        "{{instance}} {{stage}}"),), width=8),
            ),
        ),
        (
            "Tables of sparse rows",
            (
                Panel("Rows", "Rows that each table stores, and keys that wait for admission.", "short",
                      ((f"sum by (table) ({leading('centroid_rows_stored')})", "{{table}}"),
                       (f"sum by (table) ({leading('centroid_rows_waiting')})", "{{table}}, waiting")), width=6),
                Panel("Memory of tables", "Near max_bytes the least used rows are evicted.", "bytes",
                      ((f"sum by (table) ({leading('centroid_rows_memory_bytes')})", "{{table}}"),), width=6),
                Panel("Pushed and pulled", "Rows of sparse tables that clients push and pull, per second.", "ops",
                      ((rate("centroid_rows_pushed_total", "table"), "{{table}}, pushed"),
                       (rate("centroid_rows_pulled_total", "table"), "{{table}}, pulled")), width=6),
                Panel("Coming and going", "Rows stored anew, gradients held back before that, rows evicted for want of memory, and expired.", "ops",
                      ((rate("centroid_rows_admitted_total", "table"), "{{table}}, admitted"),
                       (rate("centroid_rows_held_back_total", "table"), "{{table}}, held back"),
                       (rate("centroid_rows_evicted_total", "table"), "{{table}}, evicted"),
                       (rate("centroid_rows_expired_total", "table"), "{{table}}, expired")), width=6),
                Panel("Clients of rows", "Connected; closed for their silence, since the server started.", "short",
                      (("sum(centroid_rows_clients{SELECT})", "connected"), ("sum(centroid_rows_silent_clients_total{SELECT})", "silent")), width=12),
                Panel("Refused and repeated", "Requests for rows that were refused, and pushes that came again and were not applied again.", "ops",
                      ((rate("centroid_rows_refused_requests_total"), "refused"),
                       (rate("centroid_rows_repeated_pushes_total"), "repeated")), width=12),
            ),
        ),
        (
            "Errors",
            (
                Panel("Budgets", "Used share of each limit that strangers, members and callers of REST meet (docs/explanation/threat-model.md).", "percentunit",
                      (("max by (resource) (centroid_budget_used{SELECT} / (centroid_budget_limit{SELECT} > 0))", "{{resource}}"),), width=12),
                Panel("Budgets refused", "Requests refused, connections closed, lines left out and events dropped, because a budget was used up, per second.", "ops",
                      ((rate("centroid_budget_refused_total", "resource"), "{{resource}}"),), width=12),
                Panel("Contributions lost", "Of workers that went before their end; the round was closed with the rest or repeated.", "ops",
                      ((rate("centroid_server_contributions_lost_total"), "lost"),)),
                Panel("Refused and stale", "Handshakes refused: wrong token, or another version or garbage. Stale chunks: of closed attempts.", "ops",
                      ((rate("centroid_server_handshakes_refused_total"), "handshakes refused"),
                       (rate("centroid_server_tokens_refused_total"), "for their token"),
                       (rate("centroid_server_frames_stale_total"), "stale chunks"))),
                Panel("State lost", "Times the job went back because every worker of a ring was gone at once.", "short",
                      (("sum(centroid_server_state_lost_total{SELECT})", "state lost"),)),
                Panel("Leaders", "1: this server leads, or is alone; 0: a standby, or a leader that cannot renew its lease in etcd.", "none",
                      (("max by (instance) (centroid_server_is_leader{SELECT})", "{{instance}}"),)),
                Panel("Term and etcd", "Each new leader has a larger term (0: no etcd). Failures: requests that no endpoint of etcd answered.", "short",
                      (("max(centroid_server_term_number{SELECT})", "term"), (rate("centroid_server_etcd_failures_total"), "failures/s"),
                       (rate("centroid_server_lease_renewals_total"), "renewals/s"))),
                Panel("REST requests", "Requests per second by class of status.", "ops",
                      ((rate("centroid_api_requests_total", "code"), "{{code}}"),)),
                Panel("REST latency", "Time to answer a request.", "s",
                      ((quantile(0.99, "centroid_api_request_seconds", "route"), "{{route}}, 99 %"),), width=12),
                Panel("REST trouble", "Connections that the server closed, by reason: too slow, too far behind. Requests that were not let in. Audit: entries "
                      "that could not be written, of which any is too many.", "ops",
                      ((rate("centroid_api_dropped_connections_total", "reason"), "closed, {{reason}}"),
                       (rate("centroid_api_refused_total", "reason"), "refused, {{reason}}"),
                       (rate("centroid_api_audit_failures_total"), "audit")), width=12),
            ),
        ),
    ),
)  # fmt: skip

GPU = Dashboard(
    "centroid-gpu",
    "Centroid / GPU",
    "What the workers' GPUs do, beside what the workers do with them. Series are there where a worker finds NVIDIA's driver.",
    (
        (
            "Use",
            (
                Panel("Utilisation", "Share of time in which the GPU ran something. Low beside much `wait`: the network or the server holds it up.", "percentunit",
                      (("centroid_worker_gpu_utilization_ratio{SELECT}", "{{instance}} GPU {{gpu}}"),), width=12),
                Panel("Time of the workers by stage", "Seconds per second that a worker spends in each stage, mean over the workers.", "percentunit",
                      ((f"avg by (stage) ({WORKER_STAGES})", "{{stage}}"),), BARS, 12),
            ),
        ),
        (
            "Memory",
            (
                Panel("Memory in use", "Of all processes on the GPU.", "bytes",
                      (("centroid_worker_gpu_memory_used_bytes{SELECT}", "{{instance}} GPU {{gpu}}"),), width=12),
                Panel("Share of the memory", "Near 1: a larger batch or model will not fit.", "percentunit",
                      (("centroid_worker_gpu_memory_used_bytes{SELECT} / centroid_worker_gpu_memory_total_bytes{SELECT}", "{{instance}} GPU {{gpu}}"),), width=12),
            ),
        ),
        (
            "Heat",
            (
                Panel("Temperature", "A GPU that is too hot slows itself down.", "celsius",
                      (("centroid_worker_gpu_temperature_celsius{SELECT}", "{{instance}} GPU {{gpu}}"),), width=12),
                Panel("Power", "Power drawn by each GPU.", "watt",
                      (("centroid_worker_gpu_power_watts{SELECT}", "{{instance}} GPU {{gpu}}"),), width=12),
            ),
        ),
    ),
)  # fmt: skip

DASHBOARDS = (TRAINING, CLUSTER, GPU, SHARDED)

TRAINING_NOW = '(max by (job, run, instance) (centroid_server_job_state{state="training"}) == 1)'

SERVER_UP, SHARD_UP, WORKER_UP = ('up{job=~".*centroid-%s.*"}' % kind for kind in ("server", "shard", "worker"))

# Of a worker, seconds a round.
COMPUTING = ('rate(centroid_worker_stage_seconds_sum{stage="compute"}[5m])'
             ' / (rate(centroid_worker_stage_seconds_count{stage="compute"}[5m]) > 0)')  # fmt: skip


def increase(metric, window):
    """Of an alert: by server."""
    return f"sum by (job, run, instance) (increase({metric}[{window}]))"


def rate5(metric):
    """Of an alert: a second, by server, over five minutes."""
    return f"sum by (job, run, instance) (rate({metric}[5m]))"


# Of the last six hours. Nothing before the first round has ended: one that takes over ten minutes meets the alert once.
USUAL_ROUND = ("(sum by (job, run, instance) (rate(centroid_server_round_seconds_sum[6h]))"
               " / (sum by (job, run, instance) (rate(centroid_server_round_seconds_count[6h])) > 0))")  # fmt: skip

OPEN_ROUND = "max by (job, run, instance) (centroid_server_round_open_seconds)"
# Its age stays where it is between rounds, and when the thread of training hangs.
OPEN_ROUND_GROWS = "max by (job, run, instance) (changes(centroid_server_round_open_seconds[5m])) > 0"

# Of a job without a server, by the rank that is longest without one: a rank that restarts again and again counts from its start.
STEP_AGE = "max by (job, run) (centroid_worker_sharded_step_age_seconds)"
USUAL_STEP = ("(sum by (job, run) (rate(centroid_worker_round_seconds_sum[6h]))"
              " / (sum by (job, run) (rate(centroid_worker_round_seconds_count[6h])) > 0))")  # fmt: skip

# Of REST, where who may less than it asks for is known, and of the training port.
REFUSED_LOGINS = '{__name__=~"centroid_api_refused_total|centroid_server_tokens_refused_total",reason!="role"}'

ALERTS = (
    Alert("CentroidNoProgress", f"{TRAINING_NOW} * on (job, run, instance) {rate5('centroid_server_rounds_total')}",
          f"== 0 unless on (job, run, instance) ({OPEN_ROUND} < 5 * {USUAL_ROUND} and {OPEN_ROUND_GROWS})", "5m",
          "critical", "The job on {{ $labels.instance }} is training, but no round has ended for ten minutes, and none is open that grows and has taken less than five times as long as usual.",
          "centroidctl waits (GET /v1/waits) says for whom the round waits; without an answer the server itself hangs: GET /livez, and its log. A worker that hangs beyond its lease is dropped by itself; "
          "one that sends heartbeats but no gradients must be restarted."),
    Alert("CentroidJobHalted", 'max by (job, run, instance) (centroid_server_job_state{state="halted"})', "== 1", "0m",
          "critical", "The job on {{ $labels.instance }} has halted itself.",
          "centroidctl status (GET /v1/cluster, state_reason): mostly a gradient that is not finite, with worker, tensor and round. Lower the learning rate "
          "or look at that worker's data, then centroidctl job resume and start the server and its workers again."),
    Alert("CentroidServerDown", f"max by (job, run, instance) ({SERVER_UP})", "== 0", "1m",
          "critical", "Prometheus does not reach the server {{ $labels.instance }}.",
          "Workers keep their state and try again until --join-timeout. Start the server with --resume and the same run_dir and listen."),
    Alert("CentroidServerGone",
          f"(count by (job, run) ({SERVER_UP}) or count by (job, run) (count_over_time({SERVER_UP}[6h])) * 0)",
          "== 0", "2m",
          "critical", "Prometheus knows no server of {{ $labels.job }} any more; in the last six hours there was one.",
          "Is its pod or container there (kubectl get pods, docker ps -a)? Pending: no node or volume fits; scaled to 0, or removed: for good, this alert "
          "ends six hours later. Start the server with --resume and the same run_dir and listen."),
    Alert("CentroidWorkerUnseen", f"max by (job, run, instance) ({WORKER_UP})", "== 0", "5m",
          "warning", "Prometheus does not reach the worker {{ $labels.instance }}.",
          "centroidctl workers says whether it trains: then only its port of metrics is closed or busy. If not, look at its log and its machine."),
    Alert("CentroidTooFewWorkers", 'max by (job, run, instance) (centroid_server_job_state{state="waiting"})', "== 1", "10m",
          "warning", "The job on {{ $labels.instance }} has waited for workers for ten minutes.",
          "centroidctl status (GET /v1/cluster, state_reason) says how many are missing. Start them, or lower min_workers."),
    Alert("CentroidWorkersFlapping", increase('centroid_server_members_ended_total{cause="dead"}', "15m"), "> 3", "0m",
          "warning", "More than three workers of {{ $labels.instance }} were lost within 15 minutes.",
          "centroidctl workers --all (GET /v1/workers, reason) tells why each ended. Look at memory limits, preemption and the network of those machines."),
    Alert("CentroidNonFiniteGradients", increase("centroid_server_contributions_nonfinite_total", "10m"), "> 0", "0m",
          "warning", "Gradients with NaN or infinity reached {{ $labels.instance }}.",
          "The server's log names worker, tensor and round. Lower the learning rate, or set clip_norm; look at that worker's data."),
    Alert("CentroidCheckpointFails", increase("centroid_server_checkpoint_failures_total", "15m"), "> 0", "0m",
          "critical", "A checkpoint of {{ $labels.instance }} could not be written.",
          "The log line checkpoint.failed says why; mostly the disk is full. Training goes on, older checkpoints are untouched."),
    Alert("CentroidCheckpointOld",
          f"{TRAINING_NOW} * on (job, run, instance) (time() - max by (job, run, instance)"
          ' ({__name__=~"centroid_server_checkpoint_last_success_timestamp_seconds|process_start_time_seconds"}))',
          "> 7200", "0m",
          "warning", "The job on {{ $labels.instance }} has trained for two hours without a new checkpoint.",
          "centroidctl checkpoints make (POST /v1/checkpoints) writes one now; set checkpoint.every_rounds to what you can afford to lose."),
    Alert("CentroidJournalBroken", "max by (job, run, instance) (centroid_server_journal_broken + centroid_server_journal_waits)", "> 0", "1m",
          "critical", "The journal of {{ $labels.instance }} cannot be written.",
          "The server's log says why; mostly the disk is full. Make room, then centroidctl checkpoints make: a checkpoint begins a new journal."),
    Alert("CentroidShardServerAway", "max by (job, run, instance) (centroid_server_shards_missing)", "> 0", "2m",
          "critical", "{{ $value }} shard servers of the leader {{ $labels.instance }} are missing.",
          "centroidctl servers (GET /v1/servers) says who is here; start the missing one again under its name, with its journal's folder. Before the first "
          "round the job waits for it; later it goes on without, from its newest checkpoint or journal, when servers_wait is over."),
    Alert("CentroidShardUnseen", f"max by (job, run, instance) ({SHARD_UP})", "== 0", "5m",
          "warning", "Prometheus does not reach the shard server {{ $labels.instance }}.",
          "centroidctl servers says whether the leader has it: then only its port of metrics is closed or busy (metrics.listen). If not, look at its log and "
          "its machine, and start it again under its name."),
    Alert("CentroidShardJournalGrows",
          "max by (job, run, instance, server) (centroid_shard_journal_bytes - centroid_shard_journal_bytes offset 2h)"
          " * (max by (job, run, instance, server) (resets(centroid_shard_journal_bytes[2h])) == bool 0)",
          "> 1e9", "10m",
          "warning", "The journal of shard server {{ $labels.server }} has only grown for two hours.",
          "Only a checkpoint makes it short again: centroidctl checkpoints make, and look in the leader's log why none was written "
          "(checkpoint.failed). Then set checkpoint.every_rounds to a smaller number."),
    Alert("CentroidStateLost", increase("centroid_server_state_lost_total", "10m"), "> 0", "0m",
          "critical", "The job on {{ $labels.instance }} went back to an older state.",
          "Every worker of a ring was gone at once. Find what they share (a power supply, a switch, a node pool); checkpoint more often."),
    Alert("CentroidNoLeader", "max by (job, run) (centroid_server_is_leader)", "== 0", "30s",
          "critical", "No server of {{ $labels.job }} leads.",
          "centroidctl --server ... waits (GET /v1/waits) of each server says for what it waits: mostly etcd does not answer. Rounds go on when it does."),
    Alert("CentroidEtcdFails", rate5("centroid_server_etcd_failures_total"), "> 0.1", "2m",
          "warning", "Requests of {{ $labels.instance }} to etcd fail.",
          "etcd.failed in the server's log has the reason of each endpoint. The leader trains on until its lease would have run out, then it waits."),
    Alert("CentroidPaused", 'max by (job, run, instance) (centroid_server_job_state{state="paused"})', "== 1", "6h",
          "warning", "The job on {{ $labels.instance }} has been paused for six hours.",
          "Somebody may have forgotten it: centroidctl audit says who paused it, centroidctl job resume goes on."),
    Alert("CentroidAuditFails", increase("centroid_api_audit_failures_total", "15m"), "> 0", "0m",
          "warning", "Changes that were asked for on {{ $labels.instance }} are not in its audit log.",
          "audit.failed in its log says why; mostly the disk of run_dir is full. The changes were made; those in memory are in centroidctl audit."),
    Alert("CentroidStranger",
          rate5("centroid_server_handshakes_refused_total") + " - " + rate5("centroid_server_tokens_refused_total"),
          "> 0.1", "5m",
          "warning", "Connections to {{ $labels.instance }} fail the handshake again and again, and not for their token.",
          "connection.refused in the log names the address: a worker of another version or without TLS, or a scanner."),
    Alert("CentroidLoginsRefused", increase(REFUSED_LOGINS, "10m"), "> 20", "0m",
          "warning", "{{ $labels.instance }} has refused more than 20 logins within ten minutes: no token, or one that it does not know.",
          "api.refused (REST) and connection.refused (training port) in the log name the address. A program of yours: its token has expired or was revoked "
          "(centroidctl tokens list), give it a new one. Nobody of yours: keep that address away by the network (docs/how-to/secure.md)."),
    Alert("CentroidShardedNoStep", STEP_AGE, f"> 600 unless on (job, run) ({STEP_AGE} < 5 * {USUAL_STEP})", "1m",
          "critical", "A rank of {{ $labels.job }} has ended no step for ten minutes, and for five times as long as usual.",
          "centroidctl --server RANK:9091 top, of each rank: one that does not answer, or waits least, holds the others up. Look at its log and its machine; killed, "
          "it is left out, and started again it joins. A rank that evaluates or saves makes no steps either."),
    Alert("CentroidRankMissing", "max by (job, run) (centroid_worker_sharded_missing_ranks)", "> 0", "5m",
          "warning", "{{ $value }} ranks of {{ $labels.job }} are missing: the others train on without them.",
          "centroidctl --server RANK:9091 top names those that were lost. Start them again with their command: they join between two steps."),
    Alert("CentroidStraggler",
          f"max by (job, run) ({COMPUTING}) / (quantile by (job, run) (0.5, {COMPUTING}) > 0)",
          "> 2", "10m",
          "warning", "A worker of {{ $labels.job }} computes more than twice as long as the median worker.",
          "The dashboard Training, row 'Who waits for whom', names it. Give it a smaller batch, move it to another machine, or train with "
          "--policy backup:1 (docs/how-to/stragglers.md#choose-a-policy)."),
)  # fmt: skip
