"""docs/metrics.md out of what a server, a shard server and a worker serve at /metrics."""

import re

HEAD = """# Metrics

Made by `OPS_WRITE_REFERENCE=1 ./centroid test --ops` from what the programs of a training cluster serve; the test fails when this page is
not what they serve. Times are in seconds, sizes in bytes. Dashboards and alert rules for them are in `dashboards/`.

The server, and a standby, serves them on its REST port (`--api.listen`, with its token), a shard server (docs/several-servers.md) and a worker at
`--metrics.listen` (without one).
"""
SERIES = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
FREE = ("version", "le", "route", "method", "gpu", "table", "server", "name")  # labels whose values are not listed


def families(text):
    """Name -> (type, help, labels with their values), from the text format."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            found[name] = ["", words, {}]
        elif line.startswith("# TYPE "):
            name, _, kind = line[7:].partition(" ")
            found[name][0] = kind
        elif match := SERIES.match(line):
            name = re.sub(r"_(bucket|sum|count)$", "", match[1]) if match[1] not in found else match[1]
            for label, value in LABEL.findall(match[2] or ""):
                found[name][2].setdefault(label, set()).add(value)
    return found


def label_text(labels):
    shown = []
    for label, values in sorted(labels.items()):
        if label != "le":
            shown.append(f"`{label}`" if label in FREE else f"`{label}`: " + ", ".join(sorted(values)))
    return "; ".join(shown)


def section(title, text):
    lines = [f"\n## {title}\n", "| metric | type | labels | meaning |", "|---|---|---|---|"]
    for name, (kind, words, labels) in sorted(families(text).items()):
        lines.append(f"| `{name}` | {kind} | {label_text(labels)} | {words} |")
    return "\n".join(lines) + "\n"


def page(server, shard, worker):
    return HEAD + section("Server", server) + section("Shard server", shard) + section("Worker", worker)
