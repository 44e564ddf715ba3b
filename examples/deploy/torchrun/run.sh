#!/bin/sh
# Starts a training on this host as one of several: deploy/torchrun/run.sh HOSTS HEAD PROGRAM [WORDS...]
# Run it on each host. HAWSER=off takes NVIDIA's library instead.
set -eu
hosts=$1 head=$2
shift 2
library=${HAWSER_PREFIX:-/opt/hawser}/lib/libnccl.so.2

if [ "${HAWSER:-on}" != off ]; then
    [ -r "$library" ] || { echo "run.sh: $library is missing on $(hostname)" >&2; exit 1; }
    LD_PRELOAD=$library
    export LD_PRELOAD
fi
NCCL_DEBUG=${NCCL_DEBUG:-WARN} HAWSER_OP_TIMEOUT=${HAWSER_OP_TIMEOUT:-600}
export NCCL_DEBUG HAWSER_OP_TIMEOUT

exec torchrun --nnodes="$hosts" --nproc-per-node="${GPUS:-gpu}" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29400" "$@"
