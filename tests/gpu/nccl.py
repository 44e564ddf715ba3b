"""The part of NCCL's C interface that the programs of this folder use, by ctypes, and communicators of one
process.

One thread drives all ranks: calls of several ranks are between `group()`. A `Watchdog` ends the process with
a line that says what hung."""

import contextlib
import ctypes
import os
import sys
import threading
import time

P, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
INVALID_USAGE = 5
NO_COLOR = -1
PREMULSUM_HOST = 1
DECISION_MAGIC, DECISION_VERSION = 0x52415748, 2

CALLS = {
    "all_reduce": ("ncclAllReduce", "type op"),
    "reduce": ("ncclReduce", "type op root"),
    "broadcast": ("ncclBroadcast", "type root"),
    "all_gather": ("ncclAllGather", "type"),
    "reduce_scatter": ("ncclReduceScatter", "type op"),
    "all_to_all": ("ncclAlltoAll", "type"),
    "gather": ("ncclGather", "type root"),
    "scatter": ("ncclScatter", "type root"),
}


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    """`ncclConfig_t` of 2.27 with a name and nothing else set."""

    _fields_ = [
        ("size", SIZE),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", INT),
        ("cga", INT),
        ("min_ctas", INT),
        ("max_ctas", INT),
        ("net", ctypes.c_char_p),
        ("split_share", INT),
        ("traffic", INT),
        ("name", ctypes.c_char_p),
        ("collnet", INT),
        ("policy", INT),
        ("shrink_share", INT),
        ("nvls_ctas", INT),
    ]

    def __init__(self, name):
        unset = {field: -(1 << 31) for field, kind in self._fields_ if kind is INT}
        size = ctypes.sizeof(Config)
        super().__init__(size=size, magic=0xCAFEBEEF, version=22700, name=name.encode(), **unset)


