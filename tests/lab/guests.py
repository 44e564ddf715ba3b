"""Virtual machines for the lab: two or three guests with a management NIC and some rails each."""

import bisect
import glob
import os
import shutil
import socket
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MODULES = """virtio_ring virtio failover net_failover virtio_net crc32_generic virtio_pci_modern_dev
virtio_pci_legacy_dev virtio_pci 9pnet 9pnet_virtio netfs fscache 9p overlay udp_tunnel ip6_udp_tunnel ib_core ib_uverbs
rdma_rxe sch_netem sch_prio cls_u32""".split()
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "rdma": "iproute2",
    "ip": "iproute2",
    "tc": "iproute2",
}
KERNEL_HINT = (
    "give --kernel DIR: `apt-get download linux-image-...-amd64` and `dpkg-deb -x` of any Debian 12 kernel"
)

# How often it is looked whether a guest gets the host's processors.
SAMPLE = 0.03

INIT = """#!/bin/sh
/bin/busybox mkdir -p /proc /sys /dev /host /ov /new
/bin/busybox mount -t proc p /proc; /bin/busybox mount -t sysfs s /sys; /bin/busybox mount -t devtmpfs d /dev
for m in $(/bin/busybox cat /modules/order); do /bin/busybox insmod /modules/$m || echo "no module $m"; done
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /host
/bin/busybox mount -t tmpfs t /ov; /bin/busybox mkdir -p /ov/u /ov/w
/bin/busybox mount -t overlay o -o lowerdir=/host,upperdir=/ov/u,workdir=/ov/w /new
/bin/busybox mount -t proc p /new/proc; /bin/busybox mount -t sysfs s /new/sys
/bin/busybox mount -t devtmpfs d /new/dev; /bin/busybox mount -t tmpfs t /new/run; /bin/busybox mkdir -p /new/dev/shm /new/dev/pts
/bin/busybox mount -t tmpfs t /new/dev/shm
/bin/busybox chroot /new /bin/bash "$(/bin/busybox sed -n 's/.*script=\\([^ ]*\\).*/\\1/p' /proc/cmdline)"
/bin/busybox poweroff -f
"""


def missing(kernel):
    """Why guests cannot run here, and what would help; None: they can."""
    for program, package in PACKAGES.items():
        if not shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin"):
            return f"{program} is not installed (apt-get install {package})"
    if not glob.glob("/usr/lib/*/libibverbs/librxe-rdmav*.so"):
        return "rdma-core's driver for soft-RoCE is not installed (apt-get install ibverbs-providers)"
    if not glob.glob(os.path.join(kernel, "boot/vmlinuz-*")):
        return f"there is no kernel in {kernel}/boot; {KERNEL_HINT}"
    if not glob.glob(os.path.join(kernel, "lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko")):
        return f"the kernel in {kernel} has no rdma_rxe; {KERNEL_HINT}"
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
    subprocess.run(
        "find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > " + image, shell=True, check=True, cwd=root
    )
    return image


def nic(rail):
    """The guest's interface of a rail (0 is for management)."""
    return f"eth{rail}"


