"""What the docs tell an operator to type is right: command lines, flags, files, REST paths; those for one machine are run.

docs_test.py BIN_DIR     bash; openssl for docs/how-to/secure.md; kubectl for the overlays
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.cluster import ClusterTest, main
from harness.kubernetes import KEEP, SPARE_SECONDS, seconds_of_checkpoint

SHELL = ("centroid-server", "centroid-worker", "centroidctl", "kubectl", "docker", "podman", "curl", "./centroid", "centroid run", "centroid ctl", "deploy/compose/make-secrets", "etcd", "openssl")
QUIET = ("etcd", "openssl", "cp", "mkdir", "sudo", "git", "cmake", "ctest", "make-secrets", "pip", "systemctl")  # not checked here
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]
TO_BE_MADE = ("deploy/compose/secrets", "deploy/kubernetes/overlays/mine/")  # by who follows the guide
GUIDES = tuple(f"docs/how-to/{name}.md" for name in "deploy monitor runbooks capacity upgrade recover several-servers high-availability secure".split())


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page):
    """Shell blocks of a page: those of which a line begins with a command that operators type."""
    found = re.findall(r"^```([^\n`]*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [block for language, block in found if language in ("", "sh", "bash") and any(line.startswith(SHELL) for line in block.splitlines())]


def inline(page):
    """Commands in the running text, without those in which a word in capitals or brackets stands for something."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    spans = [span.replace("\\|", "|") for span in re.findall(r"`([^`\n]+)`", text)]
    return [span for span in spans if span.startswith(tuple(f"{word} " for word in SHELL)) and not re.search(r"\[|\.\.\.|\b[A-Z]{3,}\b", span)]


def alternatives(page):
    """Commands that the comment of another names: `centroidctl job pause   # and: job resume, config set ...`."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    found = [(line.split()[0], line.partition("# and: ")[2].split(", ")) for line in lines if "# and: " in line]
    return [f"{program} {words.removesuffix(' ...')}" for program, all_words in found for words in all_words]


