// Runs the kernels of one and two exchanges on emulated GPUs: chains of launches over the same areas, in which no rank waits
// for another between two launches, and ranks drift apart as far as the protocol lets them.
#include "exchange_plan.hpp"

using namespace hawser;

// What combines elements in the order of ranks, said once more and otherwise than in types.cuh.
template <class T>
static void fold_as(const u8* const* v, u32 n, u8* out, T (*of)(const u8* const*, u32)) {
    T value = of(v, n);
    std::memcpy(out, &value, sizeof value);
}
template <class T> static T get(const u8* p) { return as_is<T>(p); }

static float hash_to_float(u32 h) { return (float)((int)(h % 2001) - 1000) * std::ldexp(1.f, (int)(h >> 11 & 31) - 16); }
static float sum(const u8* const* v, u32 n) {
    volatile float s = get<float>(v[0]);
    for (u32 r = 1; r < n; r++) s = s + get<float>(v[r]);
    return s;
}
static float sum_of_thirds(const u8* const* v, u32 n) {
    volatile float s = 0;
    for (u32 r = 0; r < n; r++) {
        volatile float scaled = get<float>(v[r]) * 0.3f;
        s = r == 0 ? scaled : s + scaled;
    }
    return s;
}
static u16 half_sum(const u8* const* v, u32 n) {
    volatile float s = __half2float(__ushort_as_half(get<u16>(v[0])));
    for (u32 r = 1; r < n; r++) s = s + __half2float(__ushort_as_half(get<u16>(v[r])));
    return __half_as_ushort(__float2half_rn(s));
}
static i64 average(const u8* const* v, u32 n) {
    u64 s = 0;
    for (u32 r = 0; r < n; r++) s += get<u64>(v[r]);
    return (i64)s / (i64)n;
}
static u8 e4m3_sum(const u8* const* v, u32 n) {
    volatile float s = SoftFp8::from_e4m3(*v[0]);
    for (u32 r = 1; r < n; r++) s = s + SoftFp8::from_e4m3(*v[r]);
    return (u8)SoftFp8::e4m3(s);
}
template <class T, class V> static void put(u8* to, V v) {
    T value = (T)v;
    std::memcpy(to, &value, sizeof value);
}

template <class M>
static void kernel(int protocol, const HawserExchange& a) {
    if (protocol == WORDS) exchange_words<M>(a);
    else if (protocol == LINES) exchange_lines<M>(a);
    else exchange_tiles<M>(a);
}

static const Element COPY = {"bytes", 1, kernel<Math<uint8_t, Op::Copy>>, 0, 0, [](u32 h, u8* to) { put<u8>(to, h); }, nullptr};
static const Element REDUCED[] = {
    {"float sum", 4, kernel<Math<float, Op::Sum>>, 0, 0, [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, sum); }},
    {"float premul", 4, kernel<Math<float, Op::PreMul>>, HAWSER_SCALE, __float_as_uint(0.3f),
     [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, sum_of_thirds); }},
    {"half sum", 2, kernel<Math<F16, Op::Sum>>, 0, 0,
     [](u32 h, u8* to) { put<u16>(to, __half_as_ushort(__float2half_rn(std::ldexp((float)(int)(h % 999) - 500, (int)(h >> 12 & 7) - 3)))); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<u16>(v, n, out, half_sum); }},
    {"int64 average", 8, kernel<Math<i64, Op::SumDiv>>, HAWSER_DIVIDE, 0,
     [](u32 h, u8* to) { put<u64>(to, h * 0x9e3779b97f4a7c15ull); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<i64>(v, n, out, average); }},
    {"e4m3 sum", 1, kernel<Math<E4M3, Op::Sum>>, 0, 0, [](u32 h, u8* to) { put<u8>(to, (h & 0x7f) == 0x7f ? 0 : h); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<u8>(v, n, out, e4m3_sum); }},
};

// Runs the launches on all ranks but `silent`: a rank's next kernel starts when its last one is over, whatever others do.
static void run(std::vector<std::unique_ptr<Launch>>& chain, u32 silent, bool drift) {
    u32 n = chain[0]->ranks;
    Fibers fibers;
    std::vector<std::unique_ptr<BlockRun>> blocks;
    std::vector<size_t> begun(n, 0);
    auto start = [&](u32 rank) {
        if (begun[rank] == chain.size()) return;
        const Launch& l = *chain[begun[rank]++];
        for (u32 b = 0; b < l.grid; b++) {
            blocks.push_back(std::make_unique<BlockRun>());
            BlockRun* block = blocks.back().get();
            block->index = b, block->grid = l.grid, block->threads = l.threads;
            block->shared = std::make_shared<u32>(0xcdcdcdcd);
            for (u32 t = 0; t < l.threads; t++) fibers.add(block, rank, t, [&l, rank] { l.element->kernel(l.protocol, l.args[rank]); });
        }
    };
    fibers.next = start;
    for (u32 r = 0; r < n; r++)
        if (r != silent) start(r);
    weak_stores = true;
    fibers.run(drift);
    weak_stores = false;
    if (silent == NOBODY) REQUIRE(line_stores.empty() && line_loads.empty(), "half a line");
    line_stores.clear(), line_loads.clear();
}

