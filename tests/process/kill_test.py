"""Workers that are killed in the middle of their contribution, again and again: nothing of a part is ever counted. kill_test.py BIN_DIR"""

import ast
import functools
import os
import pathlib
import random
import signal
import struct
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import wire
from harness.cluster import DEADLINE_SECONDS, DONE, ClusterTest, bar, main

KILLS = 250
TENSORS = [(f"t{i}", (16,)) for i in range(13)]
LAST = len(TENSORS) - 1  # has at worker i's place the number of its contribution, which no other one has
BATCH = 4
BASE = 16  # a contribution of worker i is BASE ** i everywhere, so that a sum tells whose it holds, and how many
LEASE_SECONDS = 6  # those that stay are Python, and the machine may be busy; who is killed is missed at once
LONGEST_SECONDS = 2


@functools.lru_cache(None)
def constant(number):
    return struct.pack("<16f", *[BASE**number] * 16)


wire.crc32c = functools.lru_cache(1 << 12)(wire.crc32c)


class Worker(wire.Client):
    """Gives a constant; tells through a pipe what it has given whole, before the last bytes go."""

    def __init__(self, number, told, serial=0):
        super().__init__(f"w{number}", TENSORS, batch=BATCH, train_samples=100_000)
        self.number, self.told, self.serial = number, told, serial

    def run(self, endpoint):
        self.train(endpoint, lambda _, chunk: constant(self.number) if chunk < LAST else self.own())

    def own(self):
        return struct.pack("<16f", *[self.serial if i == self.number else 0 for i in range(16)])

    def contribute(self, *arguments):
        self.serial += 1
        super().contribute(*arguments)

    def send(self, kind, *arguments, **fields):
        if kind == self.PUSH_END:
            os.write(self.told, bytes([self.number]))
        super().send(kind, *arguments, **fields)


class Victim(Worker):
    """Dies of SIGKILL after a random number of bytes of a contribution, in a frame as well as between two."""

    def __init__(self, number, told, rng, life):
        super().__init__(number, told, 16 * life)  # it gives four at most
        self.rounds, self.whole = rng.choice((0, 0, 1, 3)), len(TENSORS) * (wire.HEADER_BYTES + 32 + 64)
        self.left, self.is_pushing = rng.randrange(self.whole), False

    def contribute(self, *arguments):
        self.is_pushing = self.rounds == 0
        self.rounds -= 1
        super().contribute(*arguments)
        self.is_pushing = False

    def put(self, frame):
        if self.is_pushing and len(frame) > self.left:
            super().put(frame[: self.left])
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= len(frame) if self.is_pushing else 0
        super().put(frame)


class Witness(Worker):
    """Stays, and looks at every result."""

    def run(self, endpoint, report):
        self.seen, self.longest, self.at = [0] * 4, 0, time.monotonic()
        self.held = [set() for _ in range(4)]
        super().run(endpoint)
        if not all(self.held[:2]):
            raise AssertionError("no contribution could be told from the others")
        report.write(repr((self.seen, self.longest, self.counted)))
        report.close()

    counted = 0

    def closed(self, number, outcome, weight):
        now = time.monotonic()
        self.longest, self.at = max(self.longest, now - self.at), now
        results = self.results.pop(number, None)
        if outcome != self.COMMITTED:
            return
        own = struct.unpack("<16f", results.get(LAST, bytes(64)))
        values = {value for chunk, result in results.items() if chunk != LAST for value in struct.unpack("<16f", result)}
        if len(results) != len(TENSORS) or len(values) != 1:
            raise AssertionError(f"round {number} holds a part of a contribution: {sorted(values)}")
        total = values.pop() * weight / BATCH
        whole = round(total)
        if abs(total - whole) > 0.02:
            raise AssertionError(f"round {number}: {total} contributions of {BASE}^i")
        self.counted += 1
        digits = [whole // BASE**i % BASE for i in range(4)]
        if sum(digits) * BATCH != weight:
            raise AssertionError(f"round {number}: weight {weight}, contributions {digits}")
        for i, held in enumerate(self.held):
            serial = round(own[i] * weight / BATCH)
            if digits[i] == 1 and serial in held:
                raise AssertionError(f"round {number}: contribution {serial} of worker {i} was counted before")
            if digits[i] == 1:
                held.add(serial)
        self.seen = [a + b for a, b in zip(self.seen, digits)]


def fork(action):
    """A process of its own, which ends with 0 when the action does."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        action()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Kills(ClusterTest):
    def kill_again_and_again(self, policy, *arguments, kills):
        seed = int(os.environ.get("TEST_SEED") or random.randrange(2**32))
        print(f"TEST_SEED={seed}")
        flags = ["--policy", policy, "--apply", "worker", "--min-workers", 4, "--lease", f"{LEASE_SECONDS}s"]
        server = self.server(*flags, *arguments, "--checkpoint.every-rounds", 0)
        told, tell = os.pipe()
        os.set_blocking(told, False)
        given = [0] * 4

        def count():
            try:
                while data := os.read(told, 1 << 16):
                    for number in data:
                        given[number] += 1
            except BlockingIOError:
                pass

        report = self.folder / "witness.txt"
        witness = fork(lambda: Witness(0, tell).run(server.data, report.open("w")))
        steady = fork(lambda: Worker(1, tell).run(server.data))
        self.addCleanup(lambda: [self.end(child) for child in (witness, steady)])
        rng = random.Random(seed)
        victims, done = {}, 0
        deadline = time.monotonic() + 4 * DEADLINE_SECONDS
        while done < kills:
            for number in (2, 3):
                if number not in victims:
                    own = random.Random(rng.random())
                    victims[number] = fork(lambda: Victim(number, tell, own, done + number).run(server.data))
            child, status = os.wait()
            self.assertNotIn(child, (witness, steady), f"a worker that was to stay ended with {status}: {server.text()[-2000:]}")
            self.assertEqual(os.WTERMSIG(status), signal.SIGKILL, f"a victim ended by itself with {status}")
            victims = {number: victim for number, victim in victims.items() if victim != child}
            done += 1
            count()
            self.assertLess(time.monotonic(), deadline, f"{done} kills")
        for victim in victims.values():
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
        server.wait_more_rounds(10)
        server.post("/v1/job:stop")
        for child in (witness, steady):
            self.assertEqual(os.waitpid(child, 0)[1], 0, "a result was not as it must be")
        self.assert_exit(DONE, server)
        count()
        seen, longest, rounds = ast.literal_eval(report.read_text())
        print(f"{policy}: {done} kills, {rounds} committed rounds, contributions given {given}, counted {seen}, longest wait {longest:.2f} s")
        for number in range(4):
            self.assertLessEqual(seen[number], given[number], "one contribution was counted twice")
            self.assertGreater(seen[number], 0)
        self.assertLess(longest, bar(LONGEST_SECONDS, slack=4), "no lease ends; a grace is half a round of milliseconds")

    def end(self, child):
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def test_quorum_counts_whole_contributions_only(self):
        self.kill_again_and_again("quorum:2", kills=KILLS)

    def test_carried_ones_count_once(self):
        self.kill_again_and_again("quorum:2,grace=0", "--late", "carry", kills=KILLS // 4)

    def test_without_a_quorum_the_attempt_is_repeated(self):
        self.kill_again_and_again("bsp", kills=KILLS // 4)


if __name__ == "__main__":
    main()
