"""Hawser: a drop-in libnccl.so.2. This package holds the library, its plugins and the program `hawser`.

Nothing happens when it is imported. `python -m hawser.path` prints the library's path for LD_PRELOAD,
`hawser run -- COMMAND` (or `hawser exec`)
runs a command with it."""

import pathlib

FOLDER = pathlib.Path(__file__).resolve().parent
LIBRARY = FOLDER / "lib" / "libnccl.so.2"
PROGRAM = FOLDER / "bin" / "hawser"
INCLUDE = FOLDER / "include"