class Guest:
    """A virtual machine: what it says, with the time at which it was said, its monitor and its command
    line."""

    def __init__(self, number, lab):
        self.log = os.path.join(lab.folder, f"vm{number}.log")
        self.monitor_path, self.line_path = (
            os.path.join(lab.folder, f"{kind}{number}") for kind in ("mon", "cmd")
        )
        self.number, self.lab, self.open, self.heard, self.samples = number, lab, {}, [], []
        kernel = sorted(glob.glob(os.path.join(lab.kernel, "boot/vmlinuz-*")))[-1]
        append = (
            f"console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 vmid={number} script={HERE}/guest.sh "
            f"folder={os.getcwd()}"
        )
        command = [
            "qemu-system-x86_64",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "1",
            "-m",
            "1024",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            f"file:{self.log}",
            "-serial",
            f"unix:{self.line_path},server,nowait",
            "-monitor",
            f"unix:{self.monitor_path},server,nowait",
            "-kernel",
            kernel,
            "-initrd",
            lab.image,
            "-append",
            append,
            "-fsdev",
            "local,id=h,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device",
            "virtio-9p-pci,fsdev=h,mount_tag=host",
        ]
        for link in range(1 + lab.rails):
            command += self.wires(link)
            command += [
                "-device",
                f"virtio-net-pci,id=nic{link},netdev=n{link},mac=52:54:00:00:{link:02x}:{number:02x}",
            ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        self.ended = False
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def wires(self, link):
        """QEMU's arguments: two guests are joined directly, more of them by a hub in the first one."""
        ports, count = self.lab.ports[link], self.lab.count
        if self.number > 1:
            return ["-netdev", f"socket,id=n{link},connect=127.0.0.1:{ports[self.number - 2]}"]
        if count == 2:
            return ["-netdev", f"socket,id=n{link},listen=127.0.0.1:{ports[0]}"]
        wires = ["-netdev", f"hubport,id=n{link},hubid={link}"]
        for other in range(count - 1):
            wires += [
                "-netdev",
                f"socket,id=s{link}x{other},listen=127.0.0.1:{ports[other]}",
                "-netdev",
                f"hubport,id=h{link}x{other},hubid={link},netdev=s{link}x{other}",
            ]
        return wires

    def listen(self):
        """Collects the lines of the serial log as they come."""
        rest = b""
        while not os.path.exists(self.log) and not self.ended:
            time.sleep(0.05)
        with open(self.log, "rb") as log:
            while not self.ended:
                text = log.read()
                now = time.monotonic()
                *lines, rest = (rest + text).split(b"\n")
                self.heard += [(now, line.decode(errors="replace").strip()) for line in lines]
                if not self.samples or now - self.samples[-1][0] > SAMPLE:
                    self.samples.append((now, self.starved()))
                time.sleep(0.01)

    def lines(self, start=0):
        """What programs in the guest said since a mark."""
        return [line for _, line in self.heard[start:] if line.startswith("LAB ")]

    def say(self, path, text):
        # Lines stay open: QEMU drops what a guest has not read when its line is closed.
        if path not in self.open:
            self.open[path] = socket.socket(socket.AF_UNIX)
            self.open[path].connect(path)
        self.open[path].sendall(text.encode() + b"\n")

    def link(self, rail, up):
        self.say(self.monitor_path, f"set_link nic{rail} {'on' if up else 'off'}")

    def run(self, command):
        self.say(self.line_path, command)

    def starved(self):
        """Seconds for which the virtual processor wanted to run and the host had none free, or had lost its
        own to others."""
        waits = [0.0]
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            try:
                with open(path) as file:
                    waits.append(int(file.read().split()[1]) / 1e9)
            except (OSError, IndexError):
                pass
        return max(waits) + stolen()

    def starved_between(self, start, end):
        """The part of a time for which the virtual processor was starved."""

        def at(when):
            right = bisect.bisect_left(self.samples, (when,))
            if right in (0, len(self.samples)):
                return self.samples[min(right, len(self.samples) - 1)][1]
            (t0, s0), (t1, s1) = self.samples[right - 1 : right + 1]
            return s0 + (s1 - s0) * (when - t0) / (t1 - t0)

        return at(end) - at(start) if self.samples else 0.0

    def end(self):
        self.ended = True
        self.process.kill()
        self.process.wait()
        for line in self.open.values():
            line.close()


def stolen():
    """Seconds that a hypervisor below the host took from each of its processors (proc(5), `steal`), on
    average."""
    with open("/proc/stat") as file:
        ticks = int(file.readline().split()[8])
    return ticks / os.sysconf("SC_CLK_TCK") / os.cpu_count()


class Lab:
    """Guests that run, and what they are joined by."""

    def __init__(self, kernel, folder, rails=2, count=2):
        self.kernel, self.folder, self.rails, self.count = kernel, folder, rails, count
        self.image = initramfs(kernel, folder)
        self.ports = free_ports(1 + rails, count - 1)
        self.guests = []
        for number in range(1, count + 1):
            self.guests.append(Guest(number, self))
            time.sleep(0.5)
        if not self.wait("LAB ready", 180):
            text = "\n".join(self.tails(0))
            self.end()
            raise RuntimeError("the guests do not start:\n" + text)

    def mark(self):
        """A place in what the guests say."""
        return [len(guest.heard) for guest in self.guests]

    def wait(self, word, seconds, mark=None, guests=None, times=1):
        """Waits until every guest (or these) has said a word so often."""
        end = time.monotonic() + seconds
        chosen = [(n, g) for n, g in enumerate(self.guests) if guests is None or g.number in guests]
        while True:
            said = [sum(word in line for line in g.lines(mark[n] if mark else 0)) >= times for n, g in chosen]
            if all(said) or time.monotonic() > end or any(g.process.poll() is not None for _, g in chosen):
                return all(said)
            time.sleep(0.02)

    def tails(self, start, lines=15):
        texts = []
        for guest in self.guests:
            texts += [f"  guest {guest.number}: {line}" for _, line in guest.heard[start:][-lines:]]
        return texts

    def end(self):
        for guest in self.guests:
            guest.end()


def free_ports(links, each):
    sockets = [[socket.socket() for _ in range(each)] for _ in range(links)]
    for one in sum(sockets, []):
        one.bind(("127.0.0.1", 0))
    ports = [[one.getsockname()[1] for one in link] for link in sockets]
    for one in sum(sockets, []):
        one.close()
    return ports
