"""Runs the tool on the host device, for scripts that measure there."""

import json
import os
import subprocess
import sys


def perf(words, rules=None):
    """The results of `hawser perf`, given as a command without `--json`, on the host device: with this rule
    file, and with no other setting of this environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HAWSER_", "NCCL_"))}
    env |= {"HAWSER_DEVICE": "host", "HAWSER_RUNTIME_DIR": "none"}
    if rules:
        env["HAWSER_RULES"] = os.path.abspath(rules)
    done = subprocess.run([*words, "--json"], env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}")
    return json.loads(done.stdout)["results"]
