"""Points at which tests kill programs (common/checkpoint/fault_point.h): all that the sources have, and which test reaches each."""

import re

from harness import ROOT

FOLDERS = ("common", "transport", "server", "worker", "client")
POINT = re.compile(r'fault::point\(\s*"([a-z_.]+)"\)')
STEM = re.compile(r'fault::Stem\(\s*"([a-z_.]+)"\)')
OF_A_STEM = ("torn", "drafted", "renamed")
# By the beginning of the name; the others are durability_test.py's. At those of none nothing is written: tests stop programs there, or count how often they come.
OWNERS = {
    **dict.fromkeys(("duty.", "sharded.", "tables.", "trial.", "worker."), "none"),
    "rows_journal.": "rows_test.py",
    "rows_moves.": "rows_moves_test.py",
    "servers.rows_put": "rows_servers_test.py",
    "servers.": "servers_journal_test.py",
    "restore.": "restore_test.py",
    "verify.": "servers_journal_test.py",
    **dict.fromkeys(("adapters.", "endpoints.", "feedback.", "fetch.", "operator.", "term.", "tokens."), "small_files_test.py"),
}


def owner(name):
    return next((test for begin, test in OWNERS.items() if name.startswith(begin)), "durability_test.py")


def in_sources():
    names = set()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.cc")):
        text = path.read_text()
        names.update(POINT.findall(text))
        names.update(f"{stem}.{what}" for stem in STEM.findall(text) for what in OF_A_STEM)
    return names


def owned_by(test):
    """Names in the sources that this test must reach."""
    return {name for name in in_sources() if owner(name) == test}


def reached(log, *tests):
    """Of the names in a CENTROID_TEST_FAULT_LOG those of these tests (of all but small_files_test.py and none), in their order."""
    names = log.read_text().split()
    return [name for name in names if (owner(name) in tests if tests else owner(name) not in ("small_files_test.py", "none"))]
