#!/usr/bin/env python3
"""Check that nothing in server/ stands in a cycle: neither its object files (by their symbols) nor its sub-folders (by #include).

An object file needs another one when it has an undefined symbol that the other one defines strongly (nm: T, D, B, R); inline
functions and templates, which every object file defines for itself, count for whoever needs what they call.

Usage: check_cycles.py BUILD_DIR [ROOT]   exit status 1 when something is found
"""

import collections
import pathlib
import subprocess
import sys

from check_layers import INCLUDE
from sources import CPP, files, report

FOLDER = "server"
STRONG = "TDBRGS"


def sources_of(root):
    """Sources of server/, by name from the root."""
    return [name for name, _ in files(root, (".cc",)) if name.startswith(FOLDER + "/")]


def objects_of(build, sources):
    """The object file of each source that has one. What was built of sources that are gone is passed over."""
    found = {}
    for path in sorted((pathlib.Path(build) / FOLDER).rglob("*.o")):
        parts = path.relative_to(build).parts
        if "CMakeFiles" not in parts:
            continue
        at = parts.index("CMakeFiles")
        source = list(parts[:at])
        for part in parts[at + 2 :]:
            if part == "__":  # CMake's name of ".."
                source.pop()
            else:
                source.append(part)
        name = "/".join(source).removesuffix(".o")
        if name in sources:
            found[name] = path
    return found


def symbols_of(objects):
    """(symbols that each source defines strongly, symbols that it needs)."""
    by_path = {str(path): name for name, path in objects.items()}
    defines, needs, name = {}, collections.defaultdict(set), None
    listing = subprocess.run(["nm", "-P", *by_path], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        fields = line.split()
        if len(fields) == 1:
            name = by_path[line.rstrip(":")]
        elif fields[1] == "U":
            needs[name].add(fields[0])
        elif fields[1] in STRONG:
            defines[fields[0]] = name
    return defines, needs


def object_edges(objects):
    """{source: {other source: a symbol that it needs of it}}."""
    edges = {name: {} for name in objects}
    if objects:
        defines, needs = symbols_of(objects)
        for name, symbols in needs.items():
            for symbol in sorted(symbols):
                other = defines.get(symbol, name)
                if other != name:
                    edges[name].setdefault(other, symbol)
    return edges


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


def shown(symbol):
    """A symbol as a person writes it, an include as it is."""
    if " includes " in symbol:
        return symbol
    return "needs " + subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()


def cycle_findings(kind, edges):
    """The components of the graph, each with a cycle through its first name."""
    for component in components(edges):
        path = way(edges, component[0], component[0], set(component))
        steps = "".join(f"\n    {a} -> {b}: {shown(edges[a][b])}" for a, b in zip(path, path[1:]))
        yield f"{kind} in a cycle: {' '.join(component)}; cut it, for example at{steps}"


def graphs(build, root):
    """Findings of what cannot be looked at; edges by kind."""
    sources = sources_of(root)
    objects = objects_of(build, set(sources))
    missing = [f"{name}: no object file in {build}: build centroid-server, or name it in a CMakeLists.txt" for name in sources if name not in objects]
    return missing, {"objects": object_edges(objects), "folders": folder_edges(root)}


def findings(root, build):
    missing, kinds = graphs(build, root)
    yield from missing
    for kind, edges in kinds.items():
        yield from cycle_findings(kind, edges)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root_folder = sys.argv[2] if len(sys.argv) > 2 else str(pathlib.Path(__file__).resolve().parents[2])
    sys.exit(report(findings(root_folder, sys.argv[1])))
