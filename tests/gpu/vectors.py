"""What ranks put into reductions and what must come out, from the project's one oracle (`tests/oracle`).

The oracle's program `vectors` writes a file for each number of ranks; it is found beside this checkout's
other programs (`cargo build -p hawser-oracle`), or where `HAWSER_VECTORS` says. Data repeat with a period,
and `shift` moves where a buffer begins in it, so that different calls see different data.
"""

import functools
import json
import mmap
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILDS = [ROOT / "target" / kind / "vectors" for kind in ("release", "debug")]


LOCK = threading.Lock()


def of(ranks):
    """The vectors for a number of ranks; threads share them."""
    with LOCK:
        return _of(ranks)


@functools.cache
def _of(ranks):
    return Vectors(_file(ranks))


class Vectors:
    """One file of vectors. Tables are copied to a place at their first use."""

    def __init__(self, path):
        with open(path, "rb") as file:
            header = file.readline()
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        described = json.loads(header)
        self.period = described["period"]
        self.start = len(header)
        self.parts = {tuple(part[:4]): (part[4], part[5]) for part in described["parts"]}
        self.tables = {}

    def factor(self, dtype, op, rank):
        """The bytes of the element by which `rank` multiplies in a pre-multiplied sum."""
        return self._part((dtype.number, op, "factor", rank))

    def input(self, layer, place, dtype, op, rank, start, stop):
        """Bytes of the elements `start..stop` that `rank` puts in."""
        return self._elements(layer, place, (dtype.number, op, "input", rank), dtype.size, start, stop)

    def reduced(self, layer, place, dtype, op, start, stop):
        """Bytes of the elements `start..stop` that must come out."""
        return self._elements(layer, place, (dtype.number, op, "reduced", 0), dtype.size, start, stop)

    def tolerance(self, layer, place, dtype, op, start, stop):
        """By how much each of the elements `start..stop` may differ, as doubles; 0 if not at all."""
        key = (dtype.number, op, "tolerance", 0)
        if key not in self.parts:
            return 0
        return layer.doubles(self._elements(layer, place, key, 8, start, stop))

    def _elements(self, layer, place, key, size, start, stop):
        table = self._table(layer, place, key)
        first = start % self.period
        if first + stop - start <= self.period:
            return table[first * size : (first + stop - start) * size]
        rounds = -(-(first + stop - start) // self.period)
        return layer.tiled(table, rounds)[first * size : (first + stop - start) * size]

    def _table(self, layer, place, key):
        at = (layer.home(place), key)
        if at not in self.tables:
            self.tables[at] = layer.upload(place, self._part(key))
        return self.tables[at]

    def _part(self, key):
        offset, length = self.parts[key]
        return self.bytes[self.start + offset : self.start + offset + length]


def _file(ranks):
    """The path of the vectors for a number of ranks, which are written if they are not there yet."""
    program = _program()
    folder = pathlib.Path(tempfile.gettempdir()) / f"hawser-vectors-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        sys.exit(f"{folder} belongs to another user: set TMPDIR to a folder of yours")
    path = folder / f"{ranks}-{program.stat().st_mtime_ns}"
    if not path.exists():
        handle, own = tempfile.mkstemp(dir=folder)
        os.close(handle)
        subprocess.run([program, str(ranks), own], check=True, timeout=120)
        os.rename(own, path)
    return path


def _program():
    given = os.environ.get("HAWSER_VECTORS")
    found = [path for path in ([pathlib.Path(given)] if given else BUILDS) if path.is_file()]
    if not found:
        looked = given or " and ".join(str(path) for path in BUILDS)
        sys.exit(f"no program {looked}: run cargo build -p hawser-oracle, or set HAWSER_VECTORS to its path")
    return max(found, key=lambda path: path.stat().st_mtime_ns)
