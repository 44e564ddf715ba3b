// Runs programs of the planner's kinds on emulated GPUs and compares with what they must compute.
// g++ -std=c++17 -O1 -w -I <cuda include> -o emulated main.cpp exchange.cpp fold.cpp && ./emulated [seed [rounds]]
#include "device.hpp"

#include "../state.cuh"

#include <algorithm>

namespace hawser {
inline Shared& emulated_shared() { return *(Shared*)fiber->block->shared.get(); }
} // namespace hawser
#define sh emulated_shared()
#include "../interp.cuh"

bool exchanges_are_right(unsigned rounds); // exchange.cpp
bool folds_are_right(unsigned rounds);     // fold.cpp

using namespace hawser;

struct World {
    u32 ranks, lanes, depth;
    u32 slot_bytes[3], stride[3], offset[3];
    u64 entry;
    std::vector<uint8_t*> heaps;
    std::vector<std::vector<HawserConn>> conns;
    std::vector<std::vector<u64>> counters;
    std::vector<std::vector<u32>> told; // bytes of the slots that each connection sent
    std::vector<HawserDevComm> comms;
    std::vector<HawserDeps> deps;
    u32 abort = 0;
    bool has_net;
    std::vector<Told> reports;

    // With a network neighbours are on other hosts, and the network is this memory.
    World(u32 n, u32 lanes_, u32 depth_, bool has_net_) : ranks(n), lanes(lanes_), depth(depth_), has_net(has_net_) {
        u32 bytes[3] = {512, 960, 1024};
        u64 at = 0;
        for (int p = 0; p < 3; p++) {
            slot_bytes[p] = bytes[p];
            stride[p] = p == 0 ? bytes[p] * 2 : p == 1 ? (bytes[p] + 119) / 120 * 128 : bytes[p];
            offset[p] = (u32)at;
            at += (stride[p] * depth + 511) / 512 * 512;
        }
        // Tails and credits, what peers on other hosts send by LL, then FIFOs.
        u64 fifos = (HAWSER_FAR_WORDS + stride[0] * depth + 511) / 512 * 512;
        entry = fifos + at;
        for (u32 r = 0; r < n; r++) {
            heaps.push_back((uint8_t*)aligned_alloc(512, entry * lanes * n));
            std::memset(heaps[r], 0, entry * lanes * n);
        }
        comms.resize(n), deps.resize(n), reports.resize(n), conns.resize(n), counters.resize(n), told.resize(n);
        for (u32 r = 0; r < n; r++) {
            conns[r].resize(lanes * n), counters[r].resize(lanes * n * 8), told[r].resize(lanes * n * depth);
            for (u32 l = 0; l < lanes; l++)
                for (u32 p = 0; p < n; p++) {
                    u64 mine = (u64)heaps[r] + (l * n + p) * entry, theirs = (u64)heaps[p] + (l * n + r) * entry;
                    bool far = has_net && (r + p) % 2 == 1;
                    conns[r][l * n + p] = {theirs + fifos, theirs, mine + 256, mine + fifos, mine, theirs + 256,
                                           (u64)&counters[r][(l * n + p) * 8],
                                           far ? (u64)&told[r][(l * n + p) * depth] : 0};
                }
            HawserDevComm& c = comms[r];
            c.rank = r, c.ranks = n, c.lanes = lanes, c.depth = depth;
            for (int p = 0; p < 3; p++) c.slot_bytes[p] = slot_bytes[p], c.slot_stride[p] = stride[p], c.fifo_offset[p] = offset[p];
            c.conns = (u64)conns[r].data(), c.abort = (u64)&abort, c.report = (u64)&reports[r], c.deps = (u64)&deps[r];
        }
    }

