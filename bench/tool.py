"""Runs the tool for scripts that measure, most of them on the host device."""

import json
import os
import subprocess
import sys


def perf(words, rules=None, device="host"):
    """The results of `hawser perf`, given as a command without `--json`, on this device: with this rule file,
    and with no other setting of this environment but those of GPUs."""
    kept = ("NCCL_NVLS_ENABLE", "NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_PASS_SM") if device == "cuda" else ()
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HAWSER_", "NCCL_")) or name in kept
    }
    env |= {"HAWSER_DEVICE": device, "HAWSER_RUNTIME_DIR": "none"}
    if rules:
        env["HAWSER_RULES"] = os.path.abspath(rules)
    done = subprocess.run([*words, "--json"], env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}")
    return json.loads(done.stdout)["results"]
