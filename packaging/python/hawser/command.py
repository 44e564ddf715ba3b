"""The command `hawser` of the Python package: the program of that name, and `hawser run -- COMMAND`."""

import os
import sys

import hawser

USAGE = "usage: hawser run -- COMMAND [WORDS...]   runs a command with Hawser's libnccl.so.2 in LD_PRELOAD"


def main():
    if sys.argv[1:2] == ["run"]:
        run(sys.argv[2:])
    os.execv(hawser.PROGRAM, [str(hawser.PROGRAM), *sys.argv[1:]])


def run(words):
    """Replaces this process by the command; what it starts inherits the library."""
    command = words[1:] if words[:1] == ["--"] else words
    if not command or command[0].startswith("-"):
        sys.exit(USAGE)
    before = [path for path in os.environ.get("LD_PRELOAD", "").split(":") if path]
    os.environ["LD_PRELOAD"] = ":".join([str(hawser.LIBRARY), *before])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"hawser run: {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
