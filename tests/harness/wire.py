"""The wire by hand (docs/reference/wire.md), for peers that misbehave, and a link that can be held."""

import contextlib
import math
import random
import select
import socket
import struct
import threading
import time

MAGIC, WIRE_VERSION, HEADER_BYTES = 0x44544E43, 1, 48
HELLO, HELLO_REPLY, GOODBYE = 1, 2, 4
REQUEST, RESPONSE, ERROR = 1, 2, 4
FAILED_PRECONDITION, RESOURCE_EXHAUSTED = 4, 5
SOCKET_SECONDS = 60
BEAT_SECONDS = 0.25  # below a quarter of the shortest lease
UNLIMITED = (1 << 64) - 1  # credit
ZEROS = {}  # checksums of so many zeros
BUFFER_BYTES = 256 << 10  # what a shut link may swallow


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data):
    """CRC-32C (RFC 3720, appendix B.4): of `123456789` it is 0xE3069283."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def header(kind, flags=0, head=b"", payload_bytes=0, identity=0, version=WIRE_VERSION, head_bytes=None, payload_crc=0):
    """A frame's 48 bytes; the lengths may lie."""
    head_bytes = len(head) if head_bytes is None else head_bytes
    head_crc = crc32c(head) if head else 0
    fields = (MAGIC, version, kind, flags, head_bytes, identity, payload_bytes, head_crc, payload_crc, 0)
    body = struct.pack("<IHHIIQQIII", *fields)
    return body + struct.pack("<I", crc32c(body))


def text(value):
    encoded = value.encode(errors="surrogateescape")  # "\udcff" is the byte ff
    return struct.pack("<I", len(encoded)) + encoded


def hello_head(versions=(1, 1), name="stranger", token="", run_id="", manifest_hash=0, credit_bytes=4 << 20, role="worker"):
    limits = struct.pack("<HHIQQQ", *versions, 64 << 10, 64 << 20, credit_bytes, manifest_hash)
    return limits + text(role) + text(name) + text(run_id) + text(token)


def hello(frame_version=WIRE_VERSION, **fields):
    """A whole Hello frame."""
    head = hello_head(**fields)
    return header(HELLO, REQUEST, head, version=frame_version) + head


def connect(endpoint):
    host, _, port = endpoint.rpartition(":")
    peer = socket.create_connection((host, int(port)), timeout=SOCKET_SECONDS)
    peer.settimeout(SOCKET_SECONDS)
    return contextlib.closing(peer)


def read_exactly(peer, count):
    data = b""
    while len(data) < count:
        piece = peer.recv(count - len(data))
        if not piece:
            raise EOFError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data


def read_frame(peer):
    """Kind, flags and head of the next frame."""
    fields = struct.unpack("<IHHIIQQIIII", read_exactly(peer, HEADER_BYTES))
    head = read_exactly(peer, fields[4])
    read_exactly(peer, fields[6])
    return fields[2], fields[3], head


def read_error(head):
    """Code and message of an Error."""
    code, length = struct.unpack_from("<BI", head)
    return code, head[5 : 5 + length].decode()


def is_closed(peer):
    """Whether the other side ends the connection (what it sends before is dropped)."""
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def garbage(seed, count=4096):
    return random.Random(seed).randbytes(count)


