"""The other processes of a `centroid.torch.DataParallel`: found by the meeting, connected as a `Group`."""

import atexit
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import time
import weakref

from ._arrays import CentroidError
from .group import join
from .torch_backend import _address_towards

_RETRY_SECONDS = 0.05
_started = []  # meetings that this process has started: each ends with its last member

_all = weakref.WeakSet()


@atexit.register
def _leave():
    for peers in list(_all):
        peers.leave()


def _close_in_child():
    """The meeting must see the end of the parent although a forked child lives."""
    for peers in list(_all):
        peers.forget()


os.register_at_fork(after_in_child=_close_in_child)


class _MeetingEnded(CentroidError):
    """Without a word of why."""


class Peers:
    """A member's side of the meeting (_meeting.py). `group` is the Group, None before `meet` and after a failure."""

    def __init__(self, address, rank, world, host, token, timeout):
        self.host_name, _, self.port = address.rpartition(":")
        self.wanted_rank, self.wanted_world, self.host, self.token, self.timeout = rank, world, host, token, timeout
        self.socket, self.rest, self.lines = None, b"", []
        self.group = self.number = None
        self.rank, self.world, self.has_news, self.has_left = rank, world, False, False
        if any(other.is_beside(self) for other in _all):
            raise CentroidError("failed_precondition", f"this process has a DataParallel at {address} already: make one of a module with all models (torch.nn.ModuleDict), or close() that one, or give this one another address")
        _all.add(self)

    def is_beside(self, other):
        return not self.has_left and (self.host_name, self.port, self.wanted_rank) == (other.host_name, other.port, other.wanted_rank)

    def meet(self, version, is_open):
        """Wait for the others. Returns the meeting's answer; `group` then is connected with them.

        version  how many steps this process has made; -1: it needs the state
        is_open  others may come in
        """
        deadline = time.monotonic() + self.timeout
        while True:
            try:
                if self.socket is None:
                    self._connect(deadline)
                self._send(meet=version, open=is_open, group=self.number if self.group else None)
                answer = self._receive("was")
            except _MeetingEnded:  # of an earlier run, whose last process has just gone
                if self.number is not None or time.monotonic() > deadline:
                    raise
                continue
            self.has_news &= not answer["open"]
            if answer["same"]:
                return answer
            self.number, self.rank, self.world = answer["group"], answer["rank"], answer["world"]
            try:
                self.group = join(rank=self.rank, world=self.world, exchange=self._exchange, host=self.host, token=self.token, timeout=self.timeout)
                return answer
            except CentroidError as error:  # another one died meanwhile
                if self.socket is None or error.code == "invalid_argument":
                    raise

    def _exchange(self, address):
        self._send(group=self.number, address=address)
        return self._receive("addresses")["addresses"]

    def drop_group(self):
        """End what is under way in the group, on all ranks."""
        group, self.group = self.group, None
        if group is not None:
            group.abort(f"rank {self.rank} makes a new group")
            group.close()

    def look_for_news(self):
        """Note whether somebody wants to come in, without waiting."""
        while self.socket is not None and select.select([self.socket], [], [], 0)[0]:
            self._read()
        self.lines = [line for line in self.lines if not self._is_news(line)]

    def leave(self):
        """Say goodbye."""
        self.has_left = True
        if self.group is not None:
            self.group.close()  # others may still read from it
        if self.socket is not None:
            try:
                self._send(bye=True)
            except CentroidError:
                pass
            self.forget()

    def forget(self):
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connect(self, deadline):
        is_first = True
        while True:
            try:
                self.socket = socket.create_connection((self.host_name, int(self.port)), self.timeout)
                break
            except OSError as error:
                if self.wanted_rank == 0 and is_first:
                    self._start_meeting()
                is_first = False
                if time.monotonic() > deadline:
                    raise CentroidError("unavailable", f"nobody answers at {self.host_name}:{self.port} for {self.timeout:g} s ({error}): rank 0 opens it, at MASTER_ADDR and MASTER_PORT") from None
                time.sleep(_RETRY_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(None)
        self.host = self.host or os.environ.get("CENTROID_HOST") or self._own_address()
        self._send(token=self.token or "", world=self.wanted_world, rank=self.wanted_rank)

    def _own_address(self):
        """Where the others reach this process. Names of the own machine often lead to a loopback address."""
        found = self.socket.getsockname()[0]
        if found.startswith("127.") and not self.host_name.startswith(("127.", "localhost")):
            try:
                return _address_towards("192.0.2.1")
            except OSError:
                return found
        return found

    def _start_meeting(self):
        """In a session of its own: what ends this process does not end the meeting of the others."""
        words = [sys.executable, pathlib.Path(__file__).with_name("_meeting.py"), self.host_name, self.port, str(self.timeout)]
        null = subprocess.DEVNULL
        _started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True))
        with _started[-1].stdin as pipe:  # others can read its command line
            pipe.write((self.token or "").encode())

    def _send(self, **message):
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self, key):
        """The next message that has this key; one that says why there is none is an error."""
        while True:
            while self.lines:
                line = self.lines.pop(0)
                if self._is_news(line):
                    continue
                message = json.loads(line)
                if "refused" in message:
                    self.forget()
                    raise CentroidError("failed_precondition", f"the meeting at {self.host_name}:{self.port}: {message['refused']}")
                if "failed" in message:
                    if key == "addresses":
                        raise CentroidError("unavailable", message["failed"])
                    continue  # of a group that failed here too
                if key in message:
                    return message
            self._read()

    def _is_news(self, line):
        is_news = "news" in json.loads(line)
        self.has_news |= is_news
        return is_news

    def _read(self):
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise self._lost(error) from None
        if not data:
            raise self._lost("it ended the connection")
        *lines, self.rest = (self.rest + data).split(b"\n")
        self.lines += lines

    def _lost(self, why):
        self.forget()
        return _MeetingEnded("failed_precondition", f"the meeting at {self.host_name}:{self.port} is gone: {why}")
