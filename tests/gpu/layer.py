"""Memory, streams and arithmetic for the programs of this folder: PyTorch on GPUs, or numpy on the host
device.

`open_layer(ranks, host)` gives one of the two, or None with the reason why there is none. Arrays are
one-dimensional; buffers are arrays of bytes. What both libraries spell alike (`+`, slices, `layer.xp.where`)
is used as it is. With `host` the library under test takes host memory (`HAWSER_DEVICE=host`), streams are
null and calls return when their work is done; numpy and ml_dtypes are needed."""

import contextlib
import ctypes
import os
import time

# Name, NCCL's number, bytes, whether it is a floating-point type.
TYPES = [
    ("int8", 0, 1, False),
    ("uint8", 1, 1, False),
    ("int32", 2, 4, False),
    ("uint32", 3, 4, False),
    ("int64", 4, 8, False),
    ("uint64", 5, 8, False),
    ("half", 6, 2, True),
    ("float", 7, 4, True),
    ("double", 8, 8, True),
    ("bfloat16", 9, 2, True),
    ("f8e4m3", 10, 1, True),
    ("f8e5m2", 11, 1, True),
]


class Type:
    """A data type of NCCL."""

    def __init__(self, name, number, size, is_float):
        self.name, self.number, self.size, self.is_float = name, number, size, is_float

    def __repr__(self):
        return self.name


def open_layer(ranks, host):
    """(layer, None), or (None, why there is none)."""
    if host:
        os.environ["HAWSER_DEVICE"] = "host"
        try:
            return NumpyLayer(), None
        except ImportError as error:
            return None, f"--host needs numpy and ml_dtypes ({error})"
    try:
        import torch
    except ImportError:
        return None, "needs PyTorch (or --host and numpy)"
    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return None, "needs a GPU (or --host and numpy)"
    if ranks > torch.cuda.device_count():
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    # Kernels wait for each other: streams of ranks that share a GPU must not share a queue.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    return TorchLayer(torch), None


