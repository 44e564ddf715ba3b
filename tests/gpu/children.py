"""A process for each forced algorithm and protocol, since the library reads `NCCL_ALGO` and `NCCL_PROTO`
once."""

import json
import os
import signal
import sys
import time
import traceback

FUNCTIONS = "allreduce reduce broadcast allgather reducescatter alltoall gather scatter".split()
DEFAULT = "default"


def in_child(pair, work, timeout):
    """What `work()` gives in a forked process with `pair` (`Ring/LL`, `OneShot/fused/LL` or `default`)
    forced, with `seconds` added.

    The child opens GPUs and library, this process does not. A child that ends otherwise gives `failed`.
    """
    try:
        import torch  # noqa: F401  (once for all children)
    except ImportError:
        pass
    begin, (read, write) = time.monotonic(), os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run(pair, work, write)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(int(timeout))
    with os.fdopen(read) as out:
        text = out.read()
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    row = json.loads(text) if text else {"failed": f"did not end well: wait status {status}"}
    return row | {"seconds": time.monotonic() - begin}


def _run(pair, work, write):
    code = 1
    try:
        force(pair)
        report = json.dumps(work())
        with os.fdopen(write, "w") as out:
            out.write(report)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def force(pair):
    """Leaves the library nothing but the pair, for all collectives that have a choice."""
    for name in ("NCCL_ALGO", "NCCL_PROTO"):
        os.environ.pop(name, None)
    if pair != DEFAULT:
        algorithm, protocol = pair.split("/", 1)
        os.environ["NCCL_ALGO"] = ";".join(f"{function}:{algorithm}" for function in FUNCTIONS)
        os.environ["NCCL_PROTO"] = protocol
        if protocol.startswith("copy_engine"):
            os.environ["NCCL_PASS_SM"] = "1"