    // Where somebody asks, the bytes of every slot sent must have been told, those of LL with the slot's number.
    void check_told(int protocol) const {
        for (u32 r = 0; r < ranks; r++)
            for (u32 at = 0; at < lanes * ranks; at++) {
                u64 sent = counters[r][at * 8 + protocol];
                if (conns[r][at].send_bytes == 0) continue;
                const u64* with_flags = (const u64*)(conns[r][at].send_tail + HAWSER_FAR_TOLD);
                for (u64 s = sent > depth ? sent - depth : 0; s < sent; s++) {
                    u64 flags = protocol == HAWSER_LL ? with_flags[s % depth] : 0;
                    u32 bytes = protocol == HAWSER_LL ? (u32)flags : told[r][at * depth + s % depth];
                    REQUIRE(bytes > 0 && bytes <= slot_bytes[protocol] && bytes % 16 == 0, "rank %u told %u", r, bytes);
                    REQUIRE(protocol != HAWSER_LL || flags >> 32 == (u32)(s + 1), "rank %u told another slot", r);
                }
            }
    }
};

struct Programs { // steps by rank, by channel
    std::vector<std::vector<std::vector<HawserStep>>> of;
    u32 per_block = 1, in_blocks = 1, out_blocks = 1, scratch = 0;
    bool one_lane = false; // the channels of a rank share a lane, each with peers of its own
};

static HawserStep step() {
    HawserStep s{};
    s.after_channel = HAWSER_NO_DEP;
    s.times = 1;
    return s;
}
static HawserStep src(HawserStep s, u32 buf, u32 chunk) { s.flags |= HAWSER_HAS_SRC; s.src_buf = buf; s.src_chunk = chunk; return s; }
static HawserStep dst(HawserStep s, u32 buf, u32 chunk) { s.flags |= HAWSER_HAS_DST; s.dst_buf = buf; s.dst_chunk = chunk; return s; }
static HawserStep to(HawserStep s, u32 r) { s.send[s.n_send++] = (uint16_t)r; return s; }
static HawserStep from(HawserStep s, u32 r) { s.recv[s.n_recv++] = (uint16_t)r; return s; }
static HawserStep times(HawserStep s, u32 n, i32 stride) { s.times = n; s.stride = stride; return s; }

static Programs one_shot(u32 n) {
    Programs p;
    for (u32 r = 0; r < n; r++) {
        HawserStep a = src(step(), 0, 0), b = dst(src(step(), 0, 0), 1, 0);
        for (u32 q = 1; q < n; q++) a = to(a, (r + q) % n);
        for (u32 q = 0; q < n; q++) if (q != r) b = from(b, q);
        b.order = (uint8_t)r;
        b.flags |= HAWSER_POST;
        p.of.push_back({{a, b}});
    }
    return p;
}
static Programs ring(u32 n) {
    Programs p;
    p.per_block = n;
    for (u32 r = 0; r < n; r++) {
        u32 next = (r + 1) % n, prev = (r + n - 1) % n;
        std::vector<HawserStep> s;
        s.push_back(to(src(step(), 0, (r + n - 1) % n), next));
        if (n > 2) s.push_back(times(to(from(src(step(), 0, (r + 2 * n - 2) % n), prev), next), n - 2, -1));
        HawserStep last = to(from(dst(src(step(), 0, r), 1, r), prev), next);
        last.flags |= HAWSER_POST;
        s.push_back(last);
        if (n > 2) s.push_back(times(to(from(dst(step(), 1, prev), prev), next), n - 2, -1));
        s.push_back(from(dst(step(), 1, next), prev));
        p.of.push_back({s});
    }
    return p;
}
static Programs all_to_all(u32 n) {
    Programs p;
    p.in_blocks = p.out_blocks = n;
    for (u32 r = 0; r < n; r++) {
        std::vector<HawserStep> s = {dst(src(step(), 0, r), 1, r)};
        for (u32 d = 1; d < n; d++) {
            s.push_back(to(src(step(), 0, (r + d) % n), (r + d) % n));
            s.push_back(from(dst(step(), 1, (r + n - d) % n), (r + n - d) % n));
        }
        p.of.push_back({s});
    }
    return p;
}
// Everybody sends to the next rank and receives from the one before, in blocks that do only that.
static Programs messages(u32 n) {
    Programs p;
    p.one_lane = n > 2;
    for (u32 r = 0; r < n; r++) {
        HawserStep give = to(src(step(), 0, 0), (r + 1) % n), take = from(dst(step(), 1, 0), (r + n - 1) % n);
        if (r % 2 == 0) p.of.push_back({{give}, {take}});
        else p.of.push_back({{take}, {give}});
    }
    return p;
}
// Two channels: the first receives into scratch and signals, the second adds scratch onto a copy of the input.
static Programs two_channels(u32 n) {
    Programs p;
    p.scratch = 1;
    for (u32 r = 0; r < n; r++) {
        HawserStep a = to(src(step(), 0, 0), (r + 1) % n), b = from(dst(step(), 2, 0), (r + n - 1) % n);
        b.flags |= HAWSER_SIGNAL;
        HawserStep c = dst(src(step(), 0, 0), 1, 0), d = dst(src(step(), 2, 0), 1, 0);
        d.flags |= HAWSER_ACC_DST | HAWSER_POST;
        d.after_channel = 0, d.after_step = 1;
        p.of.push_back({{a, b}, {c, d}});
    }
    return p;
}

