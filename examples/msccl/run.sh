#!/bin/sh
# Proves, draws and runs an algorithm of one's own: examples/msccl/run.sh [folder for what is written]
set -eu
hawser=${HAWSER:-hawser}
here=$(dirname "$0")
out=${1:-.}

python3 "$here/make.py" 4 > "$out/line.xml"
"$hawser" plan verify "$out/line.xml"
"$hawser" plan show "$out/line.xml" --svg "$out/line.svg" > "$out/line.txt"
echo "drawn: $out/line.svg"
MSCCL_XML_FILES=$out/line.xml NCCL_ALGO=allreduce:line "$hawser" perf all_reduce -t 4 -b 1K -e 16K -f 4 --explain > "$out/perf.txt"
grep -e 'decided:' -e 'Out of bounds' "$out/perf.txt"
