"""Collectives for any program: groups of real processes through libcentroid.so and the Python package. groups_test.py BIN_DIR"""

import array
import ctypes
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.certificates import TlsTest
from harness.cluster import free_port, main
from harness.groups import GroupTest
import centroid


class Operations(GroupTest):
    def test_every_operation_gives_what_it_says(self):
        said = self.run_ranks(
            3,
            """
            say(list(group.all_reduce(floats(rank, 1))))
            say(list(group.all_reduce(array.array("d", [rank]), "max", out=array.array("d", [0]))))
            say(list(group.reduce_scatter(floats(*range(7)), floats(*[0] * (3 if rank == 0 else 2)), "mean")))
            say(list(group.all_gather(array.array("h", [rank] * (rank + 1)), array.array("h", [0] * 6), counts=[1, 2, 3])))
            say(list(group.all_gather(array.array("h", [rank] * (2 if rank == 0 else 1)), array.array("h", [9] * 4))))
            say(group.broadcast(bytearray(b"root") if rank == 1 else bytearray(4), 1))
            say(list(group.all_to_all(array.array("i", [10 * rank + i for i in range(3)]), array.array("i", [0] * 3))))
            say(group.gather(b"%d" % rank, bytearray(3) if rank == 2 else None, 2))
            say(group.scatter(b"abc" if rank == 0 else None, bytearray(1)))
            if rank == 0:
                group.send(b"to two", 2)
            if rank == 2:
                say(group.recv(bytearray(6), 0))
            group.barrier()
            say(group.all_gather(b"x" * rank))
            group.close()
            """,
        )
        for rank, lines in enumerate(said):
            part = ["[0.0, 1.0, 2.0]", "[3.0, 4.0]", "[5.0, 6.0]"][rank]
            column = [10 * other + rank for other in range(3)]
            expected = ["[3.0, 3.0]", "[2.0]", part, "[0, 1, 1, 2, 2, 2]", "[0, 0, 1, 2]", "bytearray(b'root')", str(column)]
            expected += ["bytearray(b'012')" if rank == 2 else "None", f"bytearray(b'{'abc'[rank]}')"]
            expected += ["bytearray(b'to two')"] if rank == 2 else []
            self.assertEqual(lines, [*expected, "[b'', b'x', b'xx']"])

    def test_work_goes_on_beside_the_program_in_any_order_of_its_waits(self):
        said = self.run_ranks(
            2,
            """
            arrays = [floats(*[rank + i] * 100000) for i in range(4)]
            works = [group.all_reduce(one, wait=False) for one in arrays]
            got = group.recv(floats(0), 1 - rank, wait=False)
            sent = group.send(floats(rank), 1 - rank, wait=False)
            say([list(work.wait(60))[0] for work in reversed(works)], list(got.wait())[0], works[0].done(), works[0].error())
            sent.wait()
            if rank == 0:
                late = group.recv(bytearray(1), 1, wait=False, tag=7)
                try:
                    late.wait(0.05)
                except centroid.CentroidError as error:
                    say(error.code, late.done(), late.error())
                group.barrier()
                say(late.wait())
            else:
                group.barrier()
                group.send(b"!", 0, tag=7)
            """,
        )
        for rank, lines in enumerate(said):
            more = ["deadline_exceeded False None", "bytearray(b'!')"] if rank == 0 else []
            self.assertEqual(lines, [f"[7.0, 5.0, 3.0, 1.0] {1.0 - rank} True None", *more])

    def test_subgroups_and_threads_with_tags_do_not_mix(self):
        said = self.run_ranks(
            4,
            """
            pair = group.subgroup([rank % 2, rank % 2 + 2])
            results = [None] * 4
            def work(tag):
                values = floats(*[tag] * 1000)
                for _ in range(20):
                    group.all_reduce(values, "mean", tag=tag)
                results[tag] = values[0]
            threads = [threading.Thread(target=work, args=(tag,)) for tag in range(4)]
            for one in threads if rank % 2 else reversed(threads):
                one.start()
            say(pair.rank, pair.world, list(pair.all_reduce(floats(rank))))
            for one in threads:
                one.join()
            say(results, group)
            """,
        )
        for rank, lines in enumerate(said):
            pair = f"{rank // 2} 2 [{float(2 * (rank % 2) + 2)}]"
            self.assertEqual(lines, [pair, f"[0.0, 1.0, 2.0, 3.0] <centroid.Group rank {rank} of 4>"])

    def test_numpy_arrays_and_dlpack(self):
        said = self.run_ranks(
            2,
            """
            import numpy
            class OnlyDlpack:
                def __init__(self, array):
                    self.array = array
                def __dlpack__(self, stream=None):
                    return self.array.__dlpack__()
            values = numpy.arange(6, dtype=numpy.float16).reshape(2, 3)
            say(group.all_reduce(values).tolist(), group.all_reduce(numpy.array(rank)).tolist())
            inner = numpy.ones(3, dtype=numpy.float32)
            group.all_reduce(OnlyDlpack(inner))
            say(inner.tolist(), group.broadcast(numpy.array([rank == 0], dtype=bool)).tolist())
            for bad in (numpy.zeros((4, 4))[:, 1], numpy.array([True])):
                try:
                    group.all_reduce(bad)
                except centroid.CentroidError as error:
                    say(error.code)
            """,
            python=self.python_with("numpy"),
        )
        for lines in said:
            self.assertEqual(lines, ["[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]] 1", "[2.0, 2.0, 2.0] [True]", "invalid_argument", "invalid_argument"])

    def test_tensors_of_torch(self):
        said = self.run_ranks(
            2,
            """
            import torch
            say(group.all_reduce(torch.full((2,), rank + 1.0, dtype=torch.bfloat16)).tolist())
            say(group.all_gather(torch.tensor([rank], dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)).tolist())
            """,
            python=self.python_with("torch"),
        )
        self.assertEqual(said, 2 * [["[3.0, 3.0]", "[0, 1]"]])


