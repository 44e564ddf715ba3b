#!/usr/bin/env bash
# Builds parts of the workspace for release, into target/release: scripts/release.sh PACKAGE:FILE...
# The Makefile calls it. FILE is what comes out: lib….so of a library, else the name of a program.
#
# Zig links them (scripts/setup.sh release installs it), against the names that the version of glibc in
# packaging/glibc had, so that they need no newer one. Without Zig this machine's linker does, loudly: what
# comes out then needs a glibc as new as this machine's.
#
# Settings: HAWSER_GLIBC=host    this machine's linker and glibc: a quick build for one machine
set -euo pipefail
cd "$(dirname "$0")/.."

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
readonly TARGET=${CARGO_TARGET_DIR:-target}
readonly WITHOUT=$TARGET/built-without-zig # scripts/setup.sh release makes it

main() {
    local part
    if [ "${HAWSER_GLIBC:-}" = host ] || [ -f "$WITHOUT" ]; then
        for part in "$@"; do build cargo "" "$part"; done
        return
    fi
    local triple
    triple=$(rustc -vV | sed -n 's/^host: //p')
    # Zig keeps what it made of glibc's names where everything else that was built lies.
    mkdir -p "$TARGET/zig"
    ZIG_GLOBAL_CACHE_DIR=$(cd "$TARGET/zig" && pwd)
    export ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR=$ZIG_GLOBAL_CACHE_DIR
    export CARGO_ZIGBUILD_CACHE_DIR=$ZIG_GLOBAL_CACHE_DIR PATH="$PWD/.venv/bin:$PATH"
    for part in "$@"; do
        build cargo-zigbuild "$triple.$(< packaging/glibc)" "$part"
        # A file of its own: that which lies there may be a link to what another build keeps.
        cp --remove-destination "$TARGET/$triple/release/${part#*:}" "$TARGET/release/${part#*:}"
    done
}

# build CARGO TRIPLE PACKAGE:FILE
build() {
    local words=(rustc --quiet --release -p "${3%%:*}")
    [ -z "$2" ] || words+=(--target "$2")
    case ${3#*:} in lib*) words+=(--lib --crate-type cdylib) ;; esac
    mkdir -p "$TARGET/release"
    "$1" "${words[@]}"
}

main "$@"
