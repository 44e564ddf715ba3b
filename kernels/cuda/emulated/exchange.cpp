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
// What combines them along the balanced tree over ranks: ((0 1) (2 3)) of four, (((0 1) (2 3)) 4) of five.
static u32 left_of(u32 n) {
    u32 left = 1;
    while (2 * left < n) left *= 2;
    return left;
}
static float nested_sum(const u8* const* v, u32 n) {
    if (n == 1) return get<float>(v[0]);
    volatile float left = nested_sum(v, left_of(n)), right = nested_sum(v + left_of(n), n - left_of(n));
    return left + right;
}
static float nested_sum_of_thirds(const u8* const* v, u32 n) {
    if (n == 1) return get<float>(v[0]) * 0.3f;
    volatile float left = nested_sum_of_thirds(v, left_of(n)), right = nested_sum_of_thirds(v + left_of(n), n - left_of(n));
    return left + right;
}
static u16 nested_half_sum(const u8* const* v, u32 n) {
    if (n == 1) return get<u16>(v[0]);
    u16 left = nested_half_sum(v, left_of(n)), right = nested_half_sum(v + left_of(n), n - left_of(n));
    return __half_as_ushort(__float2half_rn(__half2float(__ushort_as_half(left)) + __half2float(__ushort_as_half(right))));
}
template <class T, class V> static void put(u8* to, V v) {
    T value = (T)v;
    std::memcpy(to, &value, sizeof value);
}

template <class M>
static void bundle(const HawserBundle& b) { exchange_bundle<M>(b); }
// M: of words and lines, which are told the order; Tiles: of tiles.
template <class M, class Tiles = M>
static void kernel(int protocol, const HawserExchange& a) {
    if (protocol == WORDS) exchange_words<M>(a);
    else if (protocol == LINES) exchange_lines<M>(a);
    else exchange_tiles<Tiles>(a);
}

#define KERNELS(T, OP) kernel<Math<T, Op::OP>>, bundle<Math<T, Op::OP>>
#define NESTED_KERNELS(T, OP) kernel<Math<T, Op::OP>, Math<T, Op::OP, true>>, bundle<Math<T, Op::OP>>
static const Element COPY = {"bytes", 1, KERNELS(uint8_t, Copy), 0, 0, [](u32 h, u8* to) { put<u8>(to, h); }, nullptr};
// Elements of 1, 2, 4 and 8 bytes that are only moved: kernels that combine values of that size, or smaller ones, do it too.
static const Element MOVED[] = {
    COPY,
    {"units of 2", 2, KERNELS(uint8_t, Copy), 0, 0, [](u32 h, u8* to) { put<u16>(to, h); }, nullptr},
    {"units of 4", 4, KERNELS(uint8_t, Copy), 0, 0, [](u32 h, u8* to) { put<u32>(to, h * 0x9e3779b1u); }, nullptr},
    {"units of 8", 8, KERNELS(uint8_t, Copy), 0, 0, [](u32 h, u8* to) { put<u64>(to, h * 0x9e3779b97f4a7c15ull); }, nullptr},
};
static const Element REDUCED[] = {
    {"float sum", 4, KERNELS(float, Sum), 0, 0, [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, sum); }},
    {"float premul", 4, KERNELS(float, PreMul), HAWSER_SCALE, __float_as_uint(0.3f),
     [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, sum_of_thirds); }},
    {"half sum", 2, KERNELS(F16, Sum), 0, 0,
     [](u32 h, u8* to) { put<u16>(to, __half_as_ushort(__float2half_rn(std::ldexp((float)(int)(h % 999) - 500, (int)(h >> 12 & 7) - 3)))); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<u16>(v, n, out, half_sum); }},
    {"int64 average", 8, KERNELS(i64, SumDiv), HAWSER_DIVIDE, 0,
     [](u32 h, u8* to) { put<u64>(to, h * 0x9e3779b97f4a7c15ull); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<i64>(v, n, out, average); }},
    {"e4m3 sum", 1, KERNELS(E4M3, Sum), 0, 0, [](u32 h, u8* to) { put<u8>(to, (h & 0x7f) == 0x7f ? 0 : h); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<u8>(v, n, out, e4m3_sum); }},
    {"nested float sum", 4, NESTED_KERNELS(float, Sum), 0, 0, [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, nested_sum); }, HAWSER_NESTED},
    {"nested float premul", 4, NESTED_KERNELS(float, PreMul), HAWSER_SCALE, __float_as_uint(0.3f),
     [](u32 h, u8* to) { put<float>(to, hash_to_float(h)); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<float>(v, n, out, nested_sum_of_thirds); }, HAWSER_NESTED},
    {"nested half sum", 2, NESTED_KERNELS(F16, Sum), 0, 0,
     [](u32 h, u8* to) { put<u16>(to, __half_as_ushort(__float2half_rn(std::ldexp((float)(int)(h % 999) - 500, (int)(h >> 12 & 7) - 3)))); },
     [](const u8* const* v, u32 n, u8* out) { fold_as<u16>(v, n, out, nested_half_sum); }, HAWSER_NESTED},
};
constexpr u32 ELEMENTS = sizeof REDUCED / sizeof REDUCED[0];