def cut(elements, most):
    """The elements of a tensor's chunks."""
    count = -(-elements // most)
    return [elements // count + (i < elements % count) for i in range(count)]


class Client:
    """A worker of exchange star with codec f32, written from docs/reference/wire.md: its gradients are what the test says."""

    JOIN, INIT_REQUEST, INIT_CHUNK, INIT_DONE, ROUND_OPEN, PUSH, PUSH_END, RESULT, LEAVE, FINISH = 16, 17, 18, 19, 21, 22, 23, 24, 27, 28
    CREDIT, ROUND_CLOSED, HEARTBEAT, READY = 3, 25, 26, 35
    COMMITTED, LATE, CARRIED = 0, 3, 4

    def __init__(self, name, tensors, batch=4, train_samples=1000, fingerprint=1, chunk_bytes=1 << 20):
        """`tensors`: (name, shape) of each; `chunk_bytes`: the server's."""
        self.name, self.tensors, self.batch = name, tensors, batch
        self.chunks = [elements for _, shape in tensors for elements in cut(math.prod(shape), chunk_bytes // 4)]
        self.samples, self.fingerprint = train_samples, fingerprint
        self.model = "by hand"  # all workers of a job say the same
        self.codec = "f32"
        self.sample_tokens = 0
        self.results = {}  # round: payload of each chunk

    def elements(self, chunk):
        return self.chunks[chunk]

    def result(self, number, chunk, payload):
        """A chunk of a round's result."""
        self.results.setdefault(number, {})[chunk] = payload

    def send(self, kind, head=b"", payload=b"", flags=0, identity=0):
        crc = crc32c(payload) if payload.strip(b"\0") else ZEROS.setdefault(len(payload), crc32c(payload))
        self.put(header(kind, flags, head, len(payload), identity, payload_crc=crc if payload else 0) + head + payload)

    def put(self, frame):
        self.peer.sendall(frame)

    def closed(self, number, outcome, weight):
        """A round is over."""

    def join_head(self):
        head = text(self.name) + text("star") + text(self.codec)
        head += struct.pack("<IQQQQ", 1, self.batch, self.samples, self.fingerprint, self.sample_tokens) + text(self.model) + text("") + text("")
        return head

    def manifest(self):
        """The payload of Join."""
        tensors = (text(name) + struct.pack(f"<BB{len(shape)}Q", 1, len(shape), *shape) for name, shape in self.tensors)
        return struct.pack("<I", len(self.tensors)) + b"".join(tensors)

    def send_join(self):
        self.send(self.JOIN, self.join_head(), self.manifest(), flags=REQUEST, identity=1)

    def train(self, endpoint, gradient, bad_rounds=()):
        """Take part until Finish. `gradient(round, chunk)` gives the bytes of float32 numbers; bad rounds are told to hold NaN."""
        self.gradient, self.bad_rounds, self.is_over = gradient, bad_rounds, False
        with connect(endpoint) as self.peer:
            self.peer.sendall(hello(name=self.name, credit_bytes=UNLIMITED))
            self.window = struct.unpack_from("<Q", read_frame(self.peer)[2], 14)[0]
            self.send_join()
            while not self.is_over:
                self.handle_frame()

    def handle_frame(self):
        self.wait_for_frame()
        fields = struct.unpack("<IHHIIQQIIII", read_exactly(self.peer, HEADER_BYTES))
        kind, flags = fields[2:4]
        head, payload = read_exactly(self.peer, fields[4]), read_exactly(self.peer, fields[6])
        if flags & ERROR or kind == GOODBYE:
            raise AssertionError(read_error(head))
        if kind == self.CREDIT:
            self.window += struct.unpack("<Q", head)[0]
        elif kind == self.INIT_REQUEST:
            for chunk in range(len(self.chunks)):
                self.send_chunk(self.INIT_CHUNK, struct.pack("<I", chunk), bytes(4 * self.elements(chunk)))
            self.send(self.INIT_DONE)
        elif kind == self.ROUND_OPEN:
            self.contribute(head, self.gradient, self.bad_rounds)
        elif kind == self.RESULT:
            number, _, chunk = struct.unpack("<QII", head)
            self.result(number, chunk, payload)
        elif kind == self.ROUND_CLOSED:
            number, _, outcome, _, _, weight, _ = struct.unpack_from("<QIBQQdI", head)
            self.closed(number, outcome, weight)
            if outcome in (self.LATE, self.CARRIED):
                self.send(self.READY, self.place)
        elif kind == self.FINISH:
            self.send(self.LEAVE, text("done"), flags=REQUEST, identity=2)
        elif kind == self.LEAVE:
            self.is_over = True

    def send_chunk(self, kind, head, payload):
        """As soon as the server's window has room for it."""
        while self.window != UNLIMITED and self.window < len(payload):
            self.handle_frame()
        self.window -= len(payload) if self.window != UNLIMITED else 0
        self.send(kind, head, payload)

    def wait_for_frame(self):
        """Tells meanwhile that it lives: a server whose disk stands still sends nothing to answer."""
        for _ in range(int(SOCKET_SECONDS / BEAT_SECONDS)):
            if select.select([self.peer], [], [], BEAT_SECONDS)[0]:
                return
            self.send(self.HEARTBEAT)
        raise TimeoutError(f"no frame within {SOCKET_SECONDS} s")

    def contribute(self, head, gradient, bad_rounds):
        generation, number, attempt, _, _, _, _, _, begin, end, _, _, _, _ = struct.unpack("<QQIIIQQQQQBBIQ", head)
        self.place = place = struct.pack("<QQI", generation, number, attempt)
        for chunk in range(len(self.chunks) if end > begin else 0):
            self.send_chunk(self.PUSH, place + struct.pack("<Id", chunk, end - begin), gradient(number, chunk))
        told = struct.pack("<dQQdddB", end - begin, end - begin, 0, 0, 0, 0, number in bad_rounds) + text("by hand")
        self.send(self.PUSH_END, place + told + struct.pack("<dddQQIIdddddddI", 0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, 0, 0, 0, 0))


class Gate:
    """One direction of a link: lets bytes pass, or only so many, or alters one."""

    def __init__(self):
        self._changed = threading.Condition()
        self._allowance = None
        self._is_to_alter = False
        self._pace, self._due = None, 0.0  # bytes a second; when the next ones may pass
        self.passed = 0

    def alter(self):
        """Flip a bit of the next large piece."""
        with self._changed:
            self._is_to_alter = True

    def has_altered(self):
        with self._changed:
            return not self._is_to_alter

    def hold(self, after_bytes=0):
        """Let so many more bytes pass, then none."""
        with self._changed:
            self._allowance = after_bytes
            self._changed.notify_all()

    def release(self):
        with self._changed:
            self._allowance = None
            self._changed.notify_all()

    def slow(self, bytes_per_second):
        """Let no more than that pass from now on; None: whatever comes."""
        self._pace, self._due = bytes_per_second, time.monotonic()

    def is_shut(self):
        with self._changed:
            return self._allowance == 0

    def take(self, data):
        """The front of `data` that may pass now; waits until that is something."""
        if pace := self._pace:
            data = data[: max(1, pace // 50)]
            # What a busy machine sleeps too long is made up for: the link has its rate, not less.
            self._due = max(self._due, time.monotonic() - 0.5) + len(data) / pace
            time.sleep(max(0.0, self._due - time.monotonic()))  # lint-ok: that is how slow the link is
        with self._changed:
            self._changed.wait_for(lambda: self._allowance != 0)
            count = len(data) if self._allowance is None else min(len(data), self._allowance)
            if self._allowance is not None:
                self._allowance -= count
            self.passed += count
            piece = data[:count]
            if self._is_to_alter and count >= 1024:
                self._is_to_alter = False
                middle = count // 2
                piece = piece[:middle] + bytes([piece[middle] ^ 1]) + piece[middle + 1 :]
            return piece


class Link:
    """A relay before a server. Its gates hold a worker in the middle of something."""

    def __init__(self, target):
        self.target = target
        self.up, self.down = Gate(), Gate()  # to the server, to the worker
        self.refuses = False  # new connections
        self.busy = 0  # refuse this many of the next handshakes as busy
        self._sockets, self._ended = [], []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.endpoint = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._threads = []
        self._start(self._accept)

    def close(self):
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._listener.close()
        self.up.release()
        self.down.release()
        for thread in self._threads:
            thread.join(SOCKET_SECONDS)
        for one in self._ended:
            one.close()

    def cut(self):
        """End the connections there are; new ones are taken unless it refuses them."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self._ended.append(one)

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                if self.refuses:
                    worker.close()
                    continue
                if self.busy > 0:
                    self.busy -= 1
                    self._refuse(worker)
                    continue
                host, _, port = self.target.rpartition(":")
                server = socket.socket()
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
                server.connect((host, int(port)))
                for one in (worker, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [worker, server]
                self._start(self._pump, worker, server, self.up)
                self._start(self._pump, server, worker, self.down)

    def _refuse(self, worker):
        head = struct.pack("<B", RESOURCE_EXHAUSTED) + text("there is no room: try again")
        with worker:
            read_frame(worker)
            worker.sendall(header(HELLO_REPLY, RESPONSE | ERROR, head) + head)

    def _pump(self, source, sink, gate):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                while data:
                    piece = gate.take(data)
                    sink.sendall(piece)
                    data = data[len(piece) :]
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
