#!/usr/bin/env bash
# Compares Hawser's and NVIDIA's libnccl.so.2 on the GPUs of one host: both through the same loop (hawser perf
# --library), interleaved round by round, one thread and one GPU per rank, NVLink multicast off for both. Prints a table
# per collective, says which marks are met (marks.py), and writes PREFIX.json and PREFIX.svg.
#
#   bench/nvlink.sh [--nccl FILE] [--ours FILE] [--hawser FILE] [--gpus N] [--rounds R] [--sizes FIRST:LAST[:FACTOR]]
#                   [--graph] [--limit GB/s] [--timeout SECONDS] [--out PREFIX] [collective ...]
#
# --nccl     NVIDIA's library; without, the one of the Python package nvidia-nccl
# --ours     default target/release/libnccl.so.2
# --hawser   default target/release/hawser
# --gpus     default: all that nvidia-smi lists
# --rounds   default 5
# --sizes    default 8:8G:2
# --graph    operations are launched as CUDA graphs
# --limit    what a link carries, default 370 (payload of NVLink 4 on H200)
# --timeout  for one process, default 300
# --out      default bench/results/nvlink
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
hawser=$root/target/release/hawser ours=$root/target/release/libnccl.so.2 nccl='' gpus='' rounds=5 sizes=8:8G:2
limit=370 seconds=300 out=$here/results/nvlink
repeat=(--iters 200 --warmup 5)
collectives=()

fail() {
    echo "nvlink.sh: $*" >&2
    exit 2
}

installed_nccl() {
    python3 -c 'import nvidia.nccl, os; print(os.path.join(list(nvidia.nccl.__path__)[0], "lib", "libnccl.so.2"))' 2>/dev/null ||
        fail "no NVIDIA library: give --nccl FILE, or pip install nvidia-nccl-cu13"
}

all_gpus() {
    local count
    count=$(timeout 60 nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU') || fail "nvidia-smi lists no GPU: give --gpus N"
    echo "$count"
}

while (($#)); do
    case $1 in
    --hawser | --ours | --nccl | --gpus | --rounds | --sizes | --limit | --timeout | --out)
        (($# > 1)) || fail "$1 needs a value"
        case $1 in
        --hawser) hawser=$2 ;;
        --ours) ours=$2 ;;
        --nccl) nccl=$2 ;;
        --gpus) gpus=$2 ;;
        --rounds) rounds=$2 ;;
        --sizes) sizes=$2 ;;
        --limit) limit=$2 ;;
        --timeout) seconds=$2 ;;
        --out) out=$2 ;;
        esac
        shift 2
        ;;
    --graph)
        repeat=(--iters 20 --warmup 5 --graph 10)
        shift
        ;;
    -h | --help)
        sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    -*) fail "unknown option $1 (--help lists them)" ;;
    *)
        collectives+=("$1")
        shift
        ;;
    esac
done

((${#collectives[@]})) || collectives=(all_reduce all_gather reduce_scatter alltoall sendrecv broadcast reduce gather scatter)
[[ $sizes == *:*:* ]] || sizes=$sizes:2
[[ -n $nccl ]] || nccl=$(installed_nccl)
[[ -n $gpus ]] || gpus=$(all_gpus)
[[ -x $hawser ]] || fail "no program $hawser: make lib, or give --hawser FILE"
mkdir -p "$(dirname "$out")"

"$here/compare.py" --hawser "$hawser" --ours "$ours" --nccl "$nccl" --gpus "$gpus" --rounds "$rounds" --sizes "$sizes" \
    "${repeat[@]}" --point-ms 50 --timeout "$seconds" --json "$out.json" "${collectives[@]}"
"$here/plot.py" "$out.json" "$out.svg" --limit "$limit"
"$here/marks.py" "$out.json" || true
echo "wrote $out.json and $out.svg"
