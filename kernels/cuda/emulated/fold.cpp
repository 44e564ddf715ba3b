// Runs the kernels that combine what copy engines moved: operands at odd and even addresses, in place, of any length; and the one that
// lets memory add.
#include "bulk.hpp"

#include "../add.cuh"
#include "../fold.cuh"

using namespace hawser;

struct FoldShared {
    FoldBarriers barriers;
    alignas(128) unsigned char stages[HAWSER_BULK_SHARED];
};
FoldBarriers& hawser::fold_barriers() { return ((FoldShared*)fiber->block->shared.get())->barriers; }
unsigned char* hawser::fold_stages() { return ((FoldShared*)fiber->block->shared.get())->stages; }

struct AddShared {
    u64 full[ADD_STAGES];
    alignas(128) unsigned char stages[HAWSER_ADD_SHARED];
};
u64* hawser::add_barriers() { return ((AddShared*)fiber->block->shared.get())->full; }
unsigned char* hawser::add_stages() { return ((AddShared*)fiber->block->shared.get())->stages; }

// Blocks of a kernel, run to their end.
template <class Shared, class Body>
static void run_blocks(u32 grid, u32 threads, const Body& body) {
    Fibers fibers;
    std::vector<std::unique_ptr<BlockRun>> blocks;
    for (u32 b = 0; b < grid; b++) {
        blocks.push_back(std::make_unique<BlockRun>());
        BlockRun* run = blocks.back().get();
        run->index = b, run->grid = grid, run->threads = threads;
        run->shared = std::shared_ptr<void>(aligned_alloc(128, (sizeof(Shared) + 127) / 128 * 128), free);
        for (u32 t = 0; t < threads; t++) fibers.add(run, 0, t, body);
    }
    fibers.run(dice() % 2);
}

// Operands in the order of ranks; where one of them is in place it comes first.
template <class T>
static void additions_are_right(const char* what, u32 adds) {
    u32 n = 2 + dice() % (HAWSER_FOLD_OPERANDS - 1), grid = 1 + dice() % 5, own = dice() % (2 * n);
    u32 bytes = 16 * (1 + dice() % (dice() % 3 == 0 ? 4000 : 300)), count = bytes / sizeof(T);
    std::vector<std::vector<T>> memory(n + 1, std::vector<T>(count + 64 / sizeof(T), (T)77));
    auto start = [&](u32 i) { return ((u64)memory[i].data() + 31) / 16 * 16; };
    HawserFold a{};
    a.n = (uint8_t)n, a.adds = (uint8_t)adds, a.bytes = bytes;
    for (u32 i = 0; i < n; i++) {
        a.from[i] = start(i);
        for (u32 e = 0; e < count; e++) ((T*)a.from[i])[e] = (T)((dice() % 100000) * (T)3 / (T)7);
    }
    a.to = own < n ? a.from[own] : start(n);
    std::vector<T> wanted(count);
    if (own < n) std::memcpy(wanted.data(), (void*)a.to, bytes);
    bool begun = own < n;
    for (u32 i = 0; i < n; i++) {
        for (u32 e = 0; i != own && e < count; e++) {
            volatile T sum = begun ? wanted[e] + ((T*)a.from[i])[e] : ((T*)a.from[i])[e];
            wanted[e] = sum;
        }
        begun |= i != own;
    }
    auto& target = memory[own < n ? own : n];
    std::vector<T> before(target);
    run_blocks<AddShared>(grid, 1, [&a] { add_operands(a); });
    REQUIRE(bulk_copies.empty(), "%s: copies that nobody waited for", what);
    for (auto& [fiber, groups] : bulk_groups)
        for (auto& group : groups)
            for (BulkWrite& w : group) REQUIRE(w.is_there, "%s: a write that nobody waited for", what);
    bulk_groups.clear();
    for (u32 e = 0; e < count; e++) REQUIRE(((T*)a.to)[e] == wanted[e], "%s: element %u of %u of %u operands, %u", what, e, count, n, own);
    u64 first = (a.to - (u64)target.data()) / sizeof(T);
    for (u64 i = 0; i < target.size(); i++)
        REQUIRE((i >= first && i < first + count) || target[i] == before[i], "%s: wrote element %d", what, (int)(i - first));
}

