"""The command `centroid`.

    centroid run [OPTIONS] PROGRAM [ARGUMENTS]   start workers of a training program, and a server for them
    centroid server | worker | ctl [...]         the programs centroid-server, centroid-worker, centroidctl
    centroid doctor [...]                        centroidctl doctor
    centroid demo [...]                          train a digit classifier with a server and four workers of this machine
    centroid version                             version of the library

`centroid run` starts N workers of PROGRAM (a file *.py, `-m MODULE`, or any program) on this machine and shows their output, each line
behind the number of its worker, and what changes in the job; on a terminal also a table of the workers. A worker that fails starts
again. Ctrl-C ends all.

  --workers N            workers on this machine; default: 1
  --restarts N           how often a worker or the server may start again; default: 3
  --SETTING=VALUE        a setting of the server, such as --optimizer=adamw; with the `=`. `centroid server --help` lists them. Without
                         any the server starts when a program connects to it: DistributedDataParallel and DataParallel need none
  --server HOST:PORT     join this cluster instead of starting a server
  --token-file FILE      the cluster's token (with --server)
  --tls-authority FILE   whose certificates count (with --server)
  --nodes N --node I --master HOST:PORT
                         this is machine I of N, each with as many workers; machine 0 has HOST (for RANK, WORLD_SIZE, MASTER_*)

The program finds CENTROID_SERVER and CENTROID_NAME, which `centroid.Trainer(None, ...)` uses, and what torchrun sets: RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. The server's files are in run/DATE-TIME; --run-dir=DIR changes that. Exit status: 0 when every
worker ended with 0, else that of the first that failed for good; 130 after Ctrl-C.
"""

import ctypes
import datetime
import json
import os
import pathlib
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time

from ._live import Live

START_SECONDS = 60.0  # until the server listens
STOP_SECONDS = 15.0  # for a clean end, before SIGKILL
RESTART_SECONDS = 1.0  # before the first restart; before the next twice as long
LINE_BYTES = 1 << 16
NO_RESTART = (2, 3)  # exit statuses: wrong usage or settings, and a halted job
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # Linux <sys/prctl.h>
OWN = {"workers": "1", "restarts": "3", "server": None, "token_file": None, "tls_authority": None, "nodes": "1", "node": "0", "master": None}


class Failure(Exception):
    """The run cannot go on; the text is for the user."""


def find(program):
    """Absolute path of one of the programs: beside this command, in a build folder of the source tree, beside Python, or in PATH."""
    here = pathlib.Path(sys.argv[0]).absolute()
    root = pathlib.Path(__file__).resolve().parents[3]
    built = sorted(root.glob(f"build/*/bin/{program}"), key=lambda one: -one.stat().st_mtime)
    for path in (here.parent / program, here.resolve().parent / program, *built, pathlib.Path(sys.executable).with_name(program)):
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    if found := shutil.which(program):
        return found
    raise Failure(f"no program {program} beside {here}, in a build folder or in PATH: install the wheel or the package, or ./centroid build")


def say(text):
    print(f"centroid: {text}", file=sys.stderr, flush=True)


def divide(words):
    """Divide the words after `run`: own options, settings of the server, the program and its arguments."""
    options, settings, words = dict(OWN), [], list(words)
    while words and words[0].startswith("--"):
        name, equals, value = words.pop(0).partition("=")
        key = name[2:].replace("-", "_")
        if name == "--":
            break
        if key not in OWN:
            settings.append((name, value if equals else None))
            continue
        if not equals:
            if not words:
                raise Failure(f"run: {name} needs a value")
            value = words.pop(0)
        options[key] = value
    return options, settings, words


def parse(words):
    """What `divide` returns, checked."""
    options, settings, words = divide(words)
    for key in ("workers", "restarts", "nodes", "node"):
        least = 1 if key in ("workers", "nodes") else 0
        if not options[key].isdigit() or not least <= int(options[key]) <= 16384:
            raise Failure(f"run: --{key} {options[key]} is not a number from {least} to 16384")
        options[key] = int(options[key])
    check(options, settings, words)
    return options, settings, words


