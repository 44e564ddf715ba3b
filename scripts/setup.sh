#!/usr/bin/env bash
# Makes a machine able to build Hawser: a Rust toolchain, and a CUDA compiler for the kernels.
# Prints one line a step, nothing when there is nothing to do. Safe to run again at any time.
# `scripts/setup.sh release` also installs Zig, which links releases (scripts/release.sh); `scripts/setup.sh
# packages` that and what looks at packages (packaging/check.sh); `scripts/setup.sh docs` mdBook alone. All of
# it goes into .venv, in versions that stand here or beside this file.
#
# Settings: HAWSER_NO_KERNELS=1  never look for or install a CUDA compiler
#           HAWSER_GLIBC=host    never install Zig
#           HAWSER_PYTHON=...    the Python that makes .venv (default: python3)
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RUST_MINIMUM=1.95 # rust-version in Cargo.toml
readonly REQUIREMENTS=scripts/nvcc-requirements.txt
readonly STAMP=.venv/hawser-nvcc.stamp
readonly WITHOUT=target/built-without-kernels
readonly ZIG_REQUIREMENTS=scripts/release-requirements.txt
readonly ZIG_STAMP=.venv/hawser-zig.stamp
readonly AUDITWHEEL_REQUIREMENTS=scripts/packages-requirements.txt
readonly AUDITWHEEL_STAMP=.venv/hawser-auditwheel.stamp
readonly MDBOOK=0.5.4
readonly WITHOUT_ZIG=${CARGO_TARGET_DIR:-target}/built-without-zig
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH" # before a distribution's older Rust

main() {
    need_tool cc "a C compiler" gcc libc6-dev
    rust_is_new_enough || command -v rustup >/dev/null 2>&1 ||
        need_tool curl "curl, to fetch the Rust toolchain" curl ca-certificates
    if [ "${1:-}" = packages ]; then
        need_tool objdump "objdump, which reads what was built" binutils
        need_tool git "git, whose last commit dates the packages" git
        need_tool "${HAWSER_PYTHON:-python3}" "Python, which makes the packages" python3
        need_venv
        [ -n "${HAWSER_NO_KERNELS:-}" ] || need_tool "${NVCC_CCBIN:-g++}" "a C++ compiler for the kernels" g++
    fi
    refuse_if_missing
    ensure_rust
    case ${1:-} in
        docs) ensure_mdbook ;;
        packages)
            kernels_are_needed=1
            ensure_nvcc
            ensure_zig
            ensure_auditwheel
            ;;
        release)
            ensure_nvcc
            ensure_zig
            ;;
        *) ensure_nvcc ;;
    esac
}

step() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# The command that installs the given Debian packages, for messages.
apt_line() {
    local sudo=
    [ "$(id -u)" = 0 ] || sudo='sudo '
    printf '%sapt-get update && %sapt-get install -y %s' "$sudo" "$sudo" "$*"
}

# What is missing, in words and as Debian packages: everything is told at once.
missing=()
missing_packages=()
# Set where a build without kernels is of no use.
kernels_are_needed=

# need_tool COMMAND DESCRIPTION PACKAGE...
need_tool() {
    local tool=$1 what=$2
    shift 2
    command -v "$tool" >/dev/null 2>&1 && return
    missing+=("$what")
    missing_packages+=("$@")
}

# Debian has Python's module for virtual environments in a package of its own.
need_venv() {
    "${HAWSER_PYTHON:-python3}" -c 'import venv, ensurepip' >/dev/null 2>&1 && return
    missing+=("Python's venv module")
    missing_packages+=(python3-venv)
}

