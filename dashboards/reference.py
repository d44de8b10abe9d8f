"""docs/reference/metrics.md out of what a server, a shard server and a worker serve at /metrics."""

import re

HEAD = """# Metrics

Every Prometheus metric of Centroid. Times are in seconds, sizes in bytes. A server and a standby
serve `/metrics` on the REST port (`--api.listen`), with its token. A
[shard server](../how-to/several-servers.md) and a worker serve it at `--metrics.listen`, without a
token. See [Monitor](../how-to/monitor.md) and [runbooks](../how-to/runbooks.md).

`OPS_WRITE_REFERENCE=1 ./centroid test --ops` makes this page from what the programs serve.
"""
SERIES = re.compile(r"^([a-z_]+)(?:\{(.*)\})? ")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
FREE = ("program", "version", "le", "route", "method", "gpu", "table", "server", "name", "resource")  # labels whose values are not listed


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


def rows(text):
    return [f"`{name}` | {kind} | {label_text(labels)} | {words}" for name, (kind, words, labels) in sorted(families(text).items())]


def layout(programs):
    """The page of these rows of each program; what is the same in several stands once."""
    places = {}
    for title, lines in programs.items():
        for line in lines:
            places.setdefault(line, []).append(title)
    sections = {}
    for line, titles in places.items():
        sections.setdefault("All programs" if len(titles) == len(programs) else " and ".join(titles), []).append(line)
    return HEAD + "".join(f"\n## {title}\n\nmetric | type | labels | meaning\n---|---|---|---\n" + "\n".join(lines) + "\n" for title, lines in sections.items())


def page(server, shard, worker):
    return layout({"Server": rows(server), "Shard server": rows(shard), "Worker": rows(worker)})
