#!/usr/bin/env python3
"""Bad input and faults on real GPUs through the C interface: tests/gpu/faults.py libnccl.so.2

Needs PyTorch (for device memory and streams) and a GPU, which two ranks share if there is one only; says so
and ends with 0 where they are missing. Every check prints a line; the exit code is 1 if one failed. A time
limit ends a hanging run."""

import ctypes
import os
import sys
import threading
import time

sys.dont_write_bytecode = True

import children

try:
    import torch
except ImportError:
    torch = None

P = ctypes.c_void_p
INVALID_ARGUMENT, INVALID_USAGE = 4, 5
FAILED = []


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def main():
    if torch is None:
        print("skipped: needs PyTorch and a GPU")
        return 0
    aborts = (abort_releases_a_hang, abort_releases_a_free, abort_releases_a_replay, abort_behind_other_work)
    all_checks = (
        crossed_order_in_a_group,
        streams_that_are_gone,
        *aborts,
        abort_releases_a_destroy,
        calls_after_abort,
        rounds_leak_nothing,
    )
    parts = [
        ({}, (two_ranks_on_one_gpu,)),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1"}, all_checks),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_PASS_SM": "1"}, (*aborts, abort_with_all_queues_held)),
        ({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_PASS_SM": "1", "HAWSER_OP_TIMEOUT": "2"}, (late_replay,)),
        (
            {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_PASS_SM": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
            (receives_before_computing, abort_releases_a_hang),
        ),
    ]
    failed = []
    for env, checks in parts:
        # The library reads its settings once.
        row = children.in_child(children.DEFAULT, lambda env=env, checks=checks: run(env, checks), 240)
        if "skipped" in row:
            print(f"skipped: {row['skipped']}")
            return 0
        failed += [row["failed"]] if isinstance(row["failed"], str) else row["failed"]
    print("0 failed" if not failed else f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def run(env, checks):
    os.environ |= env
    if not torch.cuda.is_available():
        return {"skipped": "needs a GPU"}
    if env:
        print(f"{' '.join(f'{name}={value}' for name, value in env.items())}:")
    nccl = ctypes.CDLL(sys.argv[1])
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    for check in checks:
        check(nccl)
    return {"failed": FAILED}


def gpu(rank):
    return rank % torch.cuda.device_count()


def expect(name, condition, detail=""):
    print(f"{'ok  ' if condition else 'FAIL'} {name} {detail}", flush=True)
    if not condition:
        FAILED.append(name)


def two_ranks_on_one_gpu(nccl):
    comms = (P * 2)()
    code = nccl.ncclCommInitAll(comms, 2, (ctypes.c_int * 2)(0, 0))
    expect("two ranks on one GPU (InitAll)", code == INVALID_USAGE, f"-> {code}")
    identity, codes = UniqueId(), [None, None]
    nccl.ncclGetUniqueId(ctypes.byref(identity))

    def rank(r):
        torch.cuda.set_device(0)
        codes[r] = nccl.ncclCommInitRank(ctypes.byref(P()), 2, identity, r)

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(2)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    text = nccl.ncclGetLastError(None)
    expect("two ranks on one GPU (InitRank)", codes == [INVALID_USAGE] * 2, f"-> {codes}: {text.decode()}")


def pair(nccl):
    comms = (P * 2)()
    expect("init of two ranks", nccl.ncclCommInitAll(comms, 2, (ctypes.c_int * 2)(gpu(0), gpu(1))) == 0)
    return [P(comms[0]), P(comms[1])]


def all_reduce(nccl, comm, rank, stream):
    x = torch.ones(1024, device=f"cuda:{gpu(rank)}")
    torch.cuda.current_stream(gpu(rank)).synchronize()
    code = nccl.ncclAllReduce(
        P(x.data_ptr()), P(x.data_ptr()), ctypes.c_size_t(1024), 7, 0, comm, P(stream.cuda_stream)
    )
    return code, x


def crossed_order_in_a_group(nccl):
    """One group calls two communicators in different orders on the two ranks, everything of a rank on one
    stream."""
    comms, buffers = [pair(nccl), pair(nccl)], []
    streams = [torch.cuda.Stream(gpu(rank)) for rank in range(2)]
    size = 8 << 20  # does not fit into FIFOs: each kernel needs its partner
    nccl.ncclGroupStart()
    for rank in range(2):
        for comm in comms if rank == 0 else comms[::-1]:
            x = torch.ones(size, device=f"cuda:{gpu(rank)}")
            torch.cuda.synchronize(gpu(rank))
            buffers.append(x)
            at, stream = P(x.data_ptr()), P(streams[rank].cuda_stream)
            nccl.ncclAllReduce(at, at, ctypes.c_size_t(size), 7, 0, comm[rank], stream)
    code = nccl.ncclGroupEnd()
    [stream.synchronize() for stream in streams]
    right = all(bool((x == 2).all()) for x in buffers)
    expect("two communicators in crossed order in a group", code == 0 and right, f"-> {code}")
    [nccl.ncclCommDestroy(comm) for both in comms for comm in both]


def streams_that_are_gone(nccl):
    """A stream is destroyed between two calls, and another one before the communicator is."""
    comms, driver, right = pair(nccl), ctypes.CDLL("libcuda.so.1"), True
    for _ in range(2):
        streams, buffers, codes = [P(), P()], [], []
        nccl.ncclGroupStart()
        for rank in range(2):
            torch.cuda.set_device(gpu(rank))
            driver.cuStreamCreate(ctypes.byref(streams[rank]), 1)
            x = torch.ones(1024, device=f"cuda:{gpu(rank)}")
            torch.cuda.synchronize(gpu(rank))
            buffers.append(x)
            at = P(x.data_ptr())
            codes.append(nccl.ncclAllReduce(at, at, ctypes.c_size_t(1024), 7, 0, comms[rank], streams[rank]))
        codes.append(nccl.ncclGroupEnd())
        [driver.cuStreamSynchronize(stream) for stream in streams]
        [driver.cuStreamDestroy_v2(stream) for stream in streams]
        right &= not any(codes) and all(bool((x == 2).all()) for x in buffers)
    codes = [nccl.ncclCommDestroy(comm) for comm in comms]
    expect("streams that are gone", right and not any(codes), f"-> {codes}")


def abort_releases_a_hang(nccl):
    global ABORTED
    comms = pair(nccl)
    stream = torch.cuda.Stream(0)
    torch.cuda.set_device(0)
    code, keep = all_reduce(nccl, comms[0], 0, stream)
    expect("one of two ranks joins", code == 0)
    time.sleep(0.5)
    expect("its kernel waits for the other", not stream.query())
    state = ctypes.c_int(-1)
    nccl.ncclCommGetAsyncError(comms[0], ctypes.byref(state))
    expect("no asynchronous error yet", state.value == 0, f"-> {state.value}")
    thread = threading.Thread(target=lambda: nccl.ncclCommAbort(comms[0]))
    thread.start()
    thread.join(30)
    expect("abort from another thread returns", not thread.is_alive())
    stream.synchronize()
    expect("the stream is released", stream.query())
    expect("abort of the idle rank", nccl.ncclCommAbort(comms[1]) == 0)
    ABORTED = comms[0]
    del keep


def abort_releases_a_free(nccl):
    """cudaFree waits for all that the GPU does; the library's own work for the abort must not wait behind
    it."""
    comms, driver = pair(nccl), ctypes.CDLL("libcuda.so.1")
    torch.cuda.set_device(0)
    stream, ours, theirs = torch.cuda.Stream(0), ctypes.c_uint64(), ctypes.c_uint64()
    # Memory of PyTorch's would not go back.
    codes = [driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(64 << 20)) for at in (ours, theirs)]
    half = ctypes.c_size_t(32 << 20)
    codes.append(nccl.ncclAllGather(P(ours.value), P(ours.value), half, 0, comms[0], P(stream.cuda_stream)))
    expect("one of two ranks joins an all-gather", codes == [0] * 3, f"-> {codes}")
    time.sleep(0.5)

    def free():
        torch.cuda.set_device(0)
        codes.append(driver.cuMemFree_v2(theirs))

    freeing = threading.Thread(target=free, daemon=True)
    freeing.start()
    time.sleep(0.5)
    expect("memory cannot be freed while it waits", freeing.is_alive())
    aborting = threading.Thread(target=lambda: codes.append(nccl.ncclCommAbort(comms[0])), daemon=True)
    aborting.start()
    freeing.join(30)
    aborting.join(30)
    returned = not freeing.is_alive() and not aborting.is_alive()
    expect("abort releases a rank that frees memory", returned and codes == [0] * 5, f"-> {codes}")
    if not returned:
        sys.exit("what hangs cannot be taken back")
    nccl.ncclCommAbort(comms[1])
    driver.cuMemFree_v2(ours)


def abort_releases_a_replay(nccl):
    """A graph's replay waits for the other rank, and a finalize for the replay."""
    comms = pair(nccl)
    torch.cuda.set_device(0)
    stream, x, graph = torch.cuda.Stream(0), torch.ones(1 << 20, device="cuda:0"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        code = all_gather(nccl, comms[0], x, stream)
    with torch.cuda.stream(stream):
        graph.replay()
    expect("a replay of one of two ranks", code == 0)
    finalize_and_abort(nccl, comms, "a replay")
    stream.synchronize()
    expect("the replay's stream is released", stream.query())
    nccl.ncclCommAbort(comms[1])


def abort_behind_other_work(nccl):
    """A call has not begun, since its stream waits for something else, when its communicator is aborted;
    later it runs."""
    comms, driver = pair(nccl), ctypes.CDLL("libcuda.so.1")
    torch.cuda.set_device(0)
    stream, x = torch.cuda.Stream(0), torch.ones(1 << 20, device="cuda:0")
    word = torch.zeros(1, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    at = ctypes.c_uint64(word.data_ptr())
    codes = [
        driver.cuStreamWaitValue32_v2(P(stream.cuda_stream), at, ctypes.c_uint32(1), 0),
        all_gather(nccl, comms[0], x, stream),
    ]
    expect("a call behind other work", codes == [0, 0], f"-> {codes}")
    finalize_and_abort(nccl, comms, "other work")
    expect("the other work goes on", not stream.query())
    # Somebody else gets memory that the communicator had, if it gave any back.
    again = pair(nccl)
    other = torch.cuda.Stream(0)
    driver.cuStreamWriteValue32_v2(P(other.cuda_stream), at, ctypes.c_uint32(1), 0)
    stream.synchronize()
    expect("its call leaves", bool((x[:1] * 2 == 2).all()))
    [nccl.ncclCommDestroy(comm) for comm in again]
    nccl.ncclCommAbort(comms[1])


def abort_with_all_queues_held(nccl):
    """More streams wait than the GPU has queues for the process; each abort releases its own."""
    pairs = [pair(nccl) for _ in range(10)]
    torch.cuda.set_device(0)
    buffers = [torch.ones(1 << 20, device="cuda:0") for _ in pairs]
    streams = [torch.cuda.Stream(0) for _ in pairs]
    torch.cuda.synchronize()
    codes = {all_gather(nccl, comms[0], x, stream) for comms, x, stream in zip(pairs, buffers, streams)}
    time.sleep(0.5)
    expect("ten streams wait", codes == {0} and not any(stream.query() for stream in streams))
    released = []
    for comms, stream in zip(pairs, streams):
        nccl.ncclCommAbort(comms[0])
        released.append(stream.query())
    # Each waited for a while for a queue, to see what is over, and kept its memory.
    expect("each abort releases its stream", all(released), f"-> {released}")
    [nccl.ncclCommAbort(comms[1]) for comms in pairs]


def late_replay(nccl):
    """A replay waits for a rank that never comes: the deadline counts."""
    comms = pair(nccl)
    torch.cuda.set_device(0)
    stream, x, graph = torch.cuda.Stream(0), torch.ones(1 << 20, device="cuda:0"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        all_gather(nccl, comms[0], x, stream)
    with torch.cuda.stream(stream):
        graph.replay()
    stream.synchronize()
    state = ctypes.c_int(-1)
    nccl.ncclCommGetAsyncError(comms[0], ctypes.byref(state))
    text = nccl.ncclGetLastError(comms[0]).decode()
    expect(
        "a replay ends at the deadline",
        state.value not in (0, 7) and "in a graph" in text,
        f"-> {state.value}: {text}",
    )
    [nccl.ncclCommAbort(comm) for comm in comms]


def receives_before_computing(nccl):
    """Receives that wait on streams do not keep computing on others from going on, whose results the peer
    waits for."""
    there, back = pair(nccl), pair(nccl)
    xs = [
        [torch.full((1 << 20,), float(rank), device=f"cuda:{gpu(rank)}") for _ in range(2)]
        for rank in range(2)
    ]
    streams = [[torch.cuda.Stream(gpu(rank)) for _ in range(2)] for rank in range(2)]
    [both[0].add_(0) for both in xs]  # a kernel's code could not be loaded beside one that waits
    [torch.cuda.synchronize(gpu(rank)) for rank in range(2)]
    count, codes = ctypes.c_size_t(1 << 20), []
    # Rank 0 sends in `there` and receives in `back`, rank 1 the other way round.
    for rank, comms in enumerate((back, there)):
        stream = P(streams[rank][0].cuda_stream)
        codes.append(nccl.ncclRecv(P(xs[rank][1].data_ptr()), count, 7, 1 - rank, comms[rank], stream))
    for rank, comms in enumerate((there, back)):
        with torch.cuda.stream(streams[rank][1]):
            xs[rank][0].add_(10)
        streams[rank][1].synchronize()
        stream = P(streams[rank][1].cuda_stream)
        codes.append(nccl.ncclSend(P(xs[rank][0].data_ptr()), count, 7, 1 - rank, comms[rank], stream))
    [stream.synchronize() for both in streams for stream in both]
    right = all(bool((xs[rank][1] == 11 - rank).all()) for rank in range(2))
    expect("computing goes on beside receives that wait", codes == [0] * 4 and right, f"-> {codes}")
    [nccl.ncclCommDestroy(comm) for comm in (*there, *back)]


def all_gather(nccl, comm, x, stream):
    half = ctypes.c_size_t(x.numel() // 2)
    return nccl.ncclAllGather(P(x.data_ptr()), P(x.data_ptr()), half, 7, comm, P(stream.cuda_stream))


def finalize_and_abort(nccl, comms, what):
    codes = []
    finalizing = threading.Thread(target=lambda: codes.append(nccl.ncclCommFinalize(comms[0])), daemon=True)
    finalizing.start()
    time.sleep(0.5)
    expect(f"finalize waits for {what}", finalizing.is_alive())
    aborting = threading.Thread(target=lambda: codes.append(nccl.ncclCommAbort(comms[0])), daemon=True)
    aborting.start()
    finalizing.join(30)
    aborting.join(30)
    returned = not finalizing.is_alive() and not aborting.is_alive()
    expect(f"abort releases a finalize behind {what}", returned and 0 in codes and any(codes), f"-> {codes}")
    if not returned:
        sys.exit("what hangs cannot be taken back")


def abort_releases_a_destroy(nccl):
    comms = pair(nccl)
    torch.cuda.set_device(0)
    code, keep = all_reduce(nccl, comms[0], 0, torch.cuda.Stream(0))
    expect("one of two ranks joins again", code == 0)
    waiting = threading.Thread(target=lambda: nccl.ncclCommDestroy(comms[0]))
    waiting.start()
    time.sleep(0.5)
    expect("destroy waits for the kernel", waiting.is_alive())
    nccl.ncclCommAbort(comms[0])
    waiting.join(30)
    expect("abort releases a destroy of another thread", not waiting.is_alive())
    nccl.ncclCommAbort(comms[1])
    del keep


def calls_after_abort(nccl):
    code, _ = all_reduce(nccl, ABORTED, 0, torch.cuda.Stream(0))
    expect(
        "a call after abort", code == INVALID_ARGUMENT, f"-> {code}: {nccl.ncclGetLastError(None).decode()}"
    )


def rounds_leak_nothing(nccl):
    def count():
        torch.cuda.synchronize()
        free = [torch.cuda.mem_get_info(gpu(rank))[0] for rank in range(2)]
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), free

    def once():
        comms = (P * 2)()
        code = nccl.ncclCommInitAll(comms, 2, (ctypes.c_int * 2)(gpu(0), gpu(1)))
        streams = [torch.cuda.Stream(gpu(rank)) for rank in range(2)]
        nccl.ncclGroupStart()
        outcome = [all_reduce(nccl, P(comms[rank]), rank, streams[rank]) for rank in range(2)]
        code |= nccl.ncclGroupEnd()
        [s.synchronize() for s in streams]
        good = all(float(x.sum()) == 2048 for _, x in outcome)
        return code | nccl.ncclCommDestroy(P(comms[0])) | nccl.ncclCommDestroy(P(comms[1])) if good else -1

    codes = {once() for _ in range(5)}
    before = count()
    codes |= {once() for _ in range(200)}
    after = count()
    lost = max(b - a for b, a in zip(before[2], after[2]))
    expect("200 rounds of init, all-reduce, destroy", codes == {0}, f"-> {codes}")
    expect(
        "threads, descriptors and device memory return",
        after[:2] == before[:2] and lost <= 2 << 20,
        f"{before[:2]} -> {after[:2]}, {lost >> 20} MiB lost",
    )


if __name__ == "__main__":
    sys.exit(main())
