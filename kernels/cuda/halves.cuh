// Matrix instructions on f16, and what attention does around them.
//
// m16n8k16: A is 16 rows of 16, B 8 columns. Lane 4 g + t has of A rows g and g + 8, of B column g, both of them at 2 t, 2 t + 1,
// 2 t + 8 and 2 t + 9 of the 16, and of the result rows g and g + 8 by columns 2 t and 2 t + 1.
#ifndef GANTRY_HALVES_CUH
#define GANTRY_HALVES_CUH

#include "mma.cuh"

namespace halves {

// d += a b, in f32.
DEVICE void multiply(float (&d)[4], const uint4 &a, uint b0, uint b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// d = a b.
DEVICE void first(float (&d)[4], const uint4 &a, uint b0, uint b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "f"(0.0f));
}

// The two nearest f16, and what they stand for.
DEVICE uint pack(float low, float high) {
    uint two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
DEVICE float low_of(uint two) { return from_half((ushort)two); }
DEVICE float high_of(uint two) { return from_half((ushort)(two >> 16)); }

// 2^x to 2 units in the last place; 0 below 2^-126.
DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What bytes stand for that were xored with 0x80, as f16: two bytes of a word, `low` those of bytes 0 and 1.
DEVICE uint of_bytes(uint word, bool low) {
    uint two;
    const uint bits = __byte_perm(word, 0x64646464u, low ? 0x4140 : 0x4342);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(two) : "r"(bits), "r"(0x64806480u));
    return two;
}

// The same of bytes 0 and 2, or, `odd`, 1 and 3.
DEVICE uint of_every_other(uint word, bool odd) {
    uint two;
    const uint bits = __byte_perm(word, 0x64646464u, odd ? 0x4341 : 0x4240);
    asm("sub.f16x2 %0, %1, %2;" : "=r"(two) : "r"(bits), "r"(0x64806480u));
    return two;
}

// Read once: not kept in the first-level cache. Not a load of what never changes, for keys and values do.
DEVICE uint4 load_16(const uchar *at) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}
DEVICE uint4 load_8(const uchar *at) {
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}
DEVICE float load_half(const uchar *at) {
    ushort v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(at));
    return from_half(v);
}

DEVICE uint word_of(const uint4 &v, uint i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The largest, and the sum, over the lanes of a result's row: those of one g.
DEVICE float most_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
DEVICE float sum_of_row(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

constexpr float LOG2_E = 1.44269504088896340736f;
// Weights are up to 2^14: halves below that are exact to 2^-38 of the largest.
constexpr float RAISED = 14.0f;

// 2^e that brings the largest of some queries to 512 .. 1024, and 2^-e. Powers that f32 has.
struct power {
    float up;
    float down;
};
DEVICE power power_for(float most) {
    const int exponent = (int)(BITS(most) >> 23 & 255) - 127;
    int e = 9 - exponent;
    e = e < -118 ? -118 : e > 100 ? 100 : e;
    return {FROM_BITS((uint)(127 + e) << 23), FROM_BITS((uint)(127 - e) << 23)};
}

} // namespace halves

#endif
