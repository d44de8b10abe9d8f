#!/usr/bin/env python3
"""Check that nothing in server/ stands in a cycle of #include: neither its modules nor its sub-folders.

A module is a header with the sources that define what it declares; a change of one module then reaches only those above it.

Usage: check_cycles.py [ROOT]         exit status 1 when something is found
"""

import collections
import fnmatch
import sys

from check_layers import INCLUDE
from sources import CPP, files, report, root_argument

FOLDER = "server"

# Sources whose names do not begin with that of their header.
HEADER_OF = {
    "server/api/*_routes.cc": "server/api/routes.h",
    "server/api/admission.cc": "server/api/routes.h",
    "server/config/*fields.cc": "server/config/server_config.h",
    "server/table_servers/table_loading.cc": "server/table_servers/table_loader.h",
    "server/tables/outgoing_buckets.cc": "server/tables/bucket_moves.h",
    "server/tables/rows_re*.cc": "server/tables/rows_service.h",
    "server/main.cc": "server/main.h",
}


def module_of(name, headers):
    """The module of a file, by its header without ".h"; None: no header is known."""
    stem = name.rpartition(".")[0]
    if name.endswith(".h") or stem + ".h" in headers:
        return stem
    listed = [header for pattern, header in HEADER_OF.items() if fnmatch.fnmatch(name, pattern)]
    begins = [header for header in headers if stem.startswith(header[:-2] + "_")]
    return max(listed or begins, key=len)[:-2] if listed or begins else None


def module_edges(root):
    """Sources without a module; {module: {other module: an #include of it}}."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in files(root, CPP) if name.startswith(FOLDER + "/")}
    headers = {name for name in texts if name.endswith(".h")}
    modules = {name: module_of(name, headers) for name in texts}
    missing = [f"{name}: name it as its header, {name[:-3]}.h or a beginning of it, or add it to HEADER_OF" for name, module in modules.items() if not module]
    edges = collections.defaultdict(dict)
    for name, text in texts.items():
        mine = modules[name]
        if not mine:
            continue
        edges[mine] = edges[mine]
        for kind, header in INCLUDE.findall(text):
            other = modules.get(header)
            if kind == '"' and other and other != mine:
                edges[mine].setdefault(other, f"{name} includes {header}")
                edges[other] = edges[other]
    return missing, edges


def folder_edges(root):
    """{sub-folder: {other sub-folder: an #include of it}}."""
    edges = collections.defaultdict(dict)

    def folder_of(name):
        parts = name.split("/")
        return "/".join(parts[: min(2, len(parts) - 1)])

    for name, path in files(root, CPP):
        if not name.startswith(FOLDER + "/"):
            continue
        mine = folder_of(name)
        edges[mine] = edges[mine]
        for kind, header in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if kind == '"' and header.startswith(FOLDER + "/") and folder_of(header) != mine:
                edges[mine].setdefault(folder_of(header), f"{name} includes {header}")
                edges[folder_of(header)] = edges[folder_of(header)]
    return edges


def components(edges):
    """Strongly connected components with more than one member, each sorted (Tarjan 1972, without recursion)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in sorted(edges):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return sorted(found)


def way(edges, begin, end, within):
    """A shortest path as [begin, .., end], over members of `within`."""
    before, queue = {begin: None}, collections.deque([begin])
    while queue:
        node = queue.popleft()
        for other in sorted(edges[node]):
            if other == end:
                path = [other, node]
                while before[path[-1]] is not None:
                    path.append(before[path[-1]])
                return path[::-1]
            if other in within and other not in before:
                before[other] = node
                queue.append(other)
    return []


def cycle_findings(kind, edges):
    """The components of the graph, each with a cycle through its first name."""
    for component in components(edges):
        path = way(edges, component[0], component[0], set(component))
        steps = "".join(f"\n    {a} -> {b}: {edges[a][b]}" for a, b in zip(path, path[1:]))
        yield f"{kind} in a cycle: {' '.join(component)}; cut it, for example at{steps}"


def findings(root):
    missing, modules = module_edges(root)
    yield from missing
    yield from cycle_findings("modules", modules)
    yield from cycle_findings("folders", folder_edges(root))


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
