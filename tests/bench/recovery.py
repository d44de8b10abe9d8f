#!/usr/bin/env python3
"""Seconds until workers train again after a server was killed (SIGKILL) under load: started again at once, or taken over by a standby.

Usage: recovery.py BIN_DIR [--model mlp:64-2000-2000-10] [--workers 2] [--kills 5] [--checkpoint-every 20] [--servers 1] [--kill leader] [--bar 5]

--servers N --kill shard  kills one of N - 1 shard servers instead of the leader
--kill all                the leader and all shard servers
--standby                 two servers and an etcd (in PATH or in the folder OPS_ETCD): the one that leads is killed, and started again when the other leads
"""

import argparse
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, Server, digits, free_port, wait_for
from harness.etcd import ETCD, Etcd
from verdict import verdict


def unix_seconds(event):
    """Of a log line's time, as seconds of its day."""
    hours, minutes, seconds = re.search(r"T(\d+):(\d+):([\d.]+)Z", event["time"]).groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


class Job:
    def __init__(self, options, folder):
        self.options, self.folder, self.started = options, folder, 0
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        self.etcd = Etcd(folder, free_port(), free_port()) if options.standby else None
        self.ports = {name: (free_port(), free_port()) for name in "ab"}
        self.leader = self.start_leader("a")
        self.standby = self.start_leader("b") if options.standby else None
        self.shards = {f"shard-{i}": self.start_shard(f"shard-{i}") for i in range(1, options.servers)}
        self.workers = []
        for i in range(options.workers):
            flags = ["--server", self.places(), "--name", f"w{i}", "--data-cache-dir", folder / "data", "--model", options.model, "--batch", 32]
            self.workers.append(Process(options.bin / "centroid-worker", flags, folder / f"w{i}.log", None))

    def places(self):
        return ",".join(f"127.0.0.1:{self.ports[name][0]}" for name in ("ab" if self.options.standby else "a"))

    def start_leader(self, name, *arguments):
        self.started += 1
        data, api = self.ports[name]
        endpoints = self.folder / f"endpoints-{self.started}.json"
        flags = ["--listen", f"127.0.0.1:{data}", "--api.listen", f"127.0.0.1:{api}", "--run-dir", self.folder / "run", "--endpoints-file", endpoints]
        flags += ["--log.format", "json", "--log.level", "debug", "--optimizer", "momentum", "--lr", "0.001", "--journal.mode", "on"]
        flags += ["--checkpoint.every-rounds", self.options.checkpoint_every, "--min-workers", self.options.workers, "--servers", self.options.servers]
        flags += ["--etcd.endpoints", self.etcd.url, "--cluster", "bench", "--name", name] if self.etcd else []
        server = Server(self.options.bin / "centroid-server", [*flags, *arguments], self.folder / f"server-{self.started}.log", None, endpoints)
        server.name = name
        if self.etcd and self.started == 1:
            server.wait_open().wait_cluster("the lead", lambda cluster: cluster["role"] == "leader")
        return server

    def start_shard(self, name):
        self.started += 1
        flags = ["--join", self.places(), "--name", name, "--listen", "127.0.0.1:0", "--run-dir", self.folder / "run", "--log.format", "json"]
        return Process(self.options.bin / "centroid-server", flags, self.folder / f"server-{self.started}.log", None)

    def kill(self):
        """What is to be killed, and then what comes in its place. When it was killed, and the newest round committed by then."""
        leader, kind = self.leader, self.options.kill
        before = len(leader.events("round.committed")) if kind == "shard" else 0
        wait_for(lambda: len(leader.events("round.committed")) >= before + 30, "30 rounds")
        victims = {"leader": [leader], "shard": [*self.shards.values()][:1], "all": [leader, *self.shards.values()]}[kind]
        for victim in victims:
            victim.kill()
        begin = time.time() % 86400
        committed = max(event["round"] for event in leader.events("round.committed"))
        for name in {"leader": [], "shard": [*self.shards][:1], "all": [*self.shards]}[kind]:
            self.shards[name] = self.start_shard(name)
        if self.standby:
            self.leader, self.standby = self.standby, None
        elif kind != "shard":
            self.leader = self.start_leader("a", "--resume")
        return begin, committed, leader.name

    def first_round(self, begin):
        """The first round that was committed behind the kill."""
        if self.options.kill == "shard":  # the leader goes on: the rounds behind its going back
            wait_for(lambda: any(unix_seconds(event) > begin for event in self.leader.events("servers.state_restored")), "the state")
            begin = unix_seconds(self.leader.events("servers.state_restored")[-1])
        later = lambda: [event for event in self.leader.events("round.committed") if unix_seconds(event) > begin]
        return wait_for(later, "a round")[0]

    def end(self):
        for process in [*self.workers, *self.shards.values(), self.leader, self.standby, self.etcd]:
            if process:
                process.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path)
    parser.add_argument("--model", default="mlp:64-2000-2000-10")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--kill", choices=["leader", "shard", "all"], default="leader")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--bar", type=float, default=0, help="status 1 where workers trained again later than so many seconds, or a round was lost")
    options = parser.parse_args()
    if options.standby and (ETCD is None or options.kill != "leader"):
        parser.error("--standby needs an etcd (package etcd-server) and --kill leader")
    if options.kill == "shard" and options.servers < 2:
        parser.error("--kill shard needs --servers 2 or more")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        job = Job(options, pathlib.Path(name))
        print(f"{options.workers} workers, {options.servers} servers, {options.model}, momentum, a checkpoint every {options.checkpoint_every} rounds, killed: {options.kill}")
        print("kill  round  replayed  replay s  trains again after s  committed rounds lost")
        longest, all_lost = 0, 0
        for number in range(1, options.kills + 1):
            begin, committed, killed = job.kill()
            first = job.first_round(begin)
            replayed = (job.leader.events("journal.replayed") or [{"rounds": 0, "seconds": 0}])[-1]
            took, lost = unix_seconds(first) - begin, max(0, committed + 1 - first["round"])
            longest, all_lost = max(longest, took), all_lost + lost
            print(f"{number:4}  {committed:5}  {replayed['rounds']:8}  {replayed['seconds']:8.2f}  {took:20.2f}  {lost:21}", flush=True)
            if options.standby:
                job.standby = job.start_leader(killed)
        job.end()
        if options.bar:
            missed = verdict("workers train again after", longest, options.bar, "s")
            print(f"bar: no committed round lost: {all_lost}, {'MISSED' if all_lost else 'held'}")
            sys.exit(1 if missed or all_lost else 0)


if __name__ == "__main__":
    main()
