// What the planner gives to kernels of one and two exchanges, with buffers, areas and the results that must come out.
#pragma once

#define HAWSER_DIRECT_PASSERS 2 // blocks, of MAX_GRID
#include "device.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>

#include "../plan.h"

namespace hawser {
struct Direct;
struct BlockShared {
    uint32_t lost = 0xcdcdcdcd;
    HawserExchange bundle;
    std::shared_ptr<Direct> direct;
    BlockShared() { std::memset(&bundle, 0xcd, sizeof bundle); }
};
inline BlockShared& own_shared() { return *(BlockShared*)fiber->block->shared.get(); }
} // namespace hawser
#define block_lost own_shared().lost
#define bundle_args own_shared().bundle

#include "../exchange_bundle.cuh"
#include "../exchange_lines.cuh"
#include "../exchange_tiles.cuh"
#include "../exchange_words.cuh"

inline hawser::Direct& hawser::own_direct() {
    auto& direct = own_shared().direct;
    if (!direct) {
        direct = std::make_shared<Direct>();
        std::memset((void*)direct.get(), 0xcd, sizeof(Direct));
    }
    return *direct;
}

using u8 = uint8_t;
using u16 = uint16_t;
using hawser::u32;
using hawser::u64;
using hawser::i64;

constexpr u32 NOBODY = ~0u, MAX_GRID = 3, MAX_THREADS = 128, MAX_UNITS = MAX_GRID * MAX_THREADS / 32;
constexpr u32 TILE_COUNTERS = HAWSER_TILE_UNITS + HAWSER_DIRECT_BLOCKS;
constexpr u64 DIRECT_BYTES = (u64)HAWSER_DIRECT_BLOCKS * HAWSER_EXCHANGE_RANKS * (2 * HAWSER_DIRECT_LINE + 4);
enum Protocol { WORDS, LINES, TILES, BUNDLES };
enum Pattern {
    ALL_REDUCE_1, ALL_REDUCE_2, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER,
    BROADCAST_1, BROADCAST_2, REDUCE_1, REDUCE_2, PATTERNS
};

