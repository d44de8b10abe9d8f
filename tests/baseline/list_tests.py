#!/usr/bin/env python3
"""List every test by name. A test that is missing from a later list was lost.

Usage: list_tests.py BUILD_DIR [--built] [--against FILE]

Prints one name a line, sorted. BUILD_DIR must be configured:

ctest NAME                           as `ctest -N` prints it, for example lint.layers
python FILE/Class.method             a test of a Python file (unittest), without `_test.py`
google FILE/Suite.Case               a GoogleTest macro in the sources, without `.cc`
instance FILE/Prefix/Suite           INSTANTIATE_TEST_SUITE_P

--built: print instead `built NAME/Suite.Case` of each test of the GoogleTest programs (--gtest_list_tests), with one name for each
parameter. All test programs must be built.
--against FILE: print only the differences: - for names that only FILE has, + for names that only this list has. Exit status 1 if there is
any -. tests/baseline/test_names.txt is the list of commit 9a33d03. A name is not missing if moved_names.txt says where its behaviour is
covered now, or why there is none.

CUDA and fuzzers add names to ctest, so compare builds with the same options.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

MOVED = pathlib.Path(__file__).with_name("moved_names.txt")
TESTS = pathlib.Path(__file__).resolve().parents[1]
CASE = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
INSTANCE = re.compile(r"^INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+)\s*,", re.MULTILINE)

# Run in a process of its own for each file, which then has the tests of this file alone.
LIST_UNITTEST = """
import importlib.util, sys, unittest
spec = importlib.util.spec_from_file_location("tests", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

def walk(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from walk(one)
        else:
            yield one.id().partition(".")[2]

print(*walk(unittest.defaultTestLoader.loadTestsFromModule(module)), sep="\\n")
"""


def output_of(command, environment=None):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def google_tests(command):
    """Suite.Case of each test that the command runs. Behind a # stands the value of a parameter."""
    suite = ""
    for line in output_of([*command, "--gtest_list_tests"]).splitlines():
        name = line.partition("#")[0].rstrip()
        if name.startswith("  "):
            yield suite + name.strip()
        elif name.endswith("."):
            suite = name


def python_tests(script):
    environment = {**os.environ, "PYTHONPATH": str(script.parent)}  # as for a program
    return output_of([sys.executable, "-c", LIST_UNITTEST, script], environment).split()


def ctest(build):
    """Name and command of each entry."""
    for test in json.loads(output_of(["ctest", "--test-dir", build, "--show-only=json-v1"]))["tests"]:
        yield test["name"], test.get("command")


def names(build):
    for name, command in ctest(build):
        yield f"ctest {name}"
        for word in command or ():
            if word.endswith("_test.py"):
                script = pathlib.Path(word)
                yield from (f"python {script.stem.removesuffix('_test')}/{one}" for one in python_tests(script))
    for path in [*TESTS.rglob("*.cc"), *TESTS.rglob("*.h")]:
        text = path.read_text()
        yield from (f"google {path.stem}/{suite}.{case}" for suite, case in CASE.findall(text))
        yield from (f"instance {path.stem}/{prefix}/{suite}" for prefix, suite in INSTANCE.findall(text))


def built_names(build):
    for name, command in ctest(build):
        if not command:
            raise SystemExit(f"{name}: its program is not built")
        if pathlib.Path(command[-1]).parent.name == "tests":  # perhaps behind side_by_side.py
            yield from (f"built {name}/{one}" for one in google_tests(command[-1:]))


def moved_names(found):
    """Names of the baseline that need no test of that name: those whose successor is found, or that have none."""
    for line in MOVED.read_text().splitlines():
        old, _, now = line.partition(" -> ")
        if not line.startswith("#") and (now in found or now.startswith("none: ")):
            yield old


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--built", action="store_true")
    parser.add_argument("--against", type=pathlib.Path)
    options = parser.parse_args()
    found = sorted(set((built_names if options.built else names)(options.build)))
    if options.against is None:
        print(*found, sep="\n")
        return 0
    before = set(options.against.read_text().split("\n")) - {""}
    missing = sorted(before - set(found) - set(moved_names(set(found))))
    print(*[f"- {name}" for name in missing], *[f"+ {name}" for name in sorted(set(found) - before)], sep="\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