class Start(GroupTest):
    def test_ranks_that_do_not_come_are_named(self):
        body = """
            try:
                centroid.join(rank=int(os.environ["PLACE"]), world=3, timeout=1)
            except centroid.CentroidError as error:
                say(error)
            """
        said = self.run_ranks(1, body, join="", PLACE="0")
        self.assertIn("deadline_exceeded: rank 1, 2 did not come to 127.0.0.1:", said[0][0])
        said = self.run_ranks(1, body, join="", PLACE="2")
        self.assertIn("deadline_exceeded: rank 0 did not answer at 127.0.0.1:", said[0][0])
        with socket.create_server(("127.0.0.1", 0)) as silent:
            said = self.run_ranks(1, body, join="", PLACE="2", MASTER_PORT=str(silent.getsockname()[1]))
        self.assertIn("deadline_exceeded: rank 0 did not answer at 127.0.0.1:", said[0][0])

    def test_another_token_or_world_is_refused_and_the_rest_comes_together(self):
        body = """
            rank, world, token = os.environ["PLACE"].split()
            try:
                with centroid.join(rank=int(rank), world=int(world), token=token) as group:
                    say("met", group.world)
            except centroid.CentroidError as error:
                say(error)
            """
        port = str(free_port())
        [first] = self.start(1, body, join="", PLACE="0 2 right", MASTER_PORT=port)
        [[said]] = self.run_ranks(1, body, join="", PLACE="1 2 wrong", MASTER_PORT=port)
        self.assertIn("refuses: the token is refused", said)
        [[said]] = self.run_ranks(1, body, join="", PLACE="1 3 right", MASTER_PORT=port)
        self.assertIn("refuses: rank 1 has world 3, rank 0 has 2", said)
        self.assertEqual(self.run_ranks(1, body, join="", PLACE="1 2 right", MASTER_PORT=port), [["met 2"]])
        self.assertEqual(first.exit_status(), 0)
        self.assertEqual(first.text(), "met 2\n")

    def test_any_rendezvous_will_do_such_as_files(self):
        said = self.run_ranks(
            3,
            """
            import pathlib
            folder = pathlib.Path(os.environ["PLACE"])
            def exchange(address):
                draft = folder / f"draft-{rank}"
                draft.write_text(address)
                draft.rename(folder / f"rank-{rank}")
                files = [folder / f"rank-{other}" for other in range(world)]
                until = time.monotonic() + 60
                while not all(file.exists() for file in files) and time.monotonic() < until:
                    time.sleep(0.01)  # lint-ok: a poll of another process, under a deadline
                return [file.read_text() for file in files]
            group = centroid.join(exchange=exchange)
            say(list(group.all_reduce(floats(rank))))
            """,
            join="",
            PLACE=str(self.folder),
        )
        self.assertEqual(said, 3 * [["[3.0]"]])

    def test_mistakes_are_named(self):
        with centroid.join("127.0.0.1:1", 0, 1) as alone:  # nobody to meet
            self.assertEqual(list(alone.all_reduce(array.array("f", [5]), "mean")), [5])
            for text, call in {
                "is not one of sum": lambda: alone.all_reduce(array.array("f", [1]), "median"),
                "root 3": lambda: alone.broadcast(bytearray(1), 3),
                "out has 2 elements": lambda: alone.reduce_scatter(array.array("f", [1]), array.array("f", [1, 2])),
                "different types": lambda: alone.all_gather(array.array("f", [1]), array.array("d", [1])),
                "cannot be written": lambda: alone.recv(b"bytes", 0),
                "is no array": lambda: alone.all_reduce(object()),
                "2 counts for a group of 1": lambda: alone.all_gather(b"1", bytearray(1), counts=[1, 0]),
            }.items():
                with self.assertRaises(centroid.CentroidError) as caught:
                    call()
                self.assertEqual(caught.exception.code, "invalid_argument")
                self.assertIn(text, caught.exception.message)
        for arguments, text in (((2, 2), "rank 2 of world 2"), ((0, 0), "world 0 is not")):
            with self.assertRaisesRegex(centroid.CentroidError, text):
                centroid.join("127.0.0.1:1", *arguments)
        with self.assertRaisesRegex(centroid.CentroidError, "closed"):
            alone.barrier()


