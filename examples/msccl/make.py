#!/usr/bin/env python3
"""Writes an all-reduce as MSCCL's XML: python make.py RANKS > line.xml

Ranks stand in a line. The sum goes up, from rank 0 to the last, and each adds its data; then it comes back
down, and each keeps it. It is not quick: it is short enough to read."""

import sys


def main():
    ranks = int(sys.argv[1])
    print(f'<algo name="line" proto="Simple" nchannels="2" nchunksperloop="1" ngpus="{ranks}"')
    print('      coll="allreduce" inplace="1">')
    for rank in range(ranks):
        print(f'  <gpu id="{rank}" i_chunks="1" o_chunks="0" s_chunks="0">')
        for number, (receive, send, kind) in enumerate(blocks(rank, ranks)):
            print(f'    <tb id="{number}" send="{send}" recv="{receive}" chan="{number}">')
            print(f"      {step(kind, number)}")
            print("    </tb>")
        print("  </gpu>")
    print("</algo>")


def blocks(rank, ranks):
    """For each block of a rank: whom it receives from, whom it sends to (-1: nobody), and its only step.

    Block 0 moves the sum up: s sends, rrs receives, adds the own data and sends on, rrc keeps the sum
    instead. Block 1 moves it down: s sends, rcs receives, keeps and sends on, r receives."""
    before, after = rank - 1, rank + 1
    if rank == 0:
        return [(-1, after, "s"), (after, -1, "r")]
    if rank == ranks - 1:
        return [(before, -1, "rrc"), (-1, before, "s")]
    return [(before, after, "rrs"), (after, before, "rcs")]


def step(kind, block):
    """Block 1 waits for block 0, which still needs the rank's data."""
    depends = 'depid="-1" deps="-1" hasdep="1"' if block == 0 else 'depid="0" deps="0" hasdep="0"'
    return f'<step s="0" type="{kind}" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" {depends}/>'


if __name__ == "__main__":
    main()
