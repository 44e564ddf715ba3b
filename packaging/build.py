#!/usr/bin/env python3
"""Makes packages of what was built: packaging/build.py [tarball] [deb] [wheel] [--built FOLDER] [--out
FOLDER]

Without names all three. BUILT is a folder such as target/release, which `make lib plugins` fills. Needs
Python 3.8, sh, install and objdump (binutils), no packaging tools. The same files give the same bytes:
entries are sorted, belong to root and carry the time SOURCE_DATE_EPOCH, by default that of the last
commit."""

import argparse
import base64
import gzip
import hashlib
import io
import lzma
import os
import pathlib
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PREFIX = "/opt/hawser"
# The oldest glibc that packages may need; docs and the wheel's tag say so.
GLIBC = tuple(map(int, (HERE / "glibc").read_text().split(".")))
MAINTAINER = "Hawser's maintainers <maintainers@hawser.example.org>"
SUMMARY = "drop-in libnccl.so.2 for GPU collectives"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="tarball, deb, wheel")
    parser.add_argument("--built", type=pathlib.Path, default=ROOT / "target" / "release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target" / "packages")
    given = parser.parse_args()
    makers = {"tarball": tarball, "deb": deb, "wheel": wheel}
    for kind in given.kinds:
        if kind not in makers:
            parser.error(f"{kind}: there are {', '.join(makers)}")
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as stage:
        installer = [HERE / "install.sh", "install", given.built.resolve(), PREFIX, stage]
        subprocess.run(list(map(str, installer)), check=True, stdout=subprocess.DEVNULL)
        package = Package(pathlib.Path(stage + PREFIX))
        for kind in given.kinds or makers:
            path = makers[kind](package, given.out)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            print(f"{path} {path.stat().st_size} bytes, sha256 {digest}")


class Package:
    """What all kinds share: the installed files, version, time and architecture."""

    def __init__(self, folder):
        self.folder = folder
        text = (ROOT / "Cargo.toml").read_text()
        self.version = re.search(r'\[workspace\.package\]\nversion = "(.*)"', text).group(1)
        self.time = int(os.environ.get("SOURCE_DATE_EPOCH") or last_commit())
        self.machine = platform.machine()
        programs = [path for path in folder.rglob("*") if is_elf(path)]
        self.libgcc = any(needs_libgcc(path) for path in programs)
        self.glibc = max(map(needed_glibc, programs))
        if self.glibc > GLIBC:
            sys.exit(f"build.py: the files need glibc {dotted(self.glibc)}, packages promise {dotted(GLIBC)}")

    def files(self):
        """(path below the prefix, path, mode), sorted; links have the mode 0."""
        for path in sorted(self.folder.rglob("*")):
            if path.is_symlink() or path.is_file():
                mode = 0 if path.is_symlink() else 0o755 if os.access(path, os.X_OK) else 0o644
                yield path.relative_to(self.folder).as_posix(), path, mode


def last_commit():
    log = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(log, check=True, capture_output=True, text=True).stdout.strip()


def is_elf(path):
    return path.is_file() and not path.is_symlink() and path.open("rb").read(4) == b"\x7fELF"


def needed_glibc(path):
    symbols = subprocess.run(["objdump", "-T", path], check=True, capture_output=True, text=True).stdout
    return max((int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))


def needs_libgcc(path):
    """Whether the loader would look for GCC's library; what Zig has linked does without."""
    headers = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
    return re.search(r"NEEDED\s+libgcc_s\.so", headers) is not None


def dotted(version):
    return ".".join(map(str, version))


# --- Tarball ---------------------------------------------------------------------------------


def tarball(package, out):
    """`hawser-VERSION-linux-MACHINE.tar.gz`, with one folder that can lie anywhere."""
    name = f"hawser-{package.version}-linux-{package.machine}"
    path = out / f"{name}.tar.gz"
    entries = [(f"{name}/{inside}", file, mode) for inside, file, mode in package.files()]
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as zipped:
        zipped.write(tar(entries, package.time))
    return path


def tar(entries, when):
    """The bytes of a tar archive. A folder is an entry whose file is None; contents may be bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, source, mode in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.uname, info.gname, info.mode = when, "root", "root", mode or 0o777
            contents = None
            if source is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(source, bytes):
                contents = source
            elif source.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(source)
            else:
                contents = source.read_bytes()
            info.size = len(contents) if contents is not None else 0
            archive.addfile(info, io.BytesIO(contents) if contents is not None else None)
    return buffer.getvalue()


# --- Debian package --------------------------------------------------------------------------


def deb(package, out):
    """`hawser_VERSION_ARCHITECTURE.deb`, below /opt/hawser."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}[package.machine]
    files = [(f".{PREFIX}/{inside}", source, mode) for inside, source, mode in package.files()]
    documents = "./usr/share/doc/hawser"
    files.append((f"{documents}/copyright", copyright_file(), 0o644))
    files.append((f"{documents}/changelog.gz", changelog(package), 0o644))
    files.append(("./usr/share/lintian/overrides/hawser", (HERE / "files/lintian").read_bytes(), 0o644))
    entries = with_folders(files)
    sizes = [len(source) if isinstance(source, bytes) else source.lstat().st_size for _, source, _ in files]
    control = CONTROL.format(
        version=package.version,
        architecture=architecture,
        maintainer=MAINTAINER,
        size=sum(sizes) // 1024 + 1,
        depends=f"libc6 (>= {dotted(GLIBC)})" + (", libgcc-s1 (>= 4.2)" if package.libgcc else ""),
        summary=SUMMARY,
    )
    sums = "".join(
        f"{hashlib.md5(contents(source)).hexdigest()}  {name[2:]}\n"
        for name, source, _ in files
        if isinstance(source, bytes) or not source.is_symlink()
    )
    about = [("./control", control.encode(), 0o644), ("./md5sums", sums.encode(), 0o644)]
    path = out / f"hawser_{package.version}_{architecture}.deb"
    members = [
        ("debian-binary", b"2.0\n"),
        ("control.tar.xz", xz(tar([("./", None, 0o755), *about], package.time))),
        ("data.tar.xz", xz(tar(entries, package.time))),
    ]
    path.write_bytes(ar(members, package.time))
    return path


