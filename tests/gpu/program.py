"""What programs of this folder have in common: their options, and a line for each of the processes that they
run."""

import argparse
import os
import subprocess

import children


def count_gpus():
    """The GPUs that programs may use: those of the machine, or the part of them that CUDA_VISIBLE_DEVICES
    names."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    here, named = listed.stdout.count("GPU "), os.environ.get("CUDA_VISIBLE_DEVICES")
    return here if named is None else min(here, len([name for name in named.split(",") if name]))


def parser(doc, pairs=None):
    """`library`, `ranks` and `--host`; with `pairs` also `--pairs` (split them by `pair_list`) and
    `--timeout`."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("library")
    made.add_argument("ranks", type=int, nargs="?", default=0, help="default: one per GPU")
    made.add_argument("--host", action="store_true", help="the host device, numpy")
    if pairs:
        made.add_argument(
            "--pairs", default=",".join(pairs), help="such as OneShot/fused/LL,AllPairs/Simple,default"
        )
        made.add_argument("--timeout", type=float, default=300, help="seconds for a pair")
    return made


def options_with_pairs(made):
    options = made.parse_args()
    options.pairs = options.pairs.split(",")
    return options


def run(parts, timeout, unit, word="wrong"):
    """The exit code of a program that runs each of `parts`, which are (name, forced pair, work), in a
    process.

    `work()` gives `wrong`, a list of mistakes, `done`, the number of things tried, and `text`, what it has to
    say; or `skipped`, the reason why nothing can be tried here. Something wrong or nothing tried is a
    failure."""
    bad = done = 0
    width = max(18, *(len(name) for name, _, _ in parts))
    for name, pair, work in parts:
        row = children.in_child(pair, work, timeout)
        if "skipped" in row:
            print(f"skipped: {row['skipped']}")
            return 0
        if "failed" in row:
            row |= {"wrong": [row["failed"]], "done": 0, "text": ""}
        wrong = row["wrong"]
        verdict = f"{word.upper()} {len(wrong)}" if wrong else "ok" if row["done"] else "not offered"
        print(f"{name:{width}} {verdict}  {row['seconds']:.0f} s  {row['text']}", flush=True)
        for text in wrong[:20]:
            print(f"{'':{width}} {text}", flush=True)
        bad, done = bad + len(wrong), done + row["done"]
    print(f"{done} {unit}, {bad} {word}")
    return 1 if bad or not done else 0
