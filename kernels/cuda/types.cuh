// Element types and what the operations do to them, on pieces of 8 bytes.
//
// `Type<T>` unpacks a piece into N accumulators and packs it again. 16-bit and 8-bit floats
// accumulate in float over all operands of a step and are rounded once; 8-bit integers stay packed,
// four to an accumulator. Maximum and minimum of floats return the other operand if one is a NaN.
#pragma once

#include "pieces.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if __CUDA_ARCH__ >= 890
#include <cuda_fp8.h>
#endif

namespace hawser {

enum class Op { Copy, Sum, Prod, Max, Min, PreMul, SumDiv };

// Less code where bandwidth is bounded elsewhere: before NVLink 3, and where 8-bit floats are
// converted by software.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool SLOW_LINKS = true;
#else
constexpr bool SLOW_LINKS = false;
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
constexpr bool SOFT_FP8 = true;
#else
constexpr bool SOFT_FP8 = false;
#endif

struct F16 { uint16_t bits; };
struct BF16 { uint16_t bits; };
struct E4M3 { uint8_t bits; };
struct E5M2 { uint8_t bits; };

// 8-bit floats in software, for devices without conversion instructions. Rounding to nearest even,
// saturating to the largest finite value; NaN stays NaN.
struct SoftFp8 {
    __host__ __device__ static u32 bits(float f) {
        union { float f; u32 u; } v{f};
        return v.u;
    }
    __host__ __device__ static float value(u32 u) {
        union { u32 u; float f; } v{u};
        return v.f;
    }
    // MANTISSA bits of mantissa, exponent bias BIAS, largest finite value MAX.
    template <int MANTISSA, int BIAS>
    __host__ __device__ static u32 round(float f, float max) {
        u32 sign = (bits(f) >> 24) & 0x80, magnitude = bits(f) & 0x7fffffff;
        if (magnitude > 0x7f800000) return sign | 0x7f;
        float a = value(magnitude);
        a = a < max ? a : max;
        if (magnitude < (u32)(128 - BIAS) << 23) { // denormal: adding a power of two rounds at its unit
            float unit = value((u32)(127 + 1 - BIAS - MANTISSA + 23) << 23);
            return sign | (bits(a + unit) & 0xff);
        }
        constexpr int DROP = 23 - MANTISSA;
        u32 v = bits(a);
        v += (1u << (DROP - 1)) - 1 + ((v >> DROP) & 1);
        return sign | ((v >> DROP) - ((127 - BIAS) << MANTISSA));
    }
    __host__ __device__ static u32 e4m3(float f) { return round<3, 7>(f, 448.f); }
    __host__ __device__ static u32 e5m2(float f) { return round<2, 15>(f, 57344.f); }
    __host__ __device__ static float from_e4m3(u32 b) {
        u32 sign = (b & 0x80) << 24, magnitude = b & 0x7f;
        float a = value(magnitude << 20) * value((u32)(127 + 120) << 23);
        return value(sign | (magnitude == 0x7f ? 0x7fc00000 : bits(a)));
    }
    __host__ __device__ static float from_e5m2(u32 b) {
        u32 sign = (b & 0x80) << 24, magnitude = b & 0x7f;
        float a = value(magnitude << 21) * value((u32)(127 + 112) << 23);
        return value(sign | (magnitude >= 0x7c ? 0x7f800000 | (magnitude & 3) << 21 : bits(a)));
    }
};

template <class T>
struct Type;

// Pairs of small floats, which one instruction makes.
template <class Pair>
__device__ __forceinline__ u64 two_words(const Pair& low, const Pair& high) {
    static_assert(sizeof(Pair) == 4, "a word");
    return *reinterpret_cast<const u32*>(&low) | (u64)*reinterpret_cast<const u32*>(&high) << 32;
}

template <>
struct Type<float> {
    using Acc = float;
    static constexpr int N = 2, SIZE = 4;
    __device__ static void unpack(u64 v, Acc* a) {
        a[0] = __uint_as_float((u32)v);
        a[1] = __uint_as_float((u32)(v >> 32));
    }
    __device__ static u64 pack(const Acc* a) { return __float_as_uint(a[0]) | (u64)__float_as_uint(a[1]) << 32; }
};

template <>
struct Type<double> {
    using Acc = double;
    static constexpr int N = 1, SIZE = 8;
    __device__ static void unpack(u64 v, Acc* a) { a[0] = __longlong_as_double((long long)v); }
    __device__ static u64 pack(const Acc* a) { return (u64)__double_as_longlong(a[0]); }
};

template <>
struct Type<F16> {
    using Acc = float;
    static constexpr int N = 4, SIZE = 2;
    __device__ static void unpack(u64 v, Acc* a) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = __half2float(__ushort_as_half((unsigned short)(v >> (16 * i))));
    }
    __device__ static u64 pack(const Acc* a) {
        __half2 low = __floats2half2_rn(a[0], a[1]), high = __floats2half2_rn(a[2], a[3]);
        return two_words(low, high);
    }
};

