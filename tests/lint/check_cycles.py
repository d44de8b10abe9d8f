#!/usr/bin/env python3
"""Check that nothing in server/ stands in a cycle: neither its object files (by their symbols) nor its sub-folders (by #include).

An object file needs another one when it has an undefined symbol that the other one defines strongly (nm: T, D, B, R); inline
functions and templates, which every object file defines for itself, count for whoever needs what they call.

The cycles of today stand in cycle_exceptions.txt beside this file. The list only shrinks: what has left its cycle is found too, and
`--shrink` takes it out.

Usage: check_cycles.py BUILD_DIR [ROOT]            exit status 1 when something is found; prints the cycles that there are.
       check_cycles.py --shrink BUILD_DIR [ROOT]   take what has left its cycle out of the list; nothing is ever added.
"""

import collections
import pathlib
import re
import subprocess
import sys

from check_layers import INCLUDE
from sources import CPP, files, report

FOLDER = "server"
STRONG = "TDBRGS"
LIST = "tests/lint/cycle_exceptions.txt"
HEADER = """# Cycles that check_cycles.py allows: groups of object files that need each other (named by their sources), and of sub-folders of
# server/ that include each other ("server": the files in it). Names only go; `tests/lint/check_cycles.py --shrink BUILD_DIR` does that.
"""


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


def exceptions(root):
    """The groups of the list: (kind, {name: number of its line})."""
    path = pathlib.Path(root, LIST)
    groups = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else (), 1):
        if line.startswith(" "):
            groups[-1][1][line.strip()] = number
        elif line and not line.startswith("#"):
            groups.append((line.strip(), {}))
    return groups


def shown(symbol):
    """A symbol as a person writes it, an include as it is."""
    if " includes " in symbol:
        return symbol
    return "needs " + subprocess.run(["c++filt", symbol], capture_output=True, text=True, check=True).stdout.strip()


def grown_findings(kind, edges, present, groups):
    """Components that are not within one group of the list, with a cycle through the first name that is new."""
    for component in present:
        group = max((names for what, names in groups if what == kind), key=lambda names: len(names.keys() & set(component)), default={})
        new = [name for name in component if name not in group]
        if new:
            path = way(edges, new[0], new[0], set(component))
            steps = "".join(f"\n    {a} -> {b}: {shown(edges[a][b])}" for a, b in zip(path, path[1:]))
            yield f"{kind} in a cycle, which is new: {' '.join(new)}; cut it, for example at{steps}"


def shrunk_findings(kind, present, groups):
    """Names of the list that stand in no cycle with the rest of their group."""
    for _, names in (group for group in groups if group[0] == kind):
        inside = [component for component in present if names.keys() >= set(component)]
        if not inside:
            if not any(names.keys() & set(component) for component in present):
                yield f"{LIST}:{min(names.values()) - 1}: these {kind} are in no cycle any more: remove them ({len(names)} lines)"
            continue
        if len(inside) > 1:
            yield f"{LIST}:{min(names.values()) - 1}: this cycle has fallen into {len(inside)}: write them apart (--shrink does)"
        for name in sorted(names.keys() - set().union(*inside)):
            yield f"{LIST}:{names[name]}: {name} is in this cycle no more; remove this line"


def graphs(build, root):
    """Findings of what cannot be looked at; edges by kind."""
    sources = sources_of(root)
    objects = objects_of(build, set(sources))
    missing = [f"{name}: no object file in {build}: build centroid-server, or name it in a CMakeLists.txt" for name in sources if name not in objects]
    return missing, {"objects": object_edges(objects), "folders": folder_edges(root)}


def findings(root, build, on_cycle=lambda text: None):
    missing, kinds = graphs(build, root)
    yield from missing
    groups = exceptions(root)
    for kind, edges in kinds.items():
        present = components(edges)
        for component in present:
            on_cycle(f"cycle of {len(component)} {kind}: {' '.join(component)}")
        yield from grown_findings(kind, edges, present, groups)
        if not missing:
            yield from shrunk_findings(kind, present, groups)


def text_of(groups):
    return HEADER + "".join(kind + "\n" + "".join(f"  {name}\n" for name in sorted(names)) for kind, names in groups)


def shrink(root, build):
    """Write the list with the cycles that there are of those in it."""
    missing, kinds = graphs(build, root)
    if missing:
        sys.exit("\n".join(missing))
    left = []
    for kind, edges in kinds.items():
        listed = [names.keys() for what, names in exceptions(root) if what == kind]
        left += [(kind, component) for component in components(edges) if any(set(component) <= names for names in listed)]
    pathlib.Path(root, LIST).write_text(text_of(left), encoding="utf-8")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_shrinking = arguments[:1] == ["--shrink"]
    if is_shrinking:
        arguments.pop(0)
    if not arguments:
        sys.exit(__doc__)
    build_folder = arguments[0]
    root_folder = arguments[1] if len(arguments) > 1 else str(pathlib.Path(__file__).resolve().parents[2])
    if is_shrinking:
        shrink(root_folder, build_folder)
        sys.exit(0)
    sys.exit(report(findings(root_folder, build_folder, print)))
