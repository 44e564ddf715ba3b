#!/bin/sh
# Changes the rules of a job while it runs: examples/live_rules/run.sh
set -eu
hawser=${HAWSER:-hawser}
here=$(dirname "$0")
out=$(mktemp -d)
HAWSER_RUNTIME_DIR=$out/run
export HAWSER_RUNTIME_DIR

# A job that works until it is stopped. Its log tells of changed rules.
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING HAWSER_JOB=example \
    "$hawser" perf all_reduce -t 4 -b 4K -e 4K -c 0 -n 100000000 > "$out/log" 2>&1 &
job=$!
trap 'kill $job; wait $job 2> /dev/null || true; rm -rf "$out"' EXIT

until "$hawser" rules list --job example 2> /dev/null | grep -q "$job"; do
    kill -0 $job
    sleep 0.2
done
"$hawser" rules list --job example
echo "--- rules for small all-reduces"
"$hawser" rules apply "$here/one_shot.toml" --job example
echo "--- no rules again"
"$hawser" rules apply --none --job example