template <>
struct Type<BF16> {
    using Acc = float;
    static constexpr int N = 4, SIZE = 2;
    __device__ static void unpack(u64 v, Acc* a) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = __uint_as_float((u32)(v >> (16 * i)) << 16);
    }
    __device__ static u64 pack(const Acc* a) {
        __nv_bfloat162 low = __floats2bfloat162_rn(a[0], a[1]), high = __floats2bfloat162_rn(a[2], a[3]);
        return two_words(low, high);
    }
};

#if __CUDA_ARCH__ >= 890
template <__nv_fp8_interpretation_t KIND>
struct Fp8 {
    using Acc = float;
    static constexpr int N = 8, SIZE = 1;
    __device__ static void unpack(u64 v, Acc* a) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(v >> (16 * i)), KIND);
            float2 f = __half22float2(__half2(h));
            a[2 * i] = f.x;
            a[2 * i + 1] = f.y;
        }
    }
    __device__ static u64 pack(const Acc* a) {
        u64 v = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 f = make_float2(a[2 * i], a[2 * i + 1]);
            v |= (u64)__nv_cvt_float2_to_fp8x2(f, __NV_SATFINITE, KIND) << (16 * i);
        }
        return v;
    }
};
template <> struct Type<E4M3> : Fp8<__NV_E4M3> {};
template <> struct Type<E5M2> : Fp8<__NV_E5M2> {};
#else
template <float (*FROM)(u32), u32 (*TO)(float)>
struct Fp8 {
    using Acc = float;
    static constexpr int N = 8, SIZE = 1;
    __device__ static void unpack(u64 v, Acc* a) {
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] = FROM((u32)(v >> (8 * i)) & 0xff);
    }
    __device__ static u64 pack(const Acc* a) {
        u64 v = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) v |= (u64)TO(a[i]) << (8 * i);
        return v;
    }
};
template <> struct Type<E4M3> : Fp8<SoftFp8::from_e4m3, SoftFp8::e4m3> {};
template <> struct Type<E5M2> : Fp8<SoftFp8::from_e5m2, SoftFp8::e5m2> {};
#endif

template <class T>
struct Wide { // 8-byte integers
    using Acc = T;
    static constexpr int N = 1, SIZE = 8;
    __device__ static void unpack(u64 v, Acc* a) { a[0] = (T)v; }
    __device__ static u64 pack(const Acc* a) { return (u64)a[0]; }
};
template <> struct Type<u64> : Wide<u64> {};
template <> struct Type<i64> : Wide<i64> {};

template <class T>
struct Words { // 4-byte integers
    using Acc = T;
    static constexpr int N = 2, SIZE = 4;
    __device__ static void unpack(u64 v, Acc* a) {
        a[0] = (T)(u32)v;
        a[1] = (T)(u32)(v >> 32);
    }
    __device__ static u64 pack(const Acc* a) { return (u32)a[0] | (u64)(u32)a[1] << 32; }
};
template <> struct Type<u32> : Words<u32> {};
template <> struct Type<i32> : Words<i32> {};

// 1-byte integers: four to an accumulator; the sign matters to the operation only.
struct Bytes {
    static constexpr int N = 2, SIZE = 1;
    template <class A>
    __device__ static void unpack(u64 v, A* a) {
        a[0].v = (u32)v;
        a[1].v = (u32)(v >> 32);
    }
    template <class A>
    __device__ static u64 pack(const A* a) { return a[0].v | (u64)a[1].v << 32; }
};
struct U8x4 { u32 v; };
struct I8x4 { u32 v; };
template <> struct Type<uint8_t> : Bytes { using Acc = U8x4; };
template <> struct Type<int8_t> : Bytes { using Acc = I8x4; };

