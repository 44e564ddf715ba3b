#!/usr/bin/env python3
"""Virtual machines with soft-RoCE, connections of the IB plugin between them, and faults from outside. See
README.md.

tests/lab/lab.py --kernel DIR [--only ci] [--case NAME ...] [--seed N]
tests/lab/lab.py --kernel DIR --injections 300 --record FILE
tests/lab/lab.py --kernel DIR --run collectives|hangs|harness|doctor|rates|ring
"""

import argparse
import os
import random
import re
import sys
import tempfile

import faults as make
from guests import Lab, missing
from programs import PROGRAMS
from soak import Soak

QUICK = ["HAWSER_IB_SILENCE=1000"]
PORT = 7777


class Case:
    """A pair of programs, what happens to them, and what must come of it."""

    def __init__(self, name, seconds, faults, gap=None, error=None, stops=0, settings=(), alone=None):
        self.name, self.seconds, self.faults = name, seconds, sorted(faults)
        self.gap, self.error, self.stops, self.settings = gap, error, stops, QUICK + list(settings)
        self.alone = alone  # only this guest tells its end


def cases(seed):
    """Guest 1 receives, guest 2 sends. The faults are those of the soak, each with dice of its own."""
    made = [Case("quiet", 4, [])]
    for kind in make.KINDS:
        what = make.injection(kind, random.Random(f"{seed} {kind}"))
        made.append(Case(kind, what.length + 5, what.faults, what.bar, stops=int(what.stops)))
    dice = random.Random(seed)
    made.append(Case("killed", 15, [(0, "run", 2, "pkill -9 -x lab_end")], error="", alone=1))
    dark = [fault for rail in (1, 2) for fault in make.cable(2, rail, dice.uniform(0, 1), 9)]
    made.append(Case("both-cables", 15, dark, error="no rail was up", settings=["HAWSER_IB_DEADLINE=4"]))
    without = ["NCCL_IB_RESILIENCY_PORT_FAILOVER=0"]
    made.append(Case("failover-off", 10, make.cable(2, 1, 0, 4), error="failover is off", settings=without))
    return made


CI = ["quiet", "sender-cable", "silent-receiver", "lost-acks", "second-fault", "killed", "both-cables"]


def pair(lab, options, seconds, settings, mark):
    """Starts both programs. Whether the connection came up."""
    words = " ".join(settings)
    for guest in lab.guests[:2]:
        role = f"receive {PORT}" if guest.number == 1 else f"send 10.9.0.1:{PORT}"
        guest.run("rm -f /run/lab-stop")
        guest.run(f"start end env {words} {options.program} {role} {seconds} {options.bytes}")
    return lab.wait("LAB end up", 60, mark, (1, 2))


def play(case, lab, options):
    """Runs a case. Returns what is wrong with its outcome."""
    mark = lab.mark()
    if not pair(lab, options, int(case.seconds), case.settings, mark):
        return ["the connection did not come up"] + lab.tails(min(mark))
    starved = [guest.starved() for guest in lab.guests]
    make.carry_out(lab, case.faults, before=1.5)
    lab.wait("LAB end exit", case.seconds + 60, mark, (1, 2))
    for guest, before in zip(lab.guests, starved):
        print(f"  guest {guest.number}: waited {guest.starved() - before:.1f} s for a processor of the host")
    return judge(case, lab, mark, options)


def judge(case, lab, mark, options):
    wrong, notes = [], []
    for guest, start in zip(lab.guests, mark):
        if case.alone not in (None, guest.number):
            continue
        lines = guest.lines(start)
        last = [line for line in lines if "end done" in line or "end error" in line]
        text = last[-1] if last else "nothing"
        print(f"  guest {guest.number}: {text}")
        if options.verbose:
            print("\n".join(f"    {line}" for line in lines if "end log" in line))
        if case.error is not None:
            if "end error" not in text or case.error not in text:
                wrong.append(f"guest {guest.number}: wanted an error with {case.error!r}")
            continue
        done = re.search(r"done messages (\d+) longest gap (\d+) ms resent (\d+) stopped (\d+)", text)
        if not done:
            wrong.append(f"guest {guest.number} did not end in peace")
            continue
        messages, gap, _, stopped = map(int, done.groups())
        if messages < 10:
            wrong.append(f"guest {guest.number}: only {messages} messages")
        if case.gap and guest.number == 1 and gap > case.gap * 1000:
            notes.append(f"  guest 1: the gap is above {case.gap:.1f} s")
        if stopped < case.stops:
            wrong.append(f"guest {guest.number}: no rail was stopped")
    print("\n".join(notes) or "  the gap is within its bar" if case.gap else "  no bar")
    if notes and options.strict:
        wrong += notes
    return wrong + (lab.tails(min(mark)) if wrong else [])


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default=os.environ.get("HAWSER_LAB_KERNEL", "/"))
    parser.add_argument("--program", default="target/debug/examples/lab_end")
    parser.add_argument("--case", action="append", help="one of the cases; may be given again")
    parser.add_argument("--only", choices=["ci"], help="a choice of cases that takes less than five minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--injections", type=int, default=0, help="soak: so many faults, one after the other")
    parser.add_argument("--kinds", help="soak: only these, with commas between them")
    parser.add_argument("--record", help="soak: a line of JSON per injection")
    parser.add_argument("--run", choices=sorted(PROGRAMS), help="something else than a pair of programs")
    parser.add_argument(
        "--rank", default="target/debug/hawser-test-rank", help="collectives, hangs: the program"
    )
    parser.add_argument("--faults", type=int, default=12, help="collectives: so many")
    parser.add_argument(
        "--registered", action="store_true", help="collectives: registered buffers, moved by copy engines"
    )
    parser.add_argument(
        "--plugin", default="target/debug/libnccl_net_hawser_ib.so", help="harness: the library"
    )
    parser.add_argument("--hawser", default="target/debug/hawser", help="doctor: the program")
    parser.add_argument("--library", default="target/release/libnccl.so", help="urgent: the library")
    parser.add_argument("--seconds", type=int, default=6, help="rates: of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rates, urgent: turns")
    parser.add_argument(
        "--strict", action="store_true", help="a gap above its bar is a failure (idle machines only)"
    )
    parser.add_argument("--bytes", type=int, default=65536, help="of a message; urgent: of the large operation")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    for path in ("program", "rank", "plugin", "hawser", "library"):
        setattr(options, path, os.path.abspath(getattr(options, path)))
    return options


def main():
    options = parse()
    why = missing(options.kernel)
    if not why and not os.access(options.program, os.X_OK):
        why = f"{options.program} is not built (cargo build -p hawser-net-ib --example lab_end)"
    if why:
        print(f"lab: not run: {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(options.kernel, folder, *((4, 3) if options.run == "ring" else ()))
        try:
            if options.run:
                wrong = PROGRAMS[options.run](lab, options)
                print("\n".join(wrong) or "  ok")
                return int(bool(wrong))
            return Soak(lab, options, pair).run() if options.injections else run_cases(lab, options)
        finally:
            lab.end()


def run_cases(lab, options):
    wanted = CI if options.only == "ci" else options.case
    failed = []
    for case in cases(options.seed):
        if wanted and case.name not in wanted:
            continue
        print(f"{case.name}:", flush=True)
        wrong = play(case, lab, options)
        print("  ok" if not wrong else "\n".join(f"  FAILED: {text}" for text in wrong), flush=True)
        failed += [case.name] if wrong else []
    print(f"lab: failed: {', '.join(failed)}" if failed else "lab: all cases are as wanted")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
