#!/usr/bin/env python3
"""Finds out what of a flood's cost is the library's: bench/floods.py RANK [--rounds 9] [--strangers 10000]

RANK is the program `hawser-test-rank` under its own name. Four ranks on two "hosts" are brought up as in
`attack --flood`, in turns:

  quiet     nobody comes
  flooded   strangers connect to every port of the ranks, and say nothing
  ignored   they connect to other listeners instead, as many and at the same time, which nobody serves
  closed    the same, and a program of one thread accepts there and closes at once

So `ignored` is what strangers alone take of the processors that they share with the ranks, and `closed`
adds the least that anybody who answers at such a port can do. Prints for each the longest init of a rank in
milliseconds (median, smallest, largest, ratio to the first) and processor time of all ranks until then."""

import argparse
import os
import pathlib
import queue
import select
import socket
import statistics
import subprocess
import sys
import threading
import time

SIDES = ("quiet", "flooded", "ignored", "closed")
RANKS = 4
FILES = 1024
ANOTHER_USER = 4242
PATIENCE = 120


class Process:
    """A process whose lines are read as they come."""

    def __init__(self, command, env=None):
        own = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "HAWSER_"))}
        own.update(env or {}, HAWSER_DEVICE="host")
        pipe = subprocess.PIPE
        out = {"stdout": pipe, "stderr": subprocess.STDOUT}
        self.child = subprocess.Popen(command, stdin=pipe, text=True, env=own, **out)
        self.new, self.lines = queue.Queue(), []
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.child.stdout:
            self.new.put(line.strip())

    def take(self):
        """The lines that have come since it was asked last."""
        found = []
        while not self.new.empty():
            found.append(self.new.get())
        self.lines += found
        return found

    def value(self, name):
        """The rest of the first line that begins with a name."""
        return next((line[len(name) :] for line in self.lines if line.startswith(name)), None)

    def tell(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def milliseconds(self):
        """Its processor time so far."""
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Job:
    """Four ranks with strangers, or none."""

    def __init__(self, given, side):
        self.given, self.side = given, side
        self.known, self.others = set(), []
        both = [(given.strangers, os.getuid()), (given.of_another_user, ANOTHER_USER)]
        counts = [] if side == "quiet" else both
        self.strangers = [self.process("stranger", count, user, given.nice) for count, user in counts]
        closes = side == "closed"
        self.decoys = Process([sys.executable, __file__, "--decoys"]) if closes else None
        self.ranks = []

    def process(self, *words, env=None):
        program = self.given.strangers_by or self.given.rank if words[0] == "stranger" else self.given.rank
        return Process([program, *map(str, words)], env)

    def rank(self, number, unique_id):
        env = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_HOSTID": ("even", "odd")[number % 2]}
        self.ranks.append(self.process("flooded", unique_id, RANKS, number, FILES, env=env))

    def wait(self, done):
        end = time.monotonic() + PATIENCE
        while not done():
            for rank in self.ranks:
                self.tell(line[5:] for line in rank.take() if line.startswith("port "))
            if time.monotonic() > end or any(rank.child.poll() for rank in self.ranks):
                lines = [line for rank in self.ranks for line in rank.lines]
                raise SystemExit("\n".join(line for line in lines if "stranger" not in line))
            time.sleep(0.001)

    def tell(self, ports):
        for port in ports:
            if port in self.known:
                continue
            self.known.add(port)
            for stranger in self.strangers:
                stranger.tell(port if self.side == "flooded" else self.instead(port))

    def instead(self, port):
        """A listener in place of a port."""
        kind = port.split()[0]
        if self.decoys:
            self.decoys.tell(kind)
            while not (lines := self.decoys.take()):
                time.sleep(0.0002)
            return lines[0]
        listener, name = listen(kind)
        self.others.append(listener)
        return name

    def flooded(self, ports):
        """True if strangers have made their connections to so many ports."""
        for stranger in self.strangers:
            stranger.take()
        made = [sum(line.startswith("made ") for line in stranger.lines) for stranger in self.strangers]
        return all(count >= ports for count in made)

    def run(self):
        self.rank(0, "new")
        self.wait(lambda: self.ranks[0].value("id ") and "ready" in self.ranks[0].lines)
        time.sleep(0.02)
        self.wait(lambda: self.flooded(len(self.known)))
        for number in range(1, RANKS):
            self.rank(number, self.ranks[0].value("id "))
        self.wait(lambda: all("ready" in rank.lines for rank in self.ranks))
        before = sum(rank.milliseconds() for rank in self.ranks)
        for rank in self.ranks:
            rank.tell("go")
        self.wait(lambda: all(rank.value("init ") for rank in self.ranks))
        took = sum(rank.milliseconds() for rank in self.ranks) - before
        init = max(int(rank.value("init ")) for rank in self.ranks) / 1000
        self.wait(lambda: self.flooded(len(self.known)))
        for rank in self.ranks:
            rank.tell("stop")
        for process in (*self.ranks, *self.strangers, *filter(None, [self.decoys])):
            process.child.stdin.close()
            process.child.wait(PATIENCE)
        return init, took


def listen(kind):
    """A listener of a kind, and its name in the words of strangers."""
    if kind == "unix":
        listener = socket.socket(socket.AF_UNIX)
        name = b"decoy" + os.urandom(8)
        listener.bind(b"\0" + name)
        text = f"unix {name.hex()}"
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        text = f"tcp 127.0.0.1:{listener.getsockname()[1]}"
    listener.listen(4096)
    listener.setblocking(False)
    return listener, text


def decoys():
    """Opens listeners as it is told to, and closes what comes."""
    ready, known = select.epoll(), {}
    ready.register(0, select.EPOLLIN)
    while True:
        for number, _ in ready.poll():
            if number != 0:
                try:
                    while True:
                        known[number].accept()[0].close()
                except BlockingIOError:
                    continue
            line = sys.stdin.readline()
            if not line:
                return
            listener, name = listen(line.strip())
            known[listener.fileno()] = listener
            ready.register(listener, select.EPOLLIN)
            print(name, flush=True)


def main():
    if "--decoys" in sys.argv:
        return decoys()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rank", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--strangers", type=int, default=10_000)
    parser.add_argument("--of-another-user", type=int, default=1_000)
    parser.add_argument("--strangers-by", help="the program of strangers, if it is another than RANK")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--sides", nargs="*", default=SIDES)
    given = parser.parse_args()
    found = {side: [] for side in given.sides}
    for turn in range(given.rounds):
        for at in range(len(given.sides)):
            side = given.sides[(at + turn) % len(given.sides)]
            found[side].append(Job(given, side).run())
            print(side, found[side][-1], file=sys.stderr, flush=True)
    quiet = statistics.median(init for init, _ in found[given.sides[0]])
    for side in given.sides:
        inits, took = zip(*found[side])
        median, spread = statistics.median(inits), f"({min(inits):.1f} to {max(inits):.1f})"
        cpu = f"{statistics.median(took):.0f} ms of processor ({min(took):.0f} to {max(took):.0f})"
        print(f"{side:<8} {median:9.1f} ms {spread:22} x{median / quiet:.2f}  {cpu}")


if __name__ == "__main__":
    main()
