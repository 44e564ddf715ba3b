#!/bin/sh
# Stands in for nvcc in build_script.rs: answers its questions, appends each compilation to `log`
# in the folder it is called by, and writes its arguments as the result.
case "$1" in
--version) echo "Cuda compilation tools, release 12.6, V12.6.1"; exit ;;
--list-gpu-code) printf 'sm_75\nsm_80\nsm_90\nsm_90a\n'; exit ;;
--help) echo "no options worth a name"; exit ;;
esac
for last; do previous=$now; now=$last; done
echo "$last" >> "$(dirname "$0")/log"
grep -q broken "$last" && { echo "line 1: broken" >&2; exit 2; }
echo "$@" > "$previous"