class TorchLayer:
    """Rank `r` uses GPU `r % GPUs`."""

    on_host = False

    def __init__(self, torch):
        self.torch = self.xp = torch
        self.gpus = torch.cuda.device_count()
        names = "int8 uint8 int32 int32 int64 int64 float16 float32 float64 bfloat16 float8_e4m3fn float8_e5m2".split()
        pairs = [(Type(*row), getattr(torch, name, None)) for row, name in zip(TYPES, names)]
        self.formats = {t.number: f for t, f in pairs if f is not None}
        self.types = [t for t, f in pairs if f is not None]
        self.driver = ctypes.CDLL("libcuda.so.1")

    def use(self, place):
        self.torch.cuda.set_device(place % self.gpus)

    def default_ranks(self):
        return self.gpus

    def stream(self, place):
        return self.torch.cuda.Stream(place % self.gpus)

    def handle(self, stream):
        return stream.cuda_stream

    def on(self, stream):
        """Allocations and arithmetic inside are on this stream and its GPU."""
        return self.torch.cuda.stream(stream)

    def after(self, later, earlier):
        later.wait_stream(earlier)

    def busy(self, stream):
        return not stream.query()

    def synchronize(self):
        for gpu in range(self.gpus):
            self.torch.cuda.synchronize(gpu)

    def finish(self, stream):
        """Waits for one stream."""
        stream.synchronize()

    def _device(self, place):
        return f"cuda:{place % self.gpus}"

    def reserve(self, place, stream, large=16 << 30):
        """Memory that later tensors of the stream are made of: with peer access between the GPUs of a
        process, cudaMalloc may wait for all of them, and so for calls that other threads have not made
        yet."""
        with self.on(stream):
            device = self._device(place)
            small = [self.torch.empty(1 << 19, dtype=self.torch.uint8, device=device) for _ in range(512)]
            large = self.torch.empty(large, dtype=self.torch.uint8, device=device)
            del small, large

    def filled(self, place, n, value):
        return self.torch.full((n,), value, dtype=self.torch.uint8, device=self._device(place))

    def counters(self, place, n):
        return self.torch.zeros(n, dtype=self.torch.int64, device=self._device(place))

    def index(self, place, start, stop):
        return self.torch.arange(start, stop, dtype=self.torch.int32, device=self._device(place))

    def encode(self, x, dtype):
        """Numbers as bytes of elements."""
        if dtype.is_float and dtype.size == 1:
            x = x.to(self.torch.float32)
        return x.to(self.formats[dtype.number]).contiguous().view(self.torch.uint8)

    def decode(self, raw, dtype):
        """Bytes of elements as numbers: double for that type, float for all others."""
        wide = self.torch.float64 if dtype.name == "double" else self.torch.float32
        return raw.contiguous().view(self.formats[dtype.number]).to(wide)

    def raw(self, x, size):
        """The low `size` bytes of 32-bit numbers; 8 bytes: twice the number."""
        if size == 8:
            return self.torch.stack((x, x), 1).reshape(-1).view(self.torch.uint8)
        formats = {1: self.torch.int8, 2: self.torch.int16, 4: self.torch.int32}
        return x.to(formats[size]).contiguous().view(self.torch.uint8)

    def home(self, place):
        """The memory of a place: places of one home share tables."""
        return place % self.gpus

    def upload(self, place, data):
        return self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8).to(self._device(place))

    def tiled(self, x, rounds):
        return x.repeat(rounds)

    def doubles(self, raw):
        """Bytes of doubles as numbers."""
        return raw.contiguous().view(self.torch.float64)

    def address(self, x):
        return x.data_ptr()

    def moved(self, x, place):
        return x.to(self._device(place))

    def number(self, x):
        return int(x)

    def capture(self, streams, work):
        """Executable graphs of what `work()` puts on the streams, one each. `nodes` says how many nodes each
        has."""
        graphs, relaxed, self.nodes = [], 2, []
        for place, stream in streams:
            self.use(place)
            self._check(self.driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream.cuda_stream), relaxed))
        work()
        for place, stream in streams:
            self.use(place)
            graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
            self._check(
                self.driver.cuStreamEndCapture(ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
            )
            count = ctypes.c_size_t()
            self._check(self.driver.cuGraphGetNodes(graph, None, ctypes.byref(count)))
            self.nodes.append(count.value)
            self._check(
                self.driver.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
            )
            self._check(self.driver.cuGraphDestroy(graph))
            graphs.append(ready)
        return graphs

    def replay(self, place, graph, stream):
        self.use(place)
        self._check(self.driver.cuGraphLaunch(graph, ctypes.c_void_p(stream.cuda_stream)))

    def drop(self, graphs):
        for graph in graphs:
            self._check(self.driver.cuGraphExecDestroy(graph))

    def mark(self, place, stream):
        """A moment of a stream, for `seconds`."""
        self.use(place)
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def seconds(self, start, end):
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def delay(self, stream, cycles):
        """Keeps a stream busy for some clock cycles of its GPU."""
        with self.on(stream):
            self.torch.cuda._sleep(cycles)

    def _check(self, code):
        if code != 0:
            raise RuntimeError(f"the CUDA driver returned {code} from a graph call")


class NumpyLayer:
    """Everything in host memory. There are no graphs."""

    on_host = True

    def __init__(self):
        import ml_dtypes
        import numpy

        self.xp = numpy
        names = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64".split()
        formats = [getattr(numpy, name) for name in names]
        formats += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
        self.types = [Type(*row) for row in TYPES]
        self.formats = {t.number: f for t, f in zip(self.types, formats)}

    def use(self, place):
        pass

    def default_ranks(self):
        return 4

    def stream(self, place):
        return None

    def handle(self, stream):
        return None

    def on(self, stream):
        return contextlib.nullcontext()

    def after(self, later, earlier):
        pass

    def busy(self, stream):
        return False

    def synchronize(self):
        pass

    def finish(self, stream):
        pass

    def mark(self, place, stream):
        return time.perf_counter()

    def seconds(self, start, end):
        return end - start

    def delay(self, stream, cycles):
        pass

    def filled(self, place, n, value):
        return self.xp.full(n, value, dtype=self.xp.uint8)

    def counters(self, place, n):
        return self.xp.zeros(n, dtype=self.xp.int64)

    def index(self, place, start, stop):
        return self.xp.arange(start, stop, dtype=self.xp.int32)

    def encode(self, x, dtype):
        if dtype.is_float and dtype.size == 1:
            x = x.astype(self.xp.float32)
        return x.astype(self.formats[dtype.number]).view(self.xp.uint8)

    def decode(self, raw, dtype):
        wide = self.xp.float64 if dtype.name == "double" else self.xp.float32
        return raw.view(self.formats[dtype.number]).astype(wide)

    def raw(self, x, size):
        if size == 8:
            return self.xp.stack((x, x), 1).reshape(-1).view(self.xp.uint8)
        formats = {1: self.xp.int8, 2: self.xp.int16, 4: self.xp.int32}
        return x.astype(formats[size]).view(self.xp.uint8)

    def home(self, place):
        return 0

    def upload(self, place, data):
        return self.xp.frombuffer(data, dtype=self.xp.uint8)

    def tiled(self, x, rounds):
        return self.xp.tile(x, rounds)

    def doubles(self, raw):
        return raw.view(self.xp.float64)

    def address(self, x):
        return x.ctypes.data

    def moved(self, x, place):
        return x

    def number(self, x):
        return int(x)
