// A GEMM to compute beside transfers where cuBLAS is missing: C = X Y, square bfloat16 matrices, rows one after the other, sums in
// float. A block of 8 warps makes a tile of 128 x 128, two by four fragments of 16 x 16 per warp, from slices of 32 columns of X and
// rows of Y that lie twice in shared memory: while one is multiplied, the next is on its way. Sides are multiples of 128.

#include <cuda_bf16.h>
#include <mma.h>
#include <stdint.h>

namespace {

constexpr int TILE = 128, SLICE = 32, WARPS = 8;
// Padding keeps rows from meeting in one bank.
constexpr int X_ROW = SLICE + 8, Y_ROW = TILE + 8;
constexpr int THREADS = 32 * WARPS;

struct Slices {
    __nv_bfloat16 x[TILE * X_ROW];
    __nv_bfloat16 y[SLICE * Y_ROW];
};

// 16 bytes per thread and turn: two turns for each of the matrices.
struct Held {
    uint4 x[2], y[2];
};

[[maybe_unused]] __device__ void load(Held &held, const __nv_bfloat16 *x, const __nv_bfloat16 *y, uint32_t n, uint32_t slice) {
    for (int turn = 0; turn < 2; ++turn) {
        int i = threadIdx.x + turn * THREADS;
        int row = i / (SLICE / 8), column = i % (SLICE / 8) * 8;
        held.x[turn] = *reinterpret_cast<const uint4 *>(x + size_t(row) * n + size_t(slice) * SLICE + column);
        row = i / (TILE / 8), column = i % (TILE / 8) * 8;
        held.y[turn] = *reinterpret_cast<const uint4 *>(y + (size_t(slice) * SLICE + row) * n + column);
    }
}

[[maybe_unused]] __device__ void keep(Slices &slices, const Held &held) {
    for (int turn = 0; turn < 2; ++turn) {
        int i = threadIdx.x + turn * THREADS;
        *reinterpret_cast<uint4 *>(slices.x + i / (SLICE / 8) * X_ROW + i % (SLICE / 8) * 8) = held.x[turn];
        *reinterpret_cast<uint4 *>(slices.y + i / (TILE / 8) * Y_ROW + i % (TILE / 8) * 8) = held.y[turn];
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    hawser_gemm_bf16(const __nv_bfloat16 *x, const __nv_bfloat16 *y, __nv_bfloat16 *c, uint32_t n) {
#if __CUDA_ARCH__ >= 800
    using namespace nvcuda;
    __shared__ __align__(128) Slices slices[2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int warp_row = warp / 2 * 32, warp_column = warp % 2 * 64;
    x += size_t(blockIdx.y) * TILE * n;
    y += size_t(blockIdx.x) * TILE;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][4];
    for (auto &row : sums)
        for (auto &sum : row) wmma::fill_fragment(sum, 0.0f);
    Held held;
    load(held, x, y, n, 0);
    keep(slices[0], held);
    __syncthreads();
    uint32_t count = n / SLICE;
    for (uint32_t slice = 0; slice < count; ++slice) {
        const Slices &now = slices[slice % 2];
        if (slice + 1 < count) load(held, x, y, n, slice + 1);
        for (int k = 0; k < SLICE; k += 16) {
            wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> b[4];
            for (int i = 0; i < 2; ++i) wmma::load_matrix_sync(a[i], now.x + (warp_row + 16 * i) * X_ROW + k, X_ROW);
            for (int j = 0; j < 4; ++j) wmma::load_matrix_sync(b[j], now.y + k * Y_ROW + warp_column + 16 * j, Y_ROW);
            for (int i = 0; i < 2; ++i)
                for (int j = 0; j < 4; ++j) wmma::mma_sync(sums[i][j], a[i], b[j], sums[i][j]);
        }
        if (slice + 1 < count) keep(slices[(slice + 1) % 2], held);
        __syncthreads();
    }
    // Fragments go through shared memory: a patch of 16 x 16 floats per warp.
    float *patch = reinterpret_cast<float *>(&slices[0]) + warp * 256;
    c += (size_t(blockIdx.y) * TILE + warp_row) * n + size_t(blockIdx.x) * TILE + warp_column;
    for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) {
            wmma::store_matrix_sync(patch, sums[i][j], 16, wmma::mem_row_major);
            __syncwarp();
            for (int at = lane; at < 256; at += 32)
                c[size_t(16 * i + at / 16) * n + 16 * j + at % 16] = __float2bfloat16(patch[at]);
            __syncwarp();
        }
#else
    // Tensor cores take bfloat16 from sm_80 on; before, every thread makes elements by itself.
    for (int at = threadIdx.x; at < TILE * TILE; at += THREADS) {
        size_t row = size_t(blockIdx.y) * TILE + at / TILE, column = size_t(blockIdx.x) * TILE + at % TILE;
        float sum = 0.0f;
        for (uint32_t k = 0; k < n; ++k) sum += __bfloat162float(x[row * n + k]) * __bfloat162float(y[size_t(k) * n + column]);
        c[row * n + column] = __float2bfloat16(sum);
    }
#endif
}
