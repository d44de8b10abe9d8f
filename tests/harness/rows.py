"""A client of tables of sparse rows, by the bytes of the wire."""

import struct

from harness.wire import ERROR, REQUEST, connect, crc32c, header, hello, read_error, read_exactly, read_frame, text

OPEN, PULL, PUSH, WAIT = 64, 65, 66, 37
UNAVAILABLE, ABORTED = 1, 3


class RowsClient:
    """A client of sparse rows, written from docs/reference/wire.md."""

    names = ("emb", "seldom")
    token = ""

    def __init__(self, endpoint, identity):
        self.connection = connect(endpoint)
        self.peer = self.connection.__enter__()
        self.requests = 0
        self.identity = identity
        self.told = []  # why an answer was long in coming
        try:
            self.peer.sendall(hello(name=f"rows-{identity}", token=self.token))
            read_frame(self.peer)
            self.tables = {name: self.open(name) for name in self.names}
        except (EOFError, OSError, RuntimeError):
            self.close()
            raise

    def close(self):
        self.connection.__exit__(None, None, None)

    def ask(self, kind, head, payload=b""):
        self.requests += 1
        crc = crc32c(payload) if payload else 0
        self.peer.sendall(header(kind, REQUEST, head, len(payload), self.requests, payload_crc=crc) + head + payload)
        while True:
            fields = struct.unpack("<IHHIIQQIIII", read_exactly(self.peer, 48))
            head, payload = read_exactly(self.peer, fields[4]), read_exactly(self.peer, fields[6])
            if fields[2] != WAIT:
                break
            self.told.append(head[8:].decode())
        if fields[3] & ERROR:
            raise RuntimeError(read_error(head))
        return head, payload

    def open(self, name):
        head, _ = self.ask(OPEN, struct.pack("<Q", self.identity) + text(name))
        table, dim, _, _, self.newest = struct.unpack_from("<IIIQQ", head)
        return table, dim

    def push(self, name, sequence, keys, gradients):
        table, _ = self.tables[name]
        payload = struct.pack(f"<{len(keys)}Q{len(gradients)}f", *keys, *gradients)
        head, _ = self.ask(PUSH, struct.pack("<IIQ", table, len(keys), sequence), payload)
        return head == b"\1"

    def pull(self, name, keys):
        return self.ask(PULL, struct.pack("<II", self.tables[name][0], len(keys)), struct.pack(f"<{len(keys)}Q", *keys))[1]