class Failures(GroupTest):
    def milliseconds(self, since, text):
        return 1000 * (float(re.search(r" at ([\d.]+)", text)[1]) - since)

    def test_the_death_of_a_rank_ends_every_pending_call_with_its_number(self):
        ranks = self.start(
            4,
            """
            pending = [group.all_reduce(floats(1), wait=False, tag=tag) for tag in range(3)] if rank != 2 else []
            if rank == 2:
                if not os.fork():  # as a DataLoader does: this child outlives its parent
                    signal.pause()
                say("forked")
                signal.pause()
            say("waits")
            threads = [threading.Thread(target=ends_with, args=(f"work {i}", one.wait)) for i, one in enumerate(pending)]
            threads.append(threading.Thread(target=ends_with, args=("recv", lambda: group.recv(bytearray(1), 2, tag=5))))
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            ends_with("later", group.barrier)
            """,
        )
        self.wait_said(ranks[2], "forked")
        for rank in (0, 1, 3):
            self.wait_said(ranks[rank], "waits")
        children = subprocess.run(["pgrep", "-P", str(ranks[2].pid)], capture_output=True, text=True, check=True).stdout.split()
        self.addCleanup(lambda: [subprocess.run(["kill", "-9", child], check=False) for child in children])
        killed = time.time()
        ranks[2].kill()
        for rank in (0, 1, 3):
            self.assertEqual(ranks[rank].exit_status(), 0)
            lines = [line for line in ranks[rank].text().splitlines() if line != "waits"]
            self.assertEqual(len(lines), 5, ranks[rank].text())
            for line in lines:
                self.assertRegex(line, r"unavailable: .*rank 2\b")
                self.assertLess(self.milliseconds(killed, line), 10_000)  # 50 ms on an idle machine

    def test_abort_ends_the_calls_of_all(self):
        said = self.run_ranks(
            3,
            """
            def run():
                group.barrier()  # the abort may come before its end
                if rank == 1:
                    group.abort("no more")
                group.all_reduce(floats(1))
            ends_with("all_reduce", run)
            """,
        )
        for lines in said:
            self.assertRegex(lines[0], "aborted: .*no more")

    def test_ctrl_c_ends_a_wait_here_and_on_the_others(self):
        ranks = self.start(
            2,
            """
            group.barrier()
            if rank == 0:
                wait = centroid.Work._end
                centroid.Work._end = lambda *all: (say("waits"), wait(*all))  # Ctrl-C before this wait ends no operation
                try:
                    group.recv(bytearray(1), 1)
                except KeyboardInterrupt:
                    say("interrupted")
            else:
                ends_with("barrier", group.barrier)
            """,
        )
        self.wait_said(ranks[0], "waits")
        ranks[0].send(signal.SIGINT)
        self.assertEqual([rank.exit_status() for rank in ranks], [0, 0])
        self.assertIn("interrupted", ranks[0].text())
        self.assertRegex(ranks[1].text(), "barrier aborted: .*rank 0 was interrupted: KeyboardInterrupt")

    def test_a_silent_rank_is_named_and_another_operation_is_refused(self):
        said = self.run_ranks(
            2,
            """
            pair = group.subgroup([0, 1])
            if rank == 0:
                ends_with("silent", lambda: group.all_reduce(floats(1), timeout=0.5))
            else:
                ends_with("told", lambda: group.recv(bytearray(1), 0, tag=1))
            ends_with("mixed", lambda: pair.all_reduce(floats(*range(rank + 1))))
            """,
        )
        self.assertRegex(said[0][0], "deadline_exceeded: .*rank 1 did not do its part within 500 ms")
        self.assertRegex(said[1][0], "told deadline_exceeded")
        for lines in said:
            self.assertRegex(lines[1], "failed_precondition: .*every rank must issue the same operations")

    def test_a_program_may_end_in_the_middle_of_operations(self):
        said = self.run_ranks(
            2,
            """
            group.recv(bytearray(1), 1 - rank, wait=False)  # nobody waits for it
            pending = group.recv(bytearray(1), 1 - rank, wait=False)
            group.barrier()
            if rank == 0:
                ends_with("recv", pending.wait)
            """,
        )
        self.assertRegex(said[0][0], "recv (aborted|unavailable): .*rank 1")

    def test_a_forked_child_is_refused_and_ends_cleanly(self):
        said = self.run_ranks(
            2,
            """
            child = os.fork()
            if not child:
                try:
                    group.barrier()
                except centroid.CentroidError as error:
                    say(error.code)
                sys.exit(0)  # with all destructors
            assert os.waitpid(child, 0)[1] == 0
            group.barrier()
            say(list(group.all_reduce(floats(1))))
            """,
        )
        self.assertEqual(said, 2 * [["failed_precondition", "[2.0]"]])


PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "client/centroid.h"
int main(int argc, char** argv) {
  centroid_group_options options = {sizeof options, (uint32_t)atoi(argv[1]), 2, NULL, NULL, 30000};
  centroid_group* group;
  centroid_work* work;
  centroid_call call = {sizeof call, CENTROID_I32, CENTROID_MAX, 0, 0, NULL, 0, 0};
  int32_t values[2] = {atoi(argv[1]), 7};
  if (centroid_struct_size("group") != sizeof options || centroid_struct_size("call") != sizeof call) return 1;
  if (centroid_group_join(&options, argv[2], &group)) { puts(centroid_error()); return 2; }
  if (centroid_group_all_reduce(group, values, values, 2, &call, &work)) { puts(centroid_error()); return 3; }
  if (centroid_work_wait(work, 0) || !centroid_work_done(work)) { puts(centroid_error()); return 4; }
  centroid_work_free(work);
  printf("%u of %u: %d %d\n", centroid_group_rank(group), centroid_group_world(group), values[0], values[1]);
  printf("%d %s\n", centroid_group_all_reduce(group, NULL, NULL, 2, &call, NULL), centroid_error());
  call.dtype = 99;
  printf("%d\n", centroid_group_barrier(group, &call, NULL));
  centroid_group_close(group);
  return argc != 3;
}
"""


class FromC(GroupTest):
    def test_a_program_in_c(self):
        library = pathlib.Path(self.environment["LIBCENTROID"])
        source, program = self.folder / "program.c", self.folder / "program"
        source.write_text(PROGRAM)
        subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", f"-I{ROOT}", source, "-o", program, library, f"-Wl,-rpath,{library.parent}"], check=True)
        place = f"127.0.0.1:{free_port()}"
        running = [subprocess.Popen([program, str(rank), place], stdout=subprocess.PIPE, text=True) for rank in range(2)]
        for rank, one in enumerate(running):
            lines = one.communicate(timeout=120)[0].splitlines()
            self.assertEqual(lines, [f"{rank} of 2: 1 7", "8 input is NULL", "8"])
            self.assertEqual(one.returncode, 0)

    def test_ended_operations_come_in_a_queue(self):
        library, ended = centroid._library, ctypes.c_void_p()
        self.assertEqual(library.centroid_ended_open(ctypes.byref(ended)), 0)
        context = ctypes.c_uint64()
        self.assertEqual(library.centroid_ended_next(ended, 1, ctypes.byref(context)), 2)
        with centroid.join("127.0.0.1:1", 0, 1) as alone:
            work = alone._start("barrier", (), ended=ended, context=5)
            self.assertEqual(library.centroid_ended_next(ended, 60_000, ctypes.byref(context)), 0)
            self.assertEqual(context.value, 5)
            library.centroid_work_free(work)
        waiting = threading.Thread(target=library.centroid_ended_next, args=(ended, 0, ctypes.byref(context)))
        waiting.start()
        library.centroid_ended_shutdown(ended)
        waiting.join(60)
        self.assertFalse(waiting.is_alive())
        library.centroid_ended_close(ended)


@unittest.skipIf(shutil.which("openssl") is None, "no openssl program to make certificates with")
class Tls(GroupTest, TlsTest):
    def test_ranks_meet_whose_certificates_are_of_one_authority(self):
        _, certificate, _, key = map(str, self.issue("rank"))
        tls = {"authority": str(self.certificates / "ca.crt"), "certificate": certificate, "key": key}
        join = f"""
if rank == 1:
    ends_with("plain", lambda: centroid.join(timeout=60))
    ends_with("half", lambda: centroid.join(timeout=60, tls={{"authority": {tls["authority"]!r}}}))
group = centroid.join(timeout=60, tls={tls!r})
"""
        said = self.run_ranks(2, "say(list(group.all_reduce(floats(rank))))", join=join)
        self.assertEqual([lines[-1] for lines in said], ["[1.0]", "[1.0]"])
        self.assertIn("failed_precondition", said[1][0])
        self.assertIn("TLS, which this side does not speak", said[1][0])
        self.assertIn("needs tls.certificate", said[1][1])


if __name__ == "__main__":
    main(at_a_time=3)