template <class M, class T, class Make, class Expected>
static void folds_are_right(const char* what, u32 form, u64 scalar, Make make, Expected expected) {
    u32 n = 2 + dice() % (HAWSER_FOLD_OPERANDS - 1), grid = 1 + dice() % 3;
    u32 most = dice() % 3 == 0 ? 700000 : 5000, count = dice() % (most / sizeof(T)) + 1;
    bool odd = dice() % 4 == 0, in_place = dice() % 2;
    u32 place = dice() % n;
    std::vector<std::vector<unsigned char>> memory(n + 1, std::vector<unsigned char>(count * sizeof(T) + 96, 0xa5));
    HawserFold a{};
    a.n = (uint8_t)n, a.form = (uint8_t)form, a.bytes = count * sizeof(T), a.scalar = scalar, a.divisor = n;
    auto start = [&](u32 i) {
        u64 aligned = ((u64)memory[i].data() + 31) / 16 * 16;
        return odd ? aligned + dice() % 16 / sizeof(T) * sizeof(T) : aligned;
    };
    std::vector<T> wanted(count);
    std::vector<std::vector<T>> values(n, std::vector<T>(count));
    for (u32 i = 0; i < n; i++) {
        a.from[i] = start(i);
        for (T& v : values[i]) v = make(dice());
        std::memcpy((void*)a.from[i], values[i].data(), a.bytes);
    }
    for (u32 e = 0; e < count; e++) wanted[e] = expected(values, n, e);
    a.to = in_place ? a.from[place] : start(n);
    auto& target = memory[in_place ? place : n];
    std::vector<unsigned char> before(target);
    run_blocks<FoldShared>(grid, HAWSER_FOLD_THREADS, [&a] { fold_operands<M>(a); });
    REQUIRE(bulk_copies.empty(), "%s: copies that nobody waited for", what);
    for (u32 e = 0; e < count; e++)
        REQUIRE(std::memcmp((void*)(a.to + e * sizeof(T)), &wanted[e], sizeof(T)) == 0, "%s: element %u of %u of %u operands", what, e,
                count, n);
    u64 offset = a.to - (u64)target.data();
    for (u64 i = 0; i < target.size(); i++)
        REQUIRE((i >= offset && i < offset + a.bytes) || target[i] == before[i], "%s: wrote byte %d", what, (int)(i - offset));
}

bool folds_are_right(unsigned rounds) {
    for (u32 round = 0; round < 4 * rounds; round++) {
        additions_are_right<float>("float", HAWSER_ADDS_F32);
        additions_are_right<double>("double", HAWSER_ADDS_F64);
        additions_are_right<uint32_t>("32 bits", HAWSER_ADDS_U32);
        additions_are_right<uint64_t>("64 bits", HAWSER_ADDS_U64);
    }
    auto real = [](u32 h) { return (float)((int)(h % 2001) - 1000); };
    for (u32 round = 0; round < rounds; round++) {
        using Floats = std::vector<std::vector<float>>;
        folds_are_right<Math<float, Op::Sum>, float>("float sum", 0, 0, real, [](const Floats& v, u32 n, u32 e) {
            volatile float s = v[0][e];
            for (u32 i = 1; i < n; i++) s = s + v[i][e];
            return (float)s;
        });
        folds_are_right<Math<float, Op::PreMul>, float>("float average", HAWSER_FOLD_SCALE, __float_as_uint(0.3f), real,
                                                        [](const Floats& v, u32 n, u32 e) {
                                                            volatile float s = v[0][e] * 0.3f;
                                                            for (u32 i = 1; i < n; i++) {
                                                                volatile float x = v[i][e] * 0.3f;
                                                                s = s + x;
                                                            }
                                                            return (float)s;
                                                        });
        folds_are_right<Math<uint8_t, Op::Min>, uint8_t>("byte minimum", 0, 0, [](u32 h) { return (uint8_t)h; },
                                                         [](const std::vector<std::vector<uint8_t>>& v, u32 n, u32 e) {
                                                             uint8_t s = v[0][e];
                                                             for (u32 i = 1; i < n; i++) s = v[i][e] < s ? v[i][e] : s;
                                                             return s;
                                                         });
        folds_are_right<Math<i64, Op::SumDiv>, i64>("integer average", HAWSER_FOLD_DIVIDE, 0,
                                                    [](u32 h) { return (i64)(int)h * 77777; },
                                                    [](const std::vector<std::vector<i64>>& v, u32 n, u32 e) {
                                                        u64 s = 0;
                                                        for (u32 i = 0; i < n; i++) s += (u64)v[i][e];
                                                        return (i64)s / (i64)n;
                                                    });
        folds_are_right<Math<F16, Op::Sum>, uint16_t>("half sum", 0, 0,
                                                      [](u32 h) { return (uint16_t)__half_as_ushort(__float2half_rn((float)(h % 999) / 8)); },
                                                      [](const std::vector<std::vector<uint16_t>>& v, u32 n, u32 e) {
                                                          volatile float s = __half2float(__ushort_as_half(v[0][e]));
                                                          for (u32 i = 1; i < n; i++) s = s + __half2float(__ushort_as_half(v[i][e]));
                                                          return (uint16_t)__half_as_ushort(__float2half_rn(s));
                                                      });
    }
    return true;
}
