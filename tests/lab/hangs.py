"""Hangs staged in the guests: a rail that is down or silent, a rank that is stopped or slow. Whoever is asked
has to name the guilty rank, and the reason."""

import json
import re
import time

import faults as make
from guests import nic

PLACE = "10.9.0.1"
PORT = 4720
# How long ranks may take to get stuck, and to be asked until the verdict is the right one.
PATIENCE = 90

RANK_3 = "rank env 4 3 "


def both_rails(what, up=False):
    """Does this to both rails of guest 2, or undoes it."""
    if what == "cut":
        return [(0, "link", 2, rail, up) for rail in (1, 2)]
    verb, loss = ("del", "") if up else ("add", " netem loss 100%")
    return [(0, "run", 2, f"tc qdisc {verb} dev {nic(rail)} root{loss}") for rail in (1, 2)]


def signal(name):
    return [(0, "run", 2, f"pkill -{name} -f '{RANK_3}'")]


class Hang:
    """A job, what happens to it, and the verdict that has to come of it."""

    def __init__(self, name, settings, steps, faults, mend, cause, guilty, parts):
        self.name, self.settings, self.steps = name, settings, steps
        self.faults, self.mend = list(faults), list(mend)
        self.cause, self.guilty, self.parts = cause, guilty, parts

    def judge(self, verdict):
        """What is wrong with a verdict; empty: nothing."""
        text = verdict["sentence"]
        wrong = (
            [] if verdict["cause"] == self.cause else [f"the cause is {verdict['cause']}, not {self.cause}"]
        )
        if not set(self.guilty) & set(verdict["guilty"]):
            wrong.append(f"to blame is {verdict['guilty']}, not {self.guilty}")
        return wrong + [f"no {part!r} in it" for part in self.parts if not re.search(part, text)]


def hangs():
    """Steps are those of `hawser-test-rank`, one list for each rank; half of them run on each guest."""
    # The net waits for a rail for ever, and a rail that is silent is stopped after a second.
    waits = "HAWSER_IB_DEADLINE=0 HAWSER_IB_SILENCE=1000"
    # The net does not notice that nothing comes back: it never ends what it was given.
    sleeps = "HAWSER_IB_DEADLINE=0 HAWSER_IB_SILENCE=600000 NCCL_IB_TIMEOUT=22 NCCL_IB_RETRY_CNT=7"
    work = ["again"] * 4
    down = both_rails("cut"), both_rails("cut", up=True)
    silent = both_rails("silence"), both_rails("silence", up=True)
    rank_2_or_3 = r"rank [23] \(host g2"
    return [
        Hang(
            "cables",
            waits,
            work,
            *down,
            "rail_down",
            [2, 3],
            [rank_2_or_3, "rail .*rxe[12]", "its port went down"],
        ),
        Hang("silent", waits, work, *silent, "rail_down", [1, 2, 3], ["rail .*rxe[12]"]),
        # Guest 2 sends nothing: neither its data nor its acknowledgements arrive, so neither rank's sends
        # end.
        Hang(
            "never",
            sleeps,
            work[:2],
            *silent,
            "net_silent",
            [0, 1],
            ["rank [01] .host g[12]", "net IB", "sends to"],
        ),
        Hang(
            "stopped",
            waits,
            work,
            signal("STOP"),
            signal("CONT"),
            "stopped",
            [3],
            ["rank 3 .*stopped by a signal"],
        ),
        Hang("slow", waits, ["paced=0"] * 3 + ["paced=2000"], [], [], "slow", [3], ["rank 3 .*came last to"]),
    ]


def stage(lab, options, hang, port):
    """Starts the job, does what is to happen to it, and asks. Returns what is wrong."""
    mark, ranks = lab.mark(), len(hang.steps)
    names = [f"{hang.name}{rank}" for rank in range(ranks)]
    settings = (
        f"HAWSER_DEVICE=host NCCL_NET=IB NCCL_COMM_ID={PLACE}:{port} HAWSER_HANG_AFTER=0 {hang.settings}"
    )
    for rank, steps in enumerate(hang.steps):
        guest = lab.guests[rank * 2 // ranks]
        of_rank = f"{options.rank} rank env {ranks} {rank} all_reduce mark {steps}"
        guest.run(f"start {names[rank]} env {settings} NCCL_HOSTID=g{guest.number} {of_rank}")
    for rank, name in enumerate(names):
        if not lab.wait(f"LAB {name} mark", 240, mark, (rank * 2 // ranks + 1,)):
            return ["the ranks did not meet"] + lab.tails(min(mark))
    # Something is under way.
    time.sleep(3)
    for fault in hang.faults:
        make.inject(lab, fault)
    wrong = ask(lab, options, hang)
    for fault in hang.mend:
        make.inject(lab, fault)
    for guest in lab.guests:
        # The kernel's name of a process has fifteen letters.
        guest.run("pkill -9 -x hawser-test-ran")
    for rank, name in enumerate(names):
        lab.wait(f"LAB {name} exit", 30, mark, (rank * 2 // ranks + 1,))
    return wrong


def ask(lab, options, hang):
    """Asks in guest 1 until the verdict is right. Returns what is wrong with the last one."""
    until, wrong = time.monotonic() + PATIENCE, ["no verdict came"]
    while time.monotonic() < until:
        mark, began = lab.mark(), time.monotonic()
        lab.guests[0].run(f"start ask {options.rank} verdicts")
        lab.wait("LAB ask exit", 30, mark, (1,))
        took = time.monotonic() - began
        told = [line[8:] for line in lab.guests[0].lines(mark[0]) if line.startswith("LAB ask {")]
        for verdict in map(json.loads, told):
            wrong = hang.judge(verdict)
            if not wrong:
                print(f"    after {took:.1f} s, program and all: {verdict['sentence']}", flush=True)
                return []
            wrong.append(f"the verdict was {verdict['cause']} {verdict['guilty']}: {verdict['sentence']}")
        time.sleep(1)
    return wrong


def run(lab, options):
    """All of them, or those of `--case`. Returns what is wrong."""
    failed = []
    for number, hang in enumerate(hangs()):
        if options.case and hang.name not in options.case:
            continue
        print(f"  {hang.name}:", flush=True)
        wrong = stage(lab, options, hang, PORT + number)
        print("".join(f"    FAILED: {text}\n" for text in wrong) or "    ok", flush=True)
        failed += [f"{hang.name}: {text}" for text in wrong]
    return failed
