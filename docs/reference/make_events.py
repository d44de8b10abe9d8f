#!/usr/bin/env python3
"""Make the tables of docs/reference/events.md from the sources.

Usage: make_events.py [--check] [ROOT]     --check: exit status 1 when the page is not what would be made
"""

import pathlib
import re
import sys

BEGIN = "<!-- Made by docs/reference/make_events.py: change the sources, then run it. -->"
LEVELS = {"error": "Errors", "warn": "Warnings", "info": "Information", "debug": "Debugging"}
PROGRAMS = {"centroid-server": ["server"], "centroid-worker and training programs": ["worker", "client"], "every program": ["common", "transport"]}
CALL = re.compile(r"\b(?:log::(trace|debug|info|warn|error|write)|tell)(?=\()")
NAME = r'"([a-z_]+\.[a-z_]+)"'


def arguments_of(text, at):
    """What stands between the bracket at `at` and its end, strings emptied of brackets."""
    depth, is_text = 0, False
    for end in range(at, len(text)):
        if text[end] == '"' and text[end - 1] != "\\":
            is_text = not is_text
        elif not is_text and text[end] in "({":
            depth += 1
        elif not is_text and text[end] in ")}":
            depth -= 1
            if depth == 0:
                break
    return text[at + 1 : end]


def fields_of(given, before):
    """The names of fields in the last argument: a list, or a variable that was made of one."""
    if not given.startswith("{"):
        lists = list(re.finditer(r'\{\{"', before)) if re.match(r"\w+$", given) else []
        given = arguments_of(before, lists[-1].start()) if lists else ""
    found = []
    for name, variable in re.findall(r'\{\s*"([a-z_]+)",|(?<=[{ ])([a-z]+)(?=[,}])', given):
        made = re.search(rf'\b{variable}\{{"(\w+)",', before) if variable else None
        found += [name] if name else [made[1]] if made else []
    return found


def logged(root, folders):
    """Event -> (its highest level, its fields) in the sources of these folders."""
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in sorted((root / folder).rglob("*")) if path.suffix in (".cc", ".h", ".cu", ".cuh")]
    found = {}
    for text in texts:
        for call in CALL.finditer(text):
            words = arguments_of(text, call.end())
            head, brace, given = words.partition("{")
            if not brace:
                head, _, given = words.rpartition(",") if "," in words else (words, "", "")
            levels = [call[1]] if call[1] in LEVELS else [level.lower() for level in re.findall(r"Level::k(\w+)", head)]
            names = re.findall(NAME, head)
            for member in re.findall(r"\bnames_\.(\w+)", head):
                names += [name for other in texts for name in re.findall(rf"\.{member} = {NAME}", other)]
            for name in names if levels else []:
                old, known = found.get(name, ("debug", []))
                fields = fields_of((brace + given).strip(), text[: call.start()])
                found[name] = (min([*levels, old], key=list(LEVELS).index), known + [field for field in fields if field not in known])
    return found


def code(words):
    return ", ".join(f"`{word}`" for word in words)


def rest_events(root):
    """Type -> (its fields, its meaning), as server/events/event_types.cc describes them."""
    text = re.sub(r'"\s*"', "", (root / "server" / "events" / "event_types.cc").read_text(encoding="utf-8"))  # literals in one piece
    found = {}
    for name, meaning, fields in re.findall(rf'{NAME},\s*"((?:[^"\\]|\\.)*)",\s*\{{((?:\{{.*?\}},?\s*)*)\}}', text, re.DOTALL):
        found[name] = (re.findall(r'\{"(\w+)"', fields), meaning.replace('\\"', '"'))
    return found


def tables(root):
    types = rest_events(root)
    programs = {title: logged(root, folders) for title, folders in PROGRAMS.items()}
    rows = []
    for name, (fields, meaning) in sorted(types.items()):
        level, _ = programs["centroid-server"].pop(name, ("", []))
        rows.append(f"`{name}` | {level} | {code(fields)} | {meaning}")
    text = "\n## Events of REST\n\nevent | level in the log | fields | meaning\n---|---|---|---\n" + "\n".join(rows) + "\n"
    for title, events in programs.items():
        text += f"\n## Log of {title}\n"
        for level, heading in LEVELS.items():
            rows = [f"`{name}` | {code(fields)}" for name, (highest, fields) in sorted(events.items()) if highest == level]
            text += f"\n### {heading}\n\nevent | fields\n---|---\n" + "\n".join(rows) + "\n" if rows else ""
    return text


def main(arguments):
    roots = [word for word in arguments if word != "--check"]
    root = pathlib.Path(roots[0]) if roots else pathlib.Path(__file__).resolve().parents[2]
    file = root / "docs" / "reference" / "events.md"
    text = file.read_text(encoding="utf-8")
    made = text.partition(BEGIN)[0] + BEGIN + "\n" + tables(root)
    if "--check" in arguments and text != made:
        print("docs/reference/events.md is not what the sources say: run docs/reference/make_events.py and commit the result")
        return 1
    file.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