// Parts of the input and the output are dealt out in two exchanges.
inline bool in_parts(Pattern p) { return p == ALL_REDUCE_2 || p == BROADCAST_2 || p == REDUCE_2; }
inline bool reduces(Pattern p) {
    return p == ALL_REDUCE_1 || p == ALL_REDUCE_2 || p == REDUCE_SCATTER || p == REDUCE_1 || p == REDUCE_2;
}
// Parts that share what a user calls the count.
inline u32 parts_of(Pattern p, u32 ranks) {
    return p == ALL_REDUCE_2 ? ranks : p == BROADCAST_2 || p == REDUCE_2 ? ranks - 1 : 1;
}
template <class T> T as_is(const u8* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline u32 mixed(u64 v) { return (u32)((v + 1) * 0x9e3779b97f4a7c15ull >> 29) ^ (u32)(v * 0x85ebca6bull); }

struct Element {
    const char* name;
    u32 size;
    void (*kernel)(int protocol, const HawserExchange&);
    void (*bundle)(const HawserBundle&);
    u32 form;
    u64 scalar;
    void (*make)(u32 hash, u8* to);
    void (*fold)(const u8* const* v, u32 n, u8* out);
    u32 order = 0;
};

// Ranks with their areas and counters. Everything begins at a random epoch, at times short of the end of 32 bits.
struct Machine {
    static constexpr u32 CANARY = 512;
    u32 ranks, abort = 0, base;
    u64 starts[3], sizes[3], flags_at;
    std::vector<std::vector<u32>> areas;
    std::vector<std::vector<u64>> epochs[3];
    std::vector<HawserDevComm> comms;
    std::vector<Told> reports;

    explicit Machine(u32 n) : ranks(n), base(dice() % 3 == 0 ? 0 - dice() % 8 : dice() % 3 ? dice() : 0), comms(n), reports(n) {
        sizes[WORDS] = (u64)MAX_GRID * 2 * HAWSER_EXCHANGE_RANKS * HAWSER_WORD_SLOT;
        sizes[LINES] = (u64)MAX_UNITS * 2 * n * HAWSER_LINE_SLOT;
        flags_at = (u64)MAX_UNITS * 2 * n * hawser::tile_slot(n);
        sizes[TILES] = flags_at + HAWSER_TILE_UNITS * HAWSER_UNIT_FLAGS + DIRECT_BYTES;
        u64 end = CANARY;
        for (int p = 0; p < 3; p++) starts[p] = end, end += sizes[p] + CANARY;
        for (u32 r = 0; r < n; r++) {
            areas.emplace_back(end / 4 + 128, base);
            for (auto& e : epochs) e.emplace_back(&e == &epochs[TILES] ? TILE_COUNTERS : MAX_UNITS, base);
            comms[r] = HawserDevComm{}, reports[r] = Told{};
            comms[r].rank = r, comms[r].ranks = n, comms[r].abort = (u64)&abort, comms[r].report = (u64)&reports[r];
        }
    }
    u64 area(u32 rank, int protocol) const { return ((u64)areas[rank].data() + 511) / 512 * 512 + starts[protocol]; }

    // All ranks have counted alike, nobody gave up, and nothing lies between the areas.
    void check() const {
        for (u32 r = 0; r < ranks; r++) {
            REQUIRE(reports[r].report.code == 0, "rank %u gave up", r);
            for (int p = 0; p < 3; p++) {
                for (size_t unit = 0; unit < epochs[p][r].size(); unit++)
                    REQUIRE((u32)epochs[p][r][unit] == (u32)epochs[p][0][unit], "protocol %d: rank %u has counted otherwise than rank 0", p, r);
                for (u64 at = area(r, p) - CANARY; at < area(r, p); at += 4)
                    REQUIRE(*(const u32*)at == base, "rank %u: stored before the area of protocol %d", r, p);
                for (u64 at = area(r, p) + sizes[p], end = at + CANARY / 2; at < end; at += 4)
                    REQUIRE(*(const u32*)at == base, "rank %u: stored behind the area of protocol %d", r, p);
            }
        }
    }
};

// Memory that is mapped twice: as its rank has it, and as ranks of other processes do.
class Memory {
    u8 *own, *other;
    size_t length;

public:
    explicit Memory(size_t bytes) : length(bytes) {
        int file = memfd_create("hawser-emulated", MFD_CLOEXEC);
        REQUIRE(file >= 0 && ftruncate(file, (off_t)bytes) == 0, "no memory of %zu bytes: errno %d", bytes, errno);
        u8** places[] = {&own, &other};
        for (u8** place : places) {
            *place = (u8*)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            REQUIRE(*place != MAP_FAILED, "no mapping of %zu bytes: errno %d", bytes, errno);
        }
        close(file);
    }
    Memory(Memory&& from) noexcept : own(from.own), other(from.other), length(from.length) { from.own = nullptr; }
    ~Memory() {
        if (own == nullptr) return;
        munmap(own, length);
        munmap(other, length);
    }
    u8* data() { return own; }
    const u8* data() const { return own; }
    size_t size() const { return length; }
    u8& operator[](size_t at) { return own[at]; }
    const u8& operator[](size_t at) const { return own[at]; }
    std::vector<u8> copy() const { return {own, own + length}; }
    u64 distance() const { return (u64)other - (u64)own; } // from the own address to that of other processes
};

struct Launch {
    static constexpr u64 GUARD = 64;
    Pattern pattern;
    const Element* element;
    int protocol;
    u32 ranks, grid, threads, tile, root, shift;
    u64 count, number;
    bool in_place;
    u8 direct = 0;     // HAWSER_DIRECT_TRY and more
    u32 unreached = 0; // by rank: others do not reach its buffers
    bool apart = false; // every rank is a process: buffers lie elsewhere for others
    std::vector<HawserExchange> args;

    void prepare(Machine& m) {
        seen.reserve(ranks); // kernels have addresses of what is in it
        for (u32 r = 0; r < ranks; r++) place_buffers(r);
        for (u32 r = 0; r < ranks; r++) args.push_back(plan(m, r));
        for (u32 r = 0; r < ranks; r++) expect(r);
    }
    const char* name() const {
        static const char* const patterns[] = {"all-reduce 1", "all-reduce 2", "all-gather", "reduce-scatter", "all-to-all", "gather",
                                               "scatter", "broadcast 1", "broadcast 2", "reduce 1", "reduce 2"};
        static const char* const protocols[] = {"words", "lines", "tiles"};
        static char text[256];
        std::snprintf(text, sizeof text, "launch %lu: %s of %lu %s over %s, %u ranks, %u x %u threads, tile %u, root %u, shift %u%s",
                      (unsigned long)number, patterns[pattern], (unsigned long)count, element->name, protocols[protocol], ranks, grid,
                      threads, tile, root, shift, in_place ? ", in place" : "");
        return text;
    }
    // What a bundle says of this launch on rank r.
    HawserBundleOp bundle_op(u32 r, u32 first) const {
        const HawserExchange& a = args[r];
        HawserBundleOp op{};
        op.input = in[r], op.output = out[r], op.scalar = a.scalar, op.op_number = number;
        op.part = (u32)(in_parts(pattern) ? a.most : bytes()), op.total = (u32)bytes();
        op.form = a.form, op.scalar_is_address = a.scalar_is_address, op.send1 = a.send1, op.recv1 = a.recv1, op.keep = a.keep;
        op.send2 = a.send2, op.recv2 = a.recv2, op.order = a.order, op.first = (u8)first;
        for (u32 p = 0; p < ranks; p++) op.has_dst |= (a.dst[p] != 0) << p;
        bool deals = pattern == REDUCE_SCATTER || pattern == ALL_TO_ALL || pattern == SCATTER;
        bool collects = pattern == ALL_GATHER || pattern == ALL_TO_ALL || pattern == GATHER;
        if (in_parts(pattern)) op.shape = HAWSER_CUT | HAWSER_SPREAD_SRC | HAWSER_SPREAD_DST;
        else op.shape = (deals ? HAWSER_SPREAD_SRC : 0) | (collects ? HAWSER_SPREAD_DST : 0);
        op.skipped = pattern == BROADCAST_2 || pattern == REDUCE_2 ? (u8)root : 255;
        return op;
    }
    // Rank r's kernel has ended: its result is there, and it may do with its buffers what it likes.
    void is_over(u32 r) {
        check_rank(r);
        for (u64 at = 0; at < memory[r].size(); at++) wanted[r][at] = memory[r][at] = (u8)~memory[r][at];
    }
    // Rank r has given up, its memory is used for something else; and later nobody has touched it.
    void is_gone(u32 r) {
        for (u64 at = 0; at < memory[r].size(); at++) wanted[r][at] = memory[r][at] = (u8)mixed(at + 1);
    }
    void is_left_alone(u32 r) const { check_rank(r); }
    // Results are there, and nothing else of the buffers' surroundings has changed.
    void check() const {
        for (u32 r = 0; r < ranks; r++) check_rank(r);
    }
    // Every rank has told every other where that one finds its buffers.
    void check_lines(const Machine& m) const {
        u32 parity = (m.base + 1) % 2;
        for (u32 r = 0; r < ranks; r++)
            for (u32 k = 1; k < ranks; k++) {
                u32 p = (r + k) % ranks;
                u64 line = m.area(p, TILES) + m.flags_at + HAWSER_TILE_UNITS * HAWSER_UNIT_FLAGS;
                line += (parity * HAWSER_EXCHANGE_RANKS + r) * HAWSER_DIRECT_LINE;
                u64 more = apart ? seen[r][p] : 0, src = args[r].src[k] + more, dst = args[r].dst[p] + more;
                REQUIRE(((const u64*)line)[0] == src, "%s: rank %u told rank %u another input", name(), r, p);
                REQUIRE(((const u64*)line)[1] == dst, "%s: rank %u told rank %u another output", name(), r, p);
            }
    }
    void check_rank(u32 r) const {
        for (u64 at = 0; at < memory[r].size(); at++)
            REQUIRE(memory[r][at] == wanted[r][at], "%s: rank %u byte %ld of %lu: %u, not %u", name(), r,
                    (long)((u64)&memory[r][at] - out[r]), (unsigned long)out_bytes(r), memory[r][at], wanted[r][at]);
    }
    // After a launch that was given up: results may be anything, their surroundings not.
    void guards_are_whole(u32 silent) const {
        for (u32 r = 0; r < ranks; r++)
            for (u64 at = 0; at < memory[r].size(); at++) {
                u64 address = (u64)&memory[r][at];
                bool result = r != silent && address >= out[r] && address < out[r] + out_bytes(r);
                REQUIRE(result || memory[r][at] == before[r][at], "%s: rank %u: a byte outside of its result", name(), r);
            }
    }

private:
    std::vector<Memory> memory;
    std::vector<std::vector<u8>> before, wanted;
    std::vector<std::array<u64, HAWSER_EXCHANGE_RANKS>> seen; // by rank: src_seen and dst_seen
    std::vector<u64> in, out;

    u64 bytes() const { return count * element->size; }
    u64 in_bytes(u32 r) const {
        switch (pattern) {
        case REDUCE_SCATTER: case ALL_TO_ALL: return bytes() * ranks;
        case SCATTER: return r == root ? bytes() * ranks : 0;
        case BROADCAST_1: case BROADCAST_2: return r == root ? bytes() : 0;
        default: return bytes();
        }
    }
    u64 out_bytes(u32 r) const {
        switch (pattern) {
        case ALL_GATHER: case ALL_TO_ALL: return bytes() * ranks;
        case GATHER: return r == root ? bytes() * ranks : 0;
        case REDUCE_1: case REDUCE_2: return r == root ? bytes() : 0;
        default: return bytes();
        }
    }
    // Both buffers of a rank with guards around them, misaligned by `shift` elements; in place one lies in the other.
    void place_buffers(u32 r) {
        u64 ins = in_bytes(r), outs = out_bytes(r), odd = (u64)shift * element->size, part = r * bytes();
        bool one = in_place && ins != 0 && outs != 0;
        u64 second = one ? 0 : (ins + GUARD + 15) / 16 * 16;
        memory.emplace_back(16 + GUARD + odd + std::max(second + outs, ins) + GUARD);
        for (u64 i = 0; i < memory[r].size(); i++) memory[r][i] = (u8)mixed(number * 77 + i);
        u64 begin = ((u64)memory[r].data() + 15) / 16 * 16 + GUARD + odd;
        in.push_back(ins == 0 ? 0 : one && ins < outs ? begin + part : begin);
        out.push_back(outs == 0 ? 0 : one ? (outs < ins ? begin + part : begin) : begin + second);
        for (u64 i = 0; i < ins / element->size; i++)
            element->make(mixed((number * 8 + r) << 32 | i), (u8*)(in[r] + i * element->size));
        before.push_back(memory[r].copy());
        seen.emplace_back().fill(memory[r].distance());
    }
    const u8* input(u32 r) const { return before[r].data() + (in[r] - (u64)memory[r].data()); }

    void expect(u32 r) {
        wanted.push_back(before[r]);
        if (out[r] == 0) return;
        u8* to = wanted[r].data() + (out[r] - (u64)memory[r].data());
        u64 part = bytes();
        for (u32 p = 0; p < ranks; p++) {
            if (pattern == ALL_GATHER || pattern == GATHER) std::memcpy(to + p * part, input(p), part);
            if (pattern == ALL_TO_ALL) std::memcpy(to + p * part, input(p) + r * part, part);
        }
        if (pattern == SCATTER) std::memcpy(to, input(root) + r * part, part);
        if (pattern == BROADCAST_1 || pattern == BROADCAST_2) std::memcpy(to, input(root), part);
        if (!reduces(pattern)) return;
        for (u64 at = 0; at < part; at += element->size) {
            const u8* operands[HAWSER_EXCHANGE_RANKS];
            for (u32 p = 0; p < ranks; p++) operands[p] = input(p) + (pattern == REDUCE_SCATTER ? r * part : 0) + at;
            element->fold(operands, ranks, to + at);
        }
    }

    HawserExchange plan(Machine& m, u32 r) {
        const u32 slots[] = {HAWSER_WORD_SLOT, HAWSER_LINE_SLOT, hawser::tile_slot(ranks)};
        HawserExchange a{};
        for (u32 k = 0; k < ranks; k++) a.to[k] = m.area((r + k) % ranks, protocol) + r * slots[protocol];
        a.mine = m.area(r, protocol), a.flags_at = (u32)m.flags_at, a.comm = (u64)&m.comms[r];
        a.epochs = (u64)m.epochs[protocol][r].data();
        bool by_address = element->scalar != 0 && number % 2;
        a.scalar = by_address ? (u64)&element->scalar : element->scalar, a.scalar_is_address = by_address;
        a.order = (u8)element->order;
        a.op_number = number, a.divisor = ranks, a.tile = tile, a.rank = (u8)r, a.ranks = (u8)ranks;
        u32 form = 0;
        if (pattern == BROADCAST_2 || pattern == REDUCE_2) form = two_hops_of_root(a, r);
        else if (pattern == ALL_REDUCE_2) form = all_reduce_of_parts(a, r);
        else form = one_hop(a, r);
        if (direct != 0 && reduces(pattern)) form |= HAWSER_FOLD; // all data are read, also those of ranks that get none
        if (in_place && number % 2) a.keep = 0; // what would be kept is there
        bool aligned = true;
        for (u32 k = 0; k < ranks; k++) aligned &= (a.src[k] | a.dst[k]) % 16 == 0;
        bool eights = true;
        for (u32 p = 0; p < HAWSER_EXCHANGE_RANKS; p++) eights &= a.len[p] % 8 == 0 && a.src_len[p] % 8 == 0;
        if (apart) a.src_seen = a.dst_seen = (u64)seen[r].data();
        a.direct = direct == 0 || unreached >> r & 1 ? direct : (u8)(direct | HAWSER_DIRECT_READY);
        a.form = (u8)(form | element->form | (aligned ? HAWSER_ALIGNED : 0) | (eights ? HAWSER_EIGHTS : 0));
        return a;
    }
    static u64 up(u64 v) { return (v + 15) / 16 * 16; }

    // Parts of the result: each rank combines its own, then sends it to all others.
    u32 all_reduce_of_parts(HawserExchange& a, u32 r) {
        u32 others = (1u << ranks) - 2;
        set_parts(a, r, ranks, [&](u32 p) { return p; });
        a.send1 = a.send2 = (u8)others, a.recv1 = a.recv2 = (u8)(((1u << ranks) - 1) & ~(1u << r));
        return HAWSER_FOLD | HAWSER_OWN | HAWSER_SECOND;
    }
    // One part for each rank but the root, who deals them out (broadcast) or collects them combined (reduce).
    u32 two_hops_of_root(HawserExchange& a, u32 r) {
        u32 others = (1u << ranks) - 2, all = ((1u << ranks) - 1) & ~(1u << r), to_root = 1u << (root + ranks - r) % ranks;
        set_parts(a, r, ranks - 1, [&](u32 p) { return p == root ? NOBODY : p < root ? p : p - 1; });
        if (pattern == BROADCAST_2) {
            if (r == root) a.send1 = (u8)others, a.keep = (u8)all;
            else a.recv1 = (u8)(1u << root), a.send2 = (u8)(others & ~to_root), a.recv2 = (u8)(all & ~(1u << root));
            return HAWSER_FOLD | HAWSER_SECOND;
        }
        a.send1 = (u8)(others & ~to_root);
        if (r == root) a.recv2 = (u8)all;
        else a.recv1 = (u8)all, a.send2 = (u8)to_root;
        return HAWSER_FOLD | HAWSER_SECOND | (r == root ? 0 : HAWSER_OWN);
    }
    template <class Index>
    void set_parts(HawserExchange& a, u32 r, u32 parts, Index index) {
        u64 total = bytes();
        a.most = up((total + parts - 1) / parts), a.least = ~0ull;
        for (u32 k = 0; k < ranks; k++) {
            u32 p = (r + k) % ranks, i = index(p);
            if (i == NOBODY) continue;
            u64 at = i * a.most;
            a.len[p] = a.src_len[k] = at < total ? std::min(a.most, total - at) : 0;
            if (in[r] != 0) a.src[k] = in[r] + at;
            if (out[r] != 0) a.dst[p] = out[r] + at;
            a.least = std::min(a.least, a.len[p]);
        }
    }

    u32 one_hop(HawserExchange& a, u32 r) {
        u32 others = (1u << ranks) - 2, all = ((1u << ranks) - 1) & ~(1u << r), own = 1u << r, part = (u32)bytes();
        u32 k_root = (root + ranks - r) % ranks, of_root = 1u << root;
        bool at_root = r == root, rooted = pattern == GATHER || pattern == SCATTER || pattern == BROADCAST_1 || pattern == REDUCE_1;
        bool deals = pattern == REDUCE_SCATTER || pattern == ALL_TO_ALL || pattern == SCATTER;    // a part to each
        bool collects = pattern == ALL_GATHER || pattern == ALL_TO_ALL || pattern == GATHER;      // a part from each
        for (u32 k = 0; k < ranks; k++) {
            u32 p = (r + k) % ranks;
            a.len[p] = a.src_len[k] = part;
            if (in[r] != 0) a.src[k] = in[r] + (deals ? p * (u64)part : 0);
            if (out[r] != 0) a.dst[p] = out[r] + (collects ? p * (u64)part : 0);
        }
        a.most = up(part), a.least = part;
        if (!rooted || (at_root && (pattern == SCATTER || pattern == BROADCAST_1))) a.send1 = (u8)others;
        if (!rooted || (at_root && (pattern == GATHER || pattern == REDUCE_1))) a.recv1 = (u8)all;
        if (rooted && !at_root && (pattern == GATHER || pattern == REDUCE_1)) a.send1 = (u8)(1u << k_root);
        if (rooted && !at_root && (pattern == SCATTER || pattern == BROADCAST_1)) a.recv1 = (u8)of_root;
        bool folds = pattern == ALL_REDUCE_1 || pattern == REDUCE_SCATTER || (pattern == REDUCE_1 && at_root);
        if (!reduces(pattern) && (!rooted || (at_root && in[r] != 0))) a.keep = (u8)own;
        bool same = pattern == ALL_REDUCE_1 || pattern == ALL_GATHER || pattern == BROADCAST_1; // others have no input
        return (folds ? HAWSER_FOLD | HAWSER_OWN : 0) | (same ? HAWSER_SAME : 0);
    }
};
