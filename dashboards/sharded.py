"""The dashboard of jobs that divide a model among workers."""

from panels import BARS, STAT, Dashboard, Panel, rate


def sharded(metric):
    """Of the ranks of a job without a server."""
    return f"{metric}{{SELECT}} and on (job, run, instance) centroid_worker_sharded_generation_number{{SELECT}}"


SHARDED = Dashboard(
    "centroid-sharded",
    "Centroid / Sharded",
    "Jobs that divide a model among workers, without a server (exchange sharded): each rank by itself.",
    (
        (
            "Progress",
            (
                Panel("Step", "Steps that the job has made.", "none", ((f"max({sharded('centroid_worker_version_number')})", "step"),), STAT, 4),
                Panel("Loss", "Mean loss of the last step, of all ranks.", "none", ((f"max({sharded('centroid_worker_train_loss_nats')})", "loss"),), STAT, 4),
                Panel("Ranks", "Ranks of the group, and how many of --world are missing.", "none",
                      ((f"max({sharded('centroid_worker_world_members')})", "ranks"), ("max(centroid_worker_sharded_missing_ranks{SELECT})", "missing")), STAT, 4),
                Panel("Last step", "How long ago a rank ended its last step. Grows: some rank waits for another, evaluates or saves.", "s",
                      (("min(centroid_worker_sharded_step_age_seconds{SELECT})", "ago"),), STAT, 6),
                Panel("Samples per second", "Samples that all ranks compute.", "short",
                      (("sum(rate(centroid_worker_samples_total{SELECT}[RATE]) and on (job, run, instance) centroid_worker_sharded_generation_number{SELECT})", "samples/s"),), STAT, 6),
            ),
        ),
        (
            "Where the time goes",
            (
                Panel("Waiting, by operation", "Seconds per second that a rank waits for others, mean over the ranks: for parameters (gather), for gradients (reduce), for the copy of "
                      "a shard, for activations of stages and parts of layers, and until all agree on a step.", "percentunit",
                      (("avg by (operation) (rate(centroid_worker_sharded_wait_seconds_total{SELECT}[RATE]))", "{{operation}}"),), BARS),
                Panel("Waiting, by rank", "The rank that waits least is the slowest: the others wait for it.", "percentunit",
                      ((rate("centroid_worker_sharded_wait_seconds_total", "instance"), "{{instance}}"),)),
                Panel("Bubble, by rank", "Part of the time of its passes in which a stage waited for others. Uneven: stages of unequal cost.", "percentunit",
                      (("centroid_worker_sharded_bubble_ratio{SELECT}", "{{instance}}"),)),
            ),
        ),
        (
            "What each rank has",
            (
                Panel("Received, by operation", "Bytes per second of numbers from other ranks, over all ranks.", "Bps",
                      ((rate("centroid_worker_sharded_received_bytes_total", "operation"), "{{operation}}"),)),
                Panel("Peak memory", "The most bytes at once, of the largest rank. Activations are estimated.", "bytes",
                      (("max by (kind) (centroid_worker_sharded_memory_bytes{SELECT})", "{{kind}}"),), BARS),
                Panel("Shard", "Parameters that a rank updates, without the copy of another shard.", "short",
                      (("centroid_worker_sharded_shard_elements{SELECT}", "{{instance}}"),)),
                Panel("Generation", "Number of the group. One rank below the others is not in it any more.", "none",
                      (("centroid_worker_sharded_generation_number{SELECT}", "{{instance}}"),), width=12),
                Panel("Coming and going", "Ranks that the group has lost, and that have joined it, per second.", "ops",
                      (("max by (change) (rate(centroid_worker_sharded_members_total{SELECT}[RATE]))", "{{change}}"),), width=12),
            ),
        ),
    ),
)  # fmt: skip
