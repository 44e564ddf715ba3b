"""Faults that the lab can make. Each is a list of (second, what, guest, rail or command, up)."""

import time

from guests import nic

# Packets of the rail that start with an acknowledgement's opcode (17) go to a band that loses them.
ACKS = (
    "tc qdisc add dev {nic} root handle 1: prio bands 4; tc qdisc add dev {nic} parent 1:4 handle 40: netem loss 100%; "
    "tc filter add dev {nic} parent 1: protocol ip u32 match ip protocol 17 0xff match u16 4791 0xffff at 22 "
    "match u8 17 0xff at 28 flowid 1:4"
)


def cable(guest, rail, start, end):
    """Carrier loss at one end."""
    return [(start, "link", guest, rail, False), (end, "link", guest, rail, True)]


def silence(guest, rail, start, end, loss="100%"):
    """What the guest sends over a rail vanishes; ports stay active."""
    return [
        (start, "run", guest, f"tc qdisc add dev {nic(rail)} root netem loss {loss}"),
        (end, "run", guest, f"tc qdisc del dev {nic(rail)} root"),
    ]


def deaf(guest, rail, start, end):
    """Acknowledgements of the guest vanish: data land, and their sender does not learn it."""
    return [
        (start, "run", guest, ACKS.format(nic=nic(rail))),
        (end, "run", guest, f"tc qdisc del dev {nic(rail)} root"),
    ]


def address(guest, rail, start, end):
    """The rail's address goes away and comes back, and its GID with it."""
    return [
        (start, "run", guest, f"ip addr del 10.0.{rail}.{guest}/24 dev {nic(rail)}"),
        (end, "run", guest, f"ip addr add 10.0.{rail}.{guest}/24 dev {nic(rail)}"),
    ]


def down(guest, rail, start, end):
    """The interface is taken down inside, and with it its address where that is IPv6."""
    return [
        (start, "run", guest, f"ip link set {nic(rail)} down"),
        (end, "run", guest, f"ip link set {nic(rail)} up"),
    ]


class Injection:
    """Some faults that belong together. `bar`: seconds that the traffic may rest; `back`: rails return within
    5 s."""

    def __init__(self, kind, faults, bar, stops=True):
        self.kind, self.faults, self.bar, self.stops = kind, sorted(faults), bar, stops
        self.length = max(fault[0] for fault in faults)

    def __str__(self):
        words = [f"{what[0]:.1f}s {what[1]} {what[2]} {str(what[3])[:60]}" for what in self.faults]
        return f"{self.kind}: " + "; ".join(words)


# Seconds that traffic may rest: port events, and silence (its limit is 1 s in the lab).
EVENT, SILENCE = 1.0, 1.5


def injection(kind, dice, rails=2):
    """One of a kind, with dice."""
    rail, guest = dice.randint(1, rails), dice.choice([1, 2])
    other = rail % rails + 1
    length = dice.uniform(0.3, 3.0)
    silent = max(length, 2.0)
    if kind == "sender-cable":
        return Injection(kind, cable(2, rail, 0, length), EVENT)
    if kind == "receiver-cable":
        return Injection(kind, cable(1, rail, 0, length), EVENT)
    if kind == "both-ends-cable":
        return Injection(
            kind, cable(1, rail, 0, length) + cable(2, rail, dice.uniform(0, 0.2), length), EVENT
        )
    if kind == "down-inside":
        return Injection(kind, down(guest, rail, 0, length), EVENT)
    if kind == "address":
        return Injection(kind, address(guest, rail, 0, length), EVENT)
    if kind == "silent-sender":
        return Injection(kind, silence(2, rail, 0, silent), SILENCE)
    if kind == "silent-receiver":
        return Injection(kind, silence(1, rail, 0, silent), SILENCE)
    if kind == "lost-acks":
        return Injection(kind, deaf(1, rail, 0, silent), SILENCE)
    if kind == "loss":
        return Injection(kind, silence(guest, rail, 0, length + 1, "1%"), SILENCE, stops=False)
    if kind == "flaps":
        flaps = [
            fault
            for n in range(3)
            for fault in cable(guest, rail, 0.5 * n, 0.5 * n + dice.uniform(0.05, 0.4))
        ]
        return Injection(kind, flaps, EVENT, stops=False)
    if kind == "second-fault":
        # While the first rail is away, the other one goes too: no rail until that returns.
        dark = dice.uniform(0.3, 1.5)
        at = dice.uniform(0.05, 0.6)
        faults = cable(2, rail, 0, at + dark + 0.5) + cable(guest, other, at, at + dark)
        return Injection(kind, faults, dark + EVENT)
    if kind == "one-left-silent":
        dark = dice.uniform(1.0, 2.0)
        faults = cable(guest, rail, 0, dark + 2) + silence(2, other, 0.5, 0.5 + dark)
        return Injection(kind, faults, dark + SILENCE)
    raise ValueError(kind)


KINDS = [
    "sender-cable",
    "receiver-cable",
    "both-ends-cable",
    "down-inside",
    "address",
    "silent-sender",
    "silent-receiver",
    "lost-acks",
    "loss",
    "flaps",
    "second-fault",
    "one-left-silent",
]


def inject(lab, fault):
    """Does one thing, and returns when it is done."""
    _, what, number, where, *up = fault
    guest = lab.guests[number - 1]
    if what == "link":
        return guest.link(where, up[0])
    mark = lab.mark()
    guest.run(where + "; echo LAB did it")
    lab.wait("LAB did it", 10, mark, (number,))


def carry_out(lab, faults, before=0):
    """Does all of it, `before` seconds from now. The clock of the faults begins when the first one is done.
    Returns that."""
    time.sleep(before)
    start = None
    for fault in faults:
        time.sleep(max(0, start + fault[0] - time.monotonic()) if start else 0)
        inject(lab, fault)
        start = start or time.monotonic()
    return start