class Decision(ctypes.Structure):
    """`hawserDecision_t` of `hawser.h`."""

    _fields_ = [
        ("size", SIZE),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("operation", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("predicted_us", ctypes.c_float),
        ("channels", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("known", ctypes.c_uint),
        ("text_bytes", SIZE),
        ("collective", ctypes.c_char * 32),
        ("algorithm", ctypes.c_char * 64),
        ("protocol", ctypes.c_char * 16),
        ("executor", ctypes.c_char * 16),
        ("rule", ctypes.c_char * 256),
        ("zero_copy", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
    ]


class NcclError(Exception):
    """A call returned a code other than success."""

    def __init__(self, code, text):
        super().__init__(f"result {code}: {text}")
        self.code, self.text = code, text

    @property
    def not_offered(self):
        """Whether the settings left nothing that could do the call, or name what the library does not
        know."""
        words = ("no algorithm and protocol left", "unknown word")
        return self.code == INVALID_USAGE and any(word in self.text for word in words)


class Library:
    """A libnccl.so.2."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(os.path.abspath(path))
        self.lib.ncclGetLastError.restype = ctypes.c_char_p
        for name, parameters in CALLS.values():
            rest = [INT] * len(parameters.split())
            getattr(self.lib, name).argtypes = [P, P, SIZE, *rest, P, P]
        self.lib.ncclSend.argtypes = self.lib.ncclRecv.argtypes = [P, SIZE, INT, INT, P, P]
        self.lib.ncclCommInitRank.argtypes = [P, INT, UniqueId, INT]
        self.lib.ncclCommInitRankConfig.argtypes = [P, INT, UniqueId, INT, P]
        self.lib.ncclCommSplit.argtypes = [P, INT, INT, P, P]
        self.lib.ncclRedOpCreatePreMulSum.argtypes = [P, P, INT, INT, P]

    def check(self, code):
        if code != 0:
            raise NcclError(code, (self.lib.ncclGetLastError(None) or b"").decode())

    def decision(self, handle):
        """What the last operation of a communicator was and why, on the rank of `handle` (Hawser only)."""
        last, text = Decision(), ctypes.create_string_buffer(4000)
        last.size, last.magic, last.version = ctypes.sizeof(last), DECISION_MAGIC, DECISION_VERSION
        self.lib.hawserLastDecision.argtypes = [P, P, P, SIZE]
        self.check(self.lib.hawserLastDecision(handle, ctypes.byref(last), text, len(text)))
        return last

    @contextlib.contextmanager
    def group(self):
        self.check(self.lib.ncclGroupStart())
        try:
            yield
        except BaseException:
            self.lib.ncclGroupEnd()
            raise
        self.check(self.lib.ncclGroupEnd())


class Communicator:
    """The ranks of one communicator. `places[rank]` is where a rank runs: its GPU and streams."""

    def __init__(self, library, handles, places, name):
        self.library, self.handles, self.places, self.name = library, handles, places, name
        self.size = len(handles)
        self.user_ops = {}

    def call(self, collective, rank, addresses, count, dtype, op, root, stream):
        """Issues the call of one rank. `dtype` and `op` are NCCL's numbers."""
        name, parameters = CALLS[collective]
        values = {"type": dtype, "op": op, "root": root}
        arguments = [values[word] for word in parameters.split()]
        function = getattr(self.library.lib, name)
        self.library.check(function(*addresses, count, *arguments, self.handles[rank], stream))

    def send(self, rank, address, count, dtype, peer, stream):
        self.library.check(self.library.lib.ncclSend(address, count, dtype, peer, self.handles[rank], stream))

    def recv(self, rank, address, count, dtype, peer, stream):
        self.library.check(self.library.lib.ncclRecv(address, count, dtype, peer, self.handles[rank], stream))

    def premulsum(self, rank, dtype, factor):
        """The number of a pre-multiplied sum on `rank`; `factor` is the bytes of one element."""
        key = (rank, dtype, factor)
        if key not in self.user_ops:
            number, scalar = INT(), ctypes.create_string_buffer(factor, len(factor))
            create = self.library.lib.ncclRedOpCreatePreMulSum
            self.library.check(
                create(ctypes.byref(number), scalar, dtype, PREMULSUM_HOST, self.handles[rank])
            )
            self.user_ops[key] = number.value
        return self.user_ops[key]

    def state(self, rank):
        """The asynchronous error of a rank, 0 if there is none."""
        state = INT()
        self.library.check(self.library.lib.ncclCommGetAsyncError(self.handles[rank], ctypes.byref(state)))
        return state.value

    def decision(self, rank=0):
        """What the last operation ran, and why."""
        return self.library.decision(self.handles[rank])

    def destroy(self):
        with self.library.group():
            for handle in self.handles:
                self.library.check(self.library.lib.ncclCommDestroy(handle))


def world(library, layer, ranks, name=None):
    """A communicator of `ranks` ranks, rank `r` on place `r`; the library knows it by its name, if it has
    one."""
    identity = UniqueId()
    library.check(library.lib.ncclGetUniqueId(ctypes.byref(identity)))
    handles = [P() for _ in range(ranks)]
    config = Config(name or "")
    with library.group():
        for rank, handle in enumerate(handles):
            layer.use(rank)
            start = [ctypes.byref(handle), ranks, identity, rank]
            if name is None:
                library.check(library.lib.ncclCommInitRank(*start))
            else:
                library.check(library.lib.ncclCommInitRankConfig(*start, ctypes.byref(config)))
    return Communicator(library, handles, list(range(ranks)), name or "world")


def split(parent, layer, colors, keys, name):
    """The parts of `parent`, one for each color but `NO_COLOR`, ranks in the order of their keys."""
    handles = [P() for _ in range(parent.size)]
    with parent.library.group():
        for rank, handle in enumerate(handles):
            layer.use(parent.places[rank])
            function = parent.library.lib.ncclCommSplit
            parent.library.check(
                function(parent.handles[rank], colors[rank], keys[rank], ctypes.byref(handle), None)
            )
    parts = []
    for color in sorted(set(colors) - {NO_COLOR}):
        members = sorted((r for r in range(parent.size) if colors[r] == color), key=lambda r: (keys[r], r))
        own, places = [handles[r] for r in members], [parent.places[r] for r in members]
        parts.append(Communicator(parent.library, own, places, f"{name}{color}"))
    return parts


class Watchdog:
    """Ends the process with exit code 1 and the current text when a step lasts longer than `seconds`."""

    def __init__(self, seconds):
        self.seconds, self.text, self.deadline = seconds, lambda: "start", time.monotonic() + seconds
        threading.Thread(target=self._watch, daemon=True).start()

    def step(self, text):
        """A step begins; `text()` says which, if it hangs."""
        self.text, self.deadline = text, time.monotonic() + self.seconds

    def _watch(self):
        while time.monotonic() < self.deadline:
            time.sleep(0.2)
        print(f"HANG: no progress for {self.seconds} s in: {self.text()}", flush=True)
        sys.stdout.flush()
        os._exit(1)