// A channel per peer, all on one lane; one more waits for all of them in steps that only wait, then adds everything up.
static Programs shared_lane(u32 n) {
    Programs p;
    p.scratch = n - 1;
    p.one_lane = true;
    for (u32 r = 0; r < n; r++) {
        std::vector<std::vector<HawserStep>> channels;
        std::vector<HawserStep> sums = {dst(src(step(), 0, 0), 1, 0)};
        for (u32 k = 0; k + 1 < n; k++) {
            u32 peer = (r + 1 + k) % n;
            HawserStep take = from(dst(step(), 2, k), peer);
            take.flags |= HAWSER_SIGNAL;
            channels.push_back({to(src(step(), 0, 0), peer), take});
            HawserStep wait = step();
            wait.after_channel = (uint16_t)k, wait.after_step = 1;
            sums.push_back(wait);
        }
        for (u32 k = 0; k + 1 < n; k++) {
            HawserStep sum = dst(src(step(), 2, k), 1, 0);
            sum.flags |= HAWSER_ACC_DST | (k + 2 == n ? HAWSER_POST : 0);
            sums.push_back(sum);
        }
        channels.push_back(sums);
        p.of.push_back(channels);
    }
    return p;
}

// As shared_lane, with a chunk per rank: what comes for the own chunk goes to scratch, in whole chunks whatever the buffers' last
// one has, of the first or second block of them; the sum goes to everybody.
static Programs pairs(u32 n) {
    Programs p;
    p.per_block = n;
    p.scratch = 2 * n - 1;
    p.one_lane = true;
    for (u32 r = 0; r < n; r++) {
        std::vector<std::vector<HawserStep>> channels;
        std::vector<HawserStep> sums = {dst(src(step(), 0, r), 1, r)};
        u32 first = r % 2 * n;
        for (u32 k = 0; k + 1 < n; k++) {
            u32 peer = (r + 1 + k) % n;
            HawserStep take = from(dst(step(), 2, first + k), peer), give = to(src(step(), 1, r), peer);
            take.flags |= HAWSER_SIGNAL;
            give.after_channel = (uint16_t)(n - 1), give.after_step = (uint16_t)(n - 1);
            channels.push_back({to(src(step(), 0, peer), peer), take, give, from(dst(step(), 1, peer), peer)});
            HawserStep sum = dst(src(step(), 2, first + k), 1, r);
            sum.after_channel = (uint16_t)k, sum.after_step = 1;
            sum.flags |= HAWSER_ACC_DST | (k + 2 == n ? HAWSER_POST | HAWSER_SIGNAL : 0);
            sums.push_back(sum);
        }
        channels.push_back(sums);
        p.of.push_back(channels);
    }
    return p;
}