def check(options, settings, words):
    names = ", ".join(name for name, _ in settings)
    if not words:
        raise Failure("run: no program is named; `centroid help` has the usage")
    if not words[0].startswith("-") and not pathlib.Path(words[0]).exists() and not shutil.which(words[0]):
        hint = f"; a setting of the server has its value behind `=` ({names})" if settings else ""
        raise Failure(f"run: there is no program {words[0]}{hint}")
    if options["server"] and settings:
        raise Failure(f"run: {names} with --server: that server has its settings already")
    if not options["server"] and (options["token_file"] or options["tls_authority"]):
        raise Failure("run: --token-file and --tls-authority need --server; the server that is started here listens to this machine only")
    if options["nodes"] > 1 and not (options["server"] and options["master"] and options["node"] < options["nodes"]):
        raise Failure("run: --nodes needs --server, --master HOST:PORT, and a --node below it")


def command_of(words):
    if words[0] == "-m" or words[0].endswith(".py"):
        return [sys.executable, "-u", *words]
    return words


def hold_port():
    """A socket whose port no other process is given. It never listens, so a program that sets SO_REUSEADDR, as servers do, can."""
    is_dual = socket.has_dualstack_ipv6()
    held = socket.socket(socket.AF_INET6 if is_dual else socket.AF_INET)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_dual:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    held.bind(("", 0))
    return held


def new_folder():
    """A folder of this run alone, also where several start in one second."""
    name = datetime.datetime.now().strftime("run/%Y%m%d-%H%M%S")
    for path in (pathlib.Path(name + more) for more in ("", *(f"-{number}" for number in range(2, 1000)))):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise Failure(f"{name} and 998 others are there: give --run-dir=DIR")


