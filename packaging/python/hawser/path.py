"""Prints where things are: python -m hawser.path [library | plugins | program | include]"""

import sys

import hawser

PATHS = {
    "library": hawser.LIBRARY,
    "plugins": hawser.LIBRARY.parent,
    "program": hawser.PROGRAM,
    "include": hawser.INCLUDE,
}


def main():
    words = sys.argv[1:] or ["library"]
    if len(words) != 1 or words[0] not in PATHS:
        sys.exit(f"usage: python -m hawser.path [{' | '.join(PATHS)}]")
    print(PATHS[words[0]])


if __name__ == "__main__":
    main()
