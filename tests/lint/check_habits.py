#!/usr/bin/env python3
"""Check habits of the code base: no sleeps in tests, no imports of tests, no environment reads outside config, no detached work, no default stream of CUDA, no polls in the
server, no files beside common/storage, no long files, no comments of C++ beyond the column limit (clang-format leaves comments as they are).

Usage: check_habits.py [ROOT]         exit status 1 when something is found.
Waive one line with a comment on it:  // lint-ok: <reason>
"""

import re
import sys
import unicodedata

from sources import CPP, PYTHON, blank, code_of, files, is_waived, line_of, report, root_argument

MAX_LINES = 600
MAX_COLUMNS = 100

# (where, where not, what, why): regular expressions over the file's name and over its code
RULES = [
    (
        r"tests/.*\.(h|cc|cuh?)",
        r"",
        r"\bthis_thread\s*::\s*sleep_(for|until)|\b(u|nano)?sleep\s*\(",
        "a test does not sleep; wait for the condition under a deadline",
    ),
    (
        r"tests/.*\.py",
        r"tests/lint/.*",
        r"\btime\s*\.\s*sleep\s*\(",
        "a test does not sleep; wait for the condition under a deadline",
    ),
    (
        r"tests/.*\.py",
        r"",
        r"(?m)^[ \t]*(from|import)[ \t]+([\w.]+\.)?\w+_test\b",
        "no module imports a test; what tests share is in tests/harness",
    ),
    (
        r"tests/.*\.py",
        r"tests/(harness/__init__|lint/.*)\.py",
        r"\bsys\.path\b(?!\.insert\(0, str\(pathlib\.Path\(__file__\)\.resolve\(\)\.parents\[1\]\)\)\n)",
        "a test adds only the folder tests to the path: sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))",
    ),
    (
        r".*\.(h|cc|cuh?)",
        r"common/base/(config[^/]*|service_manager)\.cc|tests/.*",
        r"\b(secure_)?getenv\s*\(|\benviron\b",
        "the environment is read in common/base/config only",
    ),
    (
        r".*\.(h|cc|cuh?)",
        r"([a-z]+/)?main\.cc",
        r"\bdetached(_t)?\b|\.\s*detach\s*\(\s*\)",
        "no detached work outside main; children belong to a joined group",
    ),
    (
        r".*\.(h|cc|cuh?)",
        r"",
        r"\bcuda(DeviceSynchronize|ThreadSynchronize|StreamLegacy|StreamPerThread)\b|\bcuCtxSynchronize\b|\bcuda(Memcpy|Memset)\s*\(|<<<[^;<>,]*(,[^;<>,]*){1,2}>>>",
        "no default stream and no wait for a whole device: each waits for what other streams add with other devices",
    ),
    (
        r"server/.*\.(h|cc)",
        r"",
        r"\bsleep_until\s*\(",
        "the server does not poll; await what changes (common/async/until.h). Of a deadline, a tick, a retry, or what another process changes, say which",
    ),
    (
        r"server/(service|shard|store)/.*\.(h|cc)",
        r"",
        r"\bco_await[^;]*(\.|->)\s*wait\s*\(",
        "a wait says what for; use until (common/async/until.h), in server/service the one with a name that /v1/waits shows",
    ),
    (
        r"(common/(checkpoint|storage)|server|client|worker)/.*\.(h|cc)",
        # fault points, data sets, secrets and traces of a person who calls: none of it is state that a simulated disk must hold
        r"common/storage/posix_storage\.cc|common/checkpoint/fault_point\.cc|worker/data/.*|client/(online|trace)\.cc",
        r"\b[io]?fstream\b|\bf(re)?open\s*\(|(?<![\w>])::(open|openat|creat|read|write|pread|pwrite|preadv|pwritev|fsync|fdatasync|sync_file_range|stat|lstat"
        r"|fstat|fstatat|statvfs|access|ftruncate|truncate|rename|link|symlink|unlink|rmdir|mkdir|opendir|flock|mmap)\s*\("
        r"|\bstd::(rename|remove)\s*\([^,;]*\)"
        r"|\b(fs|filesystem)::(exists|is_\w+|(recursive_)?directory_iterator|remove\w*|rename|create_\w+|copy\w*|file_size|last_write_time"
        r"|resize_file|space|status|symlink_status|permissions|read_symlink|canonical|weakly_canonical|equivalent|hard_link_count)\b",
        "files go through common/storage, so that a simulated disk can stand in for the operating system's",
    ),
]


def rule_findings(name, text, code):
    for where, where_not, what, why in RULES:
        if not re.fullmatch(where, name) or re.fullmatch(where_not, name):
            continue
        for match in re.finditer(what, code):
            if not is_waived(text, match.start()):
                yield f"{name}:{line_of(text, match.start())}: {match.group().strip()}: {why}"


def width_findings(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        columns = sum(not unicodedata.combining(char) for char in line)
        if columns > MAX_COLUMNS and line.lstrip().startswith("//"):
            yield f"{name}:{number}: a comment of {columns} columns; wrap it by hand at {MAX_COLUMNS}"


def findings(root):
    for name, path in files(root, CPP + PYTHON):
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines; split a file by {MAX_LINES}"
        if path.suffix in CPP:
            yield from width_findings(name, text)
        yield from rule_findings(name, text, code_of(text) if path.suffix in CPP else re.sub(r"#[^\n]*", blank, text))


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