struct Case {
    u32 size, instances, threads;
    u64 count;
    u32 shift; // misalignment in elements
    bool in_place, uploaded;
    u32 silent = ~0u; // a rank that does not take part
    bool lands = false; // messages without staging, where a rank's output is a landing
};

template <class M, int PROTOCOL>
static void launch(World& w, const Programs& p, const Case& c, const std::vector<u64>& in, const std::vector<u64>& out,
                   const std::vector<u64>& scratch, u64 scalar) {
    Fibers fibers;
    std::vector<std::unique_ptr<BlockRun>> blocks;
    std::vector<std::unique_ptr<HawserArgs>> all;
    std::vector<std::vector<HawserStep>> uploaded;
    for (u32 r = 0; r < w.ranks; r++) {
        if (r == c.silent) continue;
        all.push_back(std::make_unique<HawserArgs>());
        HawserArgs& a = *all.back();
        std::memset(&a, 0, sizeof a);
        a.comm = (u64)&w.comms[r];
        a.entry = {w.comms[r].conns, (u64)w.counters[r].data(), w.comms[r].deps, w.ranks, w.offset[PROTOCOL]};
        a.scalar = scalar, a.divisor = w.ranks, a.op_number = 7;
        HawserWork& k = a.works[3];
        u64 pack = 16 / c.size;
        auto up = [&](u64 v) { return (v + pack - 1) / pack * pack; };
        k.base[0] = in[r], k.base[1] = out[r], k.base[2] = scratch[r];
        k.landing = out[r] % 16 == 0 && dice() % 8 != 0 ? out[r] : 0;
        k.count = c.count, k.per_block = p.per_block;
        k.chunk = up((c.count + p.per_block - 1) / p.per_block);
        k.instance = up((k.chunk + c.instances - 1) / c.instances);
        k.tile = (u32)std::min<u64>(w.slot_bytes[PROTOCOL] / 16 * pack, k.instance);
        k.tiles = (u32)((k.instance + k.tile - 1) / k.tile);
        k.slices = w.depth >= 4 ? w.depth / 2 : 1;
        k.chunks[0] = p.in_blocks * p.per_block, k.chunks[1] = p.out_blocks * p.per_block, k.chunks[2] = p.scratch;
        u32 instances = (u32)((k.chunk + k.instance - 1) / k.instance), channels = (u32)p.of[r].size();
        std::vector<HawserStep> steps;
        for (u32 ch = 0; ch < channels; ch++) {
            for (u32 i = 0; i < instances; i++)
                a.blocks[a.n_blocks++] = {(uint16_t)steps.size(), (uint8_t)p.of[r][ch].size(), (uint8_t)(p.one_lane ? i : ch + i * channels), (uint16_t)i, 3, (uint8_t)ch};
            steps.insert(steps.end(), p.of[r][ch].begin(), p.of[r][ch].end());
        }
        auto waits = [](const HawserStep& s) { return s.after_channel != HAWSER_NO_DEP; };
        if (std::none_of(steps.begin(), steps.end(), waits)) a.entry.deps = 0;
        if (c.uploaded || steps.size() > HAWSER_INLINE_STEPS) {
            uploaded.push_back(steps);
            a.steps = (u64)uploaded.back().data();
        } else {
            std::memcpy(a.inline_steps, steps.data(), steps.size() * sizeof(HawserStep));
            a.n_inline = (uint8_t)steps.size();
        }
        uploaded.reserve(64);
        for (u32 b = 0; b < a.n_blocks; b++) {
            blocks.push_back(std::make_unique<BlockRun>());
            BlockRun* run = blocks.back().get();
            run->index = b, run->grid = a.n_blocks, run->threads = c.threads;
            run->shared = std::make_shared<Shared>();
            std::memset(run->shared.get(), 0xcd, sizeof(Shared));
            bool lands = c.lands;
            for (u32 t = 0; t < c.threads; t++)
                fibers.add(run, r, t, [&a, lands] {
                    if constexpr (PROTOCOL == HAWSER_SIMPLE && M::SIZE == 1 && M::OP == Op::Copy) {
                        if (lands) return interpret_landing<M>(a);
                    }
                    interpret<M, PROTOCOL>(a);
                });
        }
    }
    fibers.run(c.silent == ~0u && dice() % 2); // nobody drifts where deadlines count
    if (PROTOCOL != HAWSER_LL128 && c.silent == ~0u) w.check_told(PROTOCOL);
    if (c.silent == ~0u) REQUIRE(line_stores.empty() && line_loads.empty(), "half a line");
    line_stores.clear(), line_loads.clear();
}

