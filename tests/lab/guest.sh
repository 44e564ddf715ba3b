#!/bin/bash
# Runs in a guest as root, with the host's tree below it: links up, soft-RoCE on each rail, then this end of the traffic.
# Commands that arrive on the second serial line are run, so that the host can make faults from inside.
id=$(sed -n 's/.*vmid=\([0-9]*\).*/\1/p' /proc/cmdline)
args=$(sed -n 's/.*lab=\([^ ]*\).*/\1/p' /proc/cmdline | tr , ' ')
set -- $args # program, seconds, bytes, settings...
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ulimit -l unlimited
ip link set lo up
n=0
for nic in $(ls /sys/class/net | grep '^e' | sort); do
    ip link set "$nic" up
    if [ "$n" = 0 ]; then
        ip addr add "10.9.0.$id/24" dev "$nic" # management: never faulted
        first=$nic
    else
        ip addr add "10.0.$n.$id/24" dev "$nic"
        rdma link add "rxe$n" type rxe netdev "$nic"
    fi
    n=$((n + 1))
done
program=$1 seconds=$2 bytes=$3
shift 3
for setting in "$@"; do export "$setting"; done
export NCCL_SOCKET_IFNAME="=$first"
while read -r line; do eval "$line"; done </dev/ttyS1 &
echo "LAB ready"
if [ "$program" = perftest ]; then
    if [ "$id" = 1 ]; then
        ib_write_bw -d rxe1 -x 1 -s "$bytes" -D "$seconds" --report_gbits
    else
        sleep 2
        ib_write_bw -d rxe1 -x 1 -s "$bytes" -D "$seconds" --report_gbits 10.9.0.1 | sed 's/^/LAB perf /'
    fi
elif [ "$id" = 1 ]; then
    "$program" receive 7777 "$seconds" "$bytes"
else
    "$program" send 10.9.0.1:7777 "$seconds" "$bytes"
fi
echo "LAB exit $?"
