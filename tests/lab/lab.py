#!/usr/bin/env python3
"""Two virtual machines with soft-RoCE, one connection of the IB plugin between them, and faults from outside.

    tests/lab/lab.py --kernel DIR --program target/debug/examples/lab_end [--case NAME ...] [--seed N]

DIR is an unpacked Debian kernel package (boot/vmlinuz-*, lib/modules/*): `apt-get download linux-image-...` and
`dpkg-deb -x`; without it the running system's /boot and /lib/modules. Needs qemu-system-x86_64, busybox (static),
iproute2 and the libraries of rdma-core; says what is missing and ends with 0 where it cannot run. Guests are emulated
(no KVM), one processor each: look at gaps and counts, never at rates.
"""

import argparse
import glob
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = """virtio_ring virtio failover net_failover virtio_net crc32_generic virtio_pci_modern_dev
virtio_pci_legacy_dev virtio_pci 9pnet 9pnet_virtio netfs fscache 9p overlay udp_tunnel ip6_udp_tunnel ib_core ib_uverbs
rdma_rxe sch_netem""".split()

INIT = """#!/bin/sh
/bin/busybox mkdir -p /proc /sys /dev /host /ov /new
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t sysfs s /sys; /bin/busybox mount -t devtmpfs d /dev
for m in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$m || echo "no module $m"; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
/bin/busybox mount -t tmpfs t /ov; /bin/busybox mkdir -p /ov/u /ov/w
/bin/busybox mount -t overlay o -o lowerdir=/host,upperdir=/ov/u,workdir=/ov/w /new
/bin/busybox mount -t proc p /new/proc; /bin/busybox mount -t sysfs s /new/sys
/bin/busybox mount -t devtmpfs d /new/dev; /bin/busybox mount -t tmpfs t /new/run
/bin/busybox chroot /new /bin/bash "$(/bin/busybox sed -n 's/.*script=\\([^ ]*\\).*/\\1/p' /proc/cmdline)"
/bin/busybox poweroff -f
"""


class Case:
    """What happens, second by second of the traffic, and what must come of it."""

    def __init__(self, name, seconds, faults, gap_ms=None, error=None, stops=0, settings=(), alone=None):
        self.name, self.seconds, self.faults = name, seconds, faults
        self.gap_ms, self.error, self.stops, self.settings = gap_ms, error, stops, list(settings)
        self.alone = alone  # only this guest tells its end


def nic(rail):
    """Shell: the guest's interface of a rail (0 is for management)."""
    return f"$(ls /sys/class/net | grep ^e | sort | sed -n {rail + 1}p)"


def silence(guest, rail, start, end, loss="100%"):
    """What the guest sends over a rail vanishes; ports stay active."""
    return [(start, "run", guest, f"tc qdisc add dev {nic(rail)} root netem loss {loss}"),
            (end, "run", guest, f"tc qdisc del dev {nic(rail)} root")]


def cable(guest, rail, start, end):
    """Carrier loss at one end."""
    return [(start, "link", guest, rail, False), (end, "link", guest, rail, True)]


def address(guest, rail, start, end):
    """The rail's address goes away and comes back, and its GID with it."""
    return [(start, "run", guest, f"ip addr del 10.0.{rail}.{guest}/24 dev {nic(rail)}"),
            (end, "run", guest, f"ip addr add 10.0.{rail}.{guest}/24 dev {nic(rail)}")]


def cases(dice, faults):
    """Faults are (second, what, guest, rail or command); guest 1 receives, guest 2 sends."""
    at = lambda low, high: dice.uniform(low, high)
    quick = ["HAWSER_IB_SILENCE=1000", "NCCL_IB_TIMEOUT=18"]
    return [
        Case("quiet", 6, []),
        Case("sender-cable", 14, cable(2, 1, at(2, 4), 8), 1000, stops=1),
        Case("receiver-cable", 14, cable(1, 2, at(2, 4), 8), 1000, stops=1),
        Case("both-ends-cable", 14, cable(1, 2, at(2, 4), 8) + cable(2, 2, at(2, 4), 8), 1000, stops=1),
        Case("silent", 16, silence(2, 1, at(2, 4), 9), 2000, stops=1, settings=quick),
        Case("silent-receiver", 16, silence(1, 1, at(2, 4), 9), 2000, stops=1, settings=quick),
        Case("loss", 14, silence(2, 1, 2, 10, "1%"), 2000, settings=quick),
        Case("address", 16, address(2, 1, at(2, 4), 9), 2000, stops=1, settings=quick),
        Case("flaps", 20, [fault for n in range(5) for fault in cable(1 + n % 2, 1, 2 + 2 * n, 2.5 + 2 * n)], 1500, stops=1),
        Case("second-fault", 18, cable(2, 1, 3, 9) + cable(1, 2, 3.3, 5), 6000, stops=1),
        Case("one-rail-left-silent", 18, cable(2, 1, 3, 14) + silence(1, 2, 5, 6.5), 7000, stops=1, settings=quick),
        Case("killed", 20, [(at(2, 4), "run", 2, "pkill -9 -x lab_end")], error="", alone=1),
        Case("both-cables", 20, [(at(2, 4), "link", 2, 1, False), (4.5, "link", 2, 2, False)],
             error="no rail was up", settings=["HAWSER_IB_DEADLINE=4"]),
        soak(dice, faults, quick),
    ]


