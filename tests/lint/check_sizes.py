#!/usr/bin/env python3
"""Check that no class has more than 60 methods or 40 fields, and that no function has more than 80 lines.

methods  functions of a class, with constructors, operators and what is defaulted or deleted
fields   its data members, but for constants (static constexpr); those of a class in it are that one's
lines    of a function, from the first of its declaration to its closing brace; a lambda belongs to the function around it

Usage: check_sizes.py [ROOT]           exit status 1 when something is found.
       check_sizes.py --print [ROOT]   every class and function with its size
"""

import collections
import pathlib
import re
import sys

from sources import CPP, blank, code_of, files, report

FOLDERS = ("common/", "transport/", "server/", "worker/", "client/")
LIMITS = {"methods": 60, "fields": 40, "lines": 80}

DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
LABEL = re.compile(r"\s*(?:(?:public|private|protected)\s*:(?!:)|\[\[[^\]]*\]\])\s*")
TEMPLATE = re.compile(r"\s*template\s*<")
NOT_A_NAME = re.compile(r"\b(?:alignas|decltype|noexcept|requires|explicit|__attribute__|__launch_bounds__)\s*(?=\()")
CLASS = re.compile(r"(?:class|struct|union)\b\s*(?:\[\[[^\]]*\]\]\s*)*(?P<name>[\w:]*)[^()=]*$")
NOT_A_MEMBER = re.compile(r"(?:using|typedef|friend|static_assert|enum|extern|namespace)\b|(?:class|struct|union)\s+[\w:]+\s*$")
OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+|[\w:<>*&\s]+?)\s*(?=\()")
NAME = re.compile(r"(?:\w+\s*::\s*)*~?\w+$")

Class = collections.namedtuple("Class", "name file line methods fields")
Function = collections.namedtuple("Function", "name file line lines")


def without_nested(text, pair):
    """The text with everything in brackets of this kind blanked, the outermost brackets too."""
    inner = re.compile(rf"\{pair[0]}[^\{pair[0]}\{pair[1]}]*\{pair[1]}")
    while True:
        text, count = inner.subn(blank, text)
        if not count:
            return text


def flat(text):
    """A declaration without attributes, template arguments and what stands in `alignas(..)` and its like; positions stay."""
    text = re.sub(r"\[\[[^\]]*\]\]", blank, text)
    while match := NOT_A_NAME.search(text):
        depth, at = 0, match.end()
        while at < len(text):
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        text = text[: match.start()] + " " * (at - match.start()) + text[at:]
    operator = OPERATOR.search(text)
    if operator:  # its own brackets are a part of its name
        text = text[: operator.start()] + re.sub(r"[^\n]", "o", operator.group()) + text[operator.end() :]
    text = re.sub(r"->|<=>|<=|>=|<<|>>=", lambda match: " " * len(match.group()), text)
    return without_nested(text, "<>")


def function_name(head):
    """Name of the function that this text declares, qualified as it stands there; None when it declares none."""
    plain = flat(head)
    opening = plain.find("(")
    if opening < 0 or re.search(r"[={\[]", plain[:opening]) or re.match(r"\(\s*[*&]", plain[opening:]):
        return None  # a value, or a pointer to a function
    operator = OPERATOR.search(head)
    if operator:
        before = NAME.search(without_nested(head[: operator.start()], "<>").rstrip().removesuffix("::").rstrip())
        is_qualified = head[: operator.start()].rstrip().endswith("::")
        text = re.sub(r"\s+", " ", operator.group().strip())
        return re.sub(r"\s", "", before.group()) + "::" + text if is_qualified and before else text
    name = NAME.search(plain[:opening].rstrip())
    return re.sub(r"\s", "", name.group()) if name else None


def is_initialiser(head):
    """Whether a '{' behind this text of a constructor begins the value of a member and not the body."""
    plain = without_nested(flat(head), "()")
    in_list = re.search(r"(?<!:):(?!:)", plain)
    return bool(in_list) and re.search(r"[\w>]\s*$", head) is not None and plain[in_list.end() :].strip() != ""


def head_of(text):
    """A declaration without what may stand before it, and how much that was: labels, attributes, template parameters."""
    at = len(text) - len(text.lstrip())
    while match := LABEL.match(text, at):
        at = match.end()
    begin = at
    while TEMPLATE.match(text, at):
        depth, at = 0, text.index("<", at)
        while at < len(text):
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            at += 1
            if depth == 0:
                break
        at += len(text[at:]) - len(text[at:].lstrip())
    return text[at:], begin


class Scope:
    """What a brace opened: "namespace", "class", "function", "block", or "value" (an initialiser, an enum)."""

    def __init__(self, kind, name, begin, at):
        self.kind, self.name, self.begin, self.at = kind, name, begin, at
        self.methods = self.fields = 0
        self.parentheses = 0


def opened(scope, head):
    """Kind and name of the scope that a '{' behind this text opens in `scope`."""
    if scope.kind == "value" or scope.parentheses > 0:
        return "value", ""
    is_class = CLASS.match(without_nested(head, "<>"))
    if is_class:
        return "class", is_class["name"] or "(anonymous)"
    if scope.kind in ("function", "block"):
        return "block", ""
    if match := re.match(r"(?:inline\s+)?namespace\b\s*([\w:]*)|extern\s*$", head):
        return "namespace", match[1] or ""
    name = function_name(head)
    if name and not head.startswith("enum") and not is_initialiser(head):
        return "function", name
    return "value", ""


def count_member(scope, text):
    """Add a declaration that ends with ';' to the class it stands in."""
    head, _ = head_of(text)
    head = head.strip()
    if not head or NOT_A_MEMBER.match(head):
        return
    if function_name(head):
        scope.methods += 1
    elif not re.match(r"(?:static|inline|constexpr|\s)*\bconstexpr\b", head):
        plain = flat(head)
        for pair in ("()", "{}", "[]"):
            plain = without_nested(plain, pair)
        scope.fields += 1 + plain.count(",")


def sizes_of(name, text):
    """Every Class and Function of a file. ValueError when its braces do not match."""
    code = DIRECTIVE.sub(blank, code_of(text))
    stack, found, start, line, counted = [Scope("namespace", "", 0, 0)], [], 0, 1, 0

    def line_at(position):
        nonlocal line, counted
        line += code.count("\n", counted, position) if position >= counted else -code.count("\n", position, counted)
        counted = position
        return line

    def qualified(last):
        return "::".join([scope.name for scope in stack if scope.name and scope.kind != "value"] + [last])

    for match in re.finditer(r"[{}();]", code):
        char, at, scope = match.group(), match.start(), stack[-1]
        if char == "(":
            scope.parentheses += 1
        elif char == ")":
            scope.parentheses -= 1
        elif char == ";":
            if scope.parentheses == 0 and scope.kind != "value":
                if scope.kind == "class":
                    count_member(scope, code[start:at])
                start = at + 1
        elif char == "{":
            head, begin = head_of(code[start:at])
            kind, last = opened(scope, head)
            if kind == "function" and scope.kind == "class":
                scope.methods += 1
            full = qualified(last) if kind in ("class", "function") else ""
            stack.append(Scope(kind, last, start + begin, full))
            if kind != "value":
                start = at + 1
        else:
            if len(stack) == 1 or scope.parentheses != 0:
                raise ValueError(f"{name}:{line_at(at)}: a closing bracket without its opening one")
            stack.pop()
            if scope.kind == "class":
                found.append(Class(scope.at, name, line_at(scope.begin), scope.methods, scope.fields))
            elif scope.kind == "function":
                first = line_at(scope.begin)
                found.append(Function(scope.at, name, first, line_at(at) - first + 1))
            if scope.kind != "value":
                start = at + 1
    if len(stack) != 1:
        raise ValueError(f"{name}: a bracket is not closed")
    return found


def measured(root):
    """Largest figure of each (what, name), with where it is: names may come twice (overloads, unnamed namespaces)."""
    largest = {}
    for name, path in files(root, CPP):
        if not name.startswith(FOLDERS):
            continue
        for item in sizes_of(name, path.read_text(encoding="utf-8")):
            for what in ("lines",) if isinstance(item, Function) else ("methods", "fields"):
                figure = getattr(item, what)
                if figure > largest.get((what, item.name), (0,))[0]:
                    largest[what, item.name] = (figure, f"{item.file}:{item.line}")
    return largest


def findings(root):
    for (what, name), (figure, where) in sorted(measured(root).items(), key=lambda item: item[1][1]):
        if figure > LIMITS[what]:
            yield f"{where}: {name} has {figure} {what}, at most {LIMITS[what]}; make it smaller"


if __name__ == "__main__":
    arguments = sys.argv[1:]
    prints = arguments[:1] == ["--print"]
    root_folder = arguments[-1] if len(arguments) > prints else str(pathlib.Path(__file__).resolve().parents[2])
    if not prints:
        sys.exit(report(findings(root_folder)))
    for (kind, item_name), (count, place) in sorted(measured(root_folder).items()):
        print(kind, count, item_name, place)
