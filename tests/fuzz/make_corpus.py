#!/usr/bin/env python3
"""Write the first files of tests/fuzz/corpus: from the wire page, from the files of older releases, and by hand.

make_corpus.py. A fuzzer's own finds are added as further files, by libFuzzer's -merge=1.
"""

import json
import pathlib
import re
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import ROOT
from harness.wire import REQUEST, header, hello_head

CORPUS = ROOT / "tests" / "fuzz" / "corpus"
OLD = ROOT / "tests" / "baseline" / "files"
MESSAGES = (
    "join join-reply state-chunk round-open push push-end round-closed finish leave peers exchange-failed rows-open rows-open-reply rows-pull"
    " rows-push manifest pull report server-join server-terms server-model route merge merge-reply whole opened tokens enter server-report beat"
    " beat-reply kept"
).split()  # in the order of messages_fuzz.cc


def page():
    """Name and bytes of each example of the wire page."""
    for name, block in re.findall(r"```hex ([\w-]+)\n(.*?)```", (ROOT / "docs/reference/wire.md").read_text(), re.DOTALL):
        yield name, bytes.fromhex("".join(line.split("#")[0] for line in block.splitlines()))


def records(path, head_bytes=40):
    """The records of a journal, each with its head."""
    data, at = path.read_bytes(), 0
    while at + head_bytes <= len(data):
        (payload,) = struct.unpack_from("<Q", data, at + 8)
        yield data[at : at + head_bytes + payload]
        at += head_bytes + payload


def firsts(folder, pattern, count):
    found = {path.read_bytes(): path for path in sorted(folder.glob(pattern))}
    return [data for data in found if len(data) <= 4096][:count]


def seeds():
    examples = dict(page())
    for number, name in enumerate(MESSAGES):
        if name in examples:
            yield "messages", bytes([number]) + examples[name]
    for name in ("hello", "hello-reply", "credit", "error", "not-leader", "not-ready"):
        yield "greeting", examples[name]
    yield "greeting", hello_head(token="secret", run_id="run", role="server")
    for head in (b"", b"head"):
        yield "frame", header(22, REQUEST, head, payload_bytes=1 << 20, identity=7)
    for place in ("127.0.0.1:7070", "[::1]:0", "a.example:65535", "[fe80::1%eth0]:1", "host:port"):
        yield "frame", place.encode()
    for data in firsts(OLD, "**/manifest.json", 8):
        yield "checkpoint_manifest", data
    for data in firsts(OLD, "**/*.safetensors", 4):
        yield "safetensors", data
    entry = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    for more in ({}, {"__metadata__": {"round": "7"}}, {"b": {"dtype": "BF16", "shape": [0, 2], "data_offsets": [4, 4]}}):
        head = json.dumps({**entry, **more}).encode()
        yield "safetensors", struct.pack("<Q", len(head)) + head + bytes(4)
    for folder in sorted(OLD.glob("*/run/journal")):
        for path in sorted(folder.glob("journal-*.log"))[:1]:
            for record in list(records(path))[:12:4]:
                yield "journal", record[:2048]
                if record[4] != 2:
                    yield "journal", record[40:]
        for path in sorted(folder.glob("rows-*.log"))[:1]:
            for record in list(records(path))[:3]:
                yield "rows_journal", record[:40]
                yield "rows_journal", record[40:2088]
    yield "rows_journal", struct.pack("<BBHIQQQQQf4x", 1, 0, 0, 1, 1, 2, 3, 12, 5, 1.0)
    for codec in range(8):
        yield "codec", bytes([codec, 8, 0]) + struct.pack("<8f", *range(8))
        yield "codec", bytes([codec, 8, 0]) + struct.pack("<f8b", 0.5, *range(-4, 4))
        yield "codec", bytes([codec, 100, 0]) + struct.pack("<IIff", 1, 7, 0.5, 2.0)
    for spec in ("f32", "topk:0.01,values=int8,scope=global", "int8:rounding=stochastic,feedback=on", "topk:50%", "bf16:feedback=on"):
        yield "codec_spec", spec.encode()
    for settings in ({"min_workers": 3, "optimizer": "adam", "lr": 0.1}, {"api": {"rate": 5}}, {"policy": "quorum:3/4", "late": "carry"}, {"nope": [1, {"a": None}]}):
        yield "config", json.dumps(settings).encode()
    state = {"evictions": [{"name": "w", "why": "slow", "since_unix_seconds": 1.5, "until_unix_seconds": 0}], "scale": {"workers": 3, "why": "", "since_unix_seconds": 2}}
    yield "operator_files", json.dumps(state).encode()
    state |= {"stop": {"run_id": "r", "version": 7, "since_unix_seconds": 3, "halted": "x"}, "pause": {"since_unix_seconds": 4}, "settings": [{"name": "lr", "value": 0.1}]}
    yield "operator_files", json.dumps(state).encode()
    fields = b"localhost\0Bearer secret\0\0application/json\0id-1\0\0bytes=0-9\0"
    for line, body in ((b"GET\0/v1/cluster?fields=state\0", b""), (b"POST\0/v1/job:pause\0", b"{}"), (b"PATCH\0/v1/config\0", b'{"lr": 0.1}'), (b"GET\0/v1/events?after=%20\0", b"")):
        yield "rest", line + fields + body
    get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    for more in (b"\r\n", b"Content-Length: 2\r\n\r\nhi", b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", b"Transfer-Encoding: xchunked\r\n\r\n", b"Expect: 100-continue\r\nContent-Length: 1\r\n\r\nx"):
        yield "http", b"\x03" + get + more + b"POST /v1/job:pause HTTP/1.0\r\n\r\n"
    yield "trace", b"worker w0\0device cpu:0\0network\0gpu 0 utilization\0ratio\0" + struct.pack("<BIH", 0, 1, 9) + b"forward\0" + struct.pack("<BI", 1, 4) + b"round\0=1+1\0" + struct.pack("<BIf", 2, 5, 0.5)
    yield "trace", b"\x1b[31m<b>\0,\"\r\n\0\xff\xfe\0\0\0" + struct.pack("<BI", 1, 1) + b"\xe2\x80\xae\0@x\0"
    yield "idx", struct.pack(">IIII", 2051, 2, 2, 1) + bytes(4)
    yield "idx", struct.pack(">II", 2049, 3) + bytes(3)
    yield "digits", (",".join(["0", *["3"] * 64]) + "\n").encode() * 3
    yield "digits", b"Package: a\nSection: libs\nDescription: words of it\n\nPackage: b\nSection: net\nDescription: more words\n"


for name, data in seeds():
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    if not any(data == path.read_bytes() for path in folder.iterdir()):
        (folder / f"{len(list(folder.iterdir())):03}").write_bytes(data)