// One kernel of a rank.
struct Kernel {
    u32 grid, threads;
    std::function<void()> body, over; // over: when its last thread has ended
};
// By rank: its kernels in order.
using Chain = std::vector<std::vector<Kernel>>;

static void append(Chain& chain, Launch& l) {
    for (u32 r = 0; r < l.ranks; r++)
        chain[r].push_back({l.grid, l.threads, [&l, r] { l.element->kernel(l.protocol, l.args[r]); }, [&l, r] { l.is_over(r); }});
}

// Runs the chain on all ranks but `silent`: a rank's next kernel starts when its last one is over, whatever others do. `silent`
// starts when rank `after` has ended.
static void run(const Chain& chain, u32 silent, bool drift, u32 after = NOBODY) {
    Fibers fibers;
    std::vector<std::unique_ptr<BlockRun>> blocks;
    std::vector<size_t> begun(chain.size(), 0);
    std::function<void(u32)> start = [&](u32 rank) {
        bool is_over = begun[rank] > 0 && (silent == NOBODY || rank == after);
        if (is_over && chain[rank][begun[rank] - 1].over) chain[rank][begun[rank] - 1].over();
        if (begun[rank] > 0 && rank == after) start(silent);
        if (begun[rank] == chain[rank].size()) return;
        const Kernel& k = chain[rank][begun[rank]++];
        for (u32 b = 0; b < k.grid; b++) {
            blocks.push_back(std::make_unique<BlockRun>());
            BlockRun* block = blocks.back().get();
            block->index = b, block->grid = k.grid, block->threads = k.threads;
            block->shared = std::make_shared<BlockShared>();
            for (u32 t = 0; t < k.threads; t++) fibers.add(block, rank, t, k.body);
        }
    };
    fibers.next = start;
    for (u32 r = 0; r < chain.size(); r++)
        if (r != silent) start(r);
    weak_stores = true;
    fibers.run(drift);
    weak_stores = false;
    if (silent == NOBODY) REQUIRE(line_stores.empty() && line_loads.empty(), "half a line");
    line_stores.clear(), line_loads.clear();
}

// Straight between the buffers, as the planner would: all ranks ask for it; at times some rank's buffers are out of reach.
static void go_direct(Launch& l) {
    bool several = l.pattern == REDUCE_SCATTER || l.pattern == ALL_GATHER || l.pattern == ALL_TO_ALL || l.pattern == GATHER || l.pattern == SCATTER;
    if (several) l.count = std::max<u64>(16, l.count / 16 * 16);
    if (dice() % 8 != 0) l.shift = 0;
    bool pulls = l.pattern == GATHER || l.pattern == SCATTER || l.pattern == BROADCAST_1;
    l.direct = (u8)(HAWSER_DIRECT_TRY | (pulls ? HAWSER_DIRECT_PULL : 0));
    bool overwrites = l.pattern == ALL_TO_ALL && l.in_place;
    l.unreached = overwrites || dice() % 4 == 0 ? dice() : 0;
    if (overwrites) l.unreached |= 1;
    l.apart = dice() % 2;
}

