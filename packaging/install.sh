#!/usr/bin/env bash
# Installs what was built, or takes it away again. The Makefile calls it:
#   packaging/install.sh install   BUILT PREFIX [DESTDIR]
#   packaging/install.sh uninstall PREFIX [DESTDIR]
# BUILT is a folder such as target/release. What is installed is listed in PREFIX/share/hawser/installed.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly LIST=share/hawser/installed
readonly PLUGINS="net-hawser-socket net-hawser-ib tuner-hawser profiler-hawser"

fail() { printf 'install: error: %s\n' "$*" >&2; exit 1; }

# put MODE FROM TO: a file below the prefix.
put() {
    install -D -m "$1" "$2" "$root/$3"
    printf '%s\n' "$3" >> "$root/$LIST"
}

# fill FROM TO: a file in which @PREFIX@ and @VERSION@ are replaced.
fill() {
    local filled
    filled=$(mktemp)
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$1" > "$filled"
    put 644 "$filled" "$2"
    rm -f "$filled"
}

install_all() {
    local built=$1 name version
    version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    for name in libnccl.so.2 hawser; do [ -f "$built/$name" ] || fail "$built has no $name: run make lib"; done
    mkdir -p "$root/$(dirname "$LIST")"
    : > "$root/$LIST"
    put 644 "$built/libnccl.so.2" lib/libnccl.so.2
    ln -sfn libnccl.so.2 "$root/lib/libnccl.so"
    printf 'lib/libnccl.so\n' >> "$root/$LIST"
    for name in $PLUGINS; do
        [ -f "$built/libnccl-$name.so" ] || fail "$built has no libnccl-$name.so: run make plugins"
        put 644 "$built/libnccl-$name.so" "lib/libnccl-$name.so"
    done
    put 755 "$built/hawser" bin/hawser
    put 644 core/capi/include/hawser.h include/hawser.h
    put 644 plugins/api/include/hawser_plugin.h include/hawser_plugin.h
    fill packaging/files/hawser.pc.in lib/pkgconfig/hawser.pc
    put 644 packaging/files/HawserConfig.cmake lib/cmake/Hawser/HawserConfig.cmake
    fill packaging/files/HawserConfigVersion.cmake.in lib/cmake/Hawser/HawserConfigVersion.cmake
    for name in README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT; do put 644 "$name" "share/doc/hawser/$name"; done
    printf '%s\n' "$LIST" >> "$root/$LIST"
    echo "install: $(wc -l < "$root/$LIST") files in $root"
}

uninstall_all() {
    local file
    [ -f "$root/$LIST" ] || fail "$root has no $LIST: nothing was installed there by make install"
    sort "$root/$LIST" > "$root/$LIST.sorted"
    while read -r file; do rm -f "${root:?}/$file"; done < "$root/$LIST.sorted"
    rm -f "$root/$LIST.sorted"
    # Folders go if they are empty, from the innermost out.
    for file in share/hawser share/doc/hawser share/doc share lib/cmake/Hawser lib/cmake lib/pkgconfig lib include bin .; do
        rmdir "$root/$file" 2> /dev/null || true
    done
    echo "uninstall: done in $root"
}

case ${1:-} in
    install)
        prefix=${3%/} root=${4:-}${3%/}
        install_all "$2"
        ;;
    uninstall)
        root=${3:-}${2%/}
        uninstall_all
        ;;
    *) fail "usage: install.sh install BUILT PREFIX [DESTDIR] | install.sh uninstall PREFIX [DESTDIR]" ;;
esac
