#!/usr/bin/env python3
"""Check every #include against the table of who may include whom, and third-party headers against their homes.

Usage: check_layers.py [ROOT]         exit status 1 when an include breaks the table.
The table is the drawing of layers in ARCHITECTURE.md; change both or neither.
"""

import pathlib
import re
import sys

from sources import CPP, files, line_of, report, root_argument

BASE, ASYNC, TENSOR = "common/base", "common/async", "common/tensor"
DEVICE, CODEC, OPTIM = "common/device", "common/codec", "common/optim"
PROTO, STORAGE, CHECKPOINT = "common/proto", "common/storage", "common/checkpoint"
MEANING = [BASE, TENSOR, ASYNC, DEVICE, CODEC, OPTIM, PROTO, STORAGE, CHECKPOINT]

# module: the project modules it may include (itself always). A module is a folder, or one header with its source ("server/config").
MAY = {
    BASE: [],
    ASYNC: [BASE],
    TENSOR: [BASE],
    DEVICE: [BASE, TENSOR, ASYNC],
    CODEC: [BASE, TENSOR, DEVICE],
    OPTIM: [BASE, TENSOR, DEVICE],
    PROTO: [BASE, TENSOR, OPTIM],
    STORAGE: [BASE],
    CHECKPOINT: [BASE, TENSOR, STORAGE],
    "transport": [BASE, TENSOR, ASYNC],
    "transport/tls": [BASE, ASYNC, "transport"],
    "transport/http": [BASE, ASYNC, "transport", "transport/tls"],
    "transport/collective": [BASE, TENSOR, ASYNC, CODEC, PROTO, "transport"],
    "server/membership": [BASE, TENSOR, PROTO],
    "server/aggregate": [BASE, TENSOR, CODEC, "server/aggregate/round_policy"],
    "server/coordinate": [BASE, TENSOR],
    "server/rows": [BASE, OPTIM],
    "server/events": [BASE],
    "server/tokens": [BASE, STORAGE, CHECKPOINT],
    "server/election": [BASE, ASYNC, STORAGE, CHECKPOINT, "transport", "transport/http"],
    "server/store": [BASE, ASYNC, TENSOR, DEVICE, OPTIM, STORAGE, CHECKPOINT],
    "server/tables": [BASE, ASYNC, TENSOR, PROTO, STORAGE, CHECKPOINT, "transport", "server/rows", "server/store", "server/api/view"],
    "server/shard": [BASE, ASYNC, TENSOR, CODEC, OPTIM, PROTO, STORAGE, CHECKPOINT, "transport", "server/aggregate", "server/store"]
    + ["server/rows", "server/tables", "server/tokens"],
    "server/table_servers": [BASE, ASYNC, PROTO, STORAGE, CHECKPOINT, "transport", "server/rows", "server/store", "server/shard", "server/tables"]
    + ["server/api/view"],
    "server/state": [BASE, TENSOR, PROTO, CHECKPOINT, "server/aggregate", "server/coordinate", "server/store", "server/shard", "server/api/view"],
    "server/aggregate/round_policy": [BASE, TENSOR],
    "server/config": [BASE, ASYNC, OPTIM, CODEC, "server/aggregate", "server/aggregate/round_policy", "server/coordinate", "server/rows", "server/election"],
    "server/api": [BASE, ASYNC, STORAGE, CHECKPOINT, "transport", "transport/tls", "transport/http", "server/events", "server/tokens", "server/api/view"],
    "server/api/view": [BASE, ASYNC, "server/events"],
    "server/service": MEANING
    + ["transport", "server/membership", "server/aggregate", "server/aggregate/round_policy", "server/coordinate"]
    + ["server/store", "server/rows"]
    + ["server/config", "server/election", "server/events", "server/shard", "server/state", "server/tables", "server/table_servers"]
    + ["server/api/view"],
    "server": MEANING
    + ["transport", "transport/tls", "transport/http", "server/membership", "server/aggregate", "server/store", "server/rows", "server/service", "server/api"]
    + ["server/events", "server/config", "server/election", "server/shard", "server/tokens", "server/api/view"],
    "worker/data": [BASE, TENSOR],
    "worker/model": [BASE, TENSOR, DEVICE, OPTIM, STORAGE, CHECKPOINT],
    "worker/exchange": MEANING + ["transport", "transport/collective"],
    "worker/parallel": [BASE, TENSOR, CODEC, OPTIM, STORAGE, CHECKPOINT, "transport", "transport/collective"],
    "worker/loop": [BASE, TENSOR, OPTIM, STORAGE, CHECKPOINT, "worker/exchange"],
    "worker/node": [BASE, TENSOR, ASYNC, DEVICE, CODEC, OPTIM, CHECKPOINT, "worker/data", "worker/model", "worker/exchange", "worker/loop"]
    + ["transport/collective", "worker/parallel"],
    "worker": MEANING
    + ["transport", "transport/tls", "transport/http", "transport/collective", "worker/data", "worker/model", "worker/node", "worker/exchange", "worker/loop"]
    + ["worker/parallel", "client/job_group"],
    "client": MEANING + ["client/network", "transport", "transport/tls", "transport/http"],
    "client/network": [BASE, ASYNC, "transport", "transport/tls"],
    "client/rows_client": [BASE, TENSOR, ASYNC, PROTO, "transport", "transport/tls"],
    "client/pull": [BASE, TENSOR, ASYNC, PROTO, "transport", "transport/tls"],
    "client/trainer": [BASE, TENSOR, ASYNC, "transport", "transport/tls", "worker/exchange", "worker/loop"],
    "client/program_trace": [BASE],
    "client/group": [BASE, ASYNC, TENSOR, "client/group_frames", "client/group_rendezvous", "transport", "transport/collective"],
    "client/group_meeting": [BASE, ASYNC, "client/group_frames", "client/group_rendezvous", "transport"],
    "client/group_rendezvous": [BASE, ASYNC, "client/group_frames", "transport"],
    "client/group_frames": [BASE, ASYNC, "transport"],
    "client/job_group": [BASE, ASYNC, "client/group", "client/group_meeting", "client/group_rendezvous", "transport", "transport/collective", "worker/parallel"],
    "client/sharded_model": [BASE, TENSOR, OPTIM, CHECKPOINT, "client/job_group", "client/group_meeting", "transport/collective", "worker/parallel"],
    "client/c_boundary": [BASE, TENSOR, "client/centroid"],
    "client/c_api": [BASE, TENSOR, "client/centroid", "client/c_boundary", "client/program_trace", "client/trainer", "client/rows_client", "client/pull", "transport", "worker/exchange"],
    "client/codec_api": [BASE, TENSOR, CODEC, "client/centroid", "client/c_boundary"],
    "client/group_api": [BASE, TENSOR, "client/centroid", "client/c_boundary", "client/group", "client/group_rendezvous", "transport", "transport/tls", "transport/collective"],
    "client/sharded_api": [BASE, TENSOR, OPTIM, "client/centroid", "client/c_boundary", "client/group_api", "client/sharded_model", "worker/parallel"],
    "client/centroid": [],
}
MAY["tests"] = list(MAY)

