"""What `centroid run` shows of the job: a line a change, and below all output on a terminal a table that is drawn again each second."""

import contextlib
import os
import shutil
import sys
import threading
import time

from . import _progress

SECONDS = 1.0  # between two looks
GONE = ("left", "dead", "fenced")


def parts(cluster):
    """Of the first line of the table."""
    goal = f" of {cluster['rounds']:,}" if cluster.get("rounds") else ""
    is_over = cluster["state"] == "finished"  # the workers leave
    found = [f"round {cluster['round'] - is_over:,}{goal}", cluster["state"]]
    if not is_over:
        found.append(f"{cluster['world']} worker{'' if cluster['world'] == 1 else 's'}")
    if cluster.get("samples_per_second") and not is_over:
        found.append(f"{_progress.count(cluster['samples_per_second'])} samples/s")
    if cluster.get("loss"):
        found.append(f"loss {cluster['loss']:.4f}")
    return found


class Live:
    """Asks REST in a thread of its own; all else is called by the command's one thread.

    say   writes a line
    wake  has the command's thread call `take` soon
    """

    def __init__(self, api, say, wake):
        self.api, self.say, self.wake = api, say, wake
        self.is_terminal = sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.view, self.taken, self.told, self.lines, self.shown = None, None, None, [], 0
        self.before = {}  # member: when, and its samples then
        self.is_over, self.has_ended = threading.Event(), False
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while not self.is_over.wait(SECONDS):
            self.look()
            with contextlib.suppress(OSError):  # it is awake, or has ended
                self.wake()

    def look(self):
        with contextlib.suppress(OSError, ValueError, KeyError):  # it starts again, or wants a token
            self.view = self.api.get("/v1/cluster"), self.api.get("/v1/workers")["workers"], time.monotonic()

    def take(self):
        """Say what has changed, and draw what is new. Before the first worker there is nothing to see."""
        if self.view is self.taken or self.has_ended:
            return
        self.taken = cluster, workers, now = self.view
        if self.told is None and cluster["world"] == 0:
            return
        change = cluster["state"], cluster["world"] if cluster["state"] != "finished" else 0
        if change != self.told:
            self.told = change
            self.hide()
            self.say(", ".join(parts(cluster)) + (f" ({cluster['state_reason']})" if cluster.get("state_reason") else ""))
        self.lines = [", ".join(parts(cluster)), *self.rows(workers, now)]
        self.show()

    def rows(self, workers, now):
        rows, seen = [], {}
        for worker in sorted((one for one in workers if one["state"] not in GONE), key=lambda one: one["name"]):
            then, samples = self.before.get(worker["member"], (now, 0))
            rate = max(worker["samples"] - samples, 0) / (now - then) if now > then else 0
            seen[worker["member"]] = now, worker["samples"]
            loss = worker.get("last_loss")
            rows.append((worker["name"], worker["state"], _progress.count(worker["rounds"]), _progress.count(rate), f"{loss:.4f}" if loss else "-"))
        self.before = seen
        return _progress.table(("worker", "state", "rounds", "samples/s", "loss"), rows) if rows else []

    def hide(self):
        """Make room for other lines."""
        if self.shown:
            sys.stderr.write(f"\033[{self.shown}F\033[J")
            sys.stderr.flush()
            self.shown = 0

    def show(self):
        if not self.is_terminal:
            return
        self.hide()
        size = shutil.get_terminal_size()
        most = max(size.lines // 2, 2)
        lines = self.lines if len(self.lines) <= most else [*self.lines[: most - 1], f"and {len(self.lines) - most + 1} more"]
        sys.stderr.write("".join(line[: size.columns - 1] + "\n" for line in lines))
        sys.stderr.flush()
        self.shown = len(lines)

    def end(self):
        """Say how it ended."""
        if not self.is_over.is_set():
            self.is_over.set()
            self.look()
            self.take()
            self.hide()
            self.has_ended, self.lines = True, []
