"""The console in Chromium: what it shows, what it does, and that it needs nothing from elsewhere.

console_test.py BIN_DIR     needs chromium, node, and the packages of tests/ops/package.json; OPS_PICTURES=DIR keeps the pictures there
"""

import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.browser import PACKAGES, missing
from harness.cluster import DEADLINE_SECONDS, ClusterTest, Process, bar, main, wait_for

SKIPPED = 77
ROUNDS_DRAWN = 60
TONES = {"active": "good", "syncing": "warn", "joining": "warn", "draining": "warn"}  # of workers that are present
STAGES = ("compute", "wait", "encode", "send", "exchange", "decode", "apply", "receive")  # of a worker
MAX_BYTES, MAX_PAINT_MS = 150_000, 500
VIEWS = ("dark", "light", "narrow", "paused", "stop dialog", "token dialog", "token dialog, refused")
FILES = ("app.css", "app.js", "uplot.css", "uplot.js")


def duration(seconds):
    """As the page writes it."""
    if seconds < 1:
        return f"{1000 * seconds:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02} s"


class Console(ClusterTest):
    def fetch(self, server, path, **headers):
        request = urllib.request.Request(f"http://{server.api}{path}", headers=headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=DEADLINE_SECONDS) as reply:
                return reply.status, reply.headers, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read().decode()

    def test_browsers_get_the_page_and_programs_the_index(self):
        server = self.server("--api.token", "secret")
        status, headers, text = self.fetch(server, "/", Accept="text/html,application/xhtml+xml,*/*;q=0.8")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotIn("unsafe", headers["Content-Security-Policy"])
        for name in FILES:
            self.assertIn(f'console/{name}"', text)
            status, _, body = self.fetch(server, f"/console/{name}")
            self.assertEqual((status, body), (200, (ROOT / "server/api/console" / name).read_text()))
        self.assertEqual(self.fetch(server, "/", Accept="application/json")[0], 401)
        self.assertEqual(self.fetch(server, "/v1/cluster")[0], 401)  # the page is open, what it shows is not
        self.assertEqual(self.fetch(server, "/console/nix", Authorization="Bearer secret")[0], 404)

    def test_page_shows_what_rest_says_and_acts(self):
        if reason := missing():
            self.skipTest(reason)
        server = self.server("--epochs", "1000000", "--min-workers", "3", "--api.token", "let-me-in", "--lr", "0.002", "--servers", "2")
        shard = ["--join", server.data, "--name", "shard-b", "--listen", "127.0.0.1:0", "--run-dir", self.folder / "shards"]
        self._start(Process, "centroid-server", "shard-b", shard, None)
        for name in ("worker-a", "worker-b", "worker-c"):
            self.worker(server, name, "--codec", "int8", model="mlp:64-512-512-10")
        self.wait_rounds(server)
        seen = self.look(server)
        self.assertEqual(seen["errors"], [])
        self.assertEqual(seen["foreign"], [])
        self.assertLess(seen["bytes"], MAX_BYTES)
        print(f"first paint {' '.join(f'{one:.0f}' for one in seen['paints'])} ms, {seen['bytes']} bytes", file=sys.stderr)
        self.assertLess(min(seen["paints"]), bar(MAX_PAINT_MS, slack=60))
        self.assertEqual({name: view["overflow"] for name, view in seen["views"].items()}, dict.fromkeys(VIEWS[:3], 0))
        self.assertEqual(seen["axe"], {name: [] for name in VIEWS})
        self.assertTrue(seen["keepsFocus"], "the button that had the focus was replaced")
        name = seen["drained"].removeprefix("Drain ")
        wait_for(lambda: any(event["worker"] == name for event in server.events("member.left")), f"{name} is drained")
        self.assertEqual(sorted(part["text"] for part in seen["left"]["parts"]), sorted({"server", "worker-a", "worker-b", "worker-c"} - {name}))
        self.assert_shown(seen["paused"])
        self.assert_drawn(seen["paused"]["rest"], **seen["paused"]["drawn"])
        self.assertEqual(len(seen["stages"]), 4)
        self.assertTrue(all(re.search(r"compute .* %, wait .* %, encode .* %, send .* %, apply .* %, receive .* %", one) for one in seen["stages"][1:]), seen["stages"])
        self.assert_walk(**seen["walk"])
        self.assertEqual(seen["token"], {"hints": [False, True], "isAsked": False, "refused": 8})
        evicted = seen["evicted"]
        self.assertEqual([row[:3] for row in seen["evictions"]], [[evicted["name"], "of the test", "it is allowed"]])
        self.assertEqual(evicted["left"], [])
        self.assertEqual([row[1] for row in evicted["events"]].count("member.evicted"), 1)
        self.assertEqual(server.exit_status(), 0)  # by the button Stop the job; one No and one Escape before did nothing
        self.assertEqual(len(server.events("job.ended")), 1)

    def look(self, server, *words):
        """What console_check.mjs sees."""
        pictures = pathlib.Path(os.environ.get("OPS_PICTURES", self.folder))
        command = ["node", ROOT / "tests/ops/console_check.mjs", PACKAGES, shutil.which("chromium"), f"http://{server.api}/", pictures, "let-me-in", *words]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=3 * DEADLINE_SECONDS, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_curves_forget_what_a_restore_gives_up(self):
        if reason := missing():
            self.skipTest(reason)
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.token", "let-me-in")
        for name in ("worker-a", "worker-b"):
            self.worker(server, name, model="mlp:64-512-512-10")
        self.wait_rounds(server)
        seen = self.look(server, "restore")
        self.assertEqual((seen["errors"], seen["foreign"]), ([], []))
        self.assertGreater(seen["kept"], 10)  # what was before the checkpoint stays

    def test_curves_show_the_whole_job_also_after_a_resume(self):
        if reason := missing():
            self.skipTest(reason)
        arguments = ["--api.token", "let-me-in", "--clip-norm", "5", "--lr", "0.05", "--lr-schedule", "cosine:rounds=100000", "--min-workers", "2"]
        server = self.server("--epochs", "1000000", *arguments)
        for name in ("worker-a", "worker-b"):
            self.worker(server, name)
        self.wait_rounds(server)
        self.assert_curves(self.look(server, "curves"))
        server.send(signal.SIGTERM)
        self.assertEqual(server.exit_status(), 0)
        stopped = max(int(path.name.split("-")[1]) for path in self.checkpoints())
        again = self.server("--epochs", "1000000", "--resume", *arguments, name="again")
        for name in ("worker-a", "worker-b"):
            self.worker(again, name)
        again.wait_event("epoch.ended")
        seen = self.look(again, "curves")
        self.assert_curves(seen)
        self.assertGreater(seen["points"][-1]["last"], stopped)

    def assert_curves(self, seen):
        self.assertEqual((seen["errors"], seen["foreign"]), ([], []))
        names = {"loss-chart": ["loss"], "accuracy-chart": ["accuracy (%)"], "rate-chart": ["samples/s", "workers"], "time-chart": ["seconds"], "lr-chart": ["learning rate"], "norm-chart": ["norm"]}
        self.assertEqual(seen["labels"][0], {name: ["round", *axes] for name, axes in names.items()})
        for name, axes in seen["labels"][1].items():
            self.assertRegex(axes[0], "^(seconds|minutes) of training$")
            self.assertEqual(axes[1:], names[name])
        self.assertEqual(seen["log"], [[1] * 6, [3, 1, 1, 1, 1, 3]])
        self.assertTrue(seen["looksAtOnce"], "a tab that is shown again")
        self.assertEqual(seen["pressed"], ["by-time", "log"])
        points = seen["points"]
        self.assertEqual(points[0]["first"], 1)
        self.assertEqual([one["first"] for one in points[1:]], [one["last"] + 1 for one in points[:-1]])
        for one, after in zip(points, points[1:]):
            self.assertLess(one["seconds"], after["seconds"])
            self.assertLess(one["unix_seconds"], after["unix_seconds"] + 1)  # a checkpoint has whole seconds
            self.assertGreaterEqual(one["learning_rate"], after["learning_rate"])
        self.assertTrue(all(one["gradient_norm"] > 0 and one["workers"] == 2 for one in points))
        for tip in seen["tips"]:
            point = points[tip["index"]]
            rounds = f"round {point['first']:,}" if point["rounds"] == 1 else f"rounds {point['first']:,} to {point['last']:,}"
            self.assertTrue(tip["text"].startswith(f"{rounds}after {duration(point['seconds'])}"), tip)
            self.assertEqual(tip["count"], 1)
        shown = {tip["id"]: (tip["text"], points[tip["index"]]) for tip in seen["tips"]}
        self.assertIn(f"training {100 * shown['accuracy-chart'][1]['accuracy']:.2f} %", shown["accuracy-chart"][0])
        self.assertIn(f"a round {duration(shown['time-chart'][1]['round_seconds'])}", shown["time-chart"][0])
        self.assertIn("workers 2", shown["rate-chart"][0])
        before, after = ([[round(value, 3) for value in ends] for ends in charts] for charts in seen["zoomed"])
        self.assertEqual(before, after, "new points end no zoom")
        self.assertEqual(before, [before[0]] * 6, "all charts show the same rounds")
        self.assertGreater(before[0][0], points[0]["last"])
        self.assertLess(before[0][1], points[-1]["last"])

    def test_a_loss_near_nothing_fits_a_narrow_page(self):
        if reason := missing():
            self.skipTest(reason)
        server = self.server("--epochs", "1000000", "--api.token", "let-me-in")
        self.worker(server, "worker-a")
        self.wait_rounds(server)
        seen = self.look(server, "tiny")
        self.assertEqual((seen["errors"], seen["foreign"]), ([], []))
        shown = [one["loss"] for one in seen["tiny"]]
        self.assertEqual(shown, 2 * ["1.23e-7", "-1.23e-6", "1.23e-4", "1.25", "3.4e+38"])
        self.assertEqual([one["over"] for one in seen["tiny"]], len(shown) * [[]])
        for one in seen["tiny"]:
            if one["loss"] != "3.4e+38":
                self.assertGreater(len(set(one["axis"])), 1)
                self.assertLessEqual(max(map(len, one["axis"])), 8, one["axis"])  # what the place beside the curve takes

    def test_the_picture_shows_for_whom_a_round_waits(self):
        if reason := missing():
            self.skipTest(reason)
        server = self.server("--epochs", "1000000", "--min-workers", "2", "--api.token", "let-me-in", "--lease", "120s")
        workers = {name: self.worker(server, name) for name in ("worker-a", "worker-b")}
        self.wait_rounds(server)
        workers["worker-b"].send(signal.SIGSTOP)
        seen = self.look(server, "frozen")
        workers["worker-b"].send(signal.SIGCONT)
        self.assertEqual((seen["errors"], seen["foreign"]), ([], []))
        frozen = seen["frozen"]
        (open_round,) = frozen["rounds"]
        self.assertEqual((open_round["outcome"], open_round["missing"]), ("", ["worker-b"]))
        self.assert_picture(frozen["picture"], frozen["workers"], "good", open_round["missing"])
        self.assertEqual(frozen["timeline"]["kind"], "open")
        self.assertRegex(frozen["timeline"]["title"], rf"^round {open_round['round']}: open, .* s, without worker-b$")

    def assert_picture(self, picture, workers, tone, missing):
        """The server, and each worker present in the order of ranks, in the colour of its state; a line that tells of who is waited for."""
        present = sorted((one for one in workers if one["state"] not in ("left", "dead", "fenced")), key=lambda one: one["rank"])
        self.assertEqual(picture["label"], f"{len(present)} workers present, exchange star")
        server, *others = picture["parts"]
        self.assertEqual((server["text"], server["kind"]), ("server", tone))
        self.assertEqual([(one["text"], one["kind"]) for one in others], [(one["name"], TONES[one["state"]]) for one in present])
        self.assertEqual(len({tuple(round(x) for x in one["at"]) for one in picture["parts"]}), 1 + len(present))  # each in a place of its own
        self.assertEqual([(line["from"], line["to"], line["kind"]) for line in picture["lines"]],
                         [(circle["at"], server["at"], "waiting" if one["name"] in missing else "") for circle, one in zip(others, present)])  # fmt: skip

    def assert_drawn(self, rest, picture, timeline, timelineLabel, shares, bars, stageSeconds):  # noqa: N803
        """What is drawn of a paused job is what REST says."""
        self.assert_picture(picture, rest["workers"], "warn", [])
        rounds = rest["rounds"][:ROUNDS_DRAWN][::-1]
        self.assertEqual(len(rounds), ROUNDS_DRAWN)
        most = max(one["seconds"] for one in rounds)
        self.assertEqual(timelineLabel, f"{ROUNDS_DRAWN} rounds, the longest took {duration(most)}")
        without = [", without " + " ".join(one["missing"]) if one["missing"] else "" for one in rounds]
        self.assertEqual([(one["kind"], one["title"]) for one in timeline],
                         [(one["outcome"] or "open", f"round {one['round']}: {one['outcome'] or 'open'}, {duration(one['seconds'])}{more}") for one, more in zip(rounds, without)])  # fmt: skip
        for rectangle, one in zip(timeline, rounds):
            self.assertAlmostEqual(rectangle["height"], max(3, 78 * one["seconds"] / most), places=3)

        workers = sorted(rest["workers"], key=lambda worker: worker["name"])
        for (label, computing, waiting), one in zip(shares, workers, strict=True):
            part = 100 * one["compute_seconds"] / (one["compute_seconds"] + one["wait_seconds"])
            self.assertAlmostEqual(computing, part, places=3)
            self.assertAlmostEqual(computing + waiting, 100, places=3)
            said = [int(number) for number in re.fullmatch(r"(\d+) % computing, (\d+) % waiting", label).groups()]
            for shown, true in zip(said, (part, 100 - part)):
                self.assertLessEqual(abs(shown - true), 0.51)

        sums = re.findall(r'^centroid_server_stage_seconds_sum{stage="(\w+)"} (\S+)$', rest["metrics"], re.MULTILINE)
        wanted = {"server": {stage: float(value) for stage, value in sums}}
        wanted |= {one["name"]: {stage: one[f"{stage}_seconds"] for stage in STAGES if one[f"{stage}_seconds"] > 0} for one in workers}
        self.assertEqual([bar["name"] for bar in bars], list(wanted))
        shares = [{stage: float(number) / 100 for stage, number in re.findall(r"(\w+) (\S+) %", bar["label"].partition(": ")[2])} for bar in bars]
        most = max(1, *(sum(one.values()) for one in shares))
        for drawn, shown in zip(bars, shares):
            with self.subTest(drawn["name"]):
                self.assertEqual(drawn["label"], drawn["title"])
                self.assertEqual(shown.keys(), wanted[drawn["name"]].keys())
                for stage, share in shown.items():  # two digits behind the point are shown; the server goes on with what is no training
                    self.assertAlmostEqual(share * stageSeconds, wanted[drawn["name"]][stage], delta=0.02 * wanted[drawn["name"]][stage] + 0.006 / 100 * stageSeconds, msg=stage)
                self.assertEqual([kind for kind, _, _ in drawn["parts"]], [f"stage-{stage}" for stage in shown])
                for (_, x, width), (k, share) in zip(drawn["parts"], enumerate(shown.values())):
                    self.assertAlmostEqual(width, 100 * share / most, delta=0.05)
                    self.assertAlmostEqual(x, sum(one for _, _, one in drawn["parts"][:k]), places=3)

    def assert_walk(self, wanted, got, back):
        """The keyboard reaches all there is, in the order of the page, and one sees where it is."""
        self.assertGreater(len(wanted), 10)
        self.assertEqual([name for name, _ in got], wanted)
        self.assertEqual([name for name, is_seen in got if not is_seen], [])
        self.assertEqual(back, wanted[-2])

    def assert_shown(self, paused):
        """What the page says of a paused job is what REST says."""
        rest, tiles, tables, curves = (paused[name] for name in ("rest", "tiles", "tables", "curves"))
        cluster = rest["cluster"]
        self.assertEqual(cluster["state"], "paused")

        def number(text):
            return float(text.replace(",", ""))

        def close(text, value, digits):
            self.assertAlmostEqual(number(text), value, delta=0.51 * 10 ** (math.floor(math.log10(abs(value) or 1)) + 1 - digits))

        self.assertEqual(tiles["round"], f"{cluster['round']:,}")
        close(tiles["loss"], cluster["loss"], 4 if cluster["loss"] >= 1e-3 else 3)
        close(tiles["speed"], cluster["samples_per_second"], 3)
        self.assertEqual(tiles["accuracy"], f"{100 * cluster['test_accuracy']:.2f} %")
        self.assertEqual(tiles["progress"], f"{100 * cluster['progress']:.2f} %")
        self.assertEqual(tiles["generation"], f"{cluster['generation']} · 3")
        workers = sorted(rest["workers"], key=lambda worker: worker["name"])
        self.assertEqual([worker["name"] for worker in workers], ["worker-a", "worker-b", "worker-c"])
        self.assertEqual([row[:5] for row in tables["workers"]],
                         [[one["name"], one["state"], str(one["rank"]), f"{one['rounds']:,}", f"{one['samples']:,}"] for one in workers])  # fmt: skip
        for row, one in zip(tables["workers"], workers):
            for text, bytes_ in zip(row[6:8], (one["bytes_in"], one["bytes_out"])):
                shown, unit = text.split(" ")
                size = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
                self.assertAlmostEqual(float(shown) * size, bytes_, delta=0.06 * size + 4096)  # heartbeats go on
        self.assertEqual([row[:3] for row in tables["waits"]], [[one["waiter"], one["waits_for"], one["what"]] for one in rest["waits"]])
        self.assertIn("operator", tables["waits"][0][1])
        self.assertEqual([[number(row[0]), number(row[1])] for row in tables["checkpoints"]], [[one["version"], one["round"]] for one in rest["checkpoints"]])
        self.assertGreater(len(tables["checkpoints"]), 0)
        self.assertEqual([row[4] for row in tables["checkpoints"]], ["–"] * len(tables["checkpoints"]))
        self.assertEqual([one["state"] for one in rest["servers"]], ["leader", "serving"])
        self.assertEqual([[row[0], row[1], row[2], row[4], row[5]] for row in tables["servers"]],
                         [[one["name"], one["state"], f"{one['chunks']:,}", one["endpoint"], one["api"] or "–"] for one in rest["servers"]])  # fmt: skip
        events = rest["events"][:-31:-1]
        self.assertEqual([row[1] for row in tables["events"]][-len(events):], [event["type"] for event in events])
        for name in ("worker-a", "worker-b", "worker-c"):
            self.assertTrue(any(row[1] == "member.joined" and f"worker {name}" in row[2] for row in tables["events"]), tables["events"])
        self.assertEqual(tables["evictions"], [["no name is refused"]])
        closed = [one for one in rest["rounds"] if one["outcome"]]
        points = rest["points"]
        self.assertEqual(points[0]["first"], 1)
        self.assertEqual(points[-1]["last"], next(one["round"] for one in closed if one["outcome"] == "committed"))
        x, losses, means, held = curves["loss-chart"]
        self.assertEqual((x, losses), ([one["last"] for one in points], [one["loss"] for one in points]))
        self.assertAlmostEqual(means[-1], sum(losses[-11:]) / 11, places=9)
        self.assertEqual([one for one in held if one is not None][-1], cluster["test_loss"])
        self.assertEqual([one for one in curves["accuracy-chart"][3] if one is not None][-1], cluster["test_accuracy"])
        for name, field in {"rate-chart": "samples_per_second", "time-chart": "round_seconds", "lr-chart": "learning_rate"}.items():
            self.assertEqual(curves[name][1], [one[field] for one in points])
        committed = {one["round"]: one for one in closed if one["outcome"] == "committed"}
        recent = [one for one in points if one["first"] >= min(committed)]
        self.assertGreater(len(recent), 10)
        for point in recent:
            parts = [one for number, one in committed.items() if point["first"] <= number <= point["last"]]
            self.assertEqual((len(parts), sum(one["samples"] for one in parts)), (point["rounds"], point["samples"]))
            self.assertAlmostEqual(sum(one["loss"] * one["samples"] for one in parts) / point["samples"], point["loss"], places=9)

    def wait_rounds(self, server):
        """Some rounds, by the log: REST wants the token."""
        server.wait_event("epoch.ended", epoch="2")


if __name__ == "__main__":
    main()