CONTROL = """\
Package: hawser
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: {depends}
Section: libs
Priority: optional
Description: {summary}
 Hawser is loaded in place of NVIDIA's NCCL by PyTorch, nccl-tests and MPI
 programs, which stay as they are. Nothing uses it until a program is started
 with LD_PRELOAD or LD_LIBRARY_PATH. The program hawser measures, checks and
 explains collectives; without a GPU they run on the CPU.
"""


def contents(source):
    return source if isinstance(source, bytes) else source.read_bytes()


def with_folders(files):
    """The files in order, each folder before what is in it."""
    folders = {"./"}
    for name, _, _ in files:
        parts = name.split("/")[:-1]
        folders.update("/".join(parts[:end]) + "/" for end in range(1, len(parts) + 1))
    return sorted([*((folder, None, 0o755) for folder in folders), *files], key=lambda entry: entry[0])


def copyright_file():
    years = "2026"
    text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: hawser\n\n"
    text += f"Files: *\nCopyright: {years} the contributors of Hawser\nLicense: Expat or Apache-2.0\n\n"
    licence = (ROOT / "LICENSE-MIT").read_text().split("\n\n", 2)[-1].rstrip()
    text += "License: Expat\n" + "".join(f" {line or '.'}\n" for line in licence.splitlines())
    text += "\nLicense: Apache-2.0\n The text is in /usr/share/common-licenses/Apache-2.0.\n"
    return text.encode()


def changelog(package):
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(package.time))
    text = f"hawser ({package.version}) stable; urgency=medium\n\n"
    text += f"  * See {PREFIX}/share/doc/hawser/CHANGELOG.md.\n\n -- {MAINTAINER}  {date}\n"
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as zipped:
        zipped.write(text.encode())
    return buffer.getvalue()


def xz(data):
    return lzma.compress(data, preset=6)


def ar(members, when):
    data = b"!<arch>\n"
    for name, body in members:
        data += f"{name:<16}{when:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode() + body
        data += b"\n" * (len(body) % 2)
    return data


# --- Wheel -----------------------------------------------------------------------------------


def wheel(package, out):
    """`hawser-VERSION-py3-none-manylinux_….whl`: the files in the package's folder, and a small module."""
    tag = f"py3-none-manylinux_{GLIBC[0]}_{GLIBC[1]}_{package.machine}"
    if GLIBC == (2, 17):  # the name that pip before 20.3 knows
        tag = tag.replace("-manylinux", f"-manylinux2014_{package.machine}.manylinux")
    about = f"hawser-{package.version}.dist-info"
    files = []
    for inside, source, mode in package.files():
        # A wheel has no links; documentation, pkg-config and CMake files would lead nowhere.
        if inside.split("/")[0] in ("bin", "include") or re.fullmatch(r"lib/libnccl[^/]*", inside) and mode:
            files.append((f"hawser/{inside}", source.read_bytes(), mode))
    for module in sorted((HERE / "python" / "hawser").glob("*.py")):
        files.append((f"hawser/{module.name}", module.read_bytes(), 0o644))
    metadata = METADATA.format(version=package.version, summary=SUMMARY)
    metadata += (HERE / "python" / "README.md").read_text()
    files += [
        (f"{about}/METADATA", metadata.encode(), 0o644),
        (f"{about}/WHEEL", wheel_tags(tag).encode(), 0o644),
        (f"{about}/entry_points.txt", b"[console_scripts]\nhawser = hawser.command:main\n", 0o644),
    ]
    for name in ("LICENSE-APACHE", "LICENSE-MIT"):
        files.append((f"{about}/licenses/{name}", (ROOT / name).read_bytes(), 0o644))
    record = "".join(f"{name},sha256={digest(body)},{len(body)}\n" for name, body, _ in files)
    files.append((f"{about}/RECORD", f"{record}{about}/RECORD,,\n".encode(), 0o644))
    path = out / f"hawser-{package.version}-{tag}.whl"
    when = time.gmtime(max(package.time, 315532800))[:6]  # zip knows no time before 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body, mode in files:
            info = zipfile.ZipInfo(name, when)
            info.compress_type, info.external_attr, info.create_system = (
                zipfile.ZIP_DEFLATED,
                (0o100000 | mode) << 16,
                3,
            )
            archive.writestr(info, body)
    return path


METADATA = """\
Metadata-Version: 2.4
Name: hawser
Version: {version}
Summary: {summary}
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.8
Description-Content-Type: text/markdown

"""

WHEEL = """\
Wheel-Version: 1.0
Generator: packaging/build.py
Root-Is-Purelib: false
"""


def wheel_tags(tag):
    """The file WHEEL: a line for each platform in the tag of the file's name."""
    start, platforms = tag.rsplit("-", 1)
    return WHEEL + "".join(f"Tag: {start}-{name}\n" for name in platforms.split("."))


def digest(body):
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main()
