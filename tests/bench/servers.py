#!/usr/bin/env python3
"""What a server that comes, and one that is drained, costs a training that goes on: the pauses between rounds, and the rounds' time.

Usage: servers.py BIN_DIR [--model mlp:64-2000-2000-10] [--workers 2] [--rounds 20] [--rows 0] [--bar MS] [--bar-call MS] [--bar-round RATIO]

With --rows N: a table of N rows of dim 16 in place of the training, and the longest time for which calls for rows that moved were held.
--bar: the longest pause of a round for chunks that moved, or hold of calls for rows that moved, milliseconds. --bar-call: the longest call of the
client of rows meanwhile, milliseconds. --bar-round: the median round after the second server was drained, by that before it came. Exit status 1: one
is missed, or nothing moved.
"""

import argparse
import array
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness.cluster import Process, Server, digits, wait_for
from verdict import verdict
import centroid

DIM, BATCH = 16, 4096


def rows_that_move(options):
    """On two servers; a client pushes to random rows all the time while a third one comes, and is drained."""
    binaries, count = options.bin, options.rows
    centroid.load(binaries.parent / "lib" / "libcentroid.so")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        endpoints = folder / "endpoints.json"
        flags = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", endpoints, "--log.format", "json"]
        leader = Server(binaries / "centroid-server", [*flags, "--tables", f"t:dim={DIM}", "--servers", 2], folder / "leader.log", None, endpoints).wait_ready()
        processes = [leader]

        def start(shard):
            join = ["--join", leader.data, "--listen", "127.0.0.1:0", "--log.format", "json", "--name", shard]
            processes.append(Process(binaries / "centroid-server", join, folder / f"{shard}.log", None))

        def is_settled(servers):
            views = leader.get("/v1/servers")["servers"]
            return len(views) == servers and all(view["buckets"] > 0 and view["bucket_moves"] == 0 for view in views)

        start("b")
        wait_for(lambda: is_settled(2), "the second server")
        gradients = memoryview(array.array("f", BATCH * DIM * [0.5])).cast("B").cast("f", [BATCH, DIM])
        with centroid.Rows(leader.data, "t", timeout=120) as rows:
            for first in range(0, count, BATCH):
                rows.push(array.array("Q", range(first, first + BATCH)), gradients)
        pauses, is_over = [], threading.Event()

        def push():
            draw = random.Random(1)
            with centroid.Rows(leader.data, "t", timeout=120) as rows:
                while not is_over.is_set():
                    keys = array.array("Q", (draw.randrange(count) for _ in range(BATCH)))
                    begin = time.monotonic()
                    rows.push(keys, gradients)
                    pauses.append(time.monotonic() - begin)

        client = threading.Thread(target=push)
        client.start()
        wait_for(lambda: len(pauses) > 3, "pushes")

        def show(what, done):
            seen, before, begin = len(leader.events("rows.moved")), len(pauses), time.monotonic()
            wait_for(done, what, 300)
            moves = leader.events("rows.moved")[seen:]
            if not moves or len(pauses) == before:
                raise SystemExit(f"{what}: {len(moves)} moves of rows and {len(pauses) - before} calls meanwhile: nothing to measure")
            held, call = (1000 * max(seconds) for seconds in ((event["held_seconds"] for event in moves), pauses[before:]))
            print(f"{what:20}  {time.monotonic() - begin:8.1f}  {held:15.1f}  {call:15.1f}", flush=True)
            return held, call

        print(f"{count} rows of dim {DIM}, {count * DIM * 4 / 1e6:.0f} MB, pushes of {BATCH} rows meanwhile")
        print("what                   seconds  longest hold ms  longest call ms")
        start("c")
        shown = [show("a third one comes", lambda: is_settled(3))]
        leader.post("/v1/servers/c:drain")
        shown.append(show("and is drained", lambda: is_settled(2)))
        is_over.set()
        client.join()
        for process in processes:
            process.kill()
        held, call = map(max, zip(*shown))
        return verdict("calls for rows that move are held", held, options.bar, "ms") + verdict("a call meanwhile takes", call, options.bar_call, "ms")


def chunks_that_move(options):
    """While the workers train a second server comes, and is drained."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "data").mkdir()
        (folder / "data" / "digits.csv.gz").write_bytes(digits())
        endpoints = folder / "endpoints.json"
        flags = ["--listen", "127.0.0.1:0", "--api.listen", "127.0.0.1:0", "--run-dir", folder / "run", "--endpoints-file", endpoints]
        flags += ["--log.format", "json", "--log.level", "debug", "--optimizer", "momentum", "--lr", "0.001"]
        flags += ["--min-workers", options.workers]
        leader = Server(options.bin / "centroid-server", flags, folder / "leader.log", None, endpoints).wait_ready()
        processes = [leader]
        for i in range(options.workers):
            flags = ["--server", leader.data, "--name", f"w{i}", "--data-cache-dir", folder / "data", "--model", options.model, "--batch", 32]
            processes.append(Process(options.bin / "centroid-worker", flags, folder / f"w{i}.log", None))

        def rounds():
            return leader.events("round.committed")

        def show(what, done):
            """The moves until `done`, and the rounds after them."""
            seen = len(leader.events("chunks.moved"))
            wait_for(done, what, 120)
            moves = leader.events("chunks.moved")[seen:]
            count = len(rounds())
            wait_for(lambda: len(rounds()) >= count + options.rounds, "rounds", 120)
            milliseconds = statistics.median(1000 * event["seconds"] for event in rounds()[count:])
            chunks = sum(event["chunks"] for event in moves)
            longest = max((1000 * event["held_seconds"] for event in moves), default=0)
            print(f"{what:20}  {chunks:6}  {len(moves):6}  {longest:16.1f}  {milliseconds:15.1f}", flush=True)
            return chunks, longest, milliseconds

        print(f"{options.workers} workers, {options.model}, momentum")
        print("what                  chunks  pauses  longest pause ms  median round ms")
        wait_for(lambda: len(rounds()) >= 5, "rounds", 120)
        alone = show("one server", lambda: True)
        join = ["--join", leader.data, "--listen", "127.0.0.1:0", "--log.format", "json", "--name", "b"]
        processes.append(Process(options.bin / "centroid-server", join, folder / "b.log", None))
        comes = show("a second one comes", lambda: any(event["left"] == 0 for event in leader.events("chunks.moved")))
        leader.post("/v1/servers/b:drain")
        drained = show("and is drained", lambda: leader.events("server.dropped"))
        for process in processes:
            process.kill()
        if not comes[0] or not drained[0]:
            raise SystemExit(f"{comes[0]} chunks moved to the second server and {drained[0]} back: nothing to measure")
        missed = verdict("pause of a round for chunks that move", max(comes[1], drained[1]), options.bar, "ms")
        return missed + verdict("a round after all, by before", drained[2] / alone[2], options.bar_round)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--model", default="mlp:64-2000-2000-10")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--bar", type=float, default=0, help="milliseconds; 0: none")
    parser.add_argument("--bar-call", type=float, default=0, help="milliseconds, with --rows; 0: none")
    parser.add_argument("--bar-round", type=float, default=0, help="ratio, without --rows; 0: none")
    options = parser.parse_args()
    sys.exit(1 if (rows_that_move if options.rows > 0 else chunks_that_move)(options) else 0)


if __name__ == "__main__":
    main()
