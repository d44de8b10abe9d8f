#!/usr/bin/env python3
"""Show that the simulation finds broken rules: break one at a time, and say which seed notices.

Usage: broken_rules.py [--seeds 1000] [--only NAME] [--keep]
       broken_rules.py --check   say only whether each rule is still where the table says
Works in a worktree of HEAD of its own, build/broken-rules, and takes minutes for each rule.
Exit status 1 when a rule is broken and no seed notices.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# name: what is broken, the file, its text, what becomes of it
RULES = {
    "commit-order": (
        "a round is announced before the journal has it",
        "server/service/round_journal.cc",
        "  co_await journal_.done(number);\n",
        "  (void)number;\n",
    ),
    "fsync": (
        "what the journal has written is called durable without a sync",
        "server/store/journal_writer.cc",
        "  if (log_.sync_every.count() > 0) return {};\n",
        "  return {};\n",
    ),
    "dedupe": (
        "a push of rows that is repeated is applied again",
        "server/rows/push_windows.cc",
        "  return !window.applied[sequence % kWindow];\n",
        "  return true;\n",
    ),
    "lease": (
        "a silent worker stays a member",
        "server/service/job_server.cc",
        "for (const MemberId dead : ctx_.members.roster.tick(ctx_.clock.now())) {",
        "for (const MemberId dead : std::vector<MemberId>()) {",
    ),
    "returned-share": (
        "the samples of a lost worker are trained by nobody",
        "server/service/data_shares.cc",
        "  return_part(worker.share.part, worker.share.round);\n",
        "",
    ),
    "results-of-another-round": (
        "a worker reads results of the next round over those that it has not taken",
        "worker/exchange/round_state.cc",
        "  if (order_.empty() && !stats_) return false;\n",
        "",
    ),
    "replay": (
        "a server that comes back does not replay its journal",
        "server/service/job_start.cc",
        "Task<Status> JobStart::begin_replay() {\n",
        "Task<Status> JobStart::begin_replay() {\n  co_return Status();\n",
    ),
    "retry": (
        "an attempt that is repeated keeps the sum of a worker that is gone",
        "server/service/round_attempts.cc",
        "  job_.aggregator->begin(std::move(codecs));\n",
        "  if (!resend) job_.aggregator->begin(std::move(codecs));\n",
    ),
    "fence": (
        "a deposed leader goes on",
        "server/election/fence.cc",
        "Status Fence::holds() const {\n",
        "Status Fence::holds() const {\n  return {};\n",
    ),
    "state-of-a-newcomer": (
        "a newcomer gets the first chunk of its state only",
        "worker/exchange/state_transfer.cc",
        "  co_return co_await session.read_payload(memory);\n}",
        "  if (head.chunk.value > 0) co_return Status();\n  co_return co_await session.read_payload(memory);\n}",
    ),
    "steps-ahead": (
        "local steps that are made while a contribution travels are lost",
        "worker/loop/local_planes.cc",
        "own[i] = global[i] + (own[i] - sent[i]);",
        "own[i] = global[i];",
    ),
    "empty-share": (
        "an empty share takes steps along that it does not contribute",
        "worker/loop/local_planes.cc",
        "share.samples() > 0 ? own : global, part(sent_",
        "own, part(sent_",
    ),
}


def run(*command, cwd, check=True):
    return subprocess.run(command, cwd=cwd, check=check, text=True, capture_output=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--only", choices=sorted(RULES))
    parser.add_argument("--keep", action="store_true", help="leave the worktree")
    parser.add_argument("--check", action="store_true", help="break nothing; is each rule where the table says?")
    args = parser.parse_args()
    for name, (_, path, text, _) in RULES.items():
        if text not in (ROOT / path).read_text(encoding="utf-8"):
            sys.exit(f"{name}: {path} has no {text!r}: the rule has moved, mend this table")
    if args.check:
        return 0
    tree = ROOT / "build" / "broken-rules"
    if not tree.exists():
        run("git", "worktree", "add", "--detach", str(tree), "HEAD", cwd=ROOT)
    run("cmake", "--preset", "release", cwd=tree)
    missed = []
    for name, (what, path, text, becomes) in RULES.items():
        if args.only not in (None, name):
            continue
        file = tree / path
        sound = file.read_text(encoding="utf-8")
        file.write_text(sound.replace(text, becomes), encoding="utf-8")
        try:
            run("ninja", "-C", "build/release", "simulation_test", cwd=tree)
            program = tree / "build/release/tests/simulation_test"
            played = run(program, "--seeds", f"1-{args.seeds}", "--first", cwd=tree, check=False)
        finally:
            file.write_text(sound, encoding="utf-8")
        found = re.search(r"^seed (\d+): .*workers \(.*$", played.stdout, re.M)
        if found:
            print(f"{name}: {what}: seed {found.group(1)} of {args.seeds}", flush=True)
        elif played.returncode != 0:
            print(f"{name}: {what}: the run aborts\n{played.stderr[-400:]}", flush=True)
        else:
            print(f"{name}: {what}: NOT FOUND in {args.seeds} seeds", flush=True)
            missed.append(name)
    if not args.keep:
        run("git", "worktree", "remove", "--force", str(tree), cwd=ROOT)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
