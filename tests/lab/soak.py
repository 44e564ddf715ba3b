"""Many faults, one after the other, on one pair of guests: each is measured by itself."""

import json
import os
import random
import re
import statistics
import time

import faults as make

# A connection is replaced by a new one after so many faults, so that ends are checked often.
EACH = 40
# Rails get this long to come back before the next fault; the bar is 5 s.
PATIENCE = 40
BACK = 5.0


class Soak:
    def __init__(self, lab, options, pair):
        self.lab, self.options, self.pair = lab, options, pair
        self.rows, self.wrong = [], []
        self.record = open(options.record, "a") if options.record else None

    def run(self):
        dice = random.Random(self.options.seed)
        kinds = []
        while len(kinds) < self.options.injections:
            turn = self.options.kinds.split(",") if self.options.kinds else make.KINDS[:]
            dice.shuffle(turn)
            kinds += turn
        kinds = kinds[: self.options.injections]
        while kinds and not self.wrong:
            self.connection(kinds[:EACH], dice)
            kinds = kinds[EACH:]
        self.report()
        return int(bool(self.wrong))

    def connection(self, kinds, dice):
        mark = self.lab.mark()
        # Flaps are not damped: the next fault shall find all rails up.
        if not self.pair(self.lab, self.options, 100_000, ["HAWSER_IB_FLAPS=1000000"], mark):
            self.wrong.append("the connection did not come up\n" + "\n".join(self.lab.tails(min(mark))))
            return
        for kind in kinds:
            self.one(make.injection(kind, dice), mark)
            time.sleep(dice.uniform(0.2, 0.8))
            if any(
                "end exit" in line or "panicked" in line
                for guest in self.lab.guests
                for line in guest.lines(mark[guest.number - 1])
            ):
                break
        for guest in self.lab.guests:
            guest.run("touch /run/lab-stop")
        self.lab.wait("LAB end exit", 60, mark)
        for guest, start in zip(self.lab.guests, mark):
            last = [
                line
                for line in guest.lines(start)
                if "end done" in line or "end error" in line or "panicked" in line
            ]
            print(f"guest {guest.number}: {last[-1] if last else 'nothing'}", flush=True)
            if not last or "end done" not in last[-1]:
                self.wrong.append(
                    f"guest {guest.number} did not end in peace\n" + "\n".join(self.lab.tails(start, 40))
                )

    def one(self, what, mark):
        """Makes a fault, waits until all is well again, and writes down what it cost."""
        start, heard = time.monotonic(), self.lab.mark()
        starved = [guest.starved() for guest in self.lab.guests]
        done = make.carry_out(self.lab, what.faults)
        healed = time.monotonic()
        back = self.wait_for_rails(mark, healed)
        row = {
            "number": len(self.rows) + 1,
            "kind": what.kind,
            "what": str(what),
            "bar": what.bar,
            **self.gaps(done, heard),
            "back": round(back - healed, 2) if back else None,
            "starved": [round(guest.starved() - was, 2) for guest, was in zip(self.lab.guests, starved)],
            "seconds": round(time.monotonic() - start, 1),
            "load": os.getloadavg()[0],
        }
        if row["gap"] > what.bar:
            row["story"] = self.story(start, heard)
        self.rows.append(row)
        over = "" if row["gap"] <= what.bar else f" OVER {what.bar:.1f}"
        print(
            f"{row['number']:4} {what.kind:16} gap {row['gap']:5.2f}{over} starved in it {row['without']:.2f} own "
            f"{row['own']} detected {row['detected']} "
            f"stops {row['stops']} back {row['back']} starved {row['starved']} load {row['load']:.1f}",
            flush=True,
        )
        if self.record:
            self.record.write(json.dumps(row) + "\n")
            self.record.flush()
        if back is None:
            self.wrong.append(
                f"injection {row['number']}: rails did not come back\n" + "\n".join(self.lab.tails(0, 40))
            )

    def gaps(self, start, heard):
        """The longest pause at the receiver, how long its process did not look in it, and how long a guest
        had no processor of the host in it; when the first rail was stopped."""
        gap, own, end, stopped, stops = 0.0, 0.0, 0.0, None, 0
        for guest, since in zip(self.lab.guests, heard):
            for when, line in list(guest.heard[since:]):
                found = re.search(r"end gap (\d+) ms own (\d+) ms", line)
                if found and guest.number == 1 and int(found[1]) / 1000 > gap:
                    gap, own, end = int(found[1]) / 1000, int(found[2]) / 1000, when
                if "is stopped" in line:
                    stops += 1
                    stopped = min(stopped or when, when)
        without = max(guest.starved_between(end - gap, end) for guest in self.lab.guests) if gap else 0.0
        detected = round(stopped - start, 2) if stopped else None
        return {"gap": gap, "without": round(without, 2), "own": own, "detected": detected, "stops": stops}

    def story(self, start, heard):
        """What both ends said, with the seconds since the fault."""
        said = [
            (when - start, f"{guest.number}: {line[8:]}")
            for guest, since in zip(self.lab.guests, heard)
            for when, line in list(guest.heard[since:])
            if line.startswith("LAB end ")
        ]
        return [f"{when:.2f} {line}" for when, line in sorted(said)]

    def wait_for_rails(self, mark, healed):
        """When all rails of both ends were up again, and for a moment."""
        since = None
        while time.monotonic() < healed + PATIENCE:
            if self.all_up(mark):
                since = since or time.monotonic()
                # A fault that shows late: silence takes its time.
                if time.monotonic() > max(since + 0.3, healed + 0.5):
                    return since
            else:
                since = None
            if any(
                "end exit" in line
                for guest in self.lab.guests
                for line in guest.lines(mark[guest.number - 1])
            ):
                return None
            time.sleep(0.02)
        return None

    def all_up(self, mark):
        for guest, start in zip(self.lab.guests, mark):
            state = {}
            for line in guest.lines(start):
                found = re.search(r"rail (\S+) is (up|back|stopped)", line)
                if found:
                    state[found[1]] = found[2] != "stopped"
            if len(state) < self.lab.rails or not all(state.values()):
                return False
        return True

    def report(self):
        print(f"\n{len(self.rows)} injections, seed {self.options.seed}")
        print(
            f"{'kind':16} {'count':>5} {'gap: median':>12} {'largest':>8} {'bar':>6} {'over':>5} {'unexplained':>11} {'back: median':>13} {'largest':>8}"
        )
        for kind in make.KINDS:
            rows = [row for row in self.rows if row["kind"] == kind]
            if rows:
                gaps, backs = (
                    [row["gap"] for row in rows],
                    [row["back"] for row in rows if row["back"] is not None],
                )
                over = sum(row["gap"] > row["bar"] for row in rows)
                bare = sum(row["gap"] - row["without"] > row["bar"] for row in rows)
                middle = statistics.median(backs) if backs else float("nan")
                print(
                    f"{kind:16} {len(rows):5} {statistics.median(gaps):12.2f} {max(gaps):8.2f} {rows[0]['bar']:6.1f} {over:5} {bare:11} "
                    f"{middle:13.2f} {max(backs, default=0):8.2f}"
                )
        late = sum(row["back"] is None or row["back"] > BACK for row in self.rows)
        print(f"back later than {BACK:.0f} s: {late}")
        print(
            "over: gaps above their bar; unexplained: still above it without the time for which a guest had no processor"
        )
        print(
            "\n".join(f"WRONG: {text}" for text in self.wrong)
            or "nothing lost, doubled, changed, late or out of order"
        )
