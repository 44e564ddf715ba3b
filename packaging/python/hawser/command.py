"""The command `hawser` of the Python package: the program of that name. `run` is another word for `exec`."""

import os
import sys

import hawser


def main():
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        words[0] = "exec"
    os.execv(hawser.PROGRAM, [str(hawser.PROGRAM), *words])


if __name__ == "__main__":
    main()
