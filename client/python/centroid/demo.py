"""`centroid demo`: train a model on a cluster of processes on this machine: one server and N workers, or one worker without a server.

`./centroid demo` of the source tree calls this with the folders of the build. Standard library only.
Exit status: 0 trained, 1 failed (the message says what and where the log is), 2 wrong usage, 130 interrupted.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from . import _digits
from . import _progress as progress
from .__main__ import PR_SET_PDEATHSIG, SIGNALS, Failure, find

POLL_SECONDS = 0.25
READY_SECONDS = 30.0  # from start to GET /readyz
FIRST_ROUND_SECONDS = 60.0
LEAVE_SECONDS = 5.0  # between a worker's leave and the server's word that the job is finished
EVALUATE_SECONDS = 15.0  # from the last round to its accuracy on held-out data
STOP_SECONDS = 10.0  # for a clean leave, before SIGTERM
TERM_SECONDS = 5.0  # from SIGTERM to SIGKILL
ROUND_HISTORY = 256  # as many rounds as the server remembers


class Interrupted(Exception):
    """SIGINT, SIGTERM or SIGHUP arrived."""


# ---- processes ---------------------------------------------------------------------------------------------------------------


def pause(seconds):
    """Sleep. Signals are blocked and taken here and nowhere else, so that none can cut a clean-up short."""
    arrived = signal.sigtimedwait(SIGNALS, max(0.0, seconds))
    if arrived:
        raise Interrupted(signal.Signals(arrived.si_signo).name)


def begin_child():
    """In a child: take signals again, and get SIGTERM when the parent dies in whatever way (Linux only)."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A program of the cluster and its log. It has a session of its own: Ctrl-C reaches this driver only, which ends all in order."""

    def __init__(self, name, command, folder):
        self.name = name
        self.command = [str(word) for word in command]
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=begin_child,
            )

    def status(self):
        """Exit status, or None while it runs."""
        return self.child.poll()

    def tail(self, lines=15):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def failure(self):
        """What to tell about an exit that nobody asked for."""
        status = self.child.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
        return Failure(f"{self.name} {how}; the end of {self.log}:\n{self.tail()}")

    def send(self, number):
        if self.status() is None:
            self.child.send_signal(number)


def wait_all(processes, allowed_seconds):
    """Whether all have ended in time."""
    deadline = time.monotonic() + allowed_seconds
    while any(process.status() is None for process in processes):
        if time.monotonic() >= deadline:
            return False
        pause(POLL_SECONDS / 10)
    return True


def end_all(processes):
    """End what still runs: SIGTERM, then SIGKILL. Nothing is left behind; a second Ctrl-C only makes it quicker."""
    for process in processes:
        process.send(signal.SIGTERM)
    try:
        wait_all(processes, TERM_SECONDS)
    except Interrupted:
        pass
    for process in processes:
        process.send(signal.SIGKILL)
        process.child.wait()


# ---- REST --------------------------------------------------------------------------------------------------------------------