static std::unique_ptr<Launch> random_launch(Machine& m, int protocol, u64 number, u32 most_grid = MAX_GRID, u32 most_threads = MAX_THREADS) {
    auto launch = std::make_unique<Launch>();
    Launch& l = *launch;
    l.ranks = m.ranks, l.number = number, l.protocol = protocol;
    l.pattern = (Pattern)(dice() % PATTERNS);
    l.element = reduces(l.pattern) ? &REDUCED[dice() % ELEMENTS] : &COPY;
    l.grid = 1 + dice() % most_grid, l.threads = 32 * (1 + dice() % (most_threads / 32));
    l.tile = protocol == LINES ? 480 * (1 + dice() % 3) : dice() % 4 == 0 ? 1536 : 512;
    if (protocol == LINES && dice() % 8 == 0) l.tile = 480 * 8;
    if (protocol == TILES && dice() % 16 == 0) l.tile = hawser::tile_slot(m.ranks) - 512 * (dice() % 3);
    l.root = dice() % m.ranks;
    l.in_place = dice() % 3 == 0;
    l.shift = dice() % 3 == 0 ? dice() % 16 : 0;
    // From one element to a few rounds of every block or warp; more of tiles, which may be under way at once.
    u64 round = (u64)l.grid * (protocol == WORDS ? l.threads * 8 : l.threads / 32 * l.tile);
    u64 bytes = 1 + (dice() % 4 == 0 ? dice() % 64 : dice() % (round * (1 + dice() % (protocol != TILES || l.tile > 4096 ? 7 : 14)) / 2));
    l.count = std::max<u64>(1, bytes * parts_of(l.pattern, m.ranks) / l.element->size);
    if (protocol == TILES && l.pattern != ALL_REDUCE_1 && l.element->form != HAWSER_SCALE && dice() % 2) go_direct(l);
    l.prepare(m);
    return launch;
}

// Several calls that share launches, in blocks that all ranks have agreed on.
struct Bundle {
    std::vector<std::unique_ptr<Launch>> ops;
    std::vector<u32> firsts;
    std::vector<std::unique_ptr<HawserBundle>> args;
    const Element* element; // whose kernel runs it
    u32 threads;

    Bundle(Machine& m, u64 number, u32 most_ops, u32 most_threads) {
        element = dice() % 3 == 0 ? &COPY : &REDUCED[dice() % ELEMENTS];
        threads = 32 * (1 + dice() % (most_threads / 32));
        for (u32 n = 1 + dice() % most_ops; ops.size() < n;) ops.push_back(random_op(m, number + ops.size()));
    }
    // One launch on every rank, or several: each rank for itself, with the same blocks.
    void append(Machine& m, Chain& chain) {
        for (u32 r = 0; r < m.ranks; r++)
            for (u32 begin = 0, end; begin < ops.size(); begin = end) {
                end = dice() % 2 ? (u32)ops.size() : begin + 1 + dice() % (ops.size() - begin);
                launch(m, r, begin, end, chain);
            }
    }

private:
    std::unique_ptr<Launch> random_op(Machine& m, u64 number) {
        auto launch = std::make_unique<Launch>();
        Launch& l = *launch;
        l.ranks = m.ranks, l.number = number, l.protocol = WORDS, l.tile = 0;
        l.grid = 1 + dice() % MAX_GRID, l.threads = threads;
        // What only moves does so in any kernel, unless values are passed on in the second exchange as if they were combined.
        do l.pattern = (Pattern)(dice() % PATTERNS);
        while (element == &COPY ? reduces(l.pattern) : l.pattern == BROADCAST_2);
        if (reduces(l.pattern)) l.element = element;
        else do l.element = &MOVED[dice() % 4];
            while (l.element->size % element->size != 0);
        l.root = dice() % m.ranks, l.in_place = dice() % 3 == 0, l.shift = dice() % 3 == 0 ? dice() % 16 : 0;
        // Every block has something to do, once; the last parts may be short, or empty.
        u64 words = (l.grid - 1) * threads + 1 + dice() % threads, most = words * 8 / 16 * 16, parts = parts_of(l.pattern, m.ranks);
        u64 bytes = most < 16 ? 1 + dice() % 8 : dice() % 2 ? most * parts : 1 + dice() % (most * parts);
        l.count = std::max<u64>(1, bytes / l.element->size);
        l.prepare(m);
        l.grid = (u32)((l.args[0].most / 8 + threads - 1) / threads);
        firsts.push_back(dice() % (MAX_GRID - l.grid + 1));
        return launch;
    }
    void launch(Machine& m, u32 r, u32 begin, u32 end, Chain& chain) {
        args.push_back(std::make_unique<HawserBundle>());
        HawserBundle& b = *args.back();
        const HawserExchange& any = ops[begin]->args[r];
        std::memcpy(b.to, any.to, sizeof b.to);
        b.mine = any.mine, b.comm = any.comm, b.epochs = any.epochs, b.rank = any.rank, b.ranks = any.ranks;
        u32 first = MAX_GRID, last = 0;
        for (u32 i = begin; i < end; i++) first = std::min(first, firsts[i]), last = std::max(last, firsts[i] + ops[i]->grid);
        b.first = (u8)first, b.n_ops = (u8)(end - begin);
        for (u32 i = begin; i < end; i++) {
            b.ops[i - begin] = ops[i]->bundle_op(r, firsts[i]);
            for (u32 at = 0; at < ops[i]->grid; at++) b.todo[firsts[i] + at - first] |= 1ull << (i - begin);
        }
        chain[r].push_back({last - first, threads, [this, &b] { element->bundle(b); }, nullptr});
    }
};