template <class M, class T>
static void launch_any(World& w, const Programs& p, Case c, int protocol, const std::vector<u64>& in, const std::vector<u64>& out,
                       const std::vector<u64>& scratch, u64 scalar) {
    if (protocol == 0) launch<M, 0>(w, p, c, in, out, scratch, scalar);
    else if (protocol == 1) launch<M, 1>(w, p, c, in, out, scratch, scalar);
    else launch<M, 2>(w, p, c, in, out, scratch, scalar);
}

// Whole numbers below this: small enough that every order of summation is exact in the type that is used.
static int range = 11;

template <class T, class M>
static void check(World& w, const char* name, const Programs& p, Case c, int protocol, u64 scalar,
                  std::function<int(u32 rank, u64 element)> want, std::function<T(int)> make) {
    constexpr int GUARD = 64;
    std::vector<std::vector<T>> in(w.ranks), out(w.ranks), tmp(w.ranks);
    std::vector<u64> ia, oa, sa;
    c.size = sizeof(T);
    for (u32 r = 0; r < w.ranks; r++) {
        u64 n_in = c.count * p.in_blocks, n_out = c.count * p.out_blocks;
        in[r].resize(n_in + 2 * GUARD), out[r].assign(n_out + 2 * GUARD, make(99)), tmp[r].resize((c.count + 2 * GUARD) * (p.scratch + 1));
        for (u64 i = 0; i < n_in; i++) in[r][GUARD + c.shift + i] = make((int)((r * 7 + i) % range));
        if (c.in_place) std::copy(in[r].begin() + GUARD, in[r].end() - GUARD + c.shift, out[r].begin() + GUARD);
        ia.push_back((u64)(c.in_place ? &out[r][GUARD + c.shift] : &in[r][GUARD + c.shift]));
        oa.push_back((u64)&out[r][GUARD + c.shift]);
        sa.push_back(((u64)tmp[r].data() + 15) / 16 * 16);
    }
    launch_any<M, T>(w, p, c, protocol, ia, oa, sa, scalar);
    if (c.silent != ~0u) return;
    for (u32 r = 0; r < w.ranks; r++)
        for (u64 i = 0; i < out[r].size(); i++) {
            u64 first = GUARD + c.shift, last = first + c.count * p.out_blocks;
            if (c.in_place && (i < first)) continue;
            T wanted = i >= first && i < last ? make(want(r, i - first)) : c.in_place ? out[r][i] : make(99);
            REQUIRE(std::memcmp(&out[r][i], &wanted, sizeof(T)) == 0,
                    "%s protocol %d rank %u element %ld of %lu: count %lu instances %u shift %u in place %d threads %u", name, protocol, r,
                    (long)(i - first), (unsigned long)(last - first), (unsigned long)c.count, c.instances, c.shift, c.in_place, c.threads);
        }
}

