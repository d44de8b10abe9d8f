#!/usr/bin/env python3
"""Make the table of paths in docs/reference/rest.md from the OpenAPI document that centroid-server prints.

Usage: reference.py [--check] BIN_DIR     --check: exit status 1 when the committed table is not what would be made
"""

import json
import pathlib
import subprocess
import sys

BEGIN = "<!-- Made by server/api/reference.py from the routes in server/api: change those, then run it. -->"
END = "<!-- End of what was made. -->"
CALLERS = ("none", "viewer", "worker", "admin")  # roles of tokens, the least first
HEAD = f"method and path | body | answer | {' | '.join(CALLERS)} | use\n" + "|".join(["---"] * 8)
KINDS = {"text/plain": "text", "image/svg+xml": "SVG", "text/event-stream": "a stream", "application/octet-stream": "its bytes"}
TOLD = ("404", "412", "416")  # errors that say something of one operation; docs/reference/rest.md tells of the others once for all


def shape(document, schema):
    """A schema in a few words: the fields of a small object, `[...]` for a list."""
    name = schema.get("$ref", "").rpartition("/")[2]
    fields = (document["components"]["schemas"][name] if name else schema).get("properties", {})
    lists = [field for field, value in fields.items() if value.get("type") == "array"]
    if "next" in fields and lists:
        return '`{"%s": [...], "next"}`' % lists[0]
    return name


def answers(document, operation):
    texts = []
    for status, answer in operation["responses"].items():
        if status[0] in "23":
            kinds = answer.get("content", {})
            words = [shape(document, value["schema"]) if kind == "application/json" else KINDS.get(kind, kind) for kind, value in kinds.items()]
            texts.append(" ".join([status, " or ".join(word for word in words if word)]).strip())
        elif status in TOLD:
            texts.append(status)
    return ", ".join(texts)


def body(document, operation):
    if "requestBody" not in operation:
        return ""
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    fields = document["components"]["schemas"][name].get("properties", {})
    return "`{" + ", ".join(f'"{field}"' for field in fields) + "}`" if fields else name if name != "Empty" else ""


def query_text(parameter):
    schema = parameter["schema"]
    parts = [parameter["description"].rstrip(".")]
    if "maximum" in schema:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    if "default" in schema:
        parts.append(f"{schema['default']} when absent")
    return f"`{parameter['name']}`: " + "; ".join(parts) + "."


def row(document, method, path, operation):
    query = [one for one in operation.get("parameters", []) if one["in"] == "query"]
    names = "&".join(one["name"] for one in query)
    use = operation["summary"]
    if "description" in operation:
        use += ". " + operation["description"]
    texts = [query_text(one) for one in query if one["name"] not in ("limit", "cursor")]
    if texts:
        use = use.rstrip(".") + ". " + " ".join(texts)
    # who is nobody is refused with 401, who may not with 403: every change, and the reads that need an admin. A 403 of another name is for a part
    # of what an operation gives.
    refused = operation["responses"].get("403", {}).get("$ref", "").rpartition("/")[2]
    least = "none" if operation.get("security") == [] else {"Forbidden": "admin", "ForbiddenToViewers": "worker"}.get(refused, "viewer")
    may = ["✓" if CALLERS.index(caller) >= CALLERS.index(least) else "–" for caller in CALLERS]
    cells = [f"{method.upper()} {path}" + (f"?{names}" if names else ""), body(document, operation), answers(document, operation), *may, use]
    return " | ".join(cell.replace("|", "\\|") for cell in cells)


def table(document):
    rows = [row(document, method, path, operation) for path, item in document["paths"].items() for method, operation in item.items()]
    return "\n".join([HEAD, *rows])


def page(text, document):
    """The text of docs/reference/rest.md with the table of this document in its place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"docs/reference/rest.md: the lines '{BEGIN}' and '{END}' say where the table goes; one is missing")
    return f"{before}{BEGIN}\n\n{table(document)}\n\n{END}{after}"


def main(arguments):
    is_check = "--check" in arguments
    (folder,) = [argument for argument in arguments if argument != "--check"]
    file = pathlib.Path(__file__).resolve().parents[2] / "docs" / "reference" / "rest.md"
    printed = subprocess.run([pathlib.Path(folder) / "centroid-server", "--print-openapi"], capture_output=True, text=True, check=True).stdout
    made = page(file.read_text(), json.loads(printed))
    if not is_check:
        file.write_text(made)
    elif file.read_text() != made:
        print("docs/reference/rest.md differs from the routes: run server/api/reference.py BIN_DIR and commit the result")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