static std::unique_ptr<Launch> random_launch(Machine& m, int protocol, u64 number, u32 most_grid = MAX_GRID, u32 most_threads = MAX_THREADS) {
    auto launch = std::make_unique<Launch>();
    Launch& l = *launch;
    l.ranks = m.ranks, l.number = number, l.protocol = protocol;
    l.pattern = (Pattern)(dice() % PATTERNS);
    l.element = reduces(l.pattern) ? &REDUCED[dice() % 5] : &COPY;
    l.grid = 1 + dice() % most_grid, l.threads = 32 * (1 + dice() % (most_threads / 32));
    l.tile = protocol == LINES ? 480 * (1 + dice() % 3) : dice() % 4 == 0 ? 1536 : 512;
    if (protocol == LINES && dice() % 8 == 0) l.tile = 480 * 8;
    l.root = dice() % m.ranks;
    l.in_place = dice() % 3 == 0;
    l.shift = dice() % 3 == 0 ? dice() % 16 : 0;
    // From one element to a few rounds of every block or warp; more of tiles, which may be under way at once.
    u64 round = (u64)l.grid * (protocol == WORDS ? l.threads * 8 : l.threads / 32 * l.tile);
    u64 bytes = 1 + (dice() % 4 == 0 ? dice() % 64 : dice() % (round * (1 + dice() % (protocol == TILES ? 14 : 7)) / 2));
    l.count = std::max<u64>(1, bytes * parts_of(l.pattern, m.ranks) / l.element->size);
    l.prepare(m);
    return launch;
}

static void chain_is_right(u32 ranks, u32 most_launches) {
    Machine m(ranks);
    std::vector<std::unique_ptr<Launch>> chain;
    u32 launches = 3 + dice() % (most_launches - 2);
    int only = dice() % 4; // a protocol, or any
    for (u32 i = 0; i < launches; i++) chain.push_back(random_launch(m, only < 3 ? only : (int)(dice() % 3), i));
    run(chain, NOBODY, dice() % 8 != 0);
    for (auto& launch : chain) launch->check();
    m.check();
}

// Threads that give up words leave alone, while others of their warp go on to barriers.
constexpr bool LANES_LEAVE_ALONE = false;

// A rank stays away: the others leave by deadline or abort, and say whom they waited for.
static void absence_is_noticed(u32 ranks, int protocol, bool aborted) {
    Machine m(ranks);
    std::vector<std::unique_ptr<Launch>> chain;
    chain.push_back(random_launch(m, protocol, 7, 2, 64)); // few threads: each polls thousands of times
    const Launch& l = *chain[0];
    u32 silent = dice() % ranks;
    m.abort = aborted;
    for (auto& c : m.comms) c.deadline_ns = aborted ? 0 : 1000 * 1000;
    whole_warps = !LANES_LEAVE_ALONE;
    run(chain, silent, false);
    whole_warps = true;
    l.guards_are_whole(silent);
    for (u32 r = 0; r < ranks; r++) {
        const HawserReport& q = m.reports[r];
        if (r == silent) continue;
        REQUIRE(q.code == (aborted ? HAWSER_ABORTED : HAWSER_DEADLINE), "%s: rank %u: code %u", l.name(), r, q.code);
        REQUIRE(q.op_number == 7 && q.what == HAWSER_WAIT_RECV && q.block < l.grid, "%s: rank %u: what %u", l.name(), r, q.what);
        REQUIRE(q.step == 0 && q.tile == 0 && q.peer < ranks && q.peer != r && (aborted || q.peer == silent),
                "%s: rank %u waited for %u in step %u of tile %u, %u was away", l.name(), r, q.peer, q.step, q.tile, silent);
    }
}

bool exchanges_are_right(u32 rounds) {
    for (u32 round = 0; round < rounds; round++) {
        bool many = round % 8 == 7;
        chain_is_right(many ? 8 : 2 + dice() % 4, many ? 3 : 6);
        absence_is_noticed(2 + dice() % 4, (int)(round % 3), dice() % 2);
    }
    return true;
}