template <class T, class M, class S>
static void programs(World& w, std::function<T(int)> make, u64 scalar, int factor, bool divides) {
    static const u64 counts[] = {1, 2, 3, 7, 16, 61, 128, 250, 511, 1000, 2051};
    u32 n = w.ranks;
    Case c{};
    c.count = counts[dice() % 11];
    c.instances = 1 + dice() % 2;
    c.threads = 96 + 32 * (dice() % 2);
    c.shift = dice() % 3 == 0 ? dice() % 5 : 0;
    c.uploaded = dice() % 2;
    int protocol = dice() % 3, divisor = divides ? (int)n : 1;
    auto sum = [=](u32, u64 e) {
        int v = 0;
        for (u32 r = 0; r < n; r++) v += (int)((r * 7 + e) % range) * factor;
        return v / divisor;
    };
    auto pre = [&](Programs p) {
        if (scalar != 0)
            for (auto& r : p.of) for (auto& ch : r) for (auto& s : ch) if ((s.flags & HAWSER_HAS_SRC) && s.src_buf == 0) s.flags |= HAWSER_PRE;
        return p;
    };
    switch (dice() % 8) {
    case 7:
    case 6:
        if (sizeof(T) == 1 && !w.has_net && dice() % 4 != 0) c.uploaded = false, c.lands = true, protocol = HAWSER_SIMPLE;
        else if (dice() % 4 != 0) c.uploaded = false, protocol = HAWSER_LL; // as blocks of their own kind
        for (u32 again = c.lands && dice() % 2 ? w.depth + 2 : 1; again > 0; again--)
            check<T, Math<T, Op::Copy>>(w, "messages", messages(n), c, protocol, 0,
                                        [=](u32 r, u64 e) { return (int)(((r + n - 1) % n * 7 + e) % range); }, make);
        return;
    case 5: return check<T, M>(w, "pairs", pre(pairs(n)), c, protocol, scalar, sum, make);
    case 3: return check<T, M>(w, "shared lane", pre(shared_lane(n)), c, protocol, scalar, sum, make);
    case 0:
        c.in_place = dice() % 2;
        return check<T, M>(w, "one-shot", pre(one_shot(n)), c, protocol, scalar, sum, make);
    case 1:
        c.in_place = dice() % 2;
        return check<T, M>(w, "ring", pre(ring(n)), c, protocol, scalar, sum, make);
    case 2:
        c.count = std::min<u64>(c.count, 600);
        return check<T, Math<T, Op::Copy>>(w, "all-to-all", all_to_all(n), c, protocol, 0,
                                           [=](u32 r, u64 e) { return (int)((e / c.count * 7 + r * c.count + e % c.count) % range); }, make);
    default:
        if (scalar != 0) return;
        return check<T, M>(w, "two channels", two_channels(n), c, protocol, 0,
                           [=](u32 r, u64 e) { return (int)((r * 7 + e) % range + ((r + n - 1) % n * 7 + e) % range) / divisor; }, make);
    }
}

static void fp8_rounds() {
    for (u32 b = 0; b < 256; b++) {
        bool nan4 = (b & 0x7f) == 0x7f, big5 = (b & 0x7f) >= 0x7c;
        REQUIRE(nan4 || SoftFp8::e4m3(SoftFp8::from_e4m3(b)) == b, "e4m3 %u", b);
        REQUIRE(big5 || SoftFp8::e5m2(SoftFp8::from_e5m2(b)) == b, "e5m2 %u", b);
        if ((b & 0x7f) >= 0x7e || (b & 0x7f) >= 0x7b) continue;
        // Halfway to the next value: to the even one; a little more: to the next one.
        float f = (SoftFp8::from_e4m3(b) + SoftFp8::from_e4m3(b + 1)) / 2, g = (SoftFp8::from_e5m2(b) + SoftFp8::from_e5m2(b + 1)) / 2;
        REQUIRE(SoftFp8::e4m3(f) == b + (b & 1) && SoftFp8::e4m3(f * 1.0001f) == b + 1, "e4m3 after %u", b);
        REQUIRE(SoftFp8::e5m2(g) == b + (b & 1) && SoftFp8::e5m2(g * 1.0001f) == b + 1, "e5m2 after %u", b);
    }
    REQUIRE(SoftFp8::e4m3(1e9f) == 0x7e && SoftFp8::e5m2(-1e9f) == 0xfb && SoftFp8::e4m3(NAN) == 0x7f, "ends");
}