def begin_child():
    """In a child: end with the parent, however that ends (Linux)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Lines:
    """One stream of a child, which appears line by line behind the child's name."""

    def __init__(self, name, out):
        self.prefix, self.out, self.rest = f"[{name}] ".encode(), out, b""

    def feed(self, data):
        """Show the lines that are complete; b"" is the end."""
        text = (self.rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        cut = len(text) if not data or len(text) > LINE_BYTES else text.rfind(b"\n") + 1
        text, self.rest = text[:cut], text[cut:]
        if text:
            self.out.buffer.write(b"".join(self.prefix + line + b"\n" for line in text.rstrip(b"\n").split(b"\n")))
            self.out.flush()


class Child:
    """A worker or the server, in a session of its own: Ctrl-C reaches this command, which ends all in order."""

    def __init__(self, name, command, environment):
        self.name, self.command, self.environment = name, command, environment
        self.process = self.again_at = None
        self.restarts = 0

    def start(self, selector):
        self.again_at = None
        self.process = subprocess.Popen(
            self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=begin_child
        )
        for pipe, out in ((self.process.stdout, sys.stdout), (self.process.stderr, sys.stderr)):
            selector.register(pipe, selectors.EVENT_READ, Lines(self.name, out))

    def is_running(self):
        return self.process is not None

    def send(self, number):
        """To the child and what it has started."""
        if self.is_running():
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                pass  # it ends just now

    def take_end(self):
        """The exit status once it has ended, -N by signal N; else None. What it has started ends too."""
        code = self.process.poll() if self.is_running() else None
        if code is not None:
            self.send(signal.SIGKILL)
            self.process = None
        return code


class Run:
    """Workers, and the server if there is one here."""

    def __init__(self, options, settings, words):
        self.options, self.settings, self.words = options, settings, words
        self.selector = selectors.DefaultSelector()
        self.server, self.workers, self.endpoints, self.live = None, [], None, None
        self.door, self.visitor = None, None  # listens where the server will; who came first
        self.held = [hold_port() for _ in range(3)]  # of the server, of REST, of rank 0: also while they start again
        self.status = 0
        self.interrupts, self.is_stopping, self.term_at, self.kill_at = 0, False, None, None

    # ---- start

    def listen_for_server(self):
        """Its address. It starts when the first program connects to it."""
        self.door = socket.create_server(("127.0.0.1", self.port(0)))
        self.selector.register(self.door, selectors.EVENT_READ)
        return f"127.0.0.1:{self.port(0)}"

    def port(self, index):
        return self.held[index].getsockname()[1]

    def open_door(self):
        self.visitor, _ = self.door.accept()
        self.selector.unregister(self.door)

    def start_server(self):
        """Returns its address, once it listens."""
        self.add_server()
        server, api = self.wait_for_server()
        self.fix_ports(server, api)
        if api:
            from .demo import Api  # which imports this module

            self.live = Live(Api(api), say, lambda: self.waker.send(b"\0"))
        self.say(f"the server {server} has its files in {self.endpoints.parent}; `centroid ctl --server http://{api} status --watch` shows it")
        return server

    def start_wanted_server(self):
        """In place of the door. The program that came first tries again when its connection ends. Without a server the workers end."""
        self.door.close()
        try:
            self.start_server()
        except Failure as failure:
            self.status = self.status or 2
            self.stop(str(failure))
        self.visitor.close()

    def add_server(self):
        given = dict(self.settings)
        named = {name[2:].replace("_", "-") for name in given}
        folder = pathlib.Path(given["--run-dir"]) if given.get("--run-dir") else new_folder()
        folder.mkdir(parents=True, exist_ok=True)
        self.endpoints = folder / "endpoints.json"
        self.endpoints.unlink(missing_ok=True)
        places = {"listen": f"127.0.0.1:{self.port(0)}", "api.listen": f"127.0.0.1:{self.port(1)}"}
        own = {"run-dir": folder, **places, "endpoints-file": self.endpoints.resolve(), "min-workers": self.options["workers"]}
        words = [f"--{name}={value}" for name, value in own.items() if name not in named]
        words += [name if value is None else f"{name}={value}" for name, value in self.settings]
        environment = {name: value for name, value in os.environ.items() if name not in ("CENTROID_SERVER", "CENTROID_NAME")}
        self.server = Child("server", [find("centroid-server"), *words], environment)
        self.server.start(self.selector)

    def wait_for_server(self):
        """Its address, and that of REST."""
        deadline = time.monotonic() + START_SECONDS
        while not self.interrupts:
            try:
                found = json.loads(self.endpoints.read_text())
                return found["data"], found.get("api")
            except (OSError, ValueError):
                self.read(0.05)
            if (code := self.server.take_end()) is not None:
                self.status = code if code > 0 else 1
                raise Failure(f"the server ended with {code} before it listened")
            if time.monotonic() > deadline:
                raise Failure(f"the server does not listen after {START_SECONDS:.0f} s")
        return None, None

    def fix_ports(self, data, api):
        """A server that starts again is where the workers look for it, and continues."""
        words = self.server.command
        for name, place in (("--listen", data), ("--api.listen", api)):
            words[:] = [f"{name}={place}" if place and word.startswith(f"{name}=") else word for word in words]
        if "--resume" not in words:
            words.append("--resume")

    def add_workers(self, server):
        count, nodes = self.options["workers"], self.options["nodes"]
        host, _, port = (self.options["master"] or "").rpartition(":")
        first, width = self.options["node"] * count, len(str(count - 1))
        shared = {"CENTROID_SERVER": server, "LOCAL_WORLD_SIZE": str(count), "PYTHONUNBUFFERED": "1"}
        if not self.options["server"] or self.options["master"]:
            shared |= {"WORLD_SIZE": str(nodes * count), "MASTER_ADDR": host or "127.0.0.1", "MASTER_PORT": port or str(self.port(2))}
        if count > 1 and "OMP_NUM_THREADS" not in os.environ:
            shared["OMP_NUM_THREADS"] = str(max((os.cpu_count() or 1) // count, 1))
        shared |= {f"CENTROID_{key.upper()}": os.path.abspath(self.options[key]) for key in ("token_file", "tls_authority") if self.options[key]}
        for local in range(count):
            name = f"{socket.gethostname()}-{local:0{width}}" if self.options["server"] else f"worker-{local:0{width}}"
            own = {"CENTROID_NAME": name, "LOCAL_RANK": str(local)}
            if "WORLD_SIZE" in shared:
                own["RANK"] = str(first + local)
            self.workers.append(Child(own.get("RANK", str(local)), command_of(self.words), {**os.environ, **shared, **own}))
            self.workers[-1].start(self.selector)

    # ---- while it runs

    def read(self, seconds):
        """Show what the children write; return after this time, or when there was something or a signal."""
        found = self.selector.select(max(seconds, 0))
        if self.live and any(key.data for key, _ in found):
            self.live.hide()
        for key, _ in found:
            if key.fileobj is self.door:
                self.open_door()
                continue
            if key.data is None:  # a signal woke us, or the live table
                os.read(key.fd, LINE_BYTES)
                continue
            data = os.read(key.fd, LINE_BYTES)
            key.data.feed(data)
            if not data:
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
        if self.live:
            self.live.take()
            if not self.live.shown:
                self.live.show()

    def say(self, text):
        if self.live:
            self.live.hide()
        say(text)

    def take_end(self, child):
        code = child.take_end()
        if code is None or (code == 0 and (child is self.server or child in self.workers)):
            return
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"
        name = child.name if child is self.server else f"worker {child.name}"
        if self.is_stopping:
            return
        if code in NO_RESTART or child.restarts >= self.options["restarts"]:
            self.status = self.status or (128 - code if code < 0 else code)
            self.stop(f"{name} {how}" + (f", and started again {child.restarts} times before" if child.restarts else ""))
            return
        child.again_at = time.monotonic() + RESTART_SECONDS * 2**child.restarts
        child.restarts += 1
        self.say(f"{name} {how}; start {child.restarts} of at most {self.options['restarts']} more")

    def stop(self, why):
        """End all: the workers first, which then say goodbye to the server."""
        self.say(f"{why}: ending all")
        self.is_stopping, self.kill_at = True, time.monotonic() + STOP_SECONDS
        for child in self.workers:
            child.again_at = None
            child.send(signal.SIGINT)
        if self.server:
            self.server.again_at = None

    def is_over(self, children):
        return all(not child.is_running() and child.again_at is None for child in children)

    def everybody(self):
        return [*self.workers, *([self.server] if self.server else [])]

    def turn(self):
        if self.visitor and not self.server and not self.is_stopping:
            self.start_wanted_server()
        everybody, now = self.everybody(), time.monotonic()
        timers = [child.again_at for child in everybody if child.again_at] + [at for at in (self.term_at, self.kill_at) if at]
        self.read(min([at - now for at in timers], default=60.0))
        for child in everybody:
            self.take_end(child)
        now = time.monotonic()
        for child in everybody:
            if child.again_at and child.again_at <= now:
                child.start(self.selector)
        if self.interrupts and not self.is_stopping:
            self.status = 130
            self.stop("interrupted")
        if self.server and self.server.is_running() and self.term_at is None and self.is_over(self.workers):
            self.server.again_at = None
            if self.live:
                self.live.end()
            self.term_at = now  # until now it told late workers that the job is over
        if self.term_at and self.term_at <= now:
            self.server.send(signal.SIGTERM)
            self.is_stopping, self.term_at, self.kill_at = True, float("inf"), now + STOP_SECONDS
        if self.kill_at and (self.kill_at <= now or self.interrupts > 1):
            for child in everybody:
                child.send(signal.SIGKILL)

    def note_signal(self, *_):
        self.interrupts += 1

    def run(self):
        wake, self.waker = socket.socketpair()
        for end in (wake, self.waker):
            end.setblocking(False)
        self.selector.register(wake, selectors.EVENT_READ)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in SIGNALS:
            signal.signal(number, self.note_signal)
        try:
            server = self.options["server"] or (self.start_server() if self.settings else self.listen_for_server())
            if not self.interrupts:
                self.add_workers(server)
            while not self.is_over(self.everybody()):
                self.turn()
        finally:
            self.end_all()
        return self.status

    def end_all(self):
        """Nothing is left behind, also after an error of ours; the last lines are shown."""
        if self.live:
            self.live.is_over.set()
            self.live.hide()
            self.live = None
        for child in self.everybody():
            child.send(signal.SIGKILL)
        deadline = time.monotonic() + 2
        while any(isinstance(key.data, Lines) for key in self.selector.get_map().values()) and time.monotonic() < deadline:
            self.read(deadline - time.monotonic())


def main(words=None):
    words = sys.argv[1:] if words is None else words
    command, rest = (words[0], words[1:]) if words else ("help", [])
    try:
        if command in ("help", "-h", "--help") or (command == "run" and rest[:1] in (["--help"], ["-h"])):
            print(__doc__.strip())
        elif command in ("version", "--version"):
            import centroid

            print(centroid.version())
        elif command == "run":
            return Run(*parse(rest)).run()
        elif command == "demo":
            from . import demo

            return demo.main(rest)
        elif command in ("server", "worker", "ctl", "doctor"):
            program = find({"server": "centroid-server", "worker": "centroid-worker"}.get(command, "centroidctl"))
            os.execv(program, [program, *(["doctor"] if command == "doctor" else []), *rest])
        else:
            raise Failure(f"unknown command {command}; there are run, server, worker, ctl, doctor, demo, version, help")
    except Failure as failure:
        say(failure)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
