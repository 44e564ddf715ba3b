#!/usr/bin/env python3
"""PyTorch's groups that outlive their members: tests/gpu/pytorch_elastic.py libnccl.so.2 [ranks] [--only SETS]

A set is a way of PyTorch to run NCCL; each of its cases makes a process group anew in the same processes.
`legacy` is the group of PyTorch up to 2.13: shrinking it, with and without an abort. `nccl2` is the one that
came with 2.14: shrinking it, reconfigurations that leave ranks out, take them in again, merge groups and
follow an abort or an operation that took too long, memory given back for a while, and puts into windows.
`shrink-grow` is `nccl2` with reconfigurations by ncclCommShrink and ncclCommGrow. Where the PyTorch at hand
has no `nccl2`, its sets are skipped, and say so. `kill-…` kills a rank in a loop of all-reduces: the calls
of all others end with an error, and they go on with a smaller group; in `kill-watchdog` PyTorch's own
watchdog may end them, too. Sums are checked after each change.

With `--nvidia` the library that PyTorch comes with runs instead, which needs a GPU for each rank. Prints a
line for each case; the exit code is 1 if one went wrong. Needs PyTorch and a GPU."""

import argparse
import datetime
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True

import processes
from processes import end_all, torch_gpus

COMMON = ["shrink", "shrink_abort", "memory"]
SECOND = ["basic", "messages", "split", "out_last", "out_middle", "in_again", "again_and_again", "one_to_all"]
SECOND += ["halves", "abort", "late", "window"]
SETS = {
    "legacy": ({"TORCH_DIST_USE_NCCL2": "0"}, "nccl", COMMON),
    "nccl2": ({}, "nccl2", COMMON + SECOND),
    "shrink-grow": ({"TORCH_NCCL2_RECONFIGURE_SHRINK_GROW": "1"}, "nccl2", SECOND),
    "kill-legacy": (
        {"TORCH_DIST_USE_NCCL2": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
        "nccl",
        ["kill_shrink"],
    ),
    "kill-watchdog": ({"TORCH_DIST_USE_NCCL2": "0"}, "nccl", ["kill_watchdog"]),
    "kill-nccl2": ({}, "nccl2", ["kill_reconfigure"]),
    "kill-shrink-grow": ({"TORCH_NCCL2_RECONFIGURE_SHRINK_GROW": "1"}, "nccl2", ["kill_reconfigure"]),
}
LIMIT = 120
IN_LOOP = b"in the loop"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("ranks", type=int, nargs="?", default=3)
    parser.add_argument("--only", help="names of sets")
    parser.add_argument("--cases", help="names of cases; the default is all of a set")
    parser.add_argument("--nvidia", action="store_true", help="the library that PyTorch comes with")
    parser.add_argument("--kills", type=int, default=2, help="how often a rank is killed in each such set")
    for word in ("--child", "--phase", "--identity", "--victim"):
        parser.add_argument(word, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return Rank(options).run()
    if not torch_gpus():
        print("skipped: needs PyTorch and a GPU")
        return 0
    bad = 0
    for name in options.only.split(",") if options.only else SETS:
        for number in range(options.kills if name.startswith("kill") else 1):
            bad += carry_out(options, name, number)
    print(f"{bad} wrong")
    return int(bad > 0)


def carry_out(options, name, number):
    """Runs a set; the number of its cases that went wrong."""
    env, backend, cases = SETS[name]
    if backend == "nccl2" and not has_nccl2():
        print(f"{name:16} skipped: this PyTorch has no nccl2")
        return 0
    if options.cases:
        cases = [case for case in cases if case in options.cases.split(",")]
    if not options.nvidia:
        env = {**env, "LD_PRELOAD": options.library}
    dice, victim = random.Random(number), None
    words = [str(options.ranks), "--cases", ",".join(cases)] + (["--nvidia"] if options.nvidia else [])
    if name.startswith("kill"):
        victim = dice.randrange(options.ranks)
        words += ["--victim", str(victim)]
    with tempfile.TemporaryDirectory() as folder:
        begin = lambda rank: processes.start(options, rank, name, folder, words=words, env=env)
        children = [begin(rank) for rank in range(options.ranks)]
        if victim is not None:
            if not all(processes.said(child, IN_LOOP, LIMIT) for child in children):
                end_all(children)
                print(f"{name:16} WRONG: not all ranks came to the loop")
                return 1
            time.sleep(dice.random() * 0.5)
            children[victim].send_signal(signal.SIGKILL)
        return judged(name, cases, children, victim)


def has_nccl2():
    import torch.distributed

    return hasattr(torch.distributed, "ProcessGroupNCCL2")


def judged(name, cases, children, victim):
    """Waits for the ranks of a set, and prints what they said of each case; how many went wrong."""
    end, told = time.monotonic() + LIMIT, {}
    readers = [threading.Thread(target=hear, args=(told, rank, child)) for rank, child in enumerate(children)]
    for reader in readers:
        reader.start()
    # Where one ends badly, the others wait for it in vain: they get a little time to say why.
    while any(reader.is_alive() for reader in readers) and time.monotonic() < end:
        failed = [child.poll() for rank, child in enumerate(children) if rank != victim]
        if any(failed) and victim is None:
            end = min(end, time.monotonic() + 5)
        time.sleep(0.05)
    late = [rank for rank, child in enumerate(children) if child.poll() is None]
    end_all(children)
    for reader in readers:
        reader.join()
    for rank in late:
        told[rank] += "\nIT DID NOT END"
    bad = 0
    for case in cases:
        ends = [f"case {case}: right"] + (["watchdog thread terminated"] if case == "kill_watchdog" else [])
        wrong = [r for r in told if r != victim and not any(end in told[r] for end in ends)]
        lines = {line for text in told.values() for line in text.splitlines()}
        notes = {line for line in lines if line.startswith(f"note {case}: ")}
        notes = "; ".join(sorted(line.split(": ", 1)[1] for line in notes))
        print(f"{name:16} {case:18} {f'WRONG on ranks {wrong}' if wrong else 'ok'}  {notes}", flush=True)
        for rank in wrong[:1]:
            print(told[rank][-2500:], flush=True)
        bad += bool(wrong)
        if wrong:
            break
    return bad


def hear(told, rank, child):
    told[rank] = child.communicate()[0].decode(errors="replace")


class Rank:
    """What a rank does; each case is a method."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.number, self.ranks, self.phase = int(options.child), options.ranks, options.phase
        self.cases, self.folder = options.cases.split(","), os.path.dirname(options.identity)
        self.backend_name = SETS[self.phase][1]
        self.victim = int(options.victim or -1)
        if not options.nvidia:
            loaded = {line.split()[-1] for line in open("/proc/self/maps")}
            assert os.path.realpath(options.library) in loaded, f"{options.library} is not loaded"

    def run(self):
        signal.alarm(LIMIT + 60)  # the program that started this one may be gone
        index = self.number % self.torch.cuda.device_count()
        self.device = self.torch.device("cuda", index)
        self.torch.cuda.set_device(self.device)
        for number, case in enumerate(self.cases):
            self.case = case
            store = self.dist.FileStore(os.path.join(self.folder, f"store-{number}"), self.ranks)
            self.store = self.dist.PrefixStore("case", store)
            try:
                getattr(self, case)()
            except Exception:
                traceback.print_exc()
                os._exit(1)
            # The case is over for all before the group of a rank goes.
            if not case.startswith("kill"):
                self.meet("end")
            self.end_group()
            print(f"case {case}: right", flush=True)
        # A group that lost a member is not taken apart in order.
        os._exit(0)

    def end_group(self):
        if self.case.startswith("kill"):
            return
        if self.dist.is_initialized():
            self.dist.destroy_process_group()

    # What cases are made of.

    def init(self, **words):
        self.dist.init_process_group(
            self.backend_name,
            rank=self.number,
            world_size=self.ranks,
            store=self.dist.PrefixStore("group", self.store),
            timeout=datetime.timedelta(seconds=30),
            **words,
        )

    def init_elastic(self):
        self.init(enable_reconfigure=True)

    def own_handle(self):
        return self.dist._get_reconfigure_handle()

    def handles(self, key, place=None):
        """The handles of all ranks, in the order of their numbers or of the places that they give."""
        self.store.set(f"{key}-{self.number if place is None else place}", self.own_handle())
        return [self.store.get(f"{key}-{rank}").decode() for rank in range(self.ranks)]

    def meet(self, key):
        self.store.set(f"{key}-{self.number}", "here")
        for rank in range(self.ranks):
            self.store.get(f"{key}-{rank}")

    def reconfigure(self, uuid, handles):
        limit = datetime.timedelta(seconds=30)
        self.dist._reconfigure(uuid, handles, timeout=limit).wait()
        assert self.dist.get_world_size() == len(handles), self.dist.get_world_size()

    def all_in(self):
        """A group of all ranks; their handles in it."""
        self.init_elastic()
        self.reconfigure(100, self.handles("first"))
        assert self.dist.get_rank() == self.number
        return self.handles("then")

    def full(self, value, count=1 << 16):
        return self.torch.full((count,), float(value), device=self.device)

    def check_sum(self):
        """An all-reduce of the group as it is, small and large."""
        rank, ranks = self.dist.get_rank(), self.dist.get_world_size()
        for count in (4, 1 << 20):
            tensor = self.full(rank + 1, count)
            self.dist.all_reduce(tensor)
            self.same(tensor, ranks * (ranks + 1) // 2, f"sum of {ranks} ranks")

    def same(self, tensor, value, what):
        assert bool((tensor == value).all()), f"{what} gives {tensor.flatten()[:8].tolist()}, not {value}"

    def group(self):
        """The backend of the default group."""
        default = self.dist.distributed_c10d._get_default_group()
        return default._get_backend(self.device)

    def note(self, text):
        print(f"note {self.case}: {text}", flush=True)

    # Cases of both groups.

    def shrink(self, flags=0):
        self.init(device_id=self.device)
        self.check_sum()
        self.torch.cuda.synchronize()
        last = self.ranks - 1
        if self.number != last:
            self.dist.shrink_group([last], shrink_flags=flags)
            assert self.dist.get_world_size() == last
            self.check_sum()
            self.torch.cuda.synchronize()
        else:
            # The others have taken their ends of this group apart.
            self.group().abort()

    def shrink_abort(self):
        self.shrink(1)

    # Cases of nccl2.

    def basic(self):
        self.all_in()
        self.check_sum()

    def messages(self):
        self.all_in()
        to, of = (self.number + 1) % self.ranks, (self.number - 1) % self.ranks
        got = self.full(0)
        operations = [
            self.dist.P2POp(self.dist.isend, self.full(self.number + 1), to),
            self.dist.P2POp(self.dist.irecv, got, of),
        ]
        for work in self.dist.batch_isend_irecv(operations):
            work.wait()
        self.same(got, of + 1, "message")

    def split(self):
        self.init(device_id=self.device)
        self.check_sum()
        half = self.ranks // 2
        groups = [list(range(half)), list(range(half, self.ranks))]
        mine = groups[self.number >= half]
        group = self.dist.split_group(split_ranks=groups)
        tensor = self.full(self.number + 1)
        self.dist.all_reduce(tensor, group=group)
        self.same(tensor, sum(rank + 1 for rank in mine), "sum of a half")
        self.torch.cuda.synchronize()

    def out_last(self):
        handles = self.all_in()
        if self.number != self.ranks - 1:
            self.reconfigure(200, handles[:-1])
            self.check_sum()

    def out_middle(self):
        handles, middle = self.all_in(), self.ranks // 2
        if self.number != middle:
            self.reconfigure(200, handles[:middle] + handles[middle + 1 :])
            assert self.dist.get_rank() == self.number - (self.number > middle)
            self.check_sum()

    def in_again(self):
        handles, middle = self.all_in(), self.ranks // 2
        if self.number != middle:
            self.reconfigure(200, handles[:middle] + handles[middle + 1 :])
            self.check_sum()
        self.reconfigure(201, self.handles("again"))
        assert self.dist.get_rank() == self.number
        self.check_sum()

    def again_and_again(self):
        """A rank leaves and comes back as the last one, three times, each time another one."""
        self.all_in()
        for turn in range(3):
            handles = self.handles(f"turn-{turn}", self.dist.get_rank())
            leaver = turn % self.ranks
            leaves = self.dist.get_rank() == leaver
            if not leaves:
                self.reconfigure(300 + 2 * turn, handles[:leaver] + handles[leaver + 1 :])
                self.check_sum()
            place = self.ranks - 1 if leaves else self.dist.get_rank()
            self.reconfigure(301 + 2 * turn, self.handles(f"back-{turn}", place))
            self.check_sum()

    def one_to_all(self):
        self.init_elastic()
        self.reconfigure(400 + self.number, [self.own_handle()])
        self.check_sum()
        self.reconfigure(500, self.handles("all"))
        self.check_sum()

    def halves(self):
        self.init_elastic()
        handles, half = self.handles("first"), self.ranks // 2
        if self.number < half:
            self.reconfigure(600, handles[:half])
        else:
            self.reconfigure(601, handles[half:])
        self.check_sum()
        self.reconfigure(602, self.handles("all"))
        self.check_sum()

    def abort(self):
        self.all_in()
        self.check_sum()
        self.group().abort()
        self.reconfigure(700, self.handles("aborted"))
        self.check_sum()

    def late(self):
        """One rank calls what the others never call: its operation ends by its time limit."""
        self.all_in()
        self.check_sum()
        self.torch.cuda.synchronize()
        if self.number == 1:
            self.group().set_timeout(datetime.timedelta(milliseconds=300))
            work = self.dist.all_reduce(self.full(1), async_op=True)
            self.note(f"the late call ends with {self.error_of(work)}")
        self.meet("late")
        self.group().abort()
        self.group().set_timeout(datetime.timedelta(seconds=30))
        self.reconfigure(800, self.handles("afterwards"))
        self.check_sum()

    def error_of(self, work):
        """How an operation that cannot be carried out ends: the kind of the error."""
        end = time.monotonic() + 20
        try:
            work.wait()
            while time.monotonic() < end and "SUCCESS" in str(self.group().get_error()):
                time.sleep(0.01)
            error = str(self.group().get_error())
            assert "SUCCESS" not in error, "no error after 20 s"
            return error
        except RuntimeError as error:
            return type(error).__name__

    def memory(self):
        """Memory is given back and comes again, in communicators of both kinds."""
        self.init(device_id=self.device)
        self.check_sum()
        self.torch.cuda.synchronize()
        group = self.group()
        if not hasattr(group, "suspend"):
            self.note("this PyTorch does not offer suspend to Python")
            return
        before = dict(group.memory_stats())
        self.meet("before")
        group.suspend()
        asleep = dict(group.memory_stats())
        self.meet("asleep")
        group.resume()
        self.check_sum()
        self.torch.cuda.synchronize()
        again = dict(group.memory_stats())
        if self.number == 0:
            self.note(f"{before}, asleep {asleep}, again {again}")
        assert before != asleep, "suspend gave nothing back"

    def window(self):
        """Puts from the right neighbour's window into mine, and signals."""
        self.init(device_id=self.device)
        self.check_sum()
        group, torch, count = self.group(), self.torch, 1 << 18
        pool = torch.cuda.MemPool(group.mem_allocator)
        with torch.cuda.use_mem_pool(pool):
            target = torch.zeros(count * self.ranks, device=self.device)
            source = torch.full((count,), float(self.number + 1), device=self.device)
        self.torch.cuda.synchronize()
        into, out_of = self.dist._new_window(target), self.dist._new_window(source)
        for peer in range(self.ranks):
            if peer != self.number:
                into.put(source, peer, self.number * count, False)
                into.signal(peer, False)
        for peer in range(self.ranks):
            if peer != self.number:
                into.wait_signal(peer, False)
        torch.cuda.synchronize()
        for peer, part in enumerate(target.chunk(self.ranks)):
            self.same(part, 0 if peer == self.number else peer + 1, f"what rank {peer} put")
        self.meet("put")
        into.tensor_deregister()
        out_of.tensor_deregister()

    # Cases in which a rank is killed.

    def kill_shrink(self):
        self.init(device_id=self.device)
        dead = self.loop_until_death()
        self.dist.shrink_group([dead], shrink_flags=1)
        assert self.dist.get_world_size() == self.ranks - 1
        self.check_sum()
        self.torch.cuda.synchronize()

    def kill_watchdog(self):
        self.init(device_id=self.device)
        self.loop_until_death()

    def kill_reconfigure(self):
        handles = self.all_in()
        dead = self.loop_until_death()
        self.group().abort()
        self.reconfigure(900, handles[:dead] + handles[dead + 1 :])
        self.check_sum()
        self.torch.cuda.synchronize()

    def loop_until_death(self):
        """All-reduces until a rank is dead; its number, which the survivors know from the test itself."""
        self.check_sum()
        self.torch.cuda.synchronize()
        sys.stdout.buffer.write(IN_LOOP + b"\n")
        sys.stdout.flush()
        end = time.monotonic() + LIMIT
        try:
            while time.monotonic() < end:
                work = self.dist.all_reduce(self.full(1, 1 << 20), async_op=True)
                # Who waits for the GPU here waits until somebody aborts the group.
                while not work.is_completed() and time.monotonic() < end:
                    self.raise_error_of(work)
                    time.sleep(0.0002)
                self.raise_error_of(work)
            raise AssertionError("no error after the death of a rank")
        except RuntimeError as error:
            self.note(f"a call ended with {type(error).__name__}")
        return self.victim

    def raise_error_of(self, work):
        try:
            error = work.exception()
        except TypeError:
            error = None  # PyTorch up to 2.13 has no way to hand it to Python
        if error is not None:
            raise RuntimeError(str(error)) from error
        state = str(self.group().get_error())
        if "SUCCESS" not in state:
            raise RuntimeError(state)



if __name__ == "__main__":
    sys.exit(main())
