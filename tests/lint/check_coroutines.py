#!/usr/bin/env python3
"""Check the coroutine rules that a text search can see.

1. No brace initialiser and no lambda inside a statement that contains co_await: g++ 12 destroys such temporaries twice.
2. No co_await in a branch of `?:`: g++ 12 destroys the result of the branch not taken. No `->` in one behind co_await: it evaluates both.
3. A coroutine lambda captures nothing: its captures die with the lambda object, before the coroutine's first resume.
4. A loop looks at what `sleep_until`, and an Event's `wait` without a deadline, say: false means that the task is cancelled, and
   they say it without suspending, so a loop that goes on regardless spins for ever, and its thread with it.

Usage: check_coroutines.py [ROOT]     exit status 1 when something is found.
Waive one line with a comment on it:  // lint-ok: <reason>
"""

import re
import sys

from sources import CPP, code_of, files, is_waived, line_of, report, root_argument

BLOCK_WORDS = (")", "else", "do", "try", "mutable", "noexcept", "override", "const", "final")
LAMBDA_HEAD = r"\]\s*(\([^()]*\))?\s*(mutable\s*)?(noexcept\s*)?(->\s*[\w:<>,\s*&]+)?$"
LAMBDA = re.compile(
    r"\[(?P<captures>[^\[\]]*)\]\s*(\((?:[^()]|\([^()]*\))*\)\s*)?(mutable\s*)?(noexcept\s*)?(->\s*[\w:<>,\s*&]+?)?\s*\{"
)
BRANCH = re.compile(r"\?[^;{}]*?\bco_await\b")
CHOICE = re.compile(r"\bco_await\b[^;{}?]*\?[^;{}]*->")
LOOP = re.compile(r"\b(?:while|for)\s*\(|\bdo\s*\{")
WAIT = re.compile(r"(?:\(void\)\s*)?\bco_await\s+(?:(?:\w+(?:\(\))?(?:\.|->))*(?:wait|async_wait)|(?:\w+::)*sleep_until)\s*\(")
AWAITS = re.compile(r"\bco_(await|return|yield)\b")


def opens_block(before):
    """Whether the '{' after this text of a statement opens a block and not an initialiser or a lambda's body."""
    before = before.rstrip()
    if not before or before[-1] in ";{}:":
        return True
    if re.search(LAMBDA_HEAD, before):
        return False
    if before.endswith(BLOCK_WORDS):
        return True
    return bool(
        re.search(r"\b(namespace|class|struct|enum|union|concept)\b[^;{}()]*$|\)\s*->\s*[\w:<>,\s*&]+$", before)
    )


def end_of(code, opening, pair="{}"):
    """Position of the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(code)):
        depth += {pair[0]: 1, pair[1]: -1}.get(code[at], 0)
        if depth == 0:
            return at
    return len(code)


def split_lambdas(code):
    """The code with the bodies of its outermost lambdas blanked, and (start, captures, body start, body) of each of them."""
    lambdas, at = [], 0
    while match := LAMBDA.search(code, at):
        start, end = match.end(), end_of(code, match.end() - 1)
        lambdas.append((match.start(), match["captures"].strip(), start, code[start:end]))
        code = code[:start] + " " * (end - start) + code[end:]
        at = end
    return code, lambdas


def brace_findings(code, offset=0):
    """Positions of a '{' inside a statement with co_await."""
    code, lambdas = split_lambdas(code)
    for _, _, at, body in lambdas:
        yield from brace_findings(body, offset + at)
    start, depth, initialisers = 0, 0, []
    for at, char in enumerate(code):
        is_end = char == ";" and depth == 0
        if char == "{":
            if depth or not opens_block(code[start:at]):
                depth += 1
                initialisers.append(at)
            else:
                is_end = True
        elif char == "}":
            is_end = depth == 0
            depth = max(0, depth - 1)
        if is_end:
            if initialisers and re.search(r"\bco_await\b", code[start:at]):
                yield offset + initialisers[0]
            start, initialisers = at + 1, []


def capture_findings(code, offset=0):
    """Positions of lambdas with captures whose own body is a coroutine."""
    for start, captures, at, body in split_lambdas(code)[1]:
        if captures and AWAITS.search(split_lambdas(body)[0]):
            yield offset + start
        yield from capture_findings(body, offset + at)


def loop_bodies(code):
    """(start, end) of the body of every loop."""
    for match in LOOP.finditer(code):
        at = match.end() - 1
        if code[at] == "(":
            at = end_of(code, at, "()") + 1
        while at < len(code) and code[at].isspace():
            at += 1
        end = end_of(code, at) if code[at : at + 1] == "{" else code.find(";", at)
        yield at, end


def spin_findings(code):
    """Positions of waits in a loop that drop what they say."""
    bodies = list(loop_bodies(code))
    for match in WAIT.finditer(code):
        before = code[: match.start()].rstrip()
        is_statement = before.endswith((";", "{", "}", ")", ":", "else"))
        is_negated = before.endswith("!")
        if is_negated or not is_statement:
            continue
        if re.search(r"\b(?:if|while)\s*\($", before):
            continue
        statement = code[match.start() : code.find(";", match.start())]
        has_deadline = "sleep_until" not in match[0] and "::max()" not in statement
        if not has_deadline and any(start <= match.start() < end for start, end in bodies):
            yield match.start()


def findings(root):
    for name, path in files(root, CPP):
        text = path.read_text(encoding="utf-8")
        if "co_" not in text:
            continue
        code = code_of(text)
        for at in brace_findings(code):
            if not is_waived(text, at):
                yield f"{name}:{line_of(text, at)}: brace or lambda inside a co_await statement; name it on the line above (an empty span: Bytes())"
        for match in BRANCH.finditer(code):
            if not is_waived(text, match.start()):
                yield f"{name}:{line_of(text, match.start())}: co_await in a branch of `?:`; write if and else"
        for match in CHOICE.finditer(code):
            if not is_waived(text, match.start()):
                yield f"{name}:{line_of(text, match.start())}: `->` in a branch of `?:` behind co_await; name it on the line above"
        for at in () if name.startswith("tests/") else spin_findings(code):
            if not is_waived(text, at):
                yield f"{name}:{line_of(text, at)}: a wait in a loop whose result is dropped: a cancelled task would spin; leave on false"
        for at in capture_findings(code):
            if not is_waived(text, at):
                yield f"{name}:{line_of(text, at)}: a coroutine lambda captures nothing; pass what it needs as parameters"


if __name__ == "__main__":
    sys.exit(report(findings(root_argument())))
