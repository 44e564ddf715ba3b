#!/usr/bin/env python3
"""A rule file in NVIDIA's NCCL: tests/gpu/tuner.py libnccl_tuner_hawser.so libnccl.so.2 [libnccl.so.2 ...]
[--ranks N]

For each NCCL a process for each rule file, with the plugin as `NCCL_TUNER_PLUGIN`: without rules, with one
combination of algorithm and protocol forced, and with two combinations by size. The log has to say which
table of the plugin was taken and, for every size, the algorithm and protocol of the rule; results are
checked; times of CUDA graphs are printed side by side and have to change with the rule. Libraries of several
versions take several tables (v4 to v6). Needs PyTorch and GPUs; with `--host` the same goes through Hawser's
library on the host device (numpy and ml_dtypes). The exit code is 1 if something is wrong."""

import argparse
import os
import re
import sys
import tempfile

sys.dont_write_bytecode = True

import cases
import children
import layer as layers
import nccl
from timing import Timed

FORCED = ["Tree/LL", "Tree/Simple", "Ring/LL", "Ring/LL128", "Ring/Simple"]
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20]
BORDER, CHANNELS, REPEATS = 256 << 10, 2, 5
# The least factor between the slowest and the fastest rule, at the size where they differ most.
DIFFERS = 1.2
PLUGIN = re.compile(r"TUNER/Plugin: Using (?:tuner plugin )?(\S+)(?: \((v\d+)\))?")
CHOSEN = re.compile(
    r"AllReduce: (\d+) Bytes -> Algo (\w+) proto (\w+)(?: channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?"
)
OURS = re.compile(r"all_reduce (\d+) x float: (\w+)/\w+/(\w+)(?:/zero_copy)? x (\d+)")
NUMBERS = {"0": "TREE", "1": "RING"}, {"0": "LL", "1": "LL128", "2": "SIMPLE"}


def main():
    options = arguments()
    bad = 0
    for library in options.libraries:
        print(library)
        rows = {}
        for name, rules in rule_files(options).items():
            row = children.in_child(children.DEFAULT, lambda: Trial(options, library, name, rules).run(), 200)
            if "skipped" in row:
                print(f"skipped: {row['skipped']}")
                return 0
            wrong = row.get("wrong", [row.get("failed")])
            rows[name] = row.get("us", {})
            times = "  ".join(f"{us:9.1f}" for us in rows[name].values())
            print(
                f"    {name:14} {'WRONG' if wrong else 'ok':5} {times}  {row.get('plugin', '')}", flush=True
            )
            for text in wrong[:20]:
                print(f"        {text}")
            bad += len(wrong)
        bad += differences(options, rows)
    return 1 if bad else 0


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plugin")
    parser.add_argument("libraries", nargs="+")
    parser.add_argument("--ranks", type=int, default=0, help="default: one per GPU")
    parser.add_argument("--host", action="store_true", help="Hawser's library on the host device, numpy")
    options = parser.parse_args()
    for path in [options.plugin, *options.libraries]:
        if not os.path.isfile(path):
            parser.error(f"there is no file {path}")
    print("    µs of an all-reduce of " + ", ".join(f"{size >> 10} KiB" for size in SIZES))
    return options


def action(way, more=""):
    algorithm, protocol = way.lower().split("/")
    return f'{{ algorithm = "{algorithm}", protocol = "{protocol}"{more} }}'


def rule_files(options):
    """Rule files by name. The host device has one protocol."""
    every = {"none": ""}
    if options.host:
        FORCED[:] = ["Tree/Simple", "Ring/Simple"]
    every |= {way: f'[[rule]]\nmatch.collective = "all_reduce"\nuse = {action(way)}\n' for way in FORCED}
    channels = f", channels = {CHANNELS}"
    every["by size"] = (
        f'[[rule]]\nmatch = {{ collective = "all_reduce", bytes = "..{BORDER}" }}\nuse = {action(FORCED[0])}\n'
        f'[[rule]]\nmatch = {{ collective = "all_reduce", bytes = "{BORDER}.." }}\nuse = {action("Ring/Simple", channels)}\n'
    )
    return every


def wanted(name, size):
    """Algorithm and protocol that a rule file wants; None: it has no opinion."""
    if name == "by size":
        return FORCED[0] if size < BORDER else "Ring/Simple"
    return name if name in FORCED else None


