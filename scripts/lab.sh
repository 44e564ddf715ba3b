#!/usr/bin/env bash
# Makes a Debian machine able to run tests/lab: QEMU, a static busybox, tools and a kernel with soft-RoCE, which is unpacked into
# target/lab/kernel and not installed. Ends with 0 and says what is missing where that cannot be done. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly KERNEL=${CARGO_TARGET_DIR:-target}/lab/kernel
readonly PACKAGES="qemu-system-x86 busybox-static iproute2 ibverbs-providers libibverbs1 python3"

step() { printf 'lab: %s\n' "$*"; }
without() { step "not possible here: $*"; exit 0; }

command -v apt-get >/dev/null || without "no apt-get; see tests/lab/README.md for what it needs"
missing=
for package in $PACKAGES; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || without "as root: apt-get update && apt-get install -y$missing"
    step "installing$missing"
    # shellcheck disable=SC2086 # a word for each package
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null; } ||
        without "apt-get did not install$missing (see above)"
fi
if ! compgen -G "$KERNEL/boot/vmlinuz-*" >/dev/null; then
    image=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends:/ { print $2; exit }')
    [ -n "$image" ] || without "apt knows no linux-image-amd64 (apt-get update?)"
    step "unpacking $image"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    # The client runs as a user of its own, which must be able to write there.
    chmod 777 "$folder"
    (cd "$folder" && apt-get -qq download "$image" 2>/dev/null) || without "apt-get did not download $image"
    mkdir -p "$KERNEL"
    dpkg-deb -x "$folder"/linux-image-*.deb "$KERNEL"
fi
step "ready: $KERNEL"
