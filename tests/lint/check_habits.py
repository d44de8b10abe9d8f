#!/usr/bin/env python3
"""Check habits of the code base: no sleeps in tests, no environment reads outside config, no detached work, no default stream of CUDA, no long files.

Usage: check_habits.py [ROOT]         exit status 1 when something is found.
Waive one line with a comment on it:  // lint-ok: <reason>
"""

import re
import sys

from sources import CPP, PYTHON, blank, code_of, files, is_waived, line_of, report, root_argument

MAX_LINES = 600

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
        r".*\.(h|cc|cuh?)",
        r"common/base/config[^/]*\.cc|tests/.*",
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
]


def rule_findings(name, text, code):
    for where, where_not, what, why in RULES:
        if not re.fullmatch(where, name) or re.fullmatch(where_not, name):
            continue
        for match in re.finditer(what, code):
            if not is_waived(text, match.start()):
                yield f"{name}:{line_of(text, match.start())}: {match.group().strip()}: {why}"


def findings(root):
    for name, path in files(root, CPP + PYTHON):
        text = path.read_text(encoding="utf-8")
        lines = text.count("\n")
        if lines > MAX_LINES:
            yield f"{name}: {lines} lines; split a file by {MAX_LINES}"
        yield from rule_findings(name, text, code_of(text) if path.suffix in CPP else re.sub(r"#[^\n]*", blank, text))


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