def differences(options, rows):
    """Times change with the rule: the largest factor at any size. Returns how much is wrong."""
    factors = {}
    for size in map(str, SIZES):
        us = [rows[way][size] for way in FORCED if size in rows[way]]
        if len(us) > 1:
            factors[int(size)] = max(us) / min(us)
    print(
        "    slowest rule / fastest: "
        + ", ".join(f"{size >> 10} KiB {factor:.2f}" for size, factor in factors.items())
    )
    if options.host or not factors or max(factors.values()) >= DIFFERS:
        return 0
    print(f"        WRONG: times do not change with the rule, by {DIFFERS} at no size")
    return 1


class Trial:
    """One process."""

    def __init__(self, options, library, name, rules):
        self.options, self.path, self.name, self.rules, self.wrong = options, library, name, rules, []

    def run(self):
        with tempfile.TemporaryDirectory() as folder:
            file, self.log = f"{folder}/rules.toml", f"{folder}/log"
            with open(file, "w", encoding="utf-8") as out:
                out.write(self.rules)
            os.environ.update(NCCL_TUNER_PLUGIN=os.path.abspath(self.options.plugin), HAWSER_RULES=file)
            os.environ.update(
                NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,ENV,TUNING,COLL", NCCL_DEBUG_FILE=self.log
            )
            os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
            layer, reason = layers.open_layer(self.options.ranks, self.options.host)
            if layer is None:
                return {"skipped": reason}
            self.layer, self.watchdog = layer, nccl.Watchdog(100)
            ranks = max(2, self.options.ranks or layer.default_ranks())
            library = nccl.Library(self.path)
            world = nccl.world(library, layer, ranks)
            streams = [layer.stream(place) for place in range(ranks)]
            us = {str(size): self.one(world, streams, size) for size in SIZES}
            world.destroy()
            return {"us": us, "plugin": self.plugin(), "wrong": self.wrong + self.choices()}

    def one(self, world, streams, size):
        """Microseconds of an operation, which was checked before."""
        self.watchdog.step(lambda: f"{self.name}, {size} bytes")
        dtype = next(t for t in self.layer.types if t.name == "float")
        case = cases.Case("all_reduce", dtype, "sum", size // 4, 0, world.size, size % 97)
        works = []
        for rank, stream in enumerate(streams):
            self.layer.use(rank)
            with self.layer.on(stream):
                works.append(cases.RankWork(self.layer, case, rank, rank, False, 0))
        timed = Timed(self.layer, streams, world, works, 40 if size <= 1 << 20 else 10)
        if counts := timed.wrong():
            self.wrong.append(f"{size} bytes: bytes wrong by rank: {counts}")
        timed.capture()
        us = sorted(timed.microseconds() for _ in range(REPEATS))[REPEATS // 2]
        timed.end()
        return us

    def lines(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.readlines()

    def plugin(self):
        """Name and table of the plugin that the library says it uses."""
        found = [match.groups() for match in map(PLUGIN.search, self.lines()) if match]
        if self.options.host:
            return ""
        if not found or "hawser" not in found[0][0].lower():
            self.wrong.append(f"the log does not say that the plugin is used: {found[:1]}")
            return ""
        return " ".join(part for part in found[0] if part)

    def choices(self):
        """What the log says that ran, against the rules."""
        wrong, seen = [], set()
        for line in self.lines():
            if self.options.host:
                found = OURS.search(line)
                size, algorithm, protocol, channels = found.groups() if found else (None, None, None, None)
                size = size and int(size) * 4
            else:
                found = CHOSEN.search(line)
                size, algorithm, protocol, low, high = found.groups() if found else (None,) * 5
                channels = int(high) - int(low) + 1 if high else CHANNELS
            if found is None or int(size) not in SIZES:
                continue
            seen.add(int(size))
            ran = f"{NUMBERS[0].get(algorithm, algorithm)}/{NUMBERS[1].get(protocol, protocol)}"
            want = wanted(self.name, int(size))
            if want and ran.lower() != want.lower():
                wrong.append(f"{size} bytes: {ran} ran, the rule says {want}")
            if self.name == "by size" and want == "Ring/Simple" and int(channels) != CHANNELS:
                wrong.append(f"{size} bytes: {channels} channels, the rule says {CHANNELS}")
        wrong += [f"the log does not say what ran for {size} bytes" for size in sorted(set(SIZES) - seen)]
        return list(dict.fromkeys(wrong))


if __name__ == "__main__":
    sys.exit(main())