def soak(dice, faults, settings):
    """Many faults in one run, one after the other or two at once."""
    plan, now = [], 3.0
    for _ in range(faults):
        kind, guest, rail = dice.choice([cable, cable, silence, address]), dice.choice([1, 2]), dice.choice([1, 2])
        length = dice.uniform(0.1, 2.0)
        plan += kind(guest, rail, now, now + length)
        now += length + dice.uniform(0.2, 2.0) if dice.random() < 0.8 else dice.uniform(0.1, 0.5)
        now = max(now, max(fault[0] for fault in plan if fault[2] == guest) + 0.1)
    return Case("soak", int(now + 8), plan, None, stops=1, settings=settings)


def missing(options):
    """Why the lab cannot run here."""
    for program in ("qemu-system-x86_64", "busybox", "rdma", "ip"):
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return f"{program} is not installed"
    if not glob.glob(os.path.join(options.kernel, "boot/vmlinuz-*")):
        return f"there is no kernel in {options.kernel}/boot"
    if not glob.glob(os.path.join(options.kernel, "lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*")):
        return f"the kernel in {options.kernel} has no rdma_rxe"
    if options.program != "perftest" and not os.access(options.program, os.X_OK):
        return f"{options.program} is not built: cargo build -p hawser-net-ib --example lab_end"
    return None


def initramfs(kernel, folder):
    """Busybox, the modules in their order, and a script."""
    root = os.path.join(folder, "root")
    os.makedirs(os.path.join(root, "bin"))
    os.makedirs(os.path.join(root, "modules"))
    shutil.copy(shutil.which("busybox"), os.path.join(root, "bin/busybox"))
    os.symlink("busybox", os.path.join(root, "bin/sh"))
    order = []
    for module in MODULES:
        found = glob.glob(os.path.join(kernel, f"lib/modules/*/**/{module}.ko"), recursive=True)
        if found:
            shutil.copy(found[0], os.path.join(root, "modules", module + ".ko"))
            order.append(module + ".ko")
    with open(os.path.join(root, "modules/order"), "w") as out:
        out.write("\n".join(order) + "\n")
    with open(os.path.join(root, "init"), "w") as out:
        out.write(INIT)
    os.chmod(os.path.join(root, "init"), 0o755)
    image = os.path.join(folder, "init.gz")
    subprocess.run("find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > " + image, shell=True, check=True, cwd=root)
    return image


