"""Attacks on each budget of a server (docs/explanation/threat-model.md), from this machine.

A flood is a function of a Target and of `goes_on`: it attacks until that is false. `pause` seconds lie between two of its acts.
"""

import contextlib
import dataclasses
import http.client
import itertools
import json
import socket
import ssl
import struct
import time

from harness.wire import HEADER_BYTES, REQUEST, Client, hello, header, read_exactly, read_frame, text

PULL, GREETED_BYTES = 80, 64
JOIN_BYTES = 30 << 20  # announced by each
HEAD_BYTES = 7 << 10  # of a request, which may have 8 KiB


@dataclasses.dataclass
class Target:
    data: str  # HOST:PORT
    api: str
    token: str = "of-workers"
    admin: str = "of-operators"
    viewer: str = "of-viewers"
    metrics: str = ""  # of a worker
    authority: str = ""  # file; of a server with TLS


def dial(endpoint, source="127.0.0.1"):
    host, _, port = endpoint.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))


def begin_to_read(api, path, token, source):
    """A connection that takes the first bytes of an answer, and has little memory for the others."""
    host, _, port = api.rpartition(":")
    peer = socket.socket()
    try:
        peer.settimeout(30)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.bind((source, 0))
        peer.connect((host, int(port)))
        peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        peer.recv(16)
        return peer
    except OSError:
        peer.close()
        raise


def ask(api, path, token="", method="GET", source="127.0.0.1", body=None, authority=""):
    """Status and text of one request."""
    host, _, port = api.rpartition(":")
    kind, more = http.client.HTTPConnection, {}
    if authority:
        kind, more = http.client.HTTPSConnection, {"context": ssl.create_default_context(cafile=authority)}
    with contextlib.closing(kind(host, int(port), timeout=60, source_address=(source, 0), **more)) as connection:
        fields = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            fields["Content-Type"] = "application/json"
        connection.request(method, path, None if body is None else json.dumps(body), fields)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()


def sources():
    """Addresses of a few attackers."""
    return itertools.cycle(f"127.0.0.{2 + i}" for i in range(4))


class Crowd:
    """Open connections, the oldest of which end where there are too many."""

    def __init__(self, most):
        self.most, self.open = most, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.open:
            one.close()

    def add(self, connection):
        self.open.append(connection)
        if len(self.open) > self.most:
            self.open.pop(0).close()


def greeted(target, name, credit_bytes=4 << 20):
    """A connection of a holder of the workers' token; None: it was closed."""
    peer = dial(target.data)
    try:
        peer.sendall(hello(token=target.token, name=name, credit_bytes=credit_bytes))
        read_frame(peer)
        return peer
    except (EOFError, OSError):
        peer.close()
        return None


def repeat(goes_on, pause, act):
    """Act again and again; a refused connection is what is wanted."""
    while goes_on():
        with contextlib.suppress(OSError, EOFError, http.client.HTTPException):
            act()
        time.sleep(pause)  # lint-ok: the rate of an attacker


def strangers(target, goes_on, pause=0.0):
    """Connections that say nothing."""
    source = sources()
    with Crowd(600) as crowd:
        repeat(goes_on, pause, lambda: crowd.add(dial(target.data, next(source))))


def stranger_lines(target, goes_on, pause=0.0):
    """Wrong tokens, which are logged."""
    source = sources()

    def act():
        with contextlib.closing(dial(target.data, next(source))) as peer:
            peer.sendall(hello(token="wrong", name="guess"))
            peer.recv(4096)

    repeat(goes_on, pause, act)


def stranger_bytes(target, goes_on, pause=0.0):
    """Joins of 30 MiB that do not come."""
    with Crowd(64) as crowd:

        def act():
            if peer := greeted(target, "joining"):
                head = Client("joining", []).join_head()
                peer.sendall(header(Client.JOIN, REQUEST, head, payload_bytes=JOIN_BYTES, identity=1, payload_crc=1) + head)
                crowd.add(peer)

        repeat(goes_on, pause, act)


def client_hello(target):
    """Of a handshake of TLS that the server has to sign. The same bytes again and again cost an attacker nothing."""
    sent, context = ssl.MemoryBIO(), ssl.create_default_context(cafile=target.authority)
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


def handshakes(target, goes_on, pause=0.0):
    """Handshakes of TLS that do not go on."""
    first, source = client_hello(target), sources()
    with Crowd(600) as crowd:

        def act():
            peer = dial(target.data, next(source))
            crowd.add(peer)
            peer.sendall(first)

        repeat(goes_on, pause, act)


def pull(peer):
    head = struct.pack("<I", 0)
    peer.sendall(header(PULL, REQUEST, head, identity=1) + head)


def guests(target, goes_on, pause=0.0):
    """Readers of the model that do not read."""
    with Crowd(1000) as crowd:

        def act():
            if peer := greeted(target, "reader", credit_bytes=GREETED_BYTES):
                pull(peer)
                crowd.add(peer)

        repeat(goes_on, pause, act)


def member_lines(target, goes_on, pause=0.0):
    """Readers of the model, each of which is logged."""

    def act():
        if peer := greeted(target, "reader"):
            with contextlib.closing(peer):
                pull(peer)
                left = struct.unpack_from("<QQ", read_frame(peer)[2])[1]
                while left > 0:
                    fields = struct.unpack("<IHHIIQQIIII", read_exactly(peer, HEADER_BYTES))
                    read_exactly(peer, fields[4] + fields[6])
                    left -= fields[6] // 4

    repeat(goes_on, pause, act)


