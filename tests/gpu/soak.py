#!/usr/bin/env python3
"""Random work with checked results: tests/gpu/soak.py libnccl.so.2 [ranks] --minutes 10 --seed 1

Random sizes (each order of magnitude as often), types, reductions, roots, collectives, exchanges of messages,
groups of several of them on one or several communicators (the world, the world in reverse, parts), two
streams per rank, calls in between replays of CUDA graphs, which the library puts in order (with
NCCL_GRAPH_MIXING_SUPPORT=0 this program does). Every result is checked on the GPU. A seed makes the same
steps again. `--threads` gives each rank a thread; else one thread drives all ranks, which share GPUs if there
are more. Needs PyTorch and a GPU, or `--host` with numpy and ml_dtypes (no graphs); says so and ends with 0
otherwise. The exit code is 1 if a result is wrong, a call fails or nothing moves for `--deadline` seconds;
then the steps since the last check are printed, and `--window 1` with the same seed finds the one."""

import collections
import dataclasses
import os
import sys
import threading
import time
import traceback

sys.dont_write_bytecode = True

import cases
import layer as layers
import nccl
import program
import script

REPORT_SECONDS = 30
MIXES_GRAPHS = os.environ.get("NCCL_GRAPH_MIXING_SUPPORT") != "0"


def main():
    options = arguments()
    layer, reason = layers.open_layer(options.ranks, options.host)
    if layer is None:
        print(f"skipped: {reason}")
        return 0
    ranks = options.ranks or layer.default_ranks()
    if options.threads and not layer.on_host and ranks > layer.gpus:
        reason = "a driver call that waits for a GPU would wait for other ranks on it"
        print(f"skipped: --threads needs a GPU per rank: {reason}")
        return 0
    try:
        soak = Soak(options, layer, ranks)
        soak.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # leaving in order could wait for kernels that wait
    print(soak.line("done"))
    print("  " + " ".join(f"{name}:{count}" for name, count in sorted(soak.counts.items())))
    return 1 if soak.wrong or not soak.counts else 0