def promtool(*words):
    """What promtool says of a file, or None where it is not."""
    path = shutil.which("promtool", path=os.pathsep.join([os.environ.get("OPS_PROMETHEUS", ""), os.environ.get("PATH", "")]))
    return path and subprocess.run([path, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


class Words(ClusterTest):
    maxDiff = None

    def stand_ins(self):
        """A folder with a stand-in for every command."""
        folder = self.folder / "stand-ins"
        folder.mkdir()
        for name in ("centroid-server", "centroid-worker", "centroidctl", "kubectl", "docker", "podman", "curl", "centroid", *QUIET):
            (folder / name).symlink_to(ROOT / "tests" / "ops" / "doc_command.py")
        (folder / "python3").symlink_to(sys.executable)  # which runs the others
        return folder

    def faults(self, block, stand_ins):
        """What is wrong with a block of commands."""
        log, work = self.folder / "faults", self.folder / "work"
        log.write_text("")
        shutil.rmtree(work, ignore_errors=True)
        (work / "deploy" / "compose").mkdir(parents=True)
        (work / "centroid").symlink_to(ROOT / "tests" / "ops" / "doc_command.py")
        (work / "deploy" / "compose" / "make-secrets").symlink_to(ROOT / "tests" / "ops" / "doc_command.py")
        (work / "base").mkdir()
        settings = {"PATH": str(stand_ins), "OPS_DOC_PATH": os.environ["PATH"], "OPS_DOC_FAULTS": str(log), "OPS_DOC_BIN": str(self.programs),
                    "OPS_DOC_ROOT": str(ROOT), "TOKEN": "t", "PORT": "1", "HOME": str(work)}  # fmt: skip
        unknown = f'command_not_found_handle() {{ echo "$*: no such command" >>"{log}"; }}\n'
        done = subprocess.run(["/bin/bash", "-c", unknown + block + "\nwait\n"], cwd=work, env=settings, capture_output=True, text=True, timeout=120, check=False)
        said = [line for line in done.stderr.splitlines() if "no job control" not in line and ": kill: " not in line and " Killed " not in line]
        return log.read_text() + "\n".join(said)

    def test_every_block_of_commands(self):
        stand_ins = self.stand_ins()
        count = 0
        for page in PAGES:
            for block in blocks(page):
                if "kubectl" in block and not shutil.which("kubectl"):
                    continue
                count += 1
                with self.subTest(page=page, block=block):
                    self.assertEqual(self.faults(block, stand_ins), "")
        self.assertGreater(count, 15)
        wrong = {"centroid-server --no-such-flag 1": "no-such-flag", "centroidctl checkpoint make": "checkpoint", "curl x:1/v1/clusters": "/v1/clusters",
                 "docker build -f deploy/Dockerfile --target nix .": "nix", "./centroid test --opps": "--opps", "centroid-boss": "no such command", "centroid run --optimiser=adam train.py": "--optimiser",
                 "centroid run --workers 2": "is required"}  # fmt: skip
        for block, said in wrong.items():
            self.assertIn(said, self.faults(block, stand_ins))

    def test_every_command_in_the_text(self):
        """Commands in the running text are typed as well as those in blocks."""
        stand_ins = self.stand_ins()
        count = 0
        for page in PAGES:
            for span in [*inline(page), *alternatives(page)]:
                if span.startswith("kubectl") and not shutil.which("kubectl"):
                    continue
                count += 1
                with self.subTest(page=page, span=span):
                    faults = self.faults(span, stand_ins)
                    self.assertTrue(not faults or re.search(r" is required| missing$| needs a command: ", faults.splitlines()[0]), faults)  # some only name a command
        self.assertGreater(count, 30)
        named = [span for page in PAGES for span in alternatives(page)]
        self.assertIn("centroidctl config set", named)
        for span in named:
            self.assertNotRegex(self.faults(span, stand_ins), "unknown command|needs a command", span)  # which is said of one that there is not
        self.assertIn('unknown command "create"', self.faults("centroidctl checkpoints create", stand_ins))
        alone = "docker compose -f deploy/compose.yaml up -d --no-deps "
        self.assertIn("profile ha", self.faults(alone + "server-b", stand_ins))
        self.assertEqual("", self.faults(alone.replace("compose -f", "compose --env-file deploy/compose/ha.env -f") + "server-b", stand_ins))

    def test_benchmarks_in_python_take_what_is_written(self):
        """In tests/bench/bench.cmake and docs/internals/benchmarks.md; that both name all: tests/lint/check_docs.py."""
        folder = ROOT / "tests" / "bench"
        registered = dict(re.findall(r"^centroid_bench_script\((\w+\.py)(.*)\)$", (folder / "bench.cmake").read_text(), re.MULTILINE))
        spans = re.findall(r"`([^`]+)`", text_of("docs/internals/benchmarks.md"))
        for name in sorted(registered):
            known = subprocess.run([sys.executable, folder / name, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
            known = set(re.findall(r"--[a-z-]+", known.partition("options:")[2]))
            for call in [registered[name], *(span for span in spans if re.match(rf"(tests/bench/)?{name} ", span))]:
                with self.subTest(name, call=call):
                    self.assertLessEqual(set(re.findall(r"--[a-z-]+", call)), known)

    def test_flags_and_paths_in_the_text(self):
        helps = [[self.programs / "centroid-server", "--help-all"], [self.programs / "centroid-worker", "--help-all"], [self.programs / "centroidctl", "completion", "bash"],
                 [ROOT / "centroid", "help"], [ROOT / "centroid", "demo", "--help"],
                 ["env", f"PYTHONPATH={ROOT}/client/python", sys.executable, "-m", "centroid", "help"]]  # fmt: skip
        known = "\n".join(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout for command in helps)
        flags = set(re.findall(r"--[a-z][a-z0-9._-]*", known))
        flags |= {f"--no-{flag[2:]}" for flag in flags} | {"--env-file", "--build", "--target", "--format", "--profile", "--no-deps", "--dry-run", "--data-dir", "--client-cert-auth", "--previous", "--build-arg", "--no-build"}  # of docker, kubectl, etcd
        settings = set(re.findall(r"CENTROID_[A-Z_]+", "".join(text_of(page) for page in GUIDES)))
        spec = json.loads(subprocess.run([self.programs / "centroid-server", "--print-openapi"], capture_output=True, text=True, check=True).stdout)["paths"]
        routes = [(re.compile(re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(path))), {method.upper() for method in one}) for path, one in spec.items()]
        server_settings = self.settings("centroid-server") | self.settings("centroid-worker")
        for page in GUIDES:
            spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL))
            for span in spans:
                with self.subTest(page=page, span=span):
                    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9._-]*", span):
                        self.assertTrue(flag in flags or flag.rstrip("-") in flags, f"no program knows {flag}")
                    if match := re.match(r"(GET|POST|PATCH|DELETE) (/[^ ?]*)", span):
                        self.assertTrue(any(pattern.fullmatch(match[2]) and match[1] in methods for pattern, methods in routes), span)
                    if re.fullmatch(r"deploy/[\w./-]+|dashboards/[\w./-]+|tests/[\w./-]+", span) and not span.startswith(TO_BE_MADE):
                        self.assertTrue((ROOT / span).exists(), span)
        self.assertEqual({name for name in settings if name not in server_settings and not name.endswith("_FILE") and not name.startswith("CENTROID_TEST_")}, set())

    @unittest.skipIf(shutil.which("kubectl") is None, "no kubectl here")
    def test_the_overlay_of_the_guide_renders(self):
        """As it is written, in its place beside the others, with what it says in the objects."""
        (overlay,) = [text for text in re.findall(r"^```yaml\n(.*?)^```$", text_of("docs/how-to/deploy.md"), re.MULTILINE | re.DOTALL) if "resources: [../prod]" in text]
        shutil.copytree(ROOT / "deploy", self.folder / "deploy", ignore=shutil.ignore_patterns("secrets"))
        shutil.copytree(ROOT / "dashboards", self.folder / "dashboards")
        folder = self.folder / "deploy" / "kubernetes" / "overlays" / "mine"
        folder.mkdir()
        (folder / "kustomization.yaml").write_text(overlay)
        done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("image: registry.example.org/ml/centroid-server:1", "image: registry.example.org/ml/centroid-worker:1", 'CENTROID_EPOCHS: "50"', 'CENTROID_MIN_WORKERS: "4"',
                      "CENTROID_DATA: idx:/data", "storageClassName: fast", "storage: 100Gi", "memory: 4Gi", "memory: 6Gi", "claimName: training-data", "mountPath: /data"):  # fmt: skip
            self.assertIn(words, done.stdout)
        self.assertNotIn("localhost/", done.stdout)
        server = next(text for text in done.stdout.split("\n---\n") if "\nkind: StatefulSet\n" in text)
        grace = int(re.search(r"terminationGracePeriodSeconds: (\d+)", server)[1])
        drain = int(re.search(r"CENTROID_DRAIN_TIMEOUT: (\d+)s", done.stdout)[1])
        claim, memory = re.search(r"storage: (\w+)", server)[1], re.search(r"limits:\s+memory: (\w+)", server)[1]
        self.assertGreater(grace, drain + seconds_of_checkpoint(claim, memory, KEEP) + SPARE_SECONDS)

    def test_configurations_of_prometheus_as_written(self):
        """The quickstart's is whole, with the rules that it names, and scrapes where its commands listen; the one of monitor.md names files of yours."""
        if promtool("--version") is None:
            self.skipTest("no promtool here; ./centroid test --ops fetches it")
        guide = text_of("docs/tutorials/first-job.md")
        name, config = re.search(r"^cat > (\S+) <<'END'\n(.*?)^END$", guide, re.MULTILINE | re.DOTALL).groups()
        (self.folder / name).write_text(config)
        (self.folder / "dashboards").symlink_to(ROOT / "dashboards")
        done = promtool("check", "config", self.folder / name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"SUCCESS: 1 rule files found")
        self.assertIn(f"--config.file {name} ", guide)
        targets = set(re.findall(r'"(127\.0\.0\.1:\d+)"', config))
        self.assertEqual(targets, {*re.findall(r"--metrics.listen (\S+)", guide), "127.0.0.1:8080"})
        printed = json.loads(subprocess.run([self.programs / "centroid-server", "--print-config"], capture_output=True, text=True, check=True).stdout)
        self.assertEqual(printed["api.listen"]["default"], "127.0.0.1:8080")
        (config,) = re.findall(r"^```yaml\n(scrape_configs:\n.*?)^```$", text_of("docs/how-to/monitor.md"), re.MULTILINE | re.DOTALL)
        (self.folder / name).write_text(config)
        done = promtool("check", "config", "--syntax-only", self.folder / name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_libraries_of_the_image_with_cuda_are_those_that_the_worker_looks_for(self):
        """Nobody could build it yet (docs/how-to/deploy.md says so): at least names and releases fit."""
        text = (ROOT / "deploy" / "Dockerfile").read_text()
        release, system = re.search(r"^FROM docker\.io/nvidia/cuda:(\d+)\.\d+\.\d+-devel-([\w.]+) AS build-cuda$", text, re.MULTILINE).groups()
        self.assertGreaterEqual(int(release), 12)
        self.assertEqual(system, "ubuntu24.04")  # one that ./centroid setup knows
        copied = re.search(r"/root-worker( lib\S+(?: lib\S+)*)$", text, re.MULTILINE)[1].split()
        headers = "".join((ROOT / "worker" / name).read_text() for name in ("model/cuda/cublas.h", "model/cuda/cublas_lt.h", "config.h"))
        looked_for = set(re.findall(r'"(lib(?:cublas|cublasLt|nccl)\.so[.\d]*)"', headers))
        self.assertEqual(set(copied) - looked_for, set())
        self.assertEqual({name.split(".")[0] for name in copied}, {name.split(".")[0] for name in looked_for})
        self.assertEqual({name.rsplit(".", 1)[1] for name in copied if "cublas" in name}, {release})
        stage = text.partition("AS worker-cuda\n")[2].partition("\nFROM ")[0]
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", stage)  # the driver's own libraries come from the host
        self.assertIn("**worker-cuda is not tested**", text_of("docs/how-to/deploy.md"))

    def test_what_the_table_of_symptoms_names_exists(self):
        table = text_of("docs/how-to/runbooks.md")
        sources = "\n".join(path.read_text() for part in ("common", "server", "worker", "transport") for path in (ROOT / part).rglob("*.cc"))
        alerts = (ROOT / "dashboards" / "prometheus" / "alerts.yaml").read_text()
        events = re.findall(r"`([a-z]+\.[a-z_]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
        self.assertGreater(len(events), 15)
        for name in events:
            self.assertTrue(f'"{name}"' in sources, f"{name} is no event")
        for name in re.findall(r"\bCentroid[A-Z]\w+", table):
            self.assertIn(f"alert: {name}\n", alerts)
        for name in re.findall(r"alert: (\w+)$", alerts, re.MULTILINE):
            self.assertIn(name, table, "an alert without a row")
        errors = set(re.findall(r'(?:log::error\(|Level::kError,|broken =)\s*"([a-z_]+\.[a-z_]+)"', sources))
        self.assertGreater(len(errors), 20)
        self.assertEqual({name for name in errors if f"`{name}`" not in table}, set(), "errors of the log without a row")
        runbooks = "\n".join(re.findall(r"^\s+runbook: (.*)$", alerts, re.MULTILINE))
        for name in re.findall(r"\b[a-z]+\.[a-z_]+\b(?!/|\.md)", re.sub(r"\w+\.md", "", runbooks)):
            self.assertTrue(f'"{name}"' in sources, f"{name} is neither an event nor a setting")

    def settings(self, program):
        """The variables of a program."""
        printed = subprocess.run([self.programs / program, "--print-config"], capture_output=True, text=True, check=True).stdout
        names = json.loads(printed) if printed.startswith("{") else re.findall(r"^([a-z_.]+)", printed, re.MULTILINE)
        return {"CENTROID_" + name.upper().replace(".", "_") for name in names}


# Every command of the table in docs/how-to/monitor.md, as documented -> the command lines to run, in this order. `None`: not on one machine in a
# test; the reason stands beside it.
RUN = {
    "status [--watch [SECONDS]]": ["status"],
    "top [--every SECONDS]": ["top --every 1 --count 2"],
    "workers [--all] [--stages]": ["workers", "workers --all", "workers --stages"],
    "events [--follow] [--type T,...] [--since ID] [-n N]": ["events", "events --type member --since 0 -n 5"],
    "scale": ["scale"],
    "scale set WORKERS [--why TEXT]": ["scale set 4 --why because"],
    "scale clear": ["scale clear"],
    "parameters [NAME]": ["parameters", "parameters {tensor}"],
    "servers": ["servers"],
    "rounds [-n N]": ["rounds", "rounds -n 3"],
    "epochs [-n N]": ["epochs", "epochs -n 3"],
    "waits": ["waits"],
    "config get [PREFIX]": ["config get", "config get checkpoint."],
    "config set NAME=VALUE ...": ["config set checkpoint.keep=4 lease=15s"],
    "checkpoints make": ["checkpoints make"],
    "checkpoints list": ["checkpoints list"],
    "checkpoints verify VERSION": ["checkpoints verify {version}"],
    "checkpoints list DIR": ["checkpoints list {run}/checkpoints"],
    "checkpoints verify DIR": ["checkpoints verify {run}/checkpoints"],
    "checkpoints merge BASE ADAPTERS": None,  # needs adapters of a trained language model: tests/process/models_test.py
    "checkpoints export DIR --to FILE": ["checkpoints export {run}/checkpoints --to {folder}/model.safetensors"],
    "tokens create NAME --role R [--hours H]": ["tokens create looker --role viewer", "tokens create node-7 --role worker --hours 1"],
    "tokens list": ["tokens list"],
    "tokens revoke NAME": ["tokens revoke looker"],
    "audit": ["audit"],
    "job pause": ["job pause"],
    "job resume": ["job resume"],
    "doctor [--no-members]": ["doctor", "doctor --no-members"],
    "bench [HOST:PORT]": ["bench {data}"],
    "plan --model M --workers N --bandwidth B": ["plan --model mlp:64-128-128-10 --workers 2 --bandwidth 1Gb/s"],
    "trace [WORKER:PORT ...]": ["trace", "trace {metrics}", "trace --out {folder}/all.json"],
    "tables": ["tables"],
    "probe URL": ["probe http://{api}/healthz"],
    "completion bash": ["completion bash"],
    "workers drain WORKER": ["workers drain w2"],
    "workers evict WORKER [--seconds S] [--why TEXT]": ["workers evict w1 --seconds 60 --why because"],
    "workers evictions": ["workers evictions"],
    "workers allow NAME": ["workers allow w1"],
    "checkpoints get [VERSION] --to DIR": ["checkpoints make", "checkpoints get {version} --to {folder}/fetched", "checkpoints get --to {folder}/newest"],
    "checkpoints restore VERSION [--delete-newer]": ["checkpoints make", "checkpoints restore {version} --delete-newer"],
    "checkpoints delete VERSION": ["checkpoints make", "checkpoints make", "checkpoints delete {version}"],
    "job stop": ["job stop"],
    "servers drain NAME": None,  # needs a second server: tests/process/servers_test.py
}


class Table(ClusterTest):
    def documented(self):
        """Commands in the first column of the table of centroidctl."""
        table = text_of("docs/how-to/monitor.md").split("## centroidctl")[1].split("\n## ")[0]
        found = []
        for row in re.findall(r"^\| (`.*?) \| ", table, re.MULTILINE):
            found += [span.replace("\\", "") for span in re.findall(r"`([^`]+)`", row)]
        return found

    def test_every_command_of_the_table_runs(self):
        found = {word.removeprefix("centroidctl ") for word in self.documented()}
        self.assertEqual(found - set(RUN), set(), "in docs/how-to/monitor.md, not here")
        self.assertEqual(set(RUN) - found, set(), "here, not in docs/how-to/monitor.md")
        server = self.server("--epochs", "1000000", "--min-workers", "1", "--tables", "emb:dim=4")
        workers = [self.worker(server, f"w{k}", "--metrics.listen", "127.0.0.1:0") for k in range(3)]
        places = {"run": self.folder / "run", "folder": self.folder, "data": server.data, "api": server.api}
        places["metrics"] = workers[0].wait_event("worker.metrics_opened")["endpoint"]
        server.wait_cluster("three workers", lambda view: view["world"] == 3 and view["round"] > 5)
        places["tensor"] = server.get("/v1/parameters")["parameters"][0]["name"]
        for name, lines in RUN.items():
            for line in lines or []:
                with self.subTest(documented=name, line=line):
                    if self.checkpoints():
                        places["newest"] = self.checkpoints()[-1]
                        places["version"] = int(self.checkpoints()[0].name.split("-")[1])
                    words = line.format(**places).split()
                    done = subprocess.run([self.programs / "centroidctl", "--server", f"http://{server.api}", *words], capture_output=True, text=True, timeout=60, check=False)
                    self.assertIn(done.returncode, (0, 1) if words[0] == "doctor" else (0,), f"{line}: {done.stdout}{done.stderr}")
                    self.assertEqual(done.stderr if words[0] != "bench" else "", "", line)
                    if line == "checkpoints make":
                        server.wait_more_rounds(1)  # the next one is of another version

    def test_backup_and_restore_as_written(self):
        (block,) = [block for block in blocks("docs/how-to/upgrade.md") if "/backup" in block]
        server = self.server("--epochs", "1000000", "--min-workers", "1")
        self.worker(server, "w0")
        server.wait_round(20)
        self.assertEqual(server.post("/v1/checkpoints")[0], 201)
        newest = self.checkpoints()[-1].name
        backup = self.folder / "backup"
        backup.mkdir()
        *lines, last = block.strip().splitlines()
        self.assertEqual(last, "centroid-server --run-dir new --resume ...")
        script = "set -euo pipefail\n" + "\n".join(lines).replace("checkpoint-000000000241", newest).replace("get 241", f"get {int(newest[11:])}").replace("/backup", str(backup))
        settings = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "CENTROIDCTL_SERVER": f"http://{server.api}"}
        done = subprocess.run(["/bin/bash", "-c", script], cwd=self.folder, env=settings, capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        again = self.server("--resume", name="again", run="new")
        self.assertIn(newest, again.wait_event("checkpoint.loaded")["path"])

    @unittest.skipIf(shutil.which("openssl") is None, "no openssl here")
    def test_certificates_as_written_train(self):
        (block,) = [block for block in blocks("docs/how-to/secure.md") if "openssl req" in block]
        *making, server_line, worker_line = block.strip().splitlines()
        done = subprocess.run(["/bin/bash", "-euc", "\n".join(making)], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        files = [word if word.startswith("--") or not word.endswith((".crt", ".key")) else str(self.folder / word) for word in server_line.split()[5:]]
        server = self.server(*files, "--epochs", "1", "--exit-when-finished")
        files = [word if word.startswith("--") or not word.endswith((".crt", ".key")) else str(self.folder / word) for word in worker_line.split()[5:]]
        worker = self.worker(server, "w0", *files)
        self.assert_exit(0, worker, server)


class Signals(ClusterTest):
    def test_an_upgrade_as_the_guide_says(self):
        """SIGTERM with --leave-workers, exit 0, start with --resume and the same listen and run_dir: no round is lost."""
        server = self.server("--epochs", "1000000", "--leave-workers")
        worker = self.worker(server, "w0", "--join-timeout", "60s")
        server.wait_round(20)
        server.send(signal.SIGTERM)
        self.assertEqual(server.exit_status(), 0)
        left = server.events("checkpoint.written")[-1]["version"]
        again = self.server("--epochs", "1000000", "--resume", name="again", listen=server.data, api=server.api)
        self.assertEqual(again.wait_event("checkpoint.loaded")["version"], left)
        with contextlib.suppress(AssertionError):
            again.wait_more_rounds(5)
        self.assertGreater(again.cluster()["version"], left)
        self.assertTrue(worker.is_running())


if __name__ == "__main__":
    main()
