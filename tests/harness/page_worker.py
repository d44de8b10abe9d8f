"""A worker written only from docs/reference/wire.md, for exchange star and `--apply worker`.

It shares no code with the project, nor with harness/wire.py, whose peers misbehave: frames, session, split and order of the data,
schedules, optimizers, clipping and fingerprint are those of the page.
"""

import array
import gzip
import math
import operator
import select
import socket
import struct
import time

# --- Frames ---

REQUEST, RESPONSE, ERROR = 1, 2, 4
HELLO, CREDIT, GOODBYE = 1, 3, 4
JOIN, INIT_REQUEST, INIT_CHUNK, INIT_DONE, STATE_CHUNK, ROUND_OPEN, PUSH, PUSH_END, RESULT, ROUND_CLOSED = range(16, 26)
HEARTBEAT, LEAVE, FINISH, REPORT = 26, 27, 28, 29
WAIT = 37
COMMITTED, SKIPPED, ABORTED = 0, 1, 2
DEADLINE_SECONDS = 120
CREDIT_BYTES = 4 << 20


def crc_table():
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        yield value


CRC = tuple(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def encode_frame(kind, flags, identity, head, payload):
    crcs = (crc32c(head) if head else 0, crc32c(payload) if payload else 0)
    header = struct.pack("<4sHHIIQQIII", b"CNTD", 1, kind, flags, len(head), identity, len(payload), *crcs, 0)
    return header + struct.pack("<I", crc32c(header)) + head + payload


def string(text):
    return struct.pack("<I", len(text.encode())) + text.encode()


class Fields:
    """Reads the fields of a head."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def __call__(self, layout):
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def string(self):
        count = self("I")
        self.at += count
        return self.data[self.at - count : self.at].decode()

    def is_over(self):
        return self.at == len(self.data)


# --- Numbers ---

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    x = (x + GOLDEN) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def mix2(a, b):
    return mix(mix(a) ^ b)


def shuffle(count, seed, epoch):
    key, number = mix2(seed, epoch), 0

    def below(most):
        nonlocal number
        while True:
            number += 1
            x = mix((key + GOLDEN * number) & MASK)
            if x <= MASK - (1 << 64) % most:
                return x % most

    order = list(range(count))
    for i in range(count, 1, -1):
        j = below(i)
        order[i - 1], order[j] = order[j], order[i - 1]
    return order


def words(data):
    padded = data + bytes(-len(data) % 8)
    return struct.unpack(f"<{len(padded) // 8}Q", padded)


def fingerprint(values, seed):
    lanes = [mix2(seed, k) for k in range(8)]
    for j, word in enumerate(words(values.tobytes())):
        lanes[j % 8] = mix(lanes[j % 8] ^ word)
    result = mix2(seed, len(values))
    for lane in lanes:
        result = mix2(result, lane)
    return result


def f32(values):
    """Rounded to float32: as float32 operations do it, for one operation on such numbers in float64."""
    return array.array("f", values)


def one(value):
    return f32([value])[0]


def add(a, b):
    return f32(map(operator.add, a, b))


def less(a, b):
    return f32(map(operator.sub, a, b))


def times(a, b):
    return f32(map(operator.mul, a, b)) if not isinstance(a, float) else f32(a * x for x in b)


def over(a, b):
    return f32(map(operator.truediv, a, b)) if not isinstance(b, float) else f32(x / b for x in a)


def root(a):
    return f32(map(math.sqrt, a))


# --- Schedules and optimizers ---


def rate_factor(schedule, t):
    name, _, rest = schedule.partition(":")
    fields = {key: float(value) for key, value in (item.split("=") for item in rest.split(",") if item)}
    warmup, rounds = fields.get("warmup", 0.0), fields.get("rounds", 0.0)
    if t <= warmup:
        return t / warmup
    e = t - 1 - warmup
    floor = fields.get("floor", 4e-6 if name == "onecycle" else 0.0)

    def half(a, b, x):
        return b + (((a - b) * (1 + math.cos(math.pi * x))) / 2)

    if name == "constant":
        return 1.0
    if name == "step":
        return max(floor, math.pow(fields.get("factor", 0.1), math.floor(e / fields["every"])))
    if name == "onecycle":
        top = fields.get("rise", 0.3) * rounds - 1
        return half(fields.get("start", 0.04), 1, e / top) if e <= top else half(1, floor, min(1.0, (e - top) / ((rounds - 1) - top)))
    x = min(1.0, e / (rounds - warmup))
    return 1 - (1 - floor) * x if name == "linear" else half(1, floor, x)


SLOTS = {"sgd": 0, "mean": 0, "momentum": 1, "nesterov": 1, "adagrad": 1, "adam": 2, "adamw": 2, "yogi": 2, "ftrl": 2}


class Optimizer:
    """The section "The optimizers of `apply_on_worker`"."""

    def __init__(self, terms):
        self.name, self.numbers, self.schedule = terms["optimizer"], terms["numbers"], terms["schedule"]
        self.scale_ratio, self.clip_norm = terms["scale_ratio"], terms["clip_norm"]

    def step(self, t, rate, contributors, w, g, slots):
        """The parameters after step t; changes `slots`."""
        base, momentum, beta1, beta2, epsilon, wd, l1, ftrl_beta = self.numbers
        lr = base * rate_factor(self.schedule, t) if rate < 0 else rate
        lr *= 1 + (max(contributors, 1) - 1) * self.scale_ratio
        rate, decay = one(1.0 if self.name == "mean" else lr), one(wd)
        if self.name == "ftrl":
            return self.ftrl(lr, w, g, slots)
        if self.name not in ("adamw", "mean"):
            g = add(g, times(decay, w))
        if self.name in ("sgd", "mean"):
            return less(w, times(rate, g))
        if self.name in ("momentum", "nesterov"):
            slots[0] = v = add(times(one(momentum), slots[0]), g)
            return less(w, times(rate, v if self.name == "momentum" else add(g, times(one(momentum), v))))
        if self.name == "adagrad":
            slots[0] = s = add(slots[0], times(g, g))
            return less(w, times(rate, over(g, f32(x + one(epsilon) for x in root(s)))))
        a1, a2 = one(1 - beta1), one(1 - beta2)
        size, correction = one(lr / (1 - math.pow(beta1, t))), one(math.sqrt(1 - math.pow(beta2, t)))
        slots[0] = m = add(slots[0], times(a1, less(g, slots[0])))
        squares = times(g, g)
        if self.name == "yogi":
            change = times(times(a2, g), g)
            slots[1] = v = f32(x - c if x > s else x + c for x, c, s in zip(slots[1], change, squares))
        else:
            slots[1] = v = add(slots[1], times(a2, less(squares, slots[1])))
        below = f32(x + one(epsilon) for x in over(root(v), correction))
        return less(w, add(times(one(lr * wd) if self.name == "adamw" else 0.0, w), times(size, over(m, below))))

    def ftrl(self, lr, w, g, slots):
        beta, decay, l1 = one(self.numbers[7]), one(self.numbers[5]), one(self.numbers[6])
        moves = lr > 0 and 1 / lr <= 1e15
        inverse = one(1 / lr) if moves else 1.0
        slots[1] = n = add(slots[1], times(g, g))
        g = g if moves else times(0.0, g)
        strength = f32(x + decay for x in times(inverse, f32(beta + x for x in root(n))))
        kept = [0.0 if x != 0 else z for x, z in zip(w, slots[0])]
        edge = [math.copysign(l1, x) if x != 0 else 0.0 for x in w]
        slots[0] = z = add(less(less(kept, times(w, strength)), edge), g)
        stepped = less(w, over(g, strength))
        shrunk = over(f32(math.copysign(max(one(abs(x) - l1), 0.0), x) for x in z), strength)
        stays = times(stepped, w)
        return f32(a if s >= 2**-126 else 0 - b for a, b, s in zip(stepped, shrunk, stays))


def clipped(mean, chunks, bound):
    """The mean gradient within the bound of its norm."""
    total = 0.0
    for position, count in chunks:
        lanes = [0.0] * 16
        for i in range(position, position + count):
            lanes[i % 16] += mean[i] * mean[i]
        squares = 0.0
        for lane in lanes:
            squares += lane
        total += squares
    norm = math.sqrt(total)
    return times(one(bound / norm), mean) if 0 < bound < norm < math.inf else mean


# --- The data and the model of centroid-worker: digits, mlp:64-16-10 ---

MODEL, WIDTHS, CLASSES = "mlp:64-16-10,relu", (64, 16, 10), 10
TENSORS = [("layers.0.weight", (16, 64)), ("layers.0.bias", (16,)), ("layers.1.weight", (10, 16)), ("layers.1.bias", (10,))]


class Digits:
    """The split of the workers' --seed."""

    def __init__(self, file, seed=1):
        rows = [[int(field) for field in line.split(",")] for line in gzip.decompress(file.read_bytes()).decode().split()]
        held_out = set()
        for c in range(CLASSES):
            members = [i for i, row in enumerate(rows) if row[64] == c]
            held_out.update(members[k] for k in shuffle(len(members), seed, c)[: (len(members) + 2) // 5])
        self.test = [(f32(x / 16 for x in row[:64]), row[64]) for i, row in enumerate(rows) if i in held_out]
        self.train = [(f32(x / 16 for x in row[:64]), row[64]) for i, row in enumerate(rows) if i not in held_out]

    def fingerprint(self):
        return data_fingerprint([x for x, _ in self.train], [y for _, y in self.train], CLASSES)


def data_fingerprint(rows, classes_of_rows, classes):
    """Join.data_fingerprint of dense rows of numbers."""
    result = mix2(mix2(len(rows), len(rows[0])), classes)
    inputs = b"".join(row.tobytes() for row in rows)
    for data in (inputs, struct.pack(f"<{len(rows)}I", *classes_of_rows), b"", b"", b""):
        result = mix2(result, len(data))
        for word in words(data):
            result = mix(result ^ word)
    return result


def forward(parameters, x):
    """The hidden layer, and the probabilities."""
    inputs, hidden, outputs = WIDTHS
    bias = inputs * hidden
    first = [max(0.0, sum(map(operator.mul, parameters[j * inputs : (j + 1) * inputs], x)) + parameters[bias + j]) for j in range(hidden)]
    second, last = bias + hidden, bias + hidden + hidden * outputs
    out = [sum(map(operator.mul, parameters[second + k * hidden : second + (k + 1) * hidden], first)) + parameters[last + k] for k in range(outputs)]
    largest = max(out)
    powers = [math.exp(value - largest) for value in out]
    total = sum(powers)
    return first, [power / total for power in powers]


def gradient(parameters, samples):
    """Mean gradient of the cross entropy, sum of the losses, and how many are right."""
    inputs, hidden, outputs = WIDTHS
    sums, loss, right = [0.0] * len(parameters), 0.0, 0
    bias, second = inputs * hidden, inputs * hidden + hidden
    last = second + hidden * outputs
    for x, y in samples:
        first, chances = forward(parameters, x)
        loss -= math.log(max(chances[y], 1e-300))
        right += chances.index(max(chances)) == y
        back = [0.0] * hidden
        for k in range(outputs):
            error = (chances[k] - (k == y)) / len(samples)
            sums[last + k] += error
            for j in range(hidden):
                sums[second + k * hidden + j] += error * first[j]
                back[j] += error * parameters[second + k * hidden + j]
        for j in range(hidden):
            if first[j] > 0:
                sums[bias + j] += back[j]
                row = slice(j * inputs, (j + 1) * inputs)
                sums[row] = [s + back[j] * value for s, value in zip(sums[row], x)]
    return f32(sums), loss, right


# --- The worker ---


class Worker:
    """A worker of exchange star with codec f32 and codec_down f32."""

    def __init__(self, endpoint, name, digits, batch=16):
        self.endpoint, self.name, self.digits, self.batch = endpoint, name, digits, batch
        self.next_request, self.beat_due, self.takes = 1, math.inf, 0
        self.parameters = self.slots = self.optimizer = None
        self.opened = self.own = self.order = None
        self.results, self.outcomes, self.compared, self.reports = {}, [], 0, 0
        self.end = None

    def send(self, kind, head=b"", payload=b"", flags=0, identity=0):
        self.peer.sendall(encode_frame(kind, flags, identity, head, payload))

    def ask(self, kind, head, payload=b""):
        self.send(kind, head, payload, REQUEST, self.next_request)
        self.next_request += 1

    def send_chunk(self, kind, head, chunk, plane):
        """Once the server's window has room for it."""
        position, count = self.chunks[chunk]
        payload = plane[position : position + count].tobytes()
        while self.window < len(payload):
            self.handle(*self.read())
        self.window -= len(payload)
        self.send(kind, head, payload)

    def read_bytes(self, count):
        data, limit = b"", time.monotonic() + DEADLINE_SECONDS
        while len(data) < count:
            left = max(0.0, min(self.beat_due, limit) - time.monotonic())
            if select.select([self.peer], [], [], left)[0]:
                piece = self.peer.recv(count - len(data))
                if not piece:
                    raise EOFError(f"{self.name}: the server closed the connection")
                data += piece
            elif time.monotonic() >= limit:
                raise TimeoutError(f"{self.name}: nothing came for {DEADLINE_SECONDS} s")
            if time.monotonic() >= self.beat_due:
                self.beat()
        return data

    def read(self):
        header = self.read_bytes(48)
        magic, version, kind, flags, head_bytes, _, payload_bytes, head_crc, payload_crc, reserved, header_crc = struct.unpack("<4sHHIIQQIIII", header)
        if (magic, version, reserved, header_crc) != (b"CNTD", 1, 0, crc32c(header[:44])):
            raise ValueError(f"a wrong header: {header.hex()}")
        head, payload = self.read_bytes(head_bytes), self.read_bytes(payload_bytes)
        if (head_crc, payload_crc) != (crc32c(head) if head else 0, crc32c(payload) if payload else 0):
            raise ValueError(f"wrong checksums in a frame of kind {kind}")
        if kind == GOODBYE or flags & ERROR:
            fields = Fields(head)
            raise ConnectionError(f"{self.name}: error {fields('B')}: {fields.string()}")
        if payload and flags & (REQUEST | RESPONSE) == 0:
            self.send(CREDIT, struct.pack("<Q", len(payload)))
        return kind, flags, head, payload

    def beat(self):
        self.send(HEARTBEAT, struct.pack("<d", time.time()) + string("of the page"))
        self.beat_due = time.monotonic() + self.lease / 4

    def run(self):
        """Train until the job is over."""
        host, _, port = self.endpoint.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as self.peer:
            self.peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.greet()
            self.join()
            while self.end != "left":
                self.handle(*self.read())

    def greet(self):
        limits = struct.pack("<HHIQQQ", 1, 1, 64 << 10, 64 << 20, CREDIT_BYTES, self.manifest_hash())
        self.send(HELLO, limits + string("worker") + string(self.name) + string("") + string(""), flags=REQUEST)
        kind, flags, head, _ = self.read()
        assert (kind, flags & 7) == (2, RESPONSE), (kind, flags)
        version, _, _, self.window = Fields(head)("HIQQ")
        assert version == 1, version

    def manifest_hash(self):
        result = mix2(0x63656E74726F6964, len(TENSORS))
        for name, shape in TENSORS:
            for word in (len(name), *words(name.encode()), 1, len(shape), *shape):
                result = mix2(result, word)
        return result

    def join(self):
        head = string(self.name) + string("star") + string("f32")
        head += struct.pack("<IQQQQ", 1, self.batch, len(self.digits.train), self.digits.fingerprint(), 0) + string(MODEL) + string("") + string("")
        manifest = struct.pack("<I", len(TENSORS))
        for name, shape in TENSORS:
            manifest += string(name) + struct.pack(f"<BB{len(shape)}Q", 1, len(shape), *shape)
        self.ask(JOIN, head, manifest)
        while self.optimizer is None:
            self.handle(*self.read())

    def joined(self, fields):
        """JoinReply."""
        fields("Q")
        fields.string()
        terms = dict(zip(("seed", "chunk_bytes", "plan_hash", "lease_ms", "apply_on_worker", "nonfinite"), fields("QQQI?B")))
        terms["optimizer"], terms["numbers"], terms["schedule"], terms["clip_norm"] = fields.string(), fields("8d"), fields.string(), fields("d")
        fields("BQI?")
        terms["codec_down"] = fields.string()
        fields("Q?Q")
        local_steps, _, weight_by, _ = fields("IIBQ")
        terms["scale_ratio"] = 0.0 if fields.is_over() else fields("d")
        assert fields.is_over(), "a longer JoinReply"
        assert (terms["apply_on_worker"], terms["codec_down"], local_steps, weight_by) == (True, "f32", 1, 0), terms
        self.seed, self.lease, self.optimizer = terms["seed"], terms["lease_ms"] / 1000, Optimizer(terms)
        self.chunks, position, most = [], 0, terms["chunk_bytes"] // 4
        for _, shape in TENSORS:
            elements = math.prod(shape)
            count = -(-elements // most)
            for i in range(count):
                self.chunks.append((position, elements // count + (i < elements % count)))
                position += self.chunks[-1][1]
        self.parameters = f32([0.0] * position)
        self.slots = [f32([0.0] * position) for _ in range(SLOTS[self.optimizer.name])]
        self.beat()

    def handle(self, kind, flags, head, payload):
        fields = Fields(head)
        if kind == CREDIT:
            self.window += fields("Q")
        elif kind == JOIN and flags & RESPONSE:
            self.joined(fields)
        elif kind == HEARTBEAT:
            self.takes = fields("I") if head else 0
        elif kind == INIT_REQUEST:
            self.initialize()
        elif kind == STATE_CHUNK:
            _, plane, chunk = fields("QBI")
            position, count = self.chunks[chunk]
            (self.parameters, *self.slots)[plane][position : position + count] = f32(struct.unpack(f"<{count}f", payload))
        elif kind == ROUND_OPEN:
            self.open_round(fields)
        elif kind == RESULT:
            number, attempt, chunk = fields("QII")
            self.results[number, attempt, chunk] = f32(struct.unpack(f"<{self.chunks[chunk][1]}f", payload))
        elif kind == ROUND_CLOSED:
            self.close_round(fields)
        elif kind == FINISH:
            reason, evaluate, version = fields("B?Q")
            self.end = (reason, fields.string())
            if evaluate:
                self.report(version)
            self.ask(LEAVE, string("done"))
        elif kind == LEAVE:
            self.end = "left"
        elif kind != WAIT:
            raise ValueError(f"a frame of kind {kind}")

    def initialize(self):
        key = mix2(self.seed, 7)
        self.parameters = f32(((mix(key + i) >> 11) / (1 << 53) - 0.5) / 4 for i in range(len(self.parameters)))
        for chunk in range(len(self.chunks)):
            self.send_chunk(INIT_CHUNK, struct.pack("<I", chunk), chunk, self.parameters)
        self.send(INIT_DONE)

    def report(self, version):
        _, loss, right = gradient(self.parameters, self.digits.test)
        self.send(REPORT, struct.pack("<QQQd", version, len(self.digits.test), right, loss))
        self.reports += 1

    def samples(self, epoch, begin, end):
        """Those of the share."""
        count, chosen = len(self.digits.train), []
        for at in range(begin, end):
            which = epoch + at // count
            if self.order is None or self.order[0] != which:
                self.order = which, shuffle(count, self.seed, which)
            chosen.append(self.digits.train[self.order[1][at % count]])
        return chosen

    def open_round(self, fields):
        generation, number, attempt, _, _, version, step, epoch, begin, end, resend, evaluate, _, _ = fields("QQIIIQQQQQ??IQ")
        rate = -1.0 if fields.is_over() else fields("dd")[0]
        if evaluate:
            self.report(version)
        if not resend:
            self.own = gradient(self.parameters, self.samples(epoch, begin, end)) if end > begin else (None, 0.0, 0)
        mean, loss, right = self.own
        self.opened = (number, attempt, step, rate)
        place, weight = struct.pack("<QQI", generation, number, attempt), float(end - begin)
        for chunk in range(len(self.chunks) if weight else 0):
            self.send_chunk(PUSH, place + struct.pack("<Id", chunk, weight), chunk, mean)
        norm = math.sqrt(sum(g * g for g in mean)) if weight else -1.0
        told = struct.pack("<dQQddd?", weight, int(weight), right, loss, 0, 0, False) + string("")
        told += struct.pack("<dddQQIIddddddd", 0, 0, 0, 0, 0, 0, 0, 0, -1, norm, -1, 0, 0, 0) + struct.pack("<I", 0)
        self.send(PUSH_END, place + told + self.fingerprint(version))

    def fingerprint(self, version):
        """The end of PushEnd."""
        every = self.takes >> 8
        if every == 0 or version % every != 0:
            return b""
        self.compared += 1
        result = version
        for plane in (self.parameters, *self.slots):
            result = fingerprint(plane, result)
        return struct.pack("<Q", result or 1)

    def close_round(self, fields):
        number, attempt, outcome, _, _, _, contributors = fields("QIBQQdI")
        self.outcomes.append(outcome)
        results, self.results = self.results, {}
        if outcome != COMMITTED:
            assert outcome in (SKIPPED, ABORTED), (outcome, fields.string())
            return
        opened, attempted, step, rate = self.opened
        assert (number, attempt) == (opened, attempted), "another round"
        mean = array.array("f")
        for chunk in range(len(self.chunks)):
            mean += results[number, attempt, chunk]
        mean = clipped(mean, self.chunks, self.optimizer.clip_norm)
        self.parameters = self.optimizer.step(step + 1, rate, contributors, self.parameters, mean, self.slots)
