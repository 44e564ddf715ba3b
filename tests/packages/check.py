#!/usr/bin/env python3
"""Installs, removes and packs stand-ins for what is built, in an empty folder: tests/packages/check.py FOLDER

The stand-ins are a library without code and a program that prints its words, so that no release build is
needed. Checks that `install` puts everything in place and `uninstall` leaves nothing, that packages made
twice are equal to the last byte, and that wheel, tarball and Debian package hold what they should and work.
Prints `skipped: …` where a tool is missing, `all right` at the end; a failed assertion ends with exit code
1."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
# As the tool: man pages go into a folder, completions to the standard output, where its other words go too.
PROGRAM = """#!/bin/sh
[ "$1" != man ] || { mkdir -p "$2" && : > "$2/hawser.1"; }
echo "hawser $*"
"""
PLUGINS = ["net-hawser-socket", "net-hawser-ib", "tuner-hawser", "profiler-hawser"]


def main():
    for tool in ("cc", "objdump", "install"):
        if shutil.which(tool) is None:
            print(f"skipped: there is no {tool}")
            return
    folder = pathlib.Path(sys.argv[1])
    built = stand_ins(folder / "built")
    installs_and_leaves_nothing(built, folder / "root")
    paths = packages_are_equal(built, folder)
    for path in paths:
        {".gz": tarball_is_whole, ".deb": deb_is_whole, ".whl": wheel_works}[path.suffix](path, folder)
    newer_symbols_are_refused(built, folder)
    print("all right")


def stand_ins(built):
    built.mkdir(parents=True)
    source = built / "empty.c"
    copy = "void *copy(void *a, void *b, size_t n) { return memcpy(a, b, n); }\n"
    source.write_text("#include <string.h>\n" + copy)
    library = built / "libnccl.so.2"
    run("cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", library, source)
    for name in PLUGINS:
        shutil.copy(library, built / f"libnccl-{name}.so")
    (built / "hawser").write_text(PROGRAM)
    (built / "hawser").chmod(0o755)
    return built


def run(*words, **options):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def installs_and_leaves_nothing(built, root):
    run(PACKAGING / "install.sh", "install", built, "/opt/hawser", root)
    found = files_of(root / "opt/hawser")
    for wanted in (
        "bin/hawser",
        "include/hawser.h",
        "include/hawser_plugin.h",
        "lib/cmake/Hawser/HawserConfig.cmake",
        "lib/cmake/Hawser/HawserConfigVersion.cmake",
        "lib/libnccl.so",
        "lib/libnccl.so.2",
        "lib/pkgconfig/hawser.pc",
        "share/bash-completion/completions/hawser",
        "share/fish/vendor_completions.d/hawser.fish",
        "share/man/man1/hawser.1",
        "share/zsh/site-functions/_hawser",
        *(f"lib/libnccl-{name}.so" for name in PLUGINS),
    ):
        assert wanted in found, f"{wanted} is not among {found}"
    assert "@" not in (root / "opt/hawser/lib/pkgconfig/hawser.pc").read_text(), "all places are filled"
    (root / "opt/hawser/lib/of-the-user").touch()
    (root / "opt/hawser/empty").mkdir()
    run(PACKAGING / "install.sh", "uninstall", "/opt/hawser", root)
    left = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
    users = ["empty", "lib", "lib/of-the-user"]
    assert left == ["opt", "opt/hawser", *(f"opt/hawser/{path}" for path in users)], left


def packages_are_equal(built, folder):
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    for out in ("first", "second"):
        run(sys.executable, PACKAGING / "build.py", "--built", built, "--out", folder / out, env=env)
    paths = sorted((folder / "first").iterdir())
    assert len(paths) == 3, paths
    for path in paths:
        assert path.read_bytes() == (folder / "second" / path.name).read_bytes(), f"{path.name} differs"
    return paths


def tarball_is_whole(path, folder):
    with tarfile.open(path) as archive:
        names = archive.getnames()
        archive.extractall(folder / "tarball")
        assert {member.mtime for member in archive} == {1700000000}
    top = path.name.replace(".tar.gz", "")
    assert all(name.startswith(f"{top}/") for name in names), names
    assert f"{top}/lib/libnccl.so.2" in names
    assert run(folder / "tarball" / top / "bin/hawser", "doctor") == "hawser doctor\n"


def deb_is_whole(path, folder):
    assert path.read_bytes().startswith(b"!<arch>\ndebian-binary")
    if shutil.which("dpkg-deb") is None:
        return
    assert run("dpkg-deb", "-f", path, "Package").strip() == "hawser"
    # Into a system of its own, which is empty, and out of it again.
    system = folder / "deb"
    (system / "var/lib/dpkg/updates").mkdir(parents=True)
    (system / "var/lib/dpkg/info").mkdir()
    (system / "var/lib/dpkg/status").touch()
    forced = ["--force-depends", "--force-not-root", "--force-bad-path", "--log=/dev/null"]
    dpkg = ["dpkg", f"--root={system}", *forced]
    run(*dpkg, "--install", path)
    assert (system / "opt/hawser/lib/libnccl.so.2").is_file()
    run(*dpkg, "--purge", "hawser")
    left = [path for path in files_of(system) if not path.startswith("var/lib/dpkg/")]
    assert not left and not (system / "opt").exists(), left


def wheel_works(path, folder):
    """As pip unpacks it: the module finds the library, its command runs the program."""
    site = folder / "site"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(site)
        for entry in archive.infolist():
            assert entry.external_attr >> 28 == 0o10, f"{entry.filename} is no plain file"
            (site / entry.filename).chmod(entry.external_attr >> 16 & 0o777)
    floor = (PACKAGING / "glibc").read_text().strip()
    assert f"manylinux_{floor.replace('.', '_')}" in path.name
    env = {**os.environ, "PYTHONPATH": str(site)}
    library = site / "hawser/lib/libnccl.so.2"
    assert run(sys.executable, "-m", "hawser.path", env=env).strip() == str(library)
    command = [sys.executable, "-m", "hawser.command"]
    assert run(*command, "perf", "all_reduce", env=env) == "hawser perf all_reduce\n"
    words = ["--verify", "--", "sh", "-c", "true"]
    assert run(*command, "run", *words, env=env) == "hawser exec --verify -- sh -c true\n"


def newer_symbols_are_refused(built, folder):
    """A file that needs a newer glibc than packages promise."""
    program = folder / "packaging" / "build.py"
    shutil.copytree(PACKAGING, folder / "packaging")
    (folder / "packaging" / "glibc").write_text("2.0\n")
    text = program.read_text()
    program.write_text(text.replace("ROOT = HERE.parent", f"ROOT = pathlib.Path({str(ROOT)!r})"))
    (folder / "packaging" / "install.sh").write_text(f'#!/bin/sh\nexec "{PACKAGING}/install.sh" "$@"\n')
    words = [sys.executable, program, "--built", built, "--out", folder / "refused"]
    refused = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert refused.returncode == 1 and "packages promise 2.0" in refused.stderr, refused


if __name__ == "__main__":
    main()
