"""Machines for chaos: network namespaces around a bridge, that can be parted, and small disks."""

import os
import pathlib
import subprocess


def run(*words):
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


class Network:
    """A namespace for each name. This process is at `own`, on the side of those that are not cut off."""

    own = "10.78.0.1"

    def __init__(self, names):
        self.prefix = f"cc{os.getpid()}"
        self.names = list(names)
        self.hosts = {name: f"10.78.0.{number + 2}" for number, name in enumerate(self.names)}

    def __enter__(self):
        try:
            for side in "ab":
                run("ip", "link", "add", self.prefix + side, "type", "bridge")
                run("ip", "link", "set", self.prefix + side, "up")
            run("ip", "address", "add", f"{self.own}/24", "dev", self.prefix + "a")
            for name in self.names:
                space = self.prefix + name
                run("ip", "netns", "add", space)
                run("ip", "link", "add", self.port(name), "type", "veth", "peer", "name", "eth", "netns", space)
                run("ip", "link", "set", self.port(name), "master", self.prefix + "a", "up")
                run("ip", "-n", space, "address", "add", f"{self.hosts[name]}/24", "dev", "eth")
                run("ip", "-n", space, "link", "set", "eth", "up")
                run("ip", "-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "link", "del", self.port(name)], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", self.prefix + name], check=False, capture_output=True)
        for side in "ab":
            subprocess.run(["ip", "link", "del", self.prefix + side], check=False, capture_output=True)

    def port(self, name):
        return f"{self.prefix}p{self.names.index(name)}"

    def limit(self, rate):
        """Each machine sends at most at this rate, as tc spells it."""
        for name in self.names:
            run("ip", "netns", "exec", self.prefix + name, "tc", "qdisc", "add", "dev", "eth", "root", "tbf", "rate", rate, "burst", "16kb", "latency", "1s")

    def unlimit(self):
        for name in self.names:
            run("ip", "netns", "exec", self.prefix + name, "tc", "qdisc", "del", "dev", "eth", "root")

    def part(self, names):
        """These reach each other only; the others, and this process, too."""
        for name in names:
            run("ip", "link", "set", self.port(name), "master", self.prefix + "b")

    def join(self, names):
        for name in names:
            run("ip", "link", "set", self.port(name), "master", self.prefix + "a")


class Disk:
    """A file system of its own, in memory."""

    FILLING = "filling"

    def __init__(self, folder, megabytes):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True)
        run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", self.folder)

    def fill(self):
        with (self.folder / self.FILLING).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self):
        (self.folder / self.FILLING).unlink(missing_ok=True)

    def close(self):
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


class Program:
    """A program of Centroid on its machine. The fault that ends it also starts it again."""

    def __init__(self, network, name, command, log):
        self.network, self.name, self.log = network, name, log
        self.command = ["ip", "netns", "exec", network.prefix + name, *map(str, command)]
        self.starts = 0
        self.child = None
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        self.starts += 1

    def send(self, number):
        self.child.send_signal(number)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def tail(self, lines=12):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
