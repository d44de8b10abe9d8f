#!/usr/bin/env python3
"""Check the documents: length of pages and lines, words in all, links and anchors, pages that sources name, and pages made by scripts.

Usage: check_docs.py [ROOT]         exit status 1 when something is found.
"""

import pathlib
import re
import subprocess
import sys
import unicodedata

from sources import FOLDERS, files, is_waived, line_of, report, root_argument

MAX_LINES = 250  # of a page outside docs/reference
MAX_COLUMNS = 100  # of prose; tables and blocks of code may be wider
MAX_WORDS = 45_000  # of all pages together; marks of tables and lists are none
UNMEASURED = ("CHANGELOG.md", "docs/reference/wire.md")  # a history, and a protocol: only their links are checked
WIDE = ("docs/reference/python.md",)  # made from docstrings: a paragraph is a line
MADE = ("docs/reference/make_events.py", "client/python/reference.py")  # each takes --check ROOT
BENCHMARKS = "docs/internals/benchmarks.md"
UNNAMED = ("tests/lint/lint_test.py",)  # plants errors
NAMING = (".h", ".cc", ".cu", ".cuh", ".py", ".mjs", ".js", ".html", ".cmake", ".yaml", ".json")

FENCE = re.compile(r"^ *(```+|~~~+)")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
DELIMITER = re.compile(r"^(?=.*\|)[ |:-]*-[ |:-]*$")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^)<>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)|^ *\[[^\]]+\]:\s*(\S+)")
HEADING = re.compile(r"^#{1,6} +(.*?)[ #]*$")
TARGET = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
PAGE_NAME = re.compile(r"\bdocs/[a-z0-9_/-]+\.md\b")


def pages(root):
    """Yield (name relative to root, text) of every Markdown page."""
    root = pathlib.Path(root)
    paths = [*root.glob("*.md"), *(path for folder in FOLDERS for path in (root / folder).rglob("*.md") if "node_modules" not in path.parts)]
    for path in sorted(paths):
        yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def prose(text):
    """Yield (line number, line, whether it is of a table) of the lines outside blocks of code."""
    lines, fence, is_table = text.splitlines(), "", False
    for number, line in enumerate(lines, 1):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and not mark:
            is_table = bool(line.strip()) and (is_table or (number < len(lines) and bool(DELIMITER.match(lines[number]))))
            yield number, line, is_table


def anchors(text):
    """The anchors of a page, as GitHub makes them from headings."""
    found, counts = set(), {}
    for _, line, _ in prose(text):
        found.update(TARGET.findall(line))
        if heading := HEADING.match(line):
            words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            count = counts.setdefault(slug, 0)
            counts[slug] += 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def length_findings(name, text):
    lines = text.count("\n")
    if lines > MAX_LINES and not name.startswith("docs/reference/"):
        yield f"{name}: {lines} lines; split a page by {MAX_LINES}, or shorten it"
    for number, line, is_table in prose(text):
        columns = sum(not unicodedata.combining(char) for char in line)
        if columns > MAX_COLUMNS and not is_table and name not in WIDE:
            yield f"{name}:{number}: a line of {columns} columns; wrap prose at {MAX_COLUMNS}"


def link_findings(root, name, text, known):
    for number, line, _ in prose(text):
        for match in LINK.finditer(CODE.sub("``", line)):
            link = match[1] or match[2]
            if re.match(r"[a-z][a-z+.-]*:", link):
                continue
            target, _, anchor = link.partition("#")
            path = (root / name).parent / target if target else root / name
            if not path.exists():
                yield f"{name}:{number}: {link}: there is no such file"
            elif anchor and path.suffix == ".md":
                page = path.resolve()
                if page not in known:
                    known[page] = anchors(page.read_text(encoding="utf-8"))
                if anchor not in known[page]:
                    yield f"{name}:{number}: {link}: the page has no such anchor"


def named_findings(root):
    for name, path in files(root, NAMING):
        text = path.read_text(encoding="utf-8") if name not in UNNAMED else ""
        for match in PAGE_NAME.finditer(text):
            if not (root / match[0]).exists() and not is_waived(text, match.start()):
                yield f"{name}:{line_of(text, match.start())}: {match[0]}: there is no such page"


def bench_findings(root):
    """Benchmarks in Python have a name for `./centroid bench`, and a page says what they measure."""
    page, register = root / BENCHMARKS, root / "tests" / "bench" / "bench.cmake"
    if not page.exists() or not register.exists():
        return
    said = set(re.findall(r"\w+\.py", " ".join(re.findall(r"`([^`]+)`", page.read_text(encoding="utf-8")))))
    registered = set(re.findall(r"^centroid_bench_script\((\w+\.py)", register.read_text(encoding="utf-8"), re.MULTILINE))
    for path in sorted(register.parent.glob("*.py")):
        if '__name__ == "__main__"' not in path.read_text(encoding="utf-8"):
            continue
        if path.name not in registered:
            yield f"tests/bench/bench.cmake: {path.name} is not registered with centroid_bench_script"
        if path.name not in said:
            yield f"{BENCHMARKS}: {path.name} is not named; say what it measures and how it is called"


def made_findings(root):
    for script in MADE:
        if (root / script).exists():
            done = subprocess.run([sys.executable, root / script, "--check", root], capture_output=True, text=True, check=False)
            if done.returncode:
                yield (done.stdout + done.stderr).strip()


def findings(root):
    root, known, words = pathlib.Path(root).resolve(), {}, 0
    for name, text in pages(root):
        if name not in UNMEASURED:
            words += sum(re.search(r"\w", word) is not None for word in text.split())
            yield from length_findings(name, text)
        yield from link_findings(root, name, text, known)
    if words > MAX_WORDS:
        yield f"all pages together: {words} words; at most {MAX_WORDS}, so say it shorter or once"
    yield from named_findings(root)
    yield from bench_findings(root)
    yield from made_findings(root)


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