class Api:
    """The server's REST interface."""

    def __init__(self, endpoint):
        self.url = f"http://{endpoint}"

    def call(self, method, path, timeout=5.0):
        request = urllib.request.Request(self.url + path, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as reply:
            return json.load(reply)

    def get(self, path):
        return self.call("GET", path)

    def is_ready(self):
        try:
            self.get("/readyz")
        except (OSError, ValueError):
            return False
        return True

    def stop_job(self):
        """Ask for a clean end; whether the server took it."""
        try:
            self.call("POST", "/v1/job:stop", timeout=2.0)
        except (OSError, ValueError):
            return False
        return True


# ---- settings ----------------------------------------------------------------------------------------------------------------


def server_settings(options, folder):
    """The server's configuration file; what is not here keeps the server's defaults."""
    if options.local_steps > 1:  # --optimizer and --lr are the workers'
        steps = {name: getattr(options, name) for name in ("local_steps", "fragments", "overlap", "outer")}
    else:
        steps = {"optimizer": options.optimizer, "lr": options.lr}
    return {
        "listen": "127.0.0.1:0",
        "api": {"listen": "127.0.0.1:0"},
        "run_dir": str(folder),
        "min_workers": options.workers,
        "epochs": options.epochs,
        "seed": options.seed,
        "policy": options.policy,
        "cadence": {"mode": options.cadence},
        "exchange": options.exchange,
        "apply": options.apply,
        "codec_down": options.codec_down,
        "reduce": {"algorithm": options.algorithm},
        **steps,
    }


def training_flags(options, folder, name):
    """Flags of a worker that do not depend on the exchange."""
    return [
        *("--name", name, "--model", options.model, "--codec", options.codec, "--seed", options.seed),
        *("--data", options.data, "--data-cache-dir", options.data_dir),
        *("--summary-file", folder / f"{name}.json"),
    ]


def worker_command(options, folder, endpoint, number):
    name = f"worker-{number}"
    flags = ["--server", endpoint, "--exchange", options.exchange, "--devices", options.devices, "--batch", options.batch]
    if options.local_steps > 1:
        flags += ["--inner.optimizer", options.optimizer, "--inner.lr", options.lr]
    if options.nodes > 1:
        flags += ["--peer.node", f"node-{number * options.nodes // options.workers}"]
    return name, [options.bin / "centroid-worker", *flags, *training_flags(options, folder, name)]


def local_command(options, folder):
    """One worker with as many devices, and as many samples a round, as the cluster would have workers."""
    devices = options.devices if "," in options.devices else ",".join(f"cpu:{k}" for k in range(options.workers))
    flags = ["--exchange", "local", "--epochs", options.epochs, "--devices", devices]
    flags += ["--batch", options.batch * options.workers, "--checkpoint.dir", folder / "checkpoints"]
    flags += ["--optimizer", options.optimizer, "--lr", options.lr]
    return "worker-0", [options.bin / "centroid-worker", *flags, *training_flags(options, folder, "worker-0")]


def make_run_folder(options):
    """A fresh folder: the one that was asked for, or run/demo-<time>-<n>."""
    if options.run_dir:
        folder = options.run_dir.resolve()
        if folder.exists() and any(folder.iterdir()):
            raise Failure(f"{folder} is not empty: name a new folder with --run-dir")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    options.runs.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        folder = options.runs.resolve() / f"demo-{stamp}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise Failure(f"no free name for a run folder under {options.runs}")


# ---- a cluster ---------------------------------------------------------------------------------------------------------------


class Cluster:
    """One server and its workers."""

    def __init__(self, options, folder, display):
        self.options, self.folder, self.display = options, folder, display
        self.processes = []
        self.api = None
        self.opened = None  # Unix time of the first round
        self.left = None  # when a worker was first seen to have left

    def start(self):
        settings = self.folder / "server.json"
        settings.write_text(json.dumps(server_settings(self.options, self.folder), indent=2) + "\n")
        endpoints_file = self.folder / "endpoints.json"
        server = self.options.bin / "centroid-server"
        command = [server, "--config", settings, "--endpoints-file", endpoints_file]
        self.processes.append(Process("server", command, self.folder))
        endpoints = self.wait_for(lambda: read_endpoints(endpoints_file), READY_SECONDS, "the server's endpoints")
        self.api = Api(endpoints["api"])
        for number in range(self.options.workers):
            name, command = worker_command(self.options, self.folder, endpoints["data"], number)
            self.processes.append(Process(name, command, self.folder))
        self.wait_for(self.api.is_ready, READY_SECONDS, f"GET {self.api.url}/readyz")

    def wait_for(self, condition, allowed_seconds, what):
        """Poll until the condition is true; a process that ends meanwhile is a failure."""
        deadline = time.monotonic() + allowed_seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            self.check_processes()
            pause(POLL_SECONDS / 5)
        raise Failure(f"waited {allowed_seconds:.0f} s for {what}; logs are in {self.folder}")

    def check_processes(self):
        """The server runs and no worker has failed. Workers may leave just before the server says that the job is finished."""
        for process in self.processes:
            if process.status() is None:
                continue
            self.left = self.left or time.monotonic()
            if process is self.processes[0] or process.status() != 0 or time.monotonic() - self.left > LEAVE_SECONDS:
                raise process.failure()

    def view(self):
        """GET /v1/cluster; a server that does not answer because it died is told as that."""
        try:
            return self.api.get("/v1/cluster")
        except (OSError, ValueError) as error:
            wait_all(self.processes[:1], 1)
            self.check_processes()
            raise Failure(f"GET {self.api.url}/v1/cluster: {error}") from error

    def train(self):
        """Poll until the goal is reached; return the seconds from the opening of the first round to the end of the last."""
        waiting_since = time.monotonic()
        while True:
            view = self.view()
            if view["round"] > 0 and self.opened is None:
                self.opened = min((r["opened_unix_seconds"] for r in self.rounds()), default=None)
            if view["state"] == "finished":
                return max((r["opened_unix_seconds"] + r["seconds"] for r in self.rounds()), default=0.0) - (self.opened or 0.0)
            if view["state"] in ("halted", "stopping"):
                raise Failure(f"the job is {view['state']}: {view['state_reason']}; logs are in {self.folder}")
            if self.opened is None and time.monotonic() - waiting_since > FIRST_ROUND_SECONDS:
                raise Failure(f"no round after {FIRST_ROUND_SECONDS:.0f} s ({view['state']}: {view['state_reason']})")
            self.check_processes()
            self.display.show(view)
            pause(POLL_SECONDS)

    def rounds(self):
        return self.api.get(f"/v1/rounds?limit={ROUND_HISTORY}")["rounds"]

    def evaluated(self):
        """The last view, once the final parameters have been evaluated on held-out data or the time for it is over."""
        deadline = time.monotonic() + EVALUATE_SECONDS
        view = self.view()
        while view["test_version"] != view["version"] and time.monotonic() < deadline:
            pause(POLL_SECONDS / 5)
            view = self.view()
        return view

    def run(self):
        self.start()
        seconds = self.train()
        self.display.clear()
        view = self.evaluated()
        workers = self.leave()
        checkpoints = self.api.get("/v1/checkpoints")["checkpoints"]
        return {
            "exchange": self.options.exchange,
            "cluster": view,
            "workers": workers,
            "seconds": seconds,
            "test_accuracy": view["test_accuracy"],
            "test_loss": view["test_loss"],
            "samples": view["samples_total"],
            "checkpoint": checkpoints[0]["path"] if checkpoints else "",
            "urls": {"rest": self.api.url + "/v1/cluster", "metrics": self.api.url + "/metrics"},
        }

    def leave(self):
        """What every worker says it has done, once all have left."""
        wait_all(self.processes[1:], STOP_SECONDS)
        self.check_processes()
        return [read_summary(self.folder, process) for process in self.processes[1:]]

    def stop(self):
        """Ask the job to stop, let every process leave, then end what remains."""
        try:
            if self.api and self.processes[0].status() is None and self.api.stop_job():
                wait_all(self.processes[1:], STOP_SECONDS)
        except Interrupted:
            pass
        finally:
            end_all(self.processes)


def read_endpoints(path):
    """What the server wrote once both its ports listen; None before."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_summary(folder, process):
    """What a worker that has left wrote about its training."""
    try:
        return json.loads((folder / f"{process.name}.json").read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{process.name} left no summary ({error}); the end of {process.log}:\n{process.tail()}") from error


class LocalTraining:
    """One worker process with several devices and no server."""

    def __init__(self, options, folder, display):
        self.options, self.folder, self.display = options, folder, display
        self.processes = []

    def run(self):
        name, command = local_command(self.options, self.folder)
        worker = Process(name, command, self.folder)
        self.processes.append(worker)
        shown = 0
        while worker.status() is None:
            shown = self.show_log(worker, shown)
            pause(POLL_SECONDS)
        self.show_log(worker, shown)
        if worker.status() != 0:
            raise worker.failure()
        summary = read_summary(self.folder, worker)
        checkpoints = self.folder / "checkpoints"
        return {
            "exchange": "local",
            "workers": [summary],
            **{key: summary[key] for key in ("seconds", "samples", "test_accuracy", "test_loss")},
            "checkpoint": str(checkpoints) if checkpoints.is_dir() else "",
            "urls": {},
        }

    def show_log(self, worker, shown):
        """Pass on the log's lines about epochs; return how many lines have been read."""
        lines = worker.log.read_text(errors="replace").splitlines()
        for text in lines[shown:]:
            if "epoch" in text:
                self.display.say(text)
        return len(lines)

    def stop(self):
        end_all(self.processes)


# ---- command line ------------------------------------------------------------------------------------------------------------


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(
        prog="centroid demo",
        description="Train a model on this machine: one server and several workers, each a process of its own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--workers", type=positive, default=4, metavar="N", help="worker processes (local: devices of the one worker)")
    add("--exchange", choices=("star", "ring", "hierarchical", "local"), default="star",
        help="star: gradients through the server; ring, hierarchical: among the workers; local: one process, no server")  # fmt: skip
    add("--nodes", type=positive, default=1, metavar="N", help="hierarchical: treat the workers as if they were on N machines")
    add("--algorithm", default="auto", metavar="NAME", help="ring: auto, ring, recursive-doubling, chain (adds as star does)")
    add("--epochs", type=positive, default=20, metavar="N", help="passes over the data")
    add("--model", default="mlp:64-512-512-10", metavar="SPEC", help="layers of a multi-layer perceptron")
    add("--data", default="digits", metavar="SPEC", help="data set")
    add("--codec", default="f32", metavar="SPEC", help="how contributions travel (docs/how-to/slow-networks.md)")
    add("--codec-down", default="f32", metavar="SPEC", help="star: how results travel; the workers then apply the optimizer")
    add("--batch", type=positive, default=32, metavar="N", help="samples of one worker (local: of one device) in one round")
    add("--optimizer", default="adam", metavar="NAME", help="update rule")
    add("--lr", type=float, default=0.001, metavar="X", help="learning rate")
    add("--apply", choices=("auto", "server", "worker"), default="auto", help="who applies the optimizer")
    add("--policy", default="bsp", metavar="NAME", help="when a round closes")
    add("--local-steps", type=positive, default=1, metavar="H",
        help="steps of a worker by itself between contributions; --optimizer and --lr are then the workers' own")  # fmt: skip
    add("--fragments", type=positive, default=1, metavar="F", help="local steps: sets of tensors that travel in turn")
    add("--overlap", type=int, default=0, metavar="T", help="local steps made while a contribution travels")
    add("--outer", choices=("nesterov", "average"), default="nesterov", help="local steps: what the server does with their mean")
    add("--cadence", choices=("off", "speed", "tuned"), default="off", help="data by measured speed, local steps tuned (docs/explanation/unequal-machines.md)")
    add("--seed", type=int, default=1, metavar="N", help="of initial parameters, data split and data order")
    add("--devices", default="cpu:0", metavar="LIST", help="devices of each worker")
    add("--keep", action="store_true", help="leave the cluster up when trained, until Ctrl-C")
    add("--run-dir", type=pathlib.Path, metavar="DIR", help="folder of this run; by default a new one under run/")
    add("--json", action="store_true", help="print the result as JSON on stdout; everything else goes to stderr")
    add("--data-dir", type=pathlib.Path, default=default_data(), metavar="DIR", help="folder of the data set")
    add("--bin", type=pathlib.Path, help=argparse.SUPPRESS)  # these are given by ./centroid
    add("--runs", type=pathlib.Path, default=pathlib.Path("run"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def default_data():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "centroid"


def complete(options):
    """Find the programs and the data set."""
    options.is_installed = options.bin is None
    if options.is_installed:
        options.bin = pathlib.Path(find("centroid-server")).parent
        if options.data == "digits" and not _digits.fetch(options.data_dir):
            raise Failure(
                f"no data set: the digits are neither in {options.data_dir} nor in an installed scikit-learn, and apt-get has no python3-sklearn. "
                f"`pip install scikit-learn`, or copy {_digits.MEMBER} of one to {options.data_dir / _digits.NAME}"
            )


def headline(options, folder):
    layout = f"1 worker, {options.workers} devices" if options.exchange == "local" else f"1 server, {options.workers} workers"
    return f"training {options.model} on {options.data} for {options.epochs} epochs: {layout}; files in {folder}"


def live(result, name):
    url = result["urls"].get(name, "")
    return f"{url} (while the cluster runs; --keep leaves it up)" if url else ""


def report(result, folder, again):
    """The lines that close a run."""
    lines = progress.worker_table(result["workers"]) + [""] if result["workers"] else []
    facts = [
        ("test accuracy", f"{progress.percent(result['test_accuracy'])} on held-out data (loss {result['test_loss']:.4f})"),
        ("trained in", f"{progress.seconds(result['seconds'])}, {progress.count(result['samples'])} samples"),
        ("checkpoint", result["checkpoint"]),
        ("REST", live(result, "rest")),
        ("metrics", live(result, "metrics")),
        ("files", str(folder)),
        ("again", again),
    ]
    return lines + [f"{name:<14}{value}" for name, value in facts if value]


def hold(job, display):
    """Keep the cluster up until a signal comes or a process ends."""
    try:
        display.say("the cluster stays up; Ctrl-C ends it")
        while all(process.status() is None for process in job.processes[:1]):
            pause(POLL_SECONDS)
    except Interrupted:
        return
    raise job.processes[0].failure()


def run(options, arguments, display):
    complete(options)
    folder = make_run_folder(options)
    display.say(headline(options, folder))
    job = (LocalTraining if options.exchange == "local" else Cluster)(options, folder, display)
    try:
        result = job.run()
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        again = shlex.join(["centroid" if options.is_installed else "./centroid", "demo", *arguments])
        display.say("\n" + "\n".join(report(result, folder, again)))
        if options.json:
            print(json.dumps(result), flush=True)
        if options.keep and job.processes and options.exchange != "local":
            hold(job, display)
    finally:
        display.clear()
        job.stop()


def user_arguments(arguments):
    """The command line to repeat a run: without the folders that ./centroid adds and without this run's own folder."""
    rest, words = [], iter(arguments)
    for word in words:
        if word in ("--bin", "--data-dir", "--runs", "--run-dir"):
            next(words, None)
        elif not word.startswith("--run-dir="):
            rest.append(word)
    return rest


def main(arguments):
    options = parse_arguments(arguments)
    display = progress.Progress(sys.stderr if options.json else sys.stdout)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        run(options, user_arguments(arguments), display)
    except Interrupted as signal_name:
        display.clear()
        print(f"centroid demo: stopped by {signal_name}; every process has left", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of the output has gone
        sys.stderr.close()
        return 1
    except Failure as failure:
        print(f"centroid demo: {failure}", file=sys.stderr)
        return 1
    return 0

