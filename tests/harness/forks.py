"""Python programs as children of one that has imported PyTorch before, which takes most of their time. Else they begin as any program."""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import threading

IMPORTS = ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "unittest.mock")
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # Linux <sys/prctl.h>


def prctl(option, value):
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Child:
    """A process that becomes a child of this one, with what subprocess.Popen has."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def _wait(self, options):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self):
        return self._wait(os.WNOHANG)

    def wait(self):
        return self._wait(0)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Forks:
    """A process of `interpreter` that forks others."""

    def __init__(self, interpreter, environment):
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        command = ["setpriv", "--pdeathsig", "KILL", interpreter, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**environment, "PYTHONSAFEPATH": "1"})
        self.lock = threading.Lock()

    def start(self, program, log, environment):
        log.touch()  # others may read it at once
        request = {"program": str(program), "log": str(log), "environment": environment, "parent": os.getpid()}
        with self.lock:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            return Child(int(self.process.stdout.readline()))

    def close(self):
        self.process.kill()
        with self.process:
            pass


def begin(request):
    """The program's standard files and environment; it ends with the one that started it."""
    while os.getppid() != request["parent"]:  # until the process between them is gone
        if os.getppid() == 1:
            os._exit(1)
        os.sched_yield()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for own, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(own, standard)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [request["program"]]


def serve():
    """Fork for each line until one of the forks is here: returns its program."""
    told, tell = os.pipe()
    for line in sys.stdin:
        between = os.fork()
        if between:
            if os.waitpid(between, 0)[1]:  # from now on its child is one of the process that asked
                sys.exit("no process was forked")
            os.write(1, os.read(told, 100))
            continue
        if child := os.fork():
            os.write(tell, f"{child}\n".encode())
            os._exit(0)
        request = json.loads(line)
        begin(request)
        return request["program"]
    return None


if __name__ == "__main__":
    for name in IMPORTS:
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.freeze()  # else each fork looks through all of it at its end
    if started := serve():
        runpy.run_path(started, run_name="__main__")
