"""A worker of a model on several servers whose every frame the test sends."""

import contextlib
import struct
import threading

from harness.peer import Peer as LeaderPeer
from harness.wire import ERROR, GOODBYE, HEADER_BYTES, REQUEST, connect, header, hello, read_error, read_exactly, read_frame, text

SIZES = (8, 6, 1)  # by chunk: one on each of three servers


class Session:
    """Of a worker with a shard server."""

    def __init__(self, peer, name, endpoint, route):
        self.name = name
        self.connection = connect(endpoint)
        self.peer = self.connection.__enter__()
        self.peer.sendall(hello(name=peer.name, run_id=peer.run_id))
        read_frame(self.peer)
        enter = struct.pack("<Q", peer.member) + text(peer.name) + text(peer.codec) + struct.pack("<Q", route)
        peer.send_by(self.peer, 125, enter, flags=REQUEST, identity=1)
        kind, flags, head = read_frame(self.peer)
        if kind != 125 or flags & ERROR:
            self.connection.__exit__(None, None, None)
            raise AssertionError(read_error(head))

    def refusal(self):
        while True:
            try:
                fields = struct.unpack("<IHHIIQQIIII", read_exactly(self.peer, HEADER_BYTES))
                head, _ = read_exactly(self.peer, fields[4]), read_exactly(self.peer, fields[6])
            except (EOFError, ConnectionError):
                return "closed without a word"
            if fields[2] == GOODBYE or fields[3] & ERROR:
                return read_error(head)[1]


class Peer(LeaderPeer):
    """A worker of a model on several servers."""

    ROUTE, HEARTBEAT = 124, 26

    def __init__(self, endpoint, name, codec="f32"):
        super().__init__(endpoint, name)
        self.codec, self.sessions, self.owners = codec, [None], []

    def send_by(self, peer, *arguments, **more):
        own, self.peer = self.peer, peer
        self.send(*arguments, **more)
        self.peer = own

    def next(self):
        kind, flags, head, payload = super().next()
        if kind == self.JOIN and not flags & ERROR:
            self.member, length = struct.unpack_from("<QI", head)
            self.run_id = head[12 : 12 + length].decode()
        if kind == self.ROUTE:
            self.enter(head)
        return kind, flags, head, payload

    def enter(self, head):
        self.close_shards()
        self.parse(head)
        self.sessions = [None] + [Session(self, *server, self.route) for server in self.servers[1:]]

    def parse(self, head):
        version, count = struct.unpack_from("<QI", head)
        at, servers = 12, []
        for _ in range(2 * count):
            (length,) = struct.unpack_from("<I", head, at)
            servers.append(head[at + 4 : at + 4 + length].decode())
            at += 4 + length
        (chunks,) = struct.unpack_from("<I", head, at)
        self.owners = struct.unpack_from(f"<{chunks}H", head, at + 4)
        self.route, self.servers = version, list(zip(servers[::2], servers[1::2]))

    def push_bytes(self, chunk, payload, weight=None):
        weight = self.weight if weight is None else weight
        session = self.sessions[self.owners[chunk]]
        self.send_by(session.peer if session else self.peer, self.PUSH, self.place + struct.pack("<Id", chunk, weight), payload)

    def push(self, chunk, values, place=None, weight=None):
        self.push_bytes(chunk, struct.pack(f"<{len(values)}f", *values), weight)

    @contextlib.contextmanager
    def beating(self):
        """Say to the leader that it lives, and nothing else."""
        done, leader = threading.Event(), self.peer

        def beat():
            while not done.wait(0.3):
                with contextlib.suppress(OSError):
                    leader.sendall(header(self.HEARTBEAT))

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def close_shards(self):
        for session in self.sessions[1:]:
            session.connection.__exit__(None, None, None)
        self.sessions = [None]

    def close(self):
        self.close_shards()
        super().close()