static void chain_is_right(u32 ranks, u32 most_launches) {
    Machine m(ranks);
    Chain chain(ranks);
    std::vector<std::unique_ptr<Launch>> launches;
    std::vector<std::unique_ptr<Bundle>> bundles;
    u32 count = 3 + dice() % (most_launches - 2);
    int only = dice() % 5; // bundles, a protocol, or any
    for (u32 i = 0; i < count; i++) {
        int protocol = only < 4 ? only : (int)(dice() % 4);
        if (protocol == BUNDLES) {
            bundles.push_back(std::make_unique<Bundle>(m, 100 * (i + 1), 6, MAX_THREADS));
            bundles.back()->append(m, chain);
        } else {
            launches.push_back(random_launch(m, protocol, i));
            append(chain, *launches.back());
        }
    }
    run(chain, NOBODY, dice() % 8 != 0);
    for (auto& launch : launches) launch->check();
    for (auto& bundle : bundles)
        for (auto& op : bundle->ops) op->check();
    m.check();
}

// Threads that give up words leave alone, while others of their warp go on to barriers.
constexpr bool LANES_LEAVE_ALONE = false;

// A rank stays away: the others leave by deadline or abort, and say whom they waited for.
static void absence_is_noticed(u32 ranks, int protocol, bool aborted) {
    Machine m(ranks);
    Chain chain(ranks);
    std::unique_ptr<Launch> alone;
    std::unique_ptr<Bundle> several;
    // Few threads: each polls thousands of times.
    if (protocol == BUNDLES) {
        several = std::make_unique<Bundle>(m, 7, 3, 64);
        several->append(m, chain);
    } else {
        alone = random_launch(m, protocol, 7, 2, 64);
        append(chain, *alone);
    }
    std::vector<const Launch*> calls;
    if (alone) calls.push_back(alone.get());
    else for (auto& op : several->ops) calls.push_back(op.get());
    u32 silent = dice() % ranks;
    bool asked = !aborted && dice() % 2;
    m.abort = aborted ? HAWSER_LEAVE : asked ? HAWSER_ASK + silent : 0;
    for (auto& c : m.comms) c.deadline_ns = aborted ? 0 : 1000 * 1000;
    whole_warps = !LANES_LEAVE_ALONE;
    run(chain, silent, false);
    whole_warps = true;
    for (const Launch* call : calls) call->guards_are_whole(silent);
    for (u32 r = 0; r < ranks; r++) {
        const auto& [q, answer] = m.reports[r];
        if (r == silent) continue;
        u64 which = q.op_number - 7;
        // Who needs nothing of the rank that is away may end in peace.
        auto is_free = [&](const Launch* call) { return !in(awaited(call->args[r]), silent); };
        if (q.code == 0 && std::any_of(calls.begin(), calls.end(), is_free)) continue;
        // In a bundle a rank may be at a later call, and wait for one that waits itself.
        REQUIRE(q.code == (aborted ? HAWSER_ABORTED : HAWSER_DEADLINE), "%s: rank %u: code %u", calls[0]->name(), r, q.code);
        REQUIRE(which < calls.size() && q.what == HAWSER_WAIT_RECV && q.block < MAX_GRID, "rank %u: what %u", r, q.what);
        REQUIRE(q.step == 0 && (q.tile == 0 || is_free(calls[which])) && q.peer < ranks && q.peer != r && (aborted || several || q.peer == silent),
                "%s: rank %u waited for %u in step %u of tile %u, %u was away", calls[which]->name(), r, q.peer, q.step, q.tile, silent);
        bool answers = answer.code == HAWSER_WAITING;
        REQUIRE(asked ? answers || several : answer.code == 0, "%s: rank %u: answer %u", calls[0]->name(), r, answer.code);
        REQUIRE(!answers || (answer.peer == silent && answer.op_number - 7 < calls.size()), "rank %u: about %u", r, answer.peer);
    }
}