def arrivals(target, goes_on, pause=0.0, tensors=()):
    """A worker that comes and leaves."""

    def act():
        if peer := greeted(target, "restless"):
            with contextlib.closing(peer):
                worker = Client("restless", list(tensors))
                worker.peer = peer
                worker.send_join()
                read_frame(peer)
                worker.send(Client.LEAVE, text("again"), flags=REQUEST, identity=2)
                peer.recv(4096)

    repeat(goes_on, pause, act)


def workers(target, goes_on, pause=0.0, tensors=()):
    """More workers than there may be."""
    number = itertools.count()
    with Crowd(1000) as crowd:

        def act():
            name = f"more-{next(number)}"
            if peer := greeted(target, name):
                worker = Client(name, list(tensors))
                worker.peer = peer
                worker.send_join()
                read_frame(peer)
                crowd.add(peer)

        repeat(goes_on, pause, act)


def rest_connections(target, goes_on, pause=0.0):
    """Connections to REST that say nothing."""
    with Crowd(9000) as crowd:
        repeat(goes_on, pause, lambda: crowd.add(dial(target.api, "127.0.0.9")))


def rest_head_bytes(target, goes_on, pause=0.0):
    """Long requests that do not end."""
    with Crowd(6000) as crowd:

        def act():
            peer = dial(target.api)
            crowd.add(peer)
            peer.sendall(b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nX-Fill: " + b"x" * HEAD_BYTES)

        repeat(goes_on, pause, act)


def rest_requests(target, goes_on, pause=0.0):
    """Requests faster than one address may."""
    request = b"GET /v1/version HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + target.viewer.encode() + b"\r\n\r\n"

    def act():
        with contextlib.closing(dial(target.api, "127.0.0.9")) as peer:
            for _ in range(20):
                peer.sendall(100 * request)
                peer.recv(1 << 20)

    repeat(goes_on, pause, act)


def rest_handshakes(target, goes_on, pause=0.0):
    """Handshakes of TLS with REST, faster than one address may."""
    first = client_hello(target)

    def act():
        with contextlib.closing(dial(target.api, "127.0.0.9")) as peer:
            peer.sendall(first)

    repeat(goes_on, pause, act)


def rest_lines(target, goes_on, pause=0.0):
    """Requests without a token, from many addresses."""
    source = itertools.cycle(f"127.0.1.{1 + i}" for i in range(200))
    repeat(goes_on, pause, lambda: ask(target.api, "/v1/cluster", source=next(source)))


def rest_event_streams(target, goes_on, pause=0.0):
    """Streams of events that nobody reads."""
    head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nAuthorization: Bearer {target.viewer}\r\n\r\n"
    with Crowd(500) as crowd:

        def act():
            peer = dial(target.api)
            peer.sendall(head.encode())
            peer.recv(4096)
            crowd.add(peer)

        repeat(goes_on, pause, act)


def rest_file_streams(target, goes_on, pause=0.0):
    """Files of the newest checkpoint, which an operator requests and does not read. They must be longer than what two kernels take."""
    version = json.loads(ask(target.api, "/v1/checkpoints", target.viewer)[1])["checkpoints"][0]["version"]
    path, source = f"/v1/checkpoints/{version}/files/model.safetensors", sources()
    with Crowd(500) as crowd:
        repeat(goes_on, pause, lambda: crowd.add(begin_to_read(target.api, path, target.admin, next(source))))


def rest_answer_bytes(target, goes_on, pause=0.0):
    """Long traces that nobody reads."""
    source = sources()
    with Crowd(500) as crowd:
        repeat(goes_on, pause, lambda: crowd.add(begin_to_read(target.api, "/v1/trace?seconds=60", target.viewer, next(source))))


def events(target, goes_on, pause=0.0):
    """Requests of an operator's script, each of which is an event."""
    repeat(goes_on, pause, lambda: ask(target.api, "/v1/scale", target.admin, "POST", source="127.0.0.9", body={"workers": 0, "why": "again"}))


def audit_lines(target, goes_on, pause=0.0):
    """Changes that a viewer requests."""
    repeat(goes_on, pause, lambda: ask(target.api, "/v1/job:pause", target.viewer, "POST", source="127.0.0.9"))


def metrics_connections(target, goes_on, pause=0.0):
    """Connections to a worker's metrics that say nothing."""
    with Crowd(40) as crowd:
        repeat(goes_on, pause, lambda: crowd.add(dial(target.metrics)))


# What is used up, by whom.
FLOODS = {
    "strangers": strangers,
    "stranger_lines": stranger_lines,
    "stranger_bytes": stranger_bytes,
    "handshake_seconds": handshakes,
    "guests": guests,
    "member_lines": member_lines,
    "arrival_lines": arrivals,
    "workers": workers,
    "rest_connections": rest_connections,
    "rest_head_bytes": rest_head_bytes,
    "rest_requests": rest_requests,
    "rest_handshakes": rest_handshakes,
    "rest_lines": rest_lines,
    "rest_event_streams": rest_event_streams,
    "rest_file_streams": rest_file_streams,
    "rest_answer_bytes": rest_answer_bytes,
    "events": events,
    "audit_lines": audit_lines,
    "metrics_connections": metrics_connections,
}
OF_TLS = ("handshake_seconds", "rest_handshakes")
OF_MEMBERS = ("arrival_lines", "workers")  # their workers have the tensors of the job
OF_FILES = ("rest_file_streams",)  # of a job with a checkpoint of several MB