// Even and odd bytes apart, in 16-bit fields.
__device__ __forceinline__ u32 evens(u32 v) { return v & 0x00ff00ff; }
__device__ __forceinline__ u32 odds(u32 v) { return (v >> 8) & 0x00ff00ff; }
__device__ __forceinline__ u32 weave(u32 even, u32 odd) { return evens(even) | evens(odd) << 8; }

// a ⊕ b
template <Op OP, class A>
__device__ __forceinline__ A apply(A a, A b) {
    if constexpr (OP == Op::Prod) return a * b;
    else if constexpr (OP == Op::Max) return a > b ? a : b;
    else if constexpr (OP == Op::Min) return a < b ? a : b;
    else return a + b;
}
template <Op OP>
__device__ __forceinline__ float apply(float a, float b) {
    if constexpr (OP == Op::Prod) return a * b;
    else if constexpr (OP == Op::Max) return fmaxf(a, b);
    else if constexpr (OP == Op::Min) return fminf(a, b);
    else return a + b;
}
template <Op OP>
__device__ __forceinline__ double apply(double a, double b) {
    if constexpr (OP == Op::Prod) return a * b;
    else if constexpr (OP == Op::Max) return fmax(a, b);
    else if constexpr (OP == Op::Min) return fmin(a, b);
    else return a + b;
}
template <Op OP>
__device__ __forceinline__ U8x4 apply(U8x4 a, U8x4 b) {
    if constexpr (OP == Op::Prod) {
        u32 e0 = (a.v & 0xff) * (b.v & 0xff), e1 = ((a.v >> 16) & 0xff) * ((b.v >> 16) & 0xff);
        u32 o0 = ((a.v >> 8) & 0xff) * ((b.v >> 8) & 0xff), o1 = (a.v >> 24) * (b.v >> 24);
        return {weave(e0 | e1 << 16, (o0 & 0xff) | o1 << 16)};
    } else if constexpr (OP == Op::Max) return {__vmaxu4(a.v, b.v)};
    else if constexpr (OP == Op::Min) return {__vminu4(a.v, b.v)};
    else return {__vadd4(a.v, b.v)};
}
template <Op OP>
__device__ __forceinline__ I8x4 apply(I8x4 a, I8x4 b) {
    if constexpr (OP == Op::Max) return {__vmaxs4(a.v, b.v)};
    else if constexpr (OP == Op::Min) return {__vmins4(a.v, b.v)};
    else return {__vadd4(a.v, b.v)};
}

// The factor of a pre-multiplied sum: float, double or the integer, from its bits. Products are
// never fused into the sum and are rounded to the element type: in a one-shot all-reduce every rank
// must see the same product, whether it scales its own operand or receives a scaled one.
template <class A> struct Factor { using Kind = A; };
template <> struct Factor<U8x4> { using Kind = u32; };
template <> struct Factor<I8x4> { using Kind = u32; };

__device__ __forceinline__ float scaled(float a, float f) { return __fmul_rn(a, f); }
__device__ __forceinline__ double scaled(double a, double f) { return __dmul_rn(a, f); }
__device__ __forceinline__ u32 scaled(u32 a, u32 f) { return a * f; }
__device__ __forceinline__ u64 scaled(u64 a, u64 f) { return a * f; }
__device__ __forceinline__ U8x4 scaled(U8x4 a, u32 f) { return {weave(evens(a.v) * f, odds(a.v) * f)}; }

__device__ __forceinline__ void from_bits(u64 bits, float& f) { f = __uint_as_float((u32)bits); }
__device__ __forceinline__ void from_bits(u64 bits, double& f) { f = __longlong_as_double((long long)bits); }
__device__ __forceinline__ void from_bits(u64 bits, u32& f) { f = (u32)bits; }
__device__ __forceinline__ void from_bits(u64 bits, u64& f) { f = bits; }