# third-party header: the files (regular expressions) that may include it; the first pattern that matches decides
HOMES = {
    r"boost/beast": r"transport/http/[^/]*",
    r"boost/asio/(ip|local|connect|ssl)|boost/asio\.hpp": r"transport/(tcp[^/]*|(tls|http)/[^/]*)",
    r"boost/asio": r"common/async/.*|transport/.*|server/(api|election|service|shard|store|tables)/.*|server/[^/]*|worker/exchange/.*|worker/[^/]*"
    r"|client/.*|.*cuda[^/]*\.cc",
    r"prometheus/": r"common/base/prometheus_registry\.cc",
    r"nlohmann/": r"common/base/(config|log)[^/]*\.cc|common/checkpoint/[^/]*\.cc|server/(api|election|tokens)/.*|server/[^/]*\.cc|worker/[^/]*\.cc"
    r"|server/service/operator_file\.cc|worker/model/adapters\.cc|client/.*",
    r"openssl/": r"transport/tls/.*|tests/support/certificates\.cc|server/tokens/[^/]*\.cc",
    r"zlib\.h": r"worker/data/[^/]*\.cc",
    r"cblas": r"common/device/blas\.cc",
    r"nccl\.h": r"worker/node/nccl[^/]*\.cc",
    r"cuda|cublas": r".*\.cuh?|.*cuda[^/]*\.cc|.*/cuda/[^/]*\.cc",
    r"CLI/": r"client/.*|[a-z]+/main\.cc",
    r"gtest/|gmock/|benchmark/": r"tests/.*",
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^">\n]+)[">]', re.M)


def module_of(path):
    """Smallest module of the table that holds the file; None for a file of no module."""
    file = pathlib.PurePosixPath(path)
    for candidate in [file.with_suffix(""), *file.parents]:
        if str(candidate) in MAY:
            return str(candidate)
    return None


def cycle(table):
    """A cycle of the table as a list of modules; empty when there is none."""
    done, path = set(), []

    def visit(module):
        if module in path:
            return path[path.index(module) :] + [module]
        if module in done:
            return []
        path.append(module)
        for below in table[module]:
            found = visit(below)
            if found:
                return found
        path.pop()
        done.add(module)
        return []

    for module in table:
        if module != "tests":
            found = visit(module)
            if found:
                return found
    return []


def project_finding(name, header):
    mine, other = module_of(name), module_of(header)
    if mine is None:
        return "this file belongs to no module of the table in check_layers.py"
    if other is None:
        return f'"{header}" belongs to no module (project headers are named from the root, others in <>)'
    if other != mine and other not in MAY[mine]:
        return f"{mine} may not include {other} ({header})"
    if header.endswith((".cc", ".cu")):
        return f"includes an implementation file ({header})"
    return None


def third_party_finding(name, header):
    for pattern, homes in HOMES.items():
        if re.match(pattern, header):
            if name.startswith("tests/") or re.fullmatch(homes, name):
                return None
            return f"<{header}> may be included only in {homes}"
    return None


def findings(root):
    loop = cycle(MAY)
    if loop:
        yield "the table has a cycle: " + " -> ".join(loop)
    for name, path in files(root, CPP):
        text = path.read_text(encoding="utf-8")
        for match in INCLUDE.finditer(text):
            kind, header = match.groups()
            found = project_finding(name, header) if kind == '"' else third_party_finding(name, header)
            if found:
                yield f"{name}:{line_of(text, match.start(1))}: {found}"


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
