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

# pages PROGRAM: what the program writes about itself.
pages() {
    local folder page
    folder=$(mktemp -d)
    "$1" man "$folder/man" > /dev/null
    for page in "$folder"/man/*; do put 644 "$page" "share/man/man1/${page##*/}"; done
    "$1" completions bash > "$folder/text"
    put 644 "$folder/text" share/bash-completion/completions/hawser
    "$1" completions zsh > "$folder/text"
    put 644 "$folder/text" share/zsh/site-functions/_hawser
    "$1" completions fish > "$folder/text"
    put 644 "$folder/text" share/fish/vendor_completions.d/hawser.fish
    rm -rf "$folder"
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
    pages "$built/hawser"
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
    local file folder list
    [ -f "$root/$LIST" ] || fail "$root has no $LIST: nothing was installed there by make install"
    list=$(< "$root/$LIST")
    while read -r file; do rm -f "${root:?}/$file"; done <<< "$list"
    # Folders that held these files go if they are empty now, from the innermost out.
    while read -r file; do
        folder=$(dirname "$file")
        while [ "$folder" != . ] && rmdir "$root/$folder" 2> /dev/null; do folder=$(dirname "$folder"); done
    done <<< "$list"
    rmdir "$root" 2> /dev/null || true
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