// a / divisor, towards zero. Bytes: (|a| * ceil(2^16 / divisor)) >> 16 is exact for |a| < 256.
__device__ __forceinline__ u32 divided(u32 a, u32 d) { return a / d; }
__device__ __forceinline__ i32 divided(i32 a, u32 d) {
    u32 q = (a < 0 ? 0u - (u32)a : (u32)a) / d;
    return (i32)(a < 0 ? 0u - q : q);
}
__device__ __forceinline__ u64 divided(u64 a, u32 d) { return a / d; }
__device__ __forceinline__ i64 divided(i64 a, u32 d) { return a / (i64)d; }
__device__ __forceinline__ U8x4 divided(U8x4 a, u32 d) {
    u32 m = (65535 + d) / d, q = 0; // d = 1: 65536
#pragma unroll
    for (int i = 0; i < 4; i++) q |= ((((a.v >> (8 * i)) & 0xff) * m) >> 16) << (8 * i);
    return {q};
}
__device__ __forceinline__ I8x4 divided(I8x4 a, u32 d) {
    u32 m = (65535 + d) / d, q = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        i32 v = (int8_t)(a.v >> (8 * i));
        i32 w = (i32)(((u32)(v < 0 ? -v : v) * m) >> 16);
        q |= ((u32)(v < 0 ? -w : w) & 0xff) << (8 * i);
    }
    return {q};
}

template <class A> constexpr bool IS_FLOAT = false;
template <> constexpr bool IS_FLOAT<float> = true;
template <> constexpr bool IS_FLOAT<double> = true;

// What one kernel does: operation OP on elements of type T, whose operands it combines along the nested tree (nest.cuh) or as it is told.
template <class T, Op OPERATION, bool IS_NESTED = false>
struct Math {
    static constexpr bool NESTED = IS_NESTED;
    static constexpr Op OP = OPERATION;
    static constexpr int N = Type<T>::N, SIZE = Type<T>::SIZE;
    using Acc = typename Type<T>::Acc;
    using Scalar = typename Factor<Acc>::Kind;

    struct Value {
        Acc a[N];
    };

    Scalar factor;
    u32 divisor;

    __device__ __forceinline__ static Value value(u64 piece) {
        Value v;
        Type<T>::unpack(piece, v.a);
        return v;
    }
    // A local operand, scaled if `pre`.
    __device__ __forceinline__ Value value(u64 piece, bool pre) const {
        Value v = value(piece);
        if constexpr (OP == Op::PreMul) {
            if (pre) {
#pragma unroll
                for (int i = 0; i < N; i++) v.a[i] = scaled(v.a[i], factor);
                if constexpr (SIZE < (int)sizeof(Scalar)) v = value(Type<T>::pack(v.a));
            }
        }
        return v;
    }
    // v = v ⊕ w, or w if it is the first operand.
    __device__ __forceinline__ static void fold(Value& v, const Value& w, bool first) {
#pragma unroll
        for (int i = 0; i < N; i++) v.a[i] = first ? w.a[i] : apply<OP>(v.a[i], w.a[i]);
    }
    // Whether the bits of a result depend on the order of operands.
    static constexpr bool IS_ORDERED = OP != Op::Copy && IS_FLOAT<Acc>;
    // v ⊕ w, rounded to the element type.
    __device__ __forceinline__ static Value joined(Value v, const Value& w) {
        fold(v, w, false);
        if constexpr (SIZE < (int)sizeof(Acc)) v = value(Type<T>::pack(v.a));
        return v;
    }
    __device__ __forceinline__ u64 piece(Value v, bool post) const {
        if constexpr (OP == Op::SumDiv) {
            if (post) {
#pragma unroll
                for (int i = 0; i < N; i++) v.a[i] = divided(v.a[i], divisor);
            }
        }
        return Type<T>::pack(v.a);
    }
    // The factor, from the arguments or from device memory.
    __device__ __forceinline__ void load_factor(u64 scalar, bool is_address) {
        if constexpr (OP == Op::PreMul) {
            if (is_address) {
                u64 bits = load_piece<SIZE>(scalar, SIZE);
                if constexpr (sizeof(Acc) == 4 && SIZE < 4 && !(N == 2)) factor = value(bits).a[0];
                else from_bits(bits, factor);
            } else {
                from_bits(scalar, factor);
            }
            if constexpr (SIZE == 1 && N == 2) factor &= 0xff;
        }
    }
};

} // namespace hawser