refuse_if_missing() {
    [ ${#missing[@]} != 0 ] || return 0
    local all
    all=$(printf ', %s' "${missing[@]}")
    fail "missing: ${all#, }; install with: $(apt_line "${missing_packages[@]}")"
}

# --- Rust ------------------------------------------------------------------------------------

ensure_rust() {
    if ! rust_is_new_enough; then
        if command -v rustup >/dev/null 2>&1; then
            step "updating the Rust toolchain (have $(rust_version), need $RUST_MINIMUM)"
            rustup --quiet toolchain install stable --profile minimal --no-self-update
            rustup --quiet default stable
        else
            step "installing the Rust toolchain with rustup"
            curl --proto '=https' --tlsv1.2 -fsSL --retry 3 https://sh.rustup.rs |
                sh -s -- -y --quiet --no-modify-path --profile minimal -c rustfmt -c clippy ||
                fail "rustup did not install (see above); needs https://sh.rustup.rs, or install Rust $RUST_MINIMUM yourself"
        fi
        hash -r
        rust_is_new_enough ||
            fail "cargo in PATH is $(rust_version), Hawser needs $RUST_MINIMUM: put ${CARGO_HOME:-$HOME/.cargo}/bin first in PATH"
    fi
    if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
        if command -v rustup >/dev/null 2>&1; then
            step "adding rustfmt and clippy"
            rustup --quiet component add rustfmt clippy
        else
            step "rustfmt or clippy is missing: make check will not work ($(apt_line rustfmt rust-clippy))"
        fi
    fi
}

rust_version() {
    cargo --version 2>/dev/null | awk '{ print $2 }' | grep . || echo none
}

rust_is_new_enough() {
    local have
    have=$(rust_version)
    [ "$have" != none ] && [ "$(printf '%s\n%s\n' "$RUST_MINIMUM" "$have" | sort -V | head -n 1)" = "$RUST_MINIMUM" ]
}

# --- CUDA compiler ---------------------------------------------------------------------------

ensure_nvcc() {
    [ -z "${HAWSER_NO_KERNELS:-}" ] || return 0
    if ! has_cuda_toolkit && ! venv_is_current; then
        local python=${HAWSER_PYTHON:-python3}
        if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
            no_kernels "neither a CUDA toolkit nor Python's venv module was found" python3-venv
            return 0
        fi
        if ! install_nvcc "$python"; then
            no_kernels "installing nvcc from PyPI failed (see above)"
            return 0
        fi
    fi
    if ! command -v "${NVCC_CCBIN:-g++}" >/dev/null 2>&1; then
        no_kernels "nvcc needs a C++ compiler"
        return 0
    fi
    look_again
}

# The same places, in the same order, as kernels/build.rs.
has_cuda_toolkit() {
    if [ -n "${NVCC:-}" ]; then return 0; fi # build.rs then looks nowhere else
    local home
    for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
        if [ -n "$home" ] && [ -x "$home/bin/nvcc" ]; then return 0; fi
    done
    command -v nvcc >/dev/null 2>&1
}

venv_is_current() {
    [ -f "$STAMP" ] && cmp -s "$REQUIREMENTS" "$STAMP"
}

install_nvcc() {
    step "installing nvcc from PyPI into .venv (about 270 MB)"
    install_from_pypi "$1" "$REQUIREMENTS" "$STAMP"
}

# install_from_pypi PYTHON REQUIREMENTS STAMP: into .venv, which that Python makes if there is none.
install_from_pypi() {
    [ -x .venv/bin/python ] || "$1" -m venv .venv || return 1
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$2" || return 1
    cp "$2" "$3"
}

# After a time without a CUDA compiler, the next build must look for it again.
look_again() {
    if [ -f "$WITHOUT" ]; then
        touch kernels/build.rs
        rm -f "$WITHOUT"
    fi
}

# no_kernels REASON PACKAGE...: the build goes on for the host device only, and says so loudly.
no_kernels() {
    local reason=$1
    shift
    [ -z "$kernels_are_needed" ] ||
        fail "packages need the kernels: $reason; HAWSER_NO_KERNELS=1 makes packages for the host device only"
    command -v "${NVCC_CCBIN:-g++}" >/dev/null 2>&1 || set -- "$@" g++
    mkdir -p target && touch "$WITHOUT"
    {
        echo "setup: ******************************************************************************"
        echo "setup: * GPU kernels will NOT be built: $reason."
        echo "setup: * Everything else works, on the host device only. To get the kernels:"
        [ $# = 0 ] || echo "setup: *   $(apt_line "$@")"
        echo "setup: *   make setup"
        echo "setup: ******************************************************************************"
    } >&2
}

# --- Zig -------------------------------------------------------------------------------------

ensure_zig() {
    [ "${HAWSER_GLIBC:-}" != host ] || return 0
    if [ -f "$ZIG_STAMP" ] && cmp -s "$ZIG_REQUIREMENTS" "$ZIG_STAMP"; then
        rm -f "$WITHOUT_ZIG"
        return 0
    fi
    local python=${HAWSER_PYTHON:-python3}
    case $(rustc -vV | sed -n 's/^host: //p') in
        *-linux-gnu) ;;
        *) no_zig "Rust builds for another C library than glibc here"; return 0 ;;
    esac
    if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        no_zig "Python's venv module was not found" python3-venv
        return 0
    fi
    step "installing Zig from PyPI into .venv (about 90 MB)"
    if ! install_from_pypi "$python" "$ZIG_REQUIREMENTS" "$ZIG_STAMP"; then
        no_zig "installing Zig from PyPI failed (see above)"
        return 0
    fi
    rm -f "$WITHOUT_ZIG"
}

# no_zig REASON PACKAGE...: releases are linked by this machine's linker, for its own glibc.
no_zig() {
    local reason=$1
    shift
    mkdir -p "$(dirname "$WITHOUT_ZIG")" && touch "$WITHOUT_ZIG"
    {
        echo "setup: ******************************************************************************"
        echo "setup: * What is built will need a glibc as new as this machine's: $reason."
        echo "setup: * It works here; packages for other machines are refused. To mend it:"
        [ $# = 0 ] || echo "setup: *   $(apt_line "$@")"
        echo "setup: *   scripts/setup.sh release"
        echo "setup: ******************************************************************************"
    } >&2
}

# --- Packages --------------------------------------------------------------------------------

# Without it the wheel is made all the same, and packaging/check.sh says that nobody has looked at it.
ensure_auditwheel() {
    if [ -f "$AUDITWHEEL_STAMP" ] && cmp -s "$AUDITWHEEL_REQUIREMENTS" "$AUDITWHEEL_STAMP"; then return 0; fi
    step "installing auditwheel from PyPI into .venv"
    install_from_pypi "${HAWSER_PYTHON:-python3}" "$AUDITWHEEL_REQUIREMENTS" "$AUDITWHEEL_STAMP" ||
        step "auditwheel could not be installed (see above): the wheel's tags will not be checked"
}

# --- mdBook ----------------------------------------------------------------------------------

ensure_mdbook() {
    [ "$(.venv/bin/mdbook --version 2>/dev/null)" != "mdbook v$MDBOOK" ] || return 0
    step "building mdBook $MDBOOK into .venv (minutes)"
    cargo install --quiet --locked --root .venv --no-default-features --features search --version "$MDBOOK" mdbook ||
        fail "cargo did not install mdBook (see above): the book needs it, nothing else does"
}

main "$@"