int main(int argc, char** argv) {
    u32 seed = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 20;
    dice.seed(seed);
    fp8_rounds();
    if (!exchanges_are_right(4 * rounds) || !folds_are_right(2 * rounds)) return 1;
    for (u32 round = 0; round < rounds; round++) {
        World w(2 + dice() % 3, 4, 3 + dice() % 2, dice() % 2);
        for (int launches = 0; launches < 6; launches++) {
            range = 11;
            auto half = [](int v) { return F16{__half_as_ushort(__float2half_rn((float)v))}; };
            switch (dice() % 6) {
            case 0: programs<float, Math<float, Op::Sum>, float>(w, [](int v) { return (float)v; }, 0, 1, false); break;
            case 1: programs<float, Math<float, Op::PreMul>, float>(w, [](int v) { return (float)v; }, __float_as_uint(2.f), 2, false); break;
            case 2: programs<F16, Math<F16, Op::Sum>, F16>(w, half, 0, 1, false); break;
            case 3: programs<uint8_t, Math<uint8_t, Op::SumDiv>, uint8_t>(w, [](int v) { return (uint8_t)v; }, 0, 1, true); break;
            case 4: programs<i64, Math<i64, Op::SumDiv>, i64>(w, [](int v) { return (i64)v; }, 0, 1, true); break;
            default:
                range = 4; // sums of four stay below 16
                programs<E4M3, Math<E4M3, Op::Sum>, E4M3>(w, [](int v) { return E4M3{(uint8_t)SoftFp8::e4m3((float)v)}; }, 0, 1, false);
            }
        }
        // A rank stays away: the others leave by deadline or abort, and say whom they waited for.
        u32 silent = dice() % w.ranks;
        bool aborted = dice() % 2;
        for (auto& c : w.comms) c.deadline_ns = aborted ? 0 : 100000;
        w.abort = aborted ? HAWSER_LEAVE : HAWSER_ASK + silent;
        Case c{4, 1, 96 + 32 * (u32)(dice() % 2), 1000, 0, false, false, silent};
        auto make = [](int v) { return (float)v; };
        bool by_messages = dice() % 3 == 0; // those who exchange none with the silent rank end well
        c.lands = by_messages && !w.has_net && dice() % 2;
        if (c.lands) check<uint8_t, Math<uint8_t, Op::Copy>>(w, "silent", messages(w.ranks), c, 2, 0, nullptr, [](int v) { return (uint8_t)v; });
        else if (by_messages) check<float, Math<float, Op::Copy>>(w, "silent", messages(w.ranks), c, 0, 0, nullptr, make);
        else check<float, Math<float, Op::Sum>>(w, "silent", dice() % 2 ? ring(w.ranks) : one_shot(w.ranks), c, dice() % 3, 0, nullptr, make);
        for (u32 r = 0; r < w.ranks; r++) {
            if (r == silent || (by_messages && (silent + 1) % w.ranks != r)) continue;
            const auto& [q, answer] = w.reports[r];
            REQUIRE(q.code == (aborted ? HAWSER_ABORTED : HAWSER_DEADLINE) && q.op_number == 7 && q.what < 2, "rank %u: code %u what %u", r, q.code, q.what);
            // Others wait for the silent rank, or for one that waits itself.
            bool answers = answer.code == HAWSER_WAITING && answer.peer == silent && answer.op_number == 7;
            REQUIRE(answers || (answer.code == 0 && (aborted || q.peer != silent)), "rank %u: answer %u about %u", r, answer.code, answer.peer);
        }
        std::printf("round %u: %u ranks, depth %u: good\n", round, w.ranks, w.depth);
        std::fflush(stdout);
    }
}
