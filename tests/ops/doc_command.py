#!/usr/bin/env python3
"""Stands for every command in a shell block of the docs (docs_test.py puts it into PATH under their names): checks the words, does nothing.

What is wrong goes as a line into the file that OPS_DOC_FAULTS names. OPS_DOC_BIN: folder of the programs; OPS_DOC_ROOT: the repository.
"""

import json
import os
import pathlib
import re
import runpy
import subprocess
import sys

ROOT, BIN = pathlib.Path(os.environ["OPS_DOC_ROOT"]), pathlib.Path(os.environ["OPS_DOC_BIN"])


def outcome(*command):
    settings = os.environ | {"PATH": os.environ["OPS_DOC_PATH"]}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False, env=settings)
    return done.returncode, (done.stderr or done.stdout).strip()


def program(name, words):
    """A server or a worker takes these words."""
    words = [word for word in words if word != "..."]
    for word, file in zip(words, words[1:]):
        if word.endswith("token-file"):
            pathlib.Path(file).write_text("secret")
    status, said = outcome(BIN / name, *words, "--print-config")
    return said if status else None


def centroidctl(words):
    """The command line is right; the server that it would ask is not here."""
    where = [] if "--server" in words else ["--server", "http://127.0.0.1:9"]
    status, said = outcome(BIN / "centroidctl", *where, "--timeout", "1", *words)
    return said if status == 2 else None


def is_object(name):
    """Whether something is called so, or is renamed so by the guide."""
    if f"path: /metadata/name, value: {name}}}" in (ROOT / "docs" / "how-to" / "deploy.md").read_text():
        return True
    return any(f"\n  name: {name}\n" in file.read_text() for file in (ROOT / "deploy" / "kubernetes").rglob("*.yaml"))


def kubectl(words):
    if "-k" in words[:-1] and not words[words.index("-k") + 1].endswith("overlays/mine"):  # docs_test.py renders that
        status, said = outcome("kubectl", "kustomize", ROOT / words[words.index("-k") + 1])
        return said if status else None
    if "patch" in words:
        json.loads(words[words.index("-p") + 1])
    if "exec" in words:
        inner = words[words.index("--") + 1 :]
        if inner[0] != "centroidctl":
            return f"the image has no {inner[0]}"
        if said := centroidctl(inner[1:]):
            return said
    for kind, name in zip(words, words[1:]):
        if kind in ("job", "statefulset") and not is_object(name):
            return f"no object {name}"
    return None


def docker(words):
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    for word, value in zip(words, words[1:]):
        if word in ("-f", "--env-file") and not (ROOT / value).is_file():
            return f"no file {value}"
        if word == "--target" and not re.search(rf"^FROM \S+ AS {value}$", dockerfile, re.MULTILINE):
            return f"no target {value}"
        if word == "--profile" and not re.search(rf"profiles: \[{value}\]", compose):
            return f"no profile {value}"
    services = re.findall(r"^  ([a-z0-9-]+):$", compose.split("\nservices:")[1].split("\nnetworks:")[0], re.MULTILINE)
    if "exec" in words:
        service, program, *inner = words[words.index("exec") + 1 :]
        if service not in services or program != "centroidctl":
            return f"no {program} in {service}"
        return centroidctl(inner)
    if acts := [word for word in words if word in ("up", "stop")]:
        unknown = [word for word in words[words.index(acts[0]) + 1 :] if not word.startswith("-") and word not in services]
        if unknown:
            return f"no services {unknown}"
        chosen = {value for word, value in zip(words, words[1:]) if word == "--profile"}
        files = [ROOT / value for word, value in zip(words, words[1:]) if word == "--env-file"]
        chosen |= set(re.findall(r"^COMPOSE_PROFILES=(\S+)$", "\n".join(file.read_text() for file in files), re.MULTILINE))
        for service, text in re.findall(r"^  ([a-z0-9-]+):\n((?:    .*\n)+)", compose, re.MULTILINE):
            profile = re.search(r"profiles: \[(\w+)\]", text)
            if "up" in words and service in words and profile and profile[1] not in chosen:  # it would start, with the settings of no profile
                return f"{service} is of profile {profile[1]}, which is not chosen"
    return None


def curl(words):
    known = json.loads(outcome(BIN / "centroid-server", "--print-openapi")[1])["paths"]
    patterns = [re.compile(re.sub(r"\\\{\w+\\\}", r"[^/]+", re.escape(path))) for path in known]
    for word in words:
        found = re.match(r"(?:https?://)?[\w.-]+:\w+(/[^?]*)", word)
        if found and not any(pattern.fullmatch(found[1]) for pattern in patterns):
            return f"no path {found[1]} in the OpenAPI document"
    return None


def installed_centroid(words):
    """The command of the wheel."""
    sys.path.insert(0, str(ROOT / "client" / "python"))  # lint-ok: no test, it runs alone
    known = runpy.run_module("centroid.__main__")
    if words[0] in ("ctl", "doctor"):
        return centroidctl(words[1:] if words[0] == "ctl" else words)
    if words[0] in ("server", "worker"):
        return program(f"centroid-{words[0]}", words[1:])
    try:
        options, settings, rest = known["divide"](words[1:])
    except known["Failure"] as failure:
        return str(failure)
    if not rest:
        return "a program is required"
    return None if options["server"] else program("centroid-server", [name if value is None else f"{name}={value}" for name, value in settings])


def centroid(words):
    if words[0] in ("run", "server", "worker", "ctl", "doctor"):
        return installed_centroid(words)
    _, usage = outcome(ROOT / "centroid", "help")
    if not re.search(rf"^  {words[0]}\b", usage, re.MULTILINE):
        return f"./centroid has no command {words[0]}"
    if words[0] == "demo":
        _, known = outcome(ROOT / "centroid", "demo", "--help")
    else:
        known = usage
    own = words[1 : words.index("--")] if "--" in words else words[1:]  # behind it: ctest's, or a benchmark's
    unknown = [word for word in own if word.startswith("--") and word not in known]
    return f"./centroid {words[0]} does not know {unknown}" if unknown else None


def fault(name, words):
    if name in ("centroid-server", "centroid-worker"):
        return program(name, words)
    check = {"centroidctl": centroidctl, "kubectl": kubectl, "docker": docker, "podman": docker, "curl": curl, "centroid": centroid}.get(name)
    return check(words) if check else None


if __name__ == "__main__":
    NAME, WORDS = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
    if FOUND := fault(NAME, WORDS):
        with open(os.environ["OPS_DOC_FAULTS"], "a", encoding="utf-8") as FAULTS:
            FAULTS.write(f"{NAME} {' '.join(WORDS)}: {FOUND}\n")
