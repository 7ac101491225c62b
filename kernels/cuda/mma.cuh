// Matrix instructions on int8, and how sums over blocks of 32 are made with them.
//
// m16n8k32: A is 16 rows of weights, B 8 tokens, 32 columns. Lane 4 g + t has of A rows g and g + 8, of B token g, and of the
// result rows g and g + 8 by tokens 2 t and 2 t + 1. Which columns it has does not matter as long as A and B agree: here
// columns 8 t .. 8 t + 8 of the 32, as `i8.frag.nv_a32` has them (`nv_a64`: 16 t .. 16 t + 16 of 64, in two steps).
//
// One scale per 32: the columns of a row are cut into at most 16 chunks of as many blocks, a multiple of 4, which depends on
// nothing but their number (chunk_blocks). In a chunk, blocks ascending from 0: acc = fma(f32(sum * d_w), d_x, acc), one rounding
// each; then the chunks are added, ascending. So every kernel here gives the same bits, for any number of tokens. (The portable
// kernels of kernels/device add in another order: where they take fewer tokens, those have other bits than many.)
#ifndef GANTRY_MMA_CUH
#define GANTRY_MMA_CUH

#include "../device/portable.h"

#include <type_traits>

#define DEVICE_MEMBER __device__ __forceinline__

namespace mma {

// Chunks of a row at most.
constexpr uint CHUNKS = 16;

// Blocks of a chunk of a row of `blocks`; its last may be shorter.
DEVICE uint chunk_blocks(uint blocks) { return (blocks + 4 * CHUNKS - 1) / (4 * CHUNKS) * 4; }

// 1.5 * 2^23: an int of less than 2^22 added to its bits is one added to the float. A block's sum is below 2^20.
constexpr float MAGIC = 12582912.0f;
constexpr int MAGIC_BITS = 0x4b400000;

// d = a b + c.
DEVICE void multiply(int (&d)[4], const uint4 &a, const uint2 &b, const int (&c)[4]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}

// Scales of weights of two rows: d, and what takes MAGIC out again. 3 * 2^22 * d is exact, for d has at most 16 bits.
struct row_scales {
    float d[2];
    float take[2];
};

DEVICE row_scales scales_of(float first, float second) {
    return {{first, second}, {MUL(first, -MAGIC), MUL(second, -MAGIC)}};
}

// Adds a block to the sums of two rows by two tokens.
DEVICE void add_block(float (&sums)[4], const uint4 &a, const uint2 &b, const row_scales &w, float d0, float d1) {
    const int magic[4] = {MAGIC_BITS, MAGIC_BITS, MAGIC_BITS, MAGIC_BITS};
    int s[4];
    multiply(s, a, b, magic);
    sums[0] = fmaf(fmaf(__int_as_float(s[0]), w.d[0], w.take[0]), d0, sums[0]);
    sums[1] = fmaf(fmaf(__int_as_float(s[1]), w.d[0], w.take[0]), d1, sums[1]);
    sums[2] = fmaf(fmaf(__int_as_float(s[2]), w.d[1], w.take[1]), d0, sums[2]);
    sums[3] = fmaf(fmaf(__int_as_float(s[3]), w.d[1], w.take[1]), d1, sums[3]);
}

DEVICE uint shared_address(const void *at) { return (uint)__cvta_generic_to_shared(at); }

// Copies 16, 8 or 4 bytes to shared memory, later; `bytes` 0: zeros, and nothing is read.
DEVICE void copy_16(uint to, const void *from, uint bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy_8(uint to, const void *from, uint bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copy_4(uint to, const void *from, uint bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
DEVICE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for all but the last `LEFT` groups of copies.
template <int LEFT>
DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Weights are read once: they shall not push activations out of the caches.
DEVICE ulong read_once() {
    ulong policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
DEVICE uint4 weights_16(const uchar *at, ulong policy) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at), "l"(policy));
    return v;
}

// The same, or nothing; what was there stays.
DEVICE void weights_16_if(uint4 &v, bool some, const uchar *at, ulong policy) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %6, 0;\n\t"
                 "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;\n\t}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(at), "l"(policy), "r"((uint)some));
}
DEVICE void weights_8_if(uint2 &v, bool some, const ushort *at, ulong policy) {
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %4, 0;\n\t"
                 "@p ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;\n\t}"
                 : "+r"(v.x), "+r"(v.y)
                 : "l"(at), "l"(policy), "r"((uint)some));
}
DEVICE void weights_2_if(uint &v, bool some, const ushort *at, ulong policy) {
    ushort w = (ushort)v;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\t"
                 "@p ld.global.nc.L1::no_allocate.L2::cache_hint.u16 %0, [%1], %2;\n\t}"
                 : "+h"(w)
                 : "l"(at), "l"(policy), "r"((uint)some));
    v = w;
}

} // namespace mma

#endif
