#!/usr/bin/env bash
# Looks at packages with the tools of those who take them: packaging/check.sh FOLDER
#
# auditwheel says whether the wheel's tags are true (scripts/setup.sh packages installs it into .venv), lintian
# whether the Debian package keeps Debian's rules. Where one of them is missing the check is left out, and that
# is said; `make packages` goes on. Ends with 1 if a package is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly FOLDER=${1:?usage: packaging/check.sh FOLDER}
readonly AUDITWHEEL=.venv/bin/auditwheel

say() { printf 'check: %s\n' "$*"; }
fail() { printf 'check: error: %s\n' "$*" >&2; exit 1; }

shopt -s nullglob
for wheel in "$FOLDER"/*.whl; do
    if [ ! -x $AUDITWHEEL ]; then
        say "$wheel is not checked: auditwheel is missing (scripts/setup.sh packages)"
        continue
    fi
    said=$($AUDITWHEEL show "$wheel") || fail "auditwheel refuses $wheel: $said"
    # Its text is wrapped to lines of any length.
    said=$(tr -s '\n ' '  ' <<< "$said")
    promised="manylinux_$(tr . _ < packaging/glibc)_$(uname -m)"
    [[ $said == *"consistent with the following platform tag: \"$promised\""* ]] ||
        fail "$wheel promises $promised; auditwheel says: $said"
    say "$wheel: auditwheel says $promised"
done
for package in "$FOLDER"/*.deb; do
    if ! command -v lintian > /dev/null; then
        say "$package is not checked: lintian is missing (apt-get install lintian)"
        continue
    fi
    # As root it warns of being root, once.
    lintian --fail-on error,warning "$package" || fail "lintian has something against $package, see above"
    say "$package: lintian has nothing against it"
done
