"""What runs in the guests besides the soak's pair: the library's collectives, hangs, the C harness, `hawser
doctor --net`, perftest."""

import os
import random
import re
import statistics
import subprocess
import time

import faults as make
import hangs

HERE = os.path.dirname(os.path.abspath(__file__))
PORT = 7800
PLACE = "10.9.0.1:4711"


def ended(lab, mark, name, guests=None):
    """The last words of a program in each guest, or in these."""
    chosen = [
        (guest, start) for guest, start in zip(lab.guests, mark) if guests is None or guest.number in guests
    ]
    said = [
        [line for line in guest.lines(start) if line.startswith(f"LAB {name} ")] for guest, start in chosen
    ]
    return [lines[-1] if lines else "nothing" for lines in said]


def tell(lab, mark, wrong):
    return [f"  FAILED: {text}" for text in wrong] + (lab.tails(min(mark), 25) if wrong else [])


def collectives(lab, options):
    """Two ranks on each of two hosts go through all-reduce, all-gather, all-to-all and reduce-scatter, each
    result checked, while rails fail; after each fault a whole round must succeed. Moves go by copy engines from
    and to registered buffers if that is wanted."""
    rounds, more = ("registered-rounds", "NCCL_PASS_SM=1 ") if options.registered else ("rounds", "")
    dice, mark = random.Random(options.seed), lab.mark()
    settings = (
        f"{more}HAWSER_DEVICE=host NCCL_NET=IB NCCL_COMM_ID={PLACE} NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET "
        "HAWSER_IB_FLAPS=1000000 HAWSER_IB_DEADLINE=30"
    )
    for rank in range(4):
        guest = lab.guests[rank // 2]
        steps = f"rank env 4 {rank} all_reduce mark {rounds} finalize destroy"
        guest.run(f"start r{rank} env {settings} NCCL_HOSTID=g{guest.number} {options.rank} {steps}")
    if not lab.wait("LAB r0 mark", 240, mark, (1,)):
        return tell(lab, mark, ["the ranks did not meet"])
    wrong = []
    for number in range(options.faults):
        what = make.injection(make.KINDS[number % len(make.KINDS)], dice)
        start = time.monotonic()
        make.carry_out(lab, what.faults)
        lab.guests[0].run(f"echo after{number} >/run/in.r0")
        fine = lab.wait(f"LAB r0 after{number}", 120, mark, (1,))
        print(
            f"  {number + 1:3} {what.kind:16} {'right' if fine else 'NOT RIGHT'} after {time.monotonic() - start:.1f} s",
            flush=True,
        )
        if not fine:
            wrong.append(f"no round was over after {what}")
            break
    lab.guests[0].run("echo stop >/run/in.r0")
    for rank in range(4):
        guest = rank // 2 + 1
        if not lab.wait(f"LAB r{rank} exit 0", 120, mark, (guest,)):
            wrong.append(f"rank {rank}: {ended(lab, mark, f'r{rank}', (guest,))[0]}")
        lines = lab.guests[guest - 1].lines(mark[guest - 1])
        if options.registered and not any(re.match(rf"LAB r{rank} unstaged [1-9]\d{{6}}", line) for line in lines):
            wrong.append(f"rank {rank}: registered buffers were staged")
    stops = sum(
        "is stopped: " in line and "other end is closed" not in line
        for guest, start in zip(lab.guests, mark)
        for line in guest.lines(start)
    )
    print(f"  {stops} times a rail was stopped")
    if options.faults > 3 and not stops:
        wrong.append("no fault hit a rail")
    return tell(lab, mark, wrong)


def harness(lab, options):
    """The C harness through net v8 to v12, both devices of one guest."""
    mark, wrong = lab.mark(), []
    source = os.path.join(HERE, "../../plugins/net-ib/export/tests/harness.c")
    for version in range(8, 13):
        program = os.path.join(lab.folder, f"harness{version}")
        subprocess.run(
            [
                os.environ.get("CC", "cc"),
                "-std=c11",
                "-O1",
                f"-DVERSION={version}",
                source,
                "-I",
                os.path.join(HERE, "../../plugins/compat/tests/c"),
                "-o",
                program,
                "-ldl",
            ],
            check=True,
        )
        lab.guests[0].run(f"start h{version} {program} {options.plugin}")
        lab.wait(f"LAB h{version} exit", 120, mark, (1,))
        lines = [line for line in lab.guests[0].lines(mark[0]) if line.startswith(f"LAB h{version} harness")]
        print("  " + (lines[-1] if lines else "nothing"), flush=True)
        if not lines or "passed on 2 devices" not in lines[-1]:
            wrong.append(f"version {version}")
    return tell(lab, mark, wrong)


def doctor(lab, options):
    """What `hawser doctor --net` says in a guest."""
    mark = lab.mark()
    lab.guests[0].run(f"start doctor {options.hawser} doctor --net")
    fine = lab.wait("LAB doctor exit 0", 120, mark, (1,))
    print(
        "\n".join("  " + line[11:] for line in lab.guests[0].lines(mark[0]) if line.startswith("LAB doctor"))
    )
    return tell(lab, mark, [] if fine else ["it failed"])


def ours(lab, options, settings, seconds, port):
    """MB/s of one connection, unchecked."""
    mark = lab.mark()
    for guest in lab.guests[:2]:
        role = f"receive {port}" if guest.number == 1 else f"send 10.9.0.1:{port}"
        guest.run(
            f"rm -f /run/lab-stop; start end env {settings} {options.program} {role} {seconds} 1048576 unchecked"
        )
    lab.wait("LAB end exit", 60 + seconds, mark, (1, 2))
    done = re.search(r"MB/s ([\d.]+)", " ".join(lab.guests[1].lines(mark[1])))
    return float(done[1]) if done else 0.0


def theirs(lab, seconds, port):
    """MB/s of ib_write_bw over the first rail, with as many writes under way."""
    mark = lab.mark()
    command = f"ib_write_bw -d rxe1 -x 1 -s 1048576 -t 8 -D {seconds} -p {port} --report_gbits -F"
    lab.guests[0].run(f"start perf {command}")
    time.sleep(3)
    lab.guests[1].run(f"start perf {command} 10.9.0.1")
    lab.wait("LAB perf exit", 60 + seconds, mark, (1, 2))
    rows = [line.split() for line in lab.guests[1].lines(mark[1]) if re.match(r"LAB perf\s+1048576\s", line)]
    return float(rows[-1][5]) * 1000 / 8 if rows else 0.0


def rates(lab, options):
    """Bandwidth in turns: perftest over one rail; ours over one rail, over two, and over one without
    failover."""
    one = "NCCL_IB_HCA==rxe1"
    sides = {
        "ib_write_bw": lambda port: theirs(lab, options.seconds, port),
        "one rail": lambda port: ours(lab, options, one, options.seconds, port),
        "two rails": lambda port: ours(lab, options, "", options.seconds, port),
        "failover off": lambda port: ours(
            lab, options, one + " NCCL_IB_RESILIENCY_PORT_FAILOVER=0", options.seconds, port
        ),
    }
    found, port = {name: [] for name in sides}, PORT
    for turn in range(options.rounds):
        for name, measure in sides.items():
            port += 1
            starved = [guest.starved() for guest in lab.guests]
            found[name].append(measure(port))
            waited = [round(guest.starved() - was, 1) for guest, was in zip(lab.guests, starved)]
            print(
                f"  {turn + 1} {name:13} {found[name][-1]:8.2f} MB/s, guests starved {waited} s", flush=True
            )
    middle = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        print(f"  {name:13} median {middle[name]:8.2f} MB/s, {min(values):.2f} to {max(values):.2f}")
    if all(middle.values()):
        print(
            f"  ours / ib_write_bw {middle['one rail'] / middle['ib_write_bw']:.2f}, two rails / one "
            f"{middle['two rails'] / middle['one rail']:.2f}, failover on / off {middle['one rail'] / middle['failover off']:.3f}"
        )
    return tell(lab, lab.mark(), [name for name, value in middle.items() if not value])


def ring(lab, options):
    """Three hosts with four rails each: each sends to the next one, while rails of all of them fail one by
    one."""
    dice, mark, seconds, wrong = random.Random(options.seed), lab.mark(), 40, []
    for guest in lab.guests:
        following = guest.number % lab.count + 1
        settings = "HAWSER_IB_FLAPS=1000000"
        guest.run(
            f"rm -f /run/lab-stop; start in env {settings} {options.program} receive {PORT + guest.number} {seconds} 65536"
        )
        guest.run(
            f"start out env {settings} {options.program} send 10.9.0.{following}:{PORT + following} {seconds} 65536"
        )
    if not lab.wait("LAB in up", 120, mark) or not lab.wait("LAB out up", 60, mark):
        return tell(lab, mark, ["not all connections came up"])
    start = time.monotonic()
    while time.monotonic() < start + seconds - 15:
        rails = dice.sample(range(1, lab.rails + 1), dice.randint(1, lab.rails - 1))
        broken = [
            (dice.randint(1, lab.count), rail, dice.choice([make.cable, make.down, make.silence]))
            for rail in rails
        ]
        length = dice.uniform(1.0, 3.0)
        faults = [
            fault for guest, rail, kind in broken for fault in kind(guest, rail, dice.uniform(0, 0.5), length)
        ]
        print(
            "  "
            + ", ".join(f"{kind.__name__} of rail {rail} at guest {guest}" for guest, rail, kind in broken),
            flush=True,
        )
        make.carry_out(lab, sorted(faults))
        time.sleep(1)
    lab.wait("LAB in exit", 120, mark)
    lab.wait("LAB out exit", 60, mark)
    for guest, first in zip(lab.guests, mark):
        for name in ("in", "out"):
            done = [line for line in guest.lines(first) if line.startswith(f"LAB {name} done")]
            print(f"  guest {guest.number} {name:3}: {done[-1] if done else 'did not end in peace'}")
            if not done or not re.search(r"stopped [1-9]", done[-1]):
                wrong.append(f"guest {guest.number} {name}")
    return tell(lab, mark, wrong)


def urgent(lab, options):
    """An urgent all-reduce beside a large best-effort one, between two processes of one guest that count as
    hosts, over soft-RoCE: one clock, and ratios of one run."""
    mark, bench = lab.mark(), os.path.join(HERE, "../../bench/urgent.py")
    sizes = f"--large {options.bytes} --count 40 --pause 20 --rounds {options.rounds}"
    lab.guests[0].run(
        f"start urgent env PYTHONUNBUFFERED=1 python3 {bench} --library {options.library} --ways ib {sizes}"
    )
    fine = lab.wait("LAB urgent exit 0", 3600, mark, (1,))
    print("\n".join("  " + line[11:] for line in lab.guests[0].lines(mark[0]) if line.startswith("LAB urgent")))
    return tell(lab, mark, [] if fine else ["it failed"])


PROGRAMS = {
    "collectives": collectives,
    "hangs": hangs.run,
    "harness": harness,
    "doctor": doctor,
    "rates": rates,
    "ring": ring,
    "urgent": urgent,
}