class Guest:
    """A virtual machine: its serial log, its monitor and its command line."""

    def __init__(self, number, options, image, folder, ports, words):
        self.log = os.path.join(folder, f"vm{number}.log")
        self.monitor_path, self.line_path = (os.path.join(folder, f"{kind}{number}") for kind in ("mon", "cmd"))
        self.open = {}
        side = "listen" if number == 1 else "connect"
        kernel = sorted(glob.glob(os.path.join(options.kernel, "boot/vmlinuz-*")))[-1]
        append = (f"console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 vmid={number} "
                  f"script={HERE}/guest.sh lab={','.join(words)}")
        command = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "1024",
                   "-display", "none", "-no-reboot", "-serial", f"file:{self.log}",
                   "-serial", f"unix:{self.line_path},server,nowait", "-monitor", f"unix:{self.monitor_path},server,nowait",
                   "-kernel", kernel, "-initrd", image, "-append", append,
                   "-fsdev", "local,id=h,path=/,security_model=none,readonly=on,multidevs=remap",
                   "-device", "virtio-9p-pci,fsdev=h,mount_tag=host"]
        for link, port in enumerate(ports):
            command += ["-netdev", f"socket,id=n{link},{side}=127.0.0.1:{port}",
                        "-device", f"virtio-net-pci,netdev=n{link},mac=52:54:00:00:{link:02x}:{number:02x}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def lines(self):
        try:
            with open(self.log, errors="replace") as log:
                return [line.strip() for line in log if "LAB " in line]
        except FileNotFoundError:
            return []

    def say(self, path, text):
        # Lines stay open: QEMU drops what a guest has not read when its line is closed.
        if path not in self.open:
            self.open[path] = socket.socket(socket.AF_UNIX)
            self.open[path].connect(path)
        self.open[path].sendall(text.encode() + b"\n")

    def link(self, rail, up):
        self.say(self.monitor_path, f"set_link n{rail} {'on' if up else 'off'}")

    def run(self, command):
        self.say(self.line_path, command)

    def end(self):
        self.process.kill()
        self.process.wait()
        for line in self.open.values():
            line.close()


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait(guests, word, seconds):
    """Waits for a line of every guest."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if all(any(word in line for line in guest.lines()) for guest in guests):
            return True
        if any(guest.process.poll() is not None for guest in guests):
            return all(any(word in line for line in guest.lines()) for guest in guests)
        time.sleep(0.1)
    return False


def play(case, options, image):
    """Runs a case. Returns what is wrong with its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        words = [options.program, str(case.seconds), str(options.bytes)] + case.settings
        ports = free_ports(1 + options.rails)
        guests = []
        try:
            for number in (1, 2):
                guests.append(Guest(number, options, image, folder, ports, words))
                time.sleep(0.5)
            if not wait(guests, "LAB up", 120):
                return ["the connection did not come up"] + tails(guests)
            start = time.monotonic()
            for fault in sorted(case.faults):
                time.sleep(max(0, start + fault[0] - time.monotonic()))
                guest = guests[fault[2] - 1]
                guest.link(fault[3], fault[4]) if fault[1] == "link" else guest.run(fault[3])
            wait(guests, "LAB exit", case.seconds + 60)
            return judge(case, guests, options)
        finally:
            for guest in guests:
                guest.end()


def tails(guests):
    texts = []
    for number, guest in enumerate(guests, 1):
        with open(guest.log, errors="replace") as log:
            texts += [f"  guest {number}: {line.rstrip()}" for line in log.readlines()[-15:]]
    return texts


def judge(case, guests, options):
    wrong = []
    for number, guest in enumerate(guests, 1):
        if case.alone not in (None, number):
            continue
        last = [line for line in guest.lines() if "LAB done" in line or "LAB error" in line]
        text = last[-1] if last else "nothing"
        print(f"  guest {number}: {text}")
        if options.verbose:
            print("\n".join(f"    {line}" for line in guest.lines() if "LAB log" in line))
        if case.error is not None:
            if "LAB error" not in text or case.error not in text:
                wrong.append(f"guest {number}: wanted an error with {case.error!r}")
            continue
        done = re.search(r"done messages (\d+) longest gap (\d+) ms resent (\d+) stopped (\d+)", text)
        if not done:
            wrong.append(f"guest {number} did not end in peace")
            continue
        messages, gap, _, stopped = map(int, done.groups())
        if messages < 10:
            wrong.append(f"guest {number}: only {messages} messages")
        if case.gap_ms and gap > case.gap_ms:
            wrong.append(f"guest {number}: a gap of {gap} ms")
        if stopped < case.stops:
            wrong.append(f"guest {number}: no rail was stopped")
    return wrong + (tails(guests) if wrong else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default=os.environ.get("HAWSER_LAB_KERNEL", "/"))
    parser.add_argument("--program", default="target/debug/examples/lab_end")
    parser.add_argument("--case", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=0, help="length of the case `soak`; 0: without it")
    parser.add_argument("--rails", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    options.program = options.program if options.program == "perftest" else os.path.abspath(options.program)
    why = missing(options)
    if why:
        print(f"lab: not run: {why}")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        image = initramfs(options.kernel, folder)
        for case in cases(random.Random(options.seed), options.faults):
            if case.name not in (options.case or [case.name]) or case.name == "soak" and not options.faults:
                continue
            print(f"{case.name}:", flush=True)
            wrong = play(case, options, image)
            print("  ok" if not wrong else "\n".join(f"  FAILED: {text}" for text in wrong), flush=True)
            failed += bool(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
