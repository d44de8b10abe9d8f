#!/usr/bin/env python3
"""Make docs/reference/python.md from the signatures, docstrings and comments of the package centroid.

Usage: reference.py [--check] [ROOT]     --check: exit status 1 when the committed page is not what would be made

A docstring's lines `name  text` (two blanks or more) become a list, indented lines code, `docs/PAGE.md` a link. A field of a class
is described by the comment behind it, a property by the comment above it.
"""

import ast
import inspect
import pathlib
import re
import sys

FOLDER = pathlib.Path("client/python/centroid")
PAGE = pathlib.Path("docs/reference/python.md")
HEAD = "<!-- Made by client/python/reference.py: change the docstrings, then run it. -->\n\n# Python API"
ORDER = ["Trainer", "Share", "Round", "Outcome", "End", "local", "pull", "Tensors", "Rows", "join", "Group", "Work", "Sharded", "CentroidError", "load", "version", "log_level"]
MODULES = {"torch": ["_data_parallel", "_sampler", "_loader", "_diloco", "_hooks"], "torch_backend": ["torch_backend"], "trace": ["trace"]}  # the files that have what is in `__all__`
BRIEF = ["Group", "Work"]  # only the names of their methods: help() has the rest
SHORT = ["Sharded", "DataParallel", "Optimizer", "DiLoCo", "Loader", "sampler"]  # neither methods, arguments nor code
ITEM = re.compile(r"(\w+(?:, \w+)*)  +(\S.*)")


def item(names, text):
    return "- " + ", ".join(f"`{name}`" for name in names.split(", ")) + ": " + text


def blocks_of(node):
    """The docstring of a node as blocks of Markdown."""
    paragraphs, blocks = [], []
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
        if paragraph.startswith("    ") and paragraphs[-1].startswith("    "):
            paragraphs[-1] += "\n\n" + paragraph
        elif paragraph:
            paragraphs.append(paragraph)
    for paragraph in paragraphs:
        if paragraph.startswith("    "):
            blocks.append("```python\n" + inspect.cleandoc("\n" + paragraph) + "\n```")
            continue
        text, items = [], []
        for line in paragraph.splitlines():
            if found := ITEM.fullmatch(line):
                items.append(item(*found.groups()))
            elif items:
                items[-1] += " " + line.strip()
            else:
                text.append(line)
        blocks += [" ".join(text)] * bool(text) + ["\n".join(items)] * bool(items)
    return [re.sub(r"\bdocs/([\w/-]+\.md)", r"[\1](../\1)", block) for block in blocks]


def call(name, function):
    """A function with its arguments, as a heading has it."""
    return f"`{name}(" + re.sub(r"^self(, )?", "", ast.unparse(function.args)) + ")`"


def fields(node, lines):
    """The fields and properties of a class, each with its comment."""
    found = []
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and not child.target.id.startswith("_"):
            found.append(item(child.target.id, lines[child.lineno - 1].partition("  # ")[2]))
        elif isinstance(child, ast.Assign) and ast.unparse(child.value).startswith("property("):
            found.append(item(child.targets[0].id, lines[child.lineno - 2].partition("# ")[2]))
    return ["\n".join(found)] * bool(found)


def entry(node, lines, prefix, level="##"):
    """A class or function as blocks."""
    if node.name in SHORT:
        blocks = [block for block in blocks_of(node) if not block.startswith(("- ", "```"))]
        return [f"{level} `{prefix}{node.name}`", *blocks]
    if isinstance(node, ast.FunctionDef):
        return [f"{level} {call(prefix + node.name, node)}", *blocks_of(node)]
    functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
    made = [one for one in functions if one.name == "__init__" and not node.bases and not one.args.args[1].arg.startswith("_")]
    blocks = [f"{level} " + (call(prefix + node.name, made[0]) if made else f"`{prefix}{node.name}`"), *blocks_of(node), *fields(node, lines)]
    if node.name in BRIEF:
        names = [function.name for function in functions if not function.name.startswith("_")]
        return [*blocks, f"`help(centroid.{node.name})` explains " + ", ".join(f"`{name}`" for name in names) + "."]
    for function in functions:
        if not function.name.startswith("_"):
            blocks += entry(function, lines, node.name + ".", "###")
    return blocks


def public(tree):
    """Name to class or function of a module."""
    return {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_")}


def all_of(tree):
    """What `__all__` of a module names."""
    return set(ast.literal_eval(next(node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")))


def page(root):
    main, *others = ((root / FOLDER / name).read_text() for name in ("__init__.py", "_arrays.py", "_servers.py", "group.py", "rows.py", "sharded.py"))
    tree = ast.parse(main)
    nodes = {name: (node, text.splitlines()) for text in (main, *others) for name, node in public(ast.parse(text)).items()}
    if set(ORDER) != all_of(tree):
        raise SystemExit("client/python/reference.py: ORDER names other things than __all__ of the package")
    blocks = [HEAD, *blocks_of(tree)]
    for name in ORDER:
        blocks += entry(*nodes[name], "centroid.")
    for name, parts in MODULES.items():
        module = ast.parse((root / FOLDER / f"{name}.py").read_text())
        blocks += [f"## `centroid.{name}`", *blocks_of(module)]
        for part in parts:
            text = (root / FOLDER / f"{part}.py").read_text()
            for node in public(ast.parse(text)).values():
                if node.name in all_of(module) and (isinstance(node, ast.FunctionDef) or node.name in SHORT):
                    blocks += entry(node, text.splitlines(), f"centroid.{name}.", "###")
    return "\n\n".join(blocks) + "\n"


def main(arguments):
    roots = [argument for argument in arguments if argument != "--check"]
    root = pathlib.Path(roots[0]) if roots else pathlib.Path(__file__).resolve().parents[2]
    made = page(root)
    if "--check" not in arguments:
        (root / PAGE).write_text(made)
    elif not (root / PAGE).exists() or (root / PAGE).read_text() != made:
        print(f"{PAGE} is not what the docstrings of {FOLDER} say: run client/python/reference.py and commit the result")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
