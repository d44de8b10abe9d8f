#!/usr/bin/env python3
"""Make docs/reference/settings.md from what the programs print (`--help-all`, `--print-config`).

Usage: make_settings.py [--check] BIN_DIR     --check: exit status 1 when the page is not what would be made
"""

import json
import os
import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).resolve().with_name("settings.md")
INTRO = """# Settings

Every setting of `centroid-server`, `centroid-worker` and `centroidctl`. The script
`docs/reference/make_settings.py` makes this page from what the programs print.

- The setting `checkpoint.every_rounds` is the flag `--checkpoint.every-rounds 5`, the environment
  variable `CENTROID_CHECKPOINT_EVERY_ROUNDS`, and `"checkpoint.every_rounds": 5` or a nested object
  in the file of `--config`. `--no-resume` turns a switch off.
- `--help` lists the settings that a person begins with, `--help-all` those below.
- Later wins: default, file, environment, flags. `--print-config` shows the result.
- A secret may come from a file, with `_file` behind its name:
  %s.
- `*` marks a setting that [can change while the job runs](rest.md#changing-settings).
- Times are `250ms`, `30s`, `5m` or `1h`. Sizes are `64KiB`, `1MiB` or `2GB`.
"""
HEAD = "\nsetting | default<br>bounds | meaning\n---|---|---\n"
STEPS = {"ms": [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)], "bytes": [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]}


def printed(program, *words):
    return subprocess.run([program, *words], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}).stdout


def amount(value, unit):
    """A value as one would write it: 10s, 4MiB."""
    for suffix, size in STEPS.get(unit, []) if value else []:
        if value % size == 0:
            return f"{value // size}{suffix}"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else f"{value}"


def bounds(field):
    if "choices" in field:
        return "`" + "\\|".join(field["choices"]) + "`"
    least, most = (amount(field[end], field.get("unit")) if end in field else "" for end in ("min", "max"))
    return f"{least}–{most}" if least and most else f"≥{least}" if least else f"≤{most}" if most else ""


def words(text):
    """A meaning, with links to the pages that it names."""
    return re.sub(r"\bdocs/([\w/-]*?)([\w-]+)\.md\b", lambda m: f"[{m[2]}]({os.path.relpath(m[1] + m[2] + '.md', 'reference')})", text.replace("|", "\\|"))


def row(name, field):
    unit, default = field.get("unit", ""), amount(field["default"], field.get("unit"))
    is_clear = unit in ("", "ms", "bytes") or unit.rstrip("s") in name + field["text"]
    values = [f"`{default}`" + ("" if is_clear else f" {unit}") if default else "", bounds(field)]
    return f"`{name}`" + ("\\*" if field["live"] else "") + f" | {'<br>'.join(filter(None, values))} | {words(field['text'])}\n"


def program(path):
    """The rows of its settings by section, and the names of its secrets."""
    text, rows = printed(path, "--help-all"), {}
    fields = json.loads(printed(path, "--print-config"))
    for title, flag in re.findall(r"^(?:([A-Z].*)|  --([\w.-]+)(?: [A-Z]+)?)$", text, re.MULTILINE):
        if title:
            section = title
        elif (name := flag.replace("-", "_")) in fields:
            rows.setdefault(section, {})[name] = row(name, fields[name])
    return rows, [flag.replace("-", "_") for flag in re.findall(r"--([\w.-]+)-file FILE reads", text)]


def client(path):
    rows = []
    for option in re.split(r"\n(?=  -)", printed(path, "--help").partition("\nOptions:")[2].partition("\n\n")[0])[1:]:
        head, *meaning = re.split(r"\s*\n\s+|(?<=\S)\s{3,}", option.strip())
        flag, default, env = head.split()[0], re.search(r"=(\S+)", head), re.search(r"Env:(\w+)", head)
        if flag not in ("-h,--help", "--version"):
            rows.append(f"`{flag}`{f'<br>`{env[1]}`' if env else ''} | {f'`{default[1]}`' if default else ''} | {words(' '.join(meaning))}\n")
    return "\nflag<br>environment | default | meaning\n---|---|---\n" + "".join(rows)


def page(folder):
    (server, secrets), (worker, more) = program(folder / "centroid-server"), program(folder / "centroid-worker")
    bare = {name: line.replace("\\*", "") for rows in worker.values() for name, line in rows.items()}
    both = {name: line for rows in server.values() for name, line in rows.items() if line.replace("\\*", "") == bare.get(name)}
    text = INTRO % ", ".join(f"`{name}`" for name in dict.fromkeys(secrets + more))
    for heading, groups in (("centroid-server", server), ("centroid-worker", worker)):
        tables = {title: "".join(line for name, line in rows.items() if name not in both) for title, rows in groups.items()}
        text += f"\n## {heading}\n" + "".join(f"\n### {title}\n{HEAD}{rows}" for title, rows in tables.items() if rows)
    text += f"\n## Server and worker\n{HEAD}{''.join(both.values())}"
    return text + "\n## centroidctl\n\n[Monitor](../how-to/monitor.md#centroidctl) lists its commands.\n" + client(folder / "centroidctl")


def main(arguments):
    made = page(pathlib.Path(arguments[-1]).resolve())
    if "--check" in arguments and PAGE.read_text(encoding="utf-8") != made:
        return "docs/reference/settings.md is not what the programs print: run docs/reference/make_settings.py BIN_DIR and commit the result"
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
