"""A worker whose every frame the test sends."""

import struct

from harness.wire import ERROR, GOODBYE, HEADER_BYTES, Client, connect, hello, read_error, read_exactly, read_frame

TENSORS = [("a", (8,)), ("b", (2, 3)), ("empty", (0, 4)), ("scalar", ())]
NORM = 15**0.5  # of ones
CHUNKS = 3  # a tensor without elements has none


class Peer(Client):
    """A worker whose every frame the test sends; it knows the state it was given and the round that is open."""

    STATE_CHUNK = 20

    def __init__(self, endpoint, name, tensors=TENSORS):
        super().__init__(name, tensors)
        self.connection = connect(endpoint)
        self.peer = self.connection.__enter__()
        self.peer.sendall(hello(name=name))
        read_frame(self.peer)
        self.state, self.opened = {}, None

    def join(self):
        self.send_join()
        return self

    def next(self):
        """Kind, flags, head and payload of the next frame."""
        fields = struct.unpack("<IHHIIQQIIII", read_exactly(self.peer, HEADER_BYTES))
        head, payload = read_exactly(self.peer, fields[4]), read_exactly(self.peer, fields[6])
        if payload:
            self.send(self.CREDIT, struct.pack("<Q", len(payload)))
        return fields[2], fields[3], head, payload

    def until_round(self):
        """Read up to RoundOpen; gives the first values where it is asked for them."""
        while True:
            kind, flags, head, payload = self.next()
            if flags & ERROR or kind == GOODBYE:
                raise AssertionError(read_error(head))
            if kind == self.INIT_REQUEST:
                for chunk, count in enumerate((8, 6, 1)):
                    self.send(self.INIT_CHUNK, struct.pack("<I", chunk), struct.pack(f"<{count}f", *range(count)))
                self.send(self.INIT_DONE)
            elif kind == self.STATE_CHUNK:
                self.state[head] = payload
            elif kind == self.ROUND_OPEN:
                fields = struct.unpack_from("<QQIIIQQQQQ", head)
                self.place = struct.pack("<QQI", *fields[:3])
                self.weight = fields[9] - fields[8]
                return self

    def refusal(self):
        """What the server says when it ends the session, and nothing else but heartbeats and results before."""
        while True:
            try:
                kind, flags, head, _ = self.next()
            except (EOFError, ConnectionError):
                return "closed without a word"
            if kind == GOODBYE or flags & ERROR:
                return read_error(head)[1]

    def push(self, chunk, values, place=None, weight=None):
        weight = self.weight if weight is None else weight
        self.send(self.PUSH, (place or self.place) + struct.pack("<Id", chunk, weight), struct.pack(f"<{len(values)}f", *values))

    def end(self, weight=None, correct=0, loss=0.0, residual=0.0, divergence=-1.0, nonfinite=False, norm=-1.0):
        weight = self.weight if weight is None else weight
        told = struct.pack("<dQQdddB", weight, self.weight, correct, loss, 0, 0, nonfinite) + struct.pack("<I", 0)
        self.send(self.PUSH_END, self.place + told + struct.pack("<dddQQIIdddddddI", 0, 0, residual, 0, 0, 0, 0, 0, divergence, norm, -1, 0, 0, 0, 0))

    def whole(self, **end):
        for chunk, count in enumerate((8, 6, 1)):
            self.push(chunk, [1.0] * count)
        self.end(**end)

    def close(self):
        self.connection.__exit__(None, None, None)
