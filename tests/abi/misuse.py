#!/usr/bin/env python3
"""Writes the table of functions and misuse from NVIDIA's library:
tests/abi/misuse.py LIBRARY INCLUDE > tests/abi/misuse.txt

Takes the functions and their arguments from the headers in INCLUDE, makes calls of each with one argument
wrong at a time, and records what LIBRARY answers. It needs no GPU: without one there is no communicator, so
those that take one get NULL, or memory that is none. misuse.c, which makes the calls, says what the words
mean. The test (core/capi/tests/misuse.rs) makes the same calls with our library; what differs on purpose is
in misuse-differences.txt.
"""

import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HEADERS = ["nccl.h", "nccl_device/host.h"]
HANDLES = ["null", "zeros"]

# What is passed for a type: what is right as far as it can be, then what is not.
NUMBERS = {
    "ncclDataType_t": ["7", "-1", "12"],
    "ncclRedOp_t": ["0", "-1", "5", "2147483647"],
    "ncclScalarResidence_t": ["1", "-1", "2"],
    "ncclCommMemStat_t": ["3", "-1", "4"],
    "ncclCftTeamMode_t": ["0", "-1", "9"],
    "ncclMultimemHandle_t": ["null", "zeros"],
    "ncclResult_t": ["0", "-1", "9", "99"],
    "cudaStream_t": ["null"],
    "size_t": ["4", "0", "-1"],
    "int": ["1", "0", "-1", "2147483647"],
    "unsigned int": ["0", "1"],
    "ncclTeam_t": ["team"],
    "ncclTeam": ["team"],
    "ncclUniqueId": ["id"],
    "ncclComm_t": HANDLES,
    "ncclWindow_t": ["null"],
    "ncclParamHandle_t": ["null"],
}
POINTERS = {
    "ncclConfig_t": [
        "null", "config", "config:8=0", "config:0=8", "config:12=0", "config:16=2", "config:24=0",
        "config:28=0", "config:20=9", "config:40=2", "config:60=4", "config:72=65", "config:80=3",
        "config:84=-1", "config:88=0", "config:100=-5", "config:112=77",
    ],  # fmt: skip
    "ncclCollConfig_t": ["null", "call", "call:8=0", "call:0=40", "call:48=2"],
    "ncclSimInfo_t": ["sim", "sim:8=0", "null"],
    "ncclEncryptionConfig_t": ["psk", "psk:8=0", "psk:16=1", "psk:16=7", "null"],
    "ncclCommProperties_t": ["props", "props:8=0", "null"],
    "ncclDevCommRequirements_t": ["needs", "needs:8=0", "null"],
    "char": ["text", "none", "null"],
    "ncclUniqueId": ["out", "null"],
}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.splitlines()[0])
    library, include = sys.argv[1:]
    functions, others = declared("\n".join(open(os.path.join(include, name)).read() for name in HEADERS))
    with open(os.path.join(HERE, "exports.txt")) as listed:
        exports = [line.strip() for line in listed if line.startswith("nccl")]
    calls = [call for name in exports if name in functions for call in misused(name, functions[name])]
    with tempfile.TemporaryDirectory() as folder:
        runner = os.path.join(folder, "misuse")
        subprocess.run(["cc", "-O1", "-o", runner, os.path.join(HERE, "misuse.c"), "-ldl"], check=True)
        rows = "\n".join(calls) + "\n"
        answers = subprocess.run([runner, library], input=rows, check=True, stdout=subprocess.PIPE, text=True)
    print("# Written by misuse.py from NVIDIA's library 2.32.3 without a GPU: its answer (- where that is no")
    print(
        "# ncclResult_t), the function, the arguments. 1 is ncclUnhandledCudaError: it had not looked at what is"
    )
    print("# wrong before it looked for a GPU.")
    for answer, call in (line.split(" ", 1) for line in answers.stdout.splitlines()):
        print("-" if answer not in ("crash", "hang") and call.split(" ")[0] in others else answer, call)


def declared(text):
    """The types of the arguments of each function, and the functions that do not return an ncclResult_t."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    text = re.sub(r"^\s*#[^\n]*(\\\n[^\n]*)*", "", text, flags=re.M)
    found, others = {}, set()
    declaration = r"\b([\w\s*]*?)\b(nccl[A-Z]\w+)\s*\(([^(){};]*)\)\s*(?:;|NCCL)"
    for result, name, arguments in re.findall(declaration, text):
        types = [] if arguments.strip() in ("", "void") else [type_of(a) for a in arguments.split(",")]
        found.setdefault(name, types)
        if "ncclResult_t" not in result:
            others.add(name)
    return found, others


def type_of(argument):
    argument = re.sub(r"=.*|\bconst\b", "", argument)
    stars = argument.count("*")
    words = argument.replace("*", " ").split()
    return " ".join(words[:-1] if len(words) > 1 else words) + "*" * stars


def words(kind):
    """What is passed for an argument of a type, what is right first."""
    if not kind.endswith("*"):
        return NUMBERS[kind]
    pointed = kind.rstrip("*")
    if kind.count("*") == 1 and pointed in POINTERS:
        return POINTERS[pointed]
    return ["data" if pointed == "void" and kind.count("*") == 1 else "out", "null"]


def misused(name, types):
    """Calls with what is right, and with one argument wrong at a time."""
    choices = [words(kind) for kind in types]
    right = [choice[0] for choice in choices]
    calls = [right]
    for at, choice in enumerate(choices):
        calls += [[*right[:at], wrong, *right[at + 1 :]] for wrong in choice[1:]]
    return [" ".join([name, *call]) for call in dict.fromkeys(map(tuple, calls))]


if __name__ == "__main__":
    main()