def arguments():
    parser = program.parser(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--steps", type=int, default=0, help="end after this many steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest", type=float, default=64, help="MiB of the largest buffer (1 with --host)")
    parser.add_argument("--threads", action="store_true", help="a thread per rank")
    parser.add_argument("--window", type=int, default=script.WINDOW_STEPS, help="steps between two checks")
    parser.add_argument("--deadline", type=float, default=60, help="seconds for the steps between two checks")
    parser.add_argument("--no-graphs", action="store_true")
    options = parser.parse_args()
    options.largest = int((min(options.largest, 1) if options.host else options.largest) * (1 << 20))
    return options


class Soak:
    """All communicators of the process, what is under way, what came of it."""

    def __init__(self, options, layer, ranks):
        self.options, self.layer, self.ranks = options, layer, ranks
        self.counts, self.wrong, self.steps, self.bytes = collections.Counter(), 0, 0, 0
        self.window, self.stop, self.begin = [], False, time.monotonic()
        self.watchdog = nccl.Watchdog(options.deadline)
        self.streams = [[layer.stream(place) for _ in range(2)] for place in range(ranks)]
        self.bad = [layer.counters(place, options.window) for place in range(ranks)]
        self.last = {}
        library = nccl.Library(options.library)
        self.library, self.communicators = library, communicators(library, layer, ranks)
        self.watchdog.text = self.pending
        self.graphs = [] if layer.on_host or options.no_graphs else self.capture()
        self.reported = self.begin = time.monotonic()

    def run(self):
        self.warm_up()
        self.watchdog.step(self.pending)
        if not self.options.threads:
            self.follow(list(range(self.ranks)), self.end_window)
        else:
            if not self.layer.on_host:
                [
                    self.layer.reserve(place, stream)
                    for place in range(self.ranks)
                    for stream in self.streams[place]
                ]
            barrier = threading.Barrier(self.ranks, action=self.end_window)
            threads = [
                threading.Thread(target=self.thread, args=(place, barrier)) for place in range(self.ranks)
            ]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
        for communicator in reversed(self.communicators):
            self.watchdog.step(lambda: f"destroying {communicator.name}")
            communicator.destroy()

    def thread(self, place, barrier):
        try:
            self.layer.use(place)
            self.follow([place], barrier.wait)
        except BaseException:
            traceback.print_exc()
            print(f"FAIL: the thread of rank {place} ended; {self.pending()}", flush=True)
            os._exit(1)

    def follow(self, places, end_window):
        """Does the part of these places in every step, until time is up."""
        position = 0
        items = [graph.items for graph in self.graphs]
        for step in script.Script(
            self.options.seed, self.layer, self.communicators, self.ranks, self.options, items
        ):
            if places[0] == 0:
                self.window.append(step)
            self.one(step, places, position)
            position += 1
            if step.ends_window:
                end_window()
                position = 0
                if self.stop:
                    return

    def one(self, step, places, position):
        """Fills, calls, checks. Nothing waits for a GPU here."""
        parts = []
        for place in places:
            stream = self.streams[place][step.streams[place]]
            self.layer.use(place)
            with self.layer.on(stream):
                works = self.prepare(step, place, stream)
            parts.append((place, stream, works))
        try:
            self.issue(step, parts)
        except nccl.NcclError as error:
            print(f"FAIL: {step}: {error}", flush=True)
            os._exit(1)
        for place, stream, works in parts:
            self.layer.use(place)
            with self.layer.on(stream):
                for _, work in works:
                    self.bad[place][position] += work.wrong()

    def prepare(self, step, place, stream):
        """[(communicator, filled work)] of one place, with `stream` behind what the library cannot know
        of."""
        if step.graph is None:
            works = []
            for item in step.items:
                if place in item.communicator.places:
                    rank = item.communicator.places.index(place)
                    # A call that puts nothing on its stream is in no order with others.
                    if item.case.moves(rank):
                        self.order(item.communicator, place, stream, False)
                    work = item.work(self.layer, rank, place)
                    work.fill()
                    works.append((item.communicator, work))
            return works
        graph = self.graphs[step.graph]
        works = graph.works.get(place, [])
        if works:
            graph.order(self.layer, place, stream)
            self.order(graph.communicator, place, stream, True)
        for communicator, work in works:
            work.fill(dataclasses.replace(work.case, tag=step.tag))
        return works

    def order(self, communicator, place, stream, replay):
        """Calls of one communicator must not overlap with replays: the library sees to it unless it was told
        not to."""
        if MIXES_GRAPHS:
            return
        earlier, was_replay = self.last.get((communicator, place), (stream, False))
        if earlier is not stream and (replay or was_replay):
            self.layer.after(stream, earlier)
        self.last[communicator, place] = stream, replay

    def issue(self, step, parts):
        if step.graph is not None:
            for place, stream, works in parts:
                if works:
                    self.layer.replay(place, self.graphs[step.graph].graphs[place], stream)
            return
        calls = [(communicator, work, stream) for _, stream, works in parts for communicator, work in works]
        alone = len(parts) == 1 and len(calls) == 1 and isinstance(calls[0][1], cases.RankWork)
        if alone:
            communicator, work, stream = calls[0]
            work.issue(communicator, self.layer.handle(stream))
        elif calls:
            with self.library.group():
                for communicator, work, stream in calls:
                    work.issue(communicator, self.layer.handle(stream))

    def end_window(self):
        """Waits for all that is under way and reads the counters."""
        self.layer.synchronize()
        for place, counters in enumerate(self.bad):
            for position, count in enumerate(counters.tolist()):
                if count:
                    self.wrong += 1
                    print(f"WRONG: {count} bytes on place {place}: {self.window[position]}", flush=True)
            counters[:] = 0
        self.layer.synchronize()
        for communicator in self.communicators:
            states = [communicator.state(rank) for rank in range(communicator.size)]
            if any(states):
                print(
                    f"FAIL: {communicator.name} has asynchronous errors {states}; {self.pending()}",
                    flush=True,
                )
                os._exit(1)
        for step in self.window:
            self.count(step)
        self.window = []
        self.watchdog.step(self.pending)
        now = time.monotonic()
        if now - self.reported > REPORT_SECONDS:
            self.reported = now
            print(self.line("soak"), flush=True)
        over = now - self.begin > 60 * self.options.minutes or 0 < self.options.steps <= self.steps
        self.stop = over or self.wrong > 20

    def count(self, step):
        self.steps += 1
        self.counts["replay" if step.graph is not None else "eager"] += 1
        for item in step.items:
            self.counts[getattr(item.case, "collective", "send_recv")] += 1
            self.bytes += script.volume(item.case)

    def line(self, word):
        seconds = time.monotonic() - self.begin
        amount = (
            f"{self.steps} steps, {self.counts['replay']} replays, {self.bytes / 1e9:.1f} GB per rank at most"
        )
        how = f"{self.ranks} ranks, {'threads' if self.options.threads else 'one thread'}, seed {self.options.seed}, "
        return f"{word}: {seconds:.0f} s, {amount}, {self.wrong} wrong ({how}{len(self.communicators)} communicators)"

    def pending(self):
        streams = [
            (place, s, stream) for place, pair in enumerate(self.streams) for s, stream in enumerate(pair)
        ]
        busy = [(place, s) for place, s, stream in streams if self.layer.busy(stream)]
        steps = "\n  ".join(str(step) for step in self.window)
        return f"(place, stream) still busy: {busy}; steps since the last check:\n  {steps}"

    def capture(self):
        """Two graphs for each communicator: one call, and a group of calls."""
        writer = script.Script(
            self.options.seed + 1, self.layer, self.communicators, self.ranks, self.options
        )
        largest, graphs = min(self.options.largest, script.LARGEST_IN_A_GRAPH), []
        for communicator in self.communicators:
            groups = [[writer.item(communicator, largest)], writer.group(communicator, largest, False)]
            for items in groups:
                self.watchdog.step(lambda: f"capturing {' + '.join(map(str, items))}")
                graphs.append(CapturedGroup(self, communicator, items))
        return graphs

    def warm_up(self):
        """Loads kernels and takes memory, so that no call of the CUDA driver waits for a GPU later."""
        if self.layer.on_host:
            return
        for place in range(self.ranks):
            self.layer.use(place)
            for stream in self.streams[place]:
                with self.layer.on(stream):
                    large = [self.layer.filled(place, 8 * self.options.largest, 0) for _ in range(2)]
                    small = [self.layer.filled(place, 512 << 10, 0) for _ in range(64)]
                    del large, small
                    for number, dtype in enumerate(self.layer.types):
                        for op in cases.OPS:
                            for name in ("all_reduce", "all_gather"):
                                case = cases.Case(name, dtype, op, 1000, 0, self.ranks, number)
                                work = cases.RankWork(self.layer, case, 0, place, False, 0)
                                work.fill()
                                self.bad[place][0] += work.wrong() * 0
        self.layer.synchronize()
        self.watchdog.step(self.pending)


class CapturedGroup:
    """A group of calls of one communicator as a graph per place, and its buffers."""

    def __init__(self, soak, communicator, items):
        self.communicator, self.items, self.works, self.streams = communicator, items, {}, {}
        layer = soak.layer
        for rank, place in enumerate(communicator.places):
            self.streams[place] = soak.streams[place][0]
            layer.use(place)
            with layer.on(self.streams[place]):
                self.works[place] = [(communicator, item.work(layer, rank, place)) for item in items]
        layer.synchronize()
        ordered = [(place, self.streams[place]) for place in communicator.places]
        self.graphs = dict(zip(communicator.places, layer.capture(ordered, lambda: self.call(soak))))

    def call(self, soak):
        with soak.library.group():
            for place, works in self.works.items():
                for communicator, work in works:
                    work.issue(communicator, soak.layer.handle(self.streams[place]))

    def order(self, layer, place, stream):
        """Its buffers are used on one stream after the other."""
        if self.streams[place] is not stream:
            layer.after(stream, self.streams[place])
            self.streams[place] = stream


def communicators(library, layer, ranks):
    """The world, the world in reverse, and parts of it."""
    world = nccl.world(library, layer, ranks)
    together = [world]
    if ranks > 1:
        together += nccl.split(world, layer, [0] * ranks, [-r for r in range(ranks)], "reversed")
    if ranks > 2:
        colors = [nccl.NO_COLOR] + [0] * (ranks - 1)
        together += nccl.split(world, layer, colors, [(r * 7) % ranks for r in range(ranks)], "all-but-one")
    if ranks > 3:
        together += nccl.split(world, layer, [r % 2 for r in range(ranks)], list(range(ranks)), "half")
    return together


if __name__ == "__main__":
    sys.exit(main())
