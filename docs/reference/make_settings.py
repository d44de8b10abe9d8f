#!/usr/bin/env python3
"""Make docs/reference/settings.md from what the programs print (`--help`, `--print-config`).

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

- The setting `lease` is the flag `--lease 10s`, and `"lease": "10s"` in the file of `--config`.
- A second name in the tables is a second flag. `--no-resume` turns a switch off.
- The environment variable of `api.listen` is `CENTROID_API_LISTEN`.
- Later wins: default, file, environment, flags. `--print-config` shows the result.
- A secret may come from a file, with `_file` behind its name:
  %s.
- `*` marks a setting that [can change while the job runs](rest.md#changing-settings).
- Times are `250ms`, `30s`, `5m` or `1h`. Sizes are `64KiB`, `1MiB` or `2GB`.
"""
HEAD = "\nsetting | default<br>bounds | meaning\n---|---|---\n"
# title: the settings (a regular expression over the whole name); the first that fits takes a setting
GROUPS = {
    "Addresses and access": r"server|(metrics|api|peer)\.(listen|advertise|tls)|listen|(api\.)?(viewer_)?token|advertise|endpoints_file|tls\..*",
    "Job and data": r"(keep_)?(min|max)_workers|epochs|rounds|init|seed|run_.*|data.*|model|batch|name|base_.*|adapter\..*|load_ahead|state_dir|tables",
    "Start, end and silence": r"resume|exit_when_finished|leave_workers|.*_status|lease|[a-z]+_timeout|summary_file",
    "Rounds and exchange": r"exchange|apply|codec.*|policy|late|nonfinite|aggregate|weight_by|payload_checksum|reduce\..*|peer\..*",
    "Optimizer": r"optimizer\..*",
    "Local steps": r"local_steps|fragments|overlap|outer|inner\..*",
    "Unequal workers": r"cadence\..*",
    "Checkpoints and journal": r"checkpoint\..*|journal\..*",
    "Several servers": r"join|servers.*|etcd\..*|cluster",
    "REST": r"api\..*",
    "Devices and limits": r"devices|matmul|nccl\..*|.*_(limit|memory|threads|bytes)|congestion_control|slowdown",
    "Log and trace": r"log\..*|trace\..*",
}
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


def row(name, field, flags):
    unit, default = field.get("unit", ""), amount(field["default"], field.get("unit"))
    is_clear = unit in ("", "ms", "bytes") or unit.rstrip("s") in name + field["text"]
    values = [f"`{default}`" + ("" if is_clear else f" {unit}") if default else "", bounds(field)]
    names = [f"`{name}`" + ("\\*" if field["live"] else ""), *(f"`{flag}`" for flag in flags)]
    return "<br>".join(names) + f" | {'<br>'.join(filter(None, values))} | {words(field['text'])}\n"


def program(path):
    """The rows of its settings by group, and the names of its secrets."""
    text, rows = printed(path, "--help"), {title: {} for title in GROUPS}
    for setting, field in json.loads(printed(path, "--print-config")).items():
        title = next(title for title, pattern in GROUPS.items() if re.fullmatch(pattern, setting))
        line = re.search(rf"^  --{re.escape(setting)}(?= |,|$).*$", text, re.MULTILINE)[0]
        rows[title][setting] = row(setting, field, [flag for flag in re.findall(r"--[\w.-]+", line) if flag != f"--{setting}"])
    return rows, re.findall(r"--([\w.]+)_file FILE reads", text)


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
