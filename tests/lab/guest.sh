#!/bin/bash
# Runs in a guest as root, with the host's tree below it: links up, soft-RoCE on each rail. Then it carries out what comes
# on the second serial line: `start NAME PROGRAM...` runs something whose lines are told with LAB and its name in front.
id=$(sed -n 's/.*vmid=\([0-9]*\).*/\1/p' /proc/cmdline)
cd "$(sed -n 's/.*folder=\([^ ]*\).*/\1/p' /proc/cmdline)" || exit 1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
ulimit -l unlimited
renice -n -15 $$ >/dev/null # faults happen when they are said, however busy the programs are
echo "g$id" >/proc/sys/kernel/hostname
ip link set lo up
n=0
for nic in /sys/class/net/e*; do # in the order of their names
    nic=${nic##*/}
    ip link set "$nic" up
    if [ "$n" = 0 ]; then
        ip addr add "10.9.0.$id/24" dev "$nic" # management: never faulted
        export NCCL_SOCKET_IFNAME="=$nic"
    else
        ip addr add "10.0.$n.$id/24" dev "$nic"
        # Soft-RoCE's packets leave unanswered questions in the neighbour table when a link goes: asked again after 1 s by default.
        echo 100 >"/proc/sys/net/ipv4/neigh/$nic/retrans_time_ms"
        rdma link add "rxe$n" type rxe netdev "$nic"
    fi
    n=$((n + 1))
done

start() {
    local name=$1
    shift
    [ -p "/run/in.$name" ] || mkfifo "/run/in.$name" # `echo LINE >/run/in.NAME` is what it reads
    { (nice -n 15 "$@" 2>&1 <>"/run/in.$name"; echo "exit $?") | sed -u "s/^/LAB $name /"; } &
}

exec 3</dev/ttyS1 # what came before a serial line is opened is lost
echo "LAB ready"
while read -r -u 3 line; do eval "$line"; done
