"""The project's own source files and their text without comments, for the lints beside this file."""

import pathlib
import re
import sys

FOLDERS = ("common", "transport", "server", "worker", "client", "deploy", "dashboards", "docs", "tests")
CPP = (".h", ".cc", ".cu", ".cuh")
PYTHON = (".py",)
WAIVER = "lint-ok:"  # in a comment on the same line, with the reason behind it

NOISE = re.compile(r'(?<!\w)(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DIGIT_SEPARATOR = re.compile(r"(?<=[0-9A-Fa-f])'(?=[0-9A-Fa-f])")


def files(root, suffixes):
    """Yield (name relative to root, path) of the sources with one of the suffixes, in order."""
    root = pathlib.Path(root)
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path


def blank(match):
    """Spaces for everything but line ends, so that positions stay."""
    return re.sub(r"[^\n]", " ", match.group())


def code_of(text):
    """C++ without comments and without the content of literals, of the same length."""
    return NOISE.sub(blank, DIGIT_SEPARATOR.sub("_", text))


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def is_waived(text, position):
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    return WAIVER in text[start : end if end >= 0 else len(text)]


def report(findings):
    """Print findings; return the exit status of the lint."""
    count = 0
    for finding in findings:
        print(finding)
        count += 1
    return 1 if count else 0


def root_argument():
    """ROOT of the command line, by default the checkout this file is in."""
    return sys.argv[1] if len(sys.argv) > 1 else str(pathlib.Path(__file__).resolve().parents[2])