// The root of a broadcast or scatter, or a rank that only sends to a root, ends before another rank has begun; then that one
// comes, and everything is right. What is owed is looked at by the launches that follow.
static void senders_end_alone(u32 ranks, int protocol) {
    Machine m(ranks);
    Chain chain(ranks);
    std::unique_ptr<Launch> first;
    u32 sender = NOBODY, late = NOBODY;
    while (sender == NOBODY) {
        first = random_launch(m, protocol, 7, 2, 64);
        bool is_one_turn = first->args[0].most <= 256; // otherwise the slots are used again
        for (u32 r = 0; r < ranks && is_one_turn && first->direct == 0; r++)
            if (awaited(first->args[r]) == 0) sender = r, late = (r + 1 + dice() % (ranks - 1)) % ranks;
    }
    append(chain, *first);
    std::unique_ptr<Launch> second = random_launch(m, protocol, 8, 2, 64);
    while (second->direct != 0) second = random_launch(m, protocol, 8, 2, 64);
    whole_warps = !LANES_LEAVE_ALONE;
    run(chain, late, false, sender);
    Chain next(ranks);
    append(next, *second);
    run(next, NOBODY, false);
    whole_warps = true;
    m.check();
    first->check();
    second->check();
}

// A rank gives up, is gone, and its buffers are used for something else; then the rank that it waited for comes. Nobody touches
// those buffers, although others had long seen where they are.
static void one_gives_up_before_the_last_comes(u32 ranks) {
    Machine m(ranks);
    Chain chain(ranks);
    std::unique_ptr<Launch> launch;
    do launch = random_launch(m, TILES, 7, 2, 64);
    while (launch->direct == 0 || launch->unreached != 0 || launch->shift != 0);
    append(chain, *launch);
    u32 early = dice() % ranks, late = (early + 1 + dice() % (ranks - 1)) % ranks;
    for (u32 r = 0; r < ranks; r++) m.comms[r].deadline_ns = (r == early ? 100 : 20000) * 1000;
    chain[early][0].over = [&] { launch->is_gone(early); };
    whole_warps = !LANES_LEAVE_ALONE;
    run(chain, late, false, early);
    whole_warps = true;
    launch->is_left_alone(early);
    for (u32 r = 0; r < ranks; r++) REQUIRE(m.reports[r].report.code == HAWSER_DEADLINE, "rank %u: code %u", r, m.reports[r].report.code);
}

// Peers learn addresses that are theirs, in one process and in several.
static void addresses_are_those_of_the_peer(u32 ranks) {
    Machine m(ranks);
    Chain chain(ranks);
    std::unique_ptr<Launch> launch;
    do launch = random_launch(m, TILES, 7, 2, 64);
    while (launch->direct == 0);
    append(chain, *launch);
    run(chain, NOBODY, false);
    m.check();
    launch->check();
    launch->check_lines(m);
}

bool exchanges_are_right(u32 rounds) {
    for (u32 round = 0; round < rounds; round++) {
        bool many = round % 8 == 7;
        chain_is_right(many ? 8 : 2 + dice() % 4, many ? 3 : 6);
        absence_is_noticed(2 + dice() % 4, (int)(round % 4), dice() % 2);
        senders_end_alone(2 + dice() % 4, (int)(round % 3));
        addresses_are_those_of_the_peer(2 + dice() % 4);
        if (round % 4 == 0) one_gives_up_before_the_last_comes(3 + dice() % 3);
    }
    return true;
}
