// Matrix instructions on bf16 weights with f32 activations.
//
// An activation is cut into three bf16 parts whose sum it is: its upper half, that of what is left, and the rest, 8 bits of its
// 24 each. Products of parts with weights are exact in f32. Parts below 2^-133 are lost; an infinite activation gives NaN.
//
// m16n8k16: A is 16 rows of weights, B 8 tokens, 16 columns. Lane 4 g + t has of A rows g and g + 8, of B token g, columns 2 t,
// 2 t + 1, 2 t + 8, 2 t + 9, and of the result rows g and g + 8 by tokens 2 t and 2 t + 1.
//
// The instruction cuts its sums off, where IEEE rounds them: what it adds up is kept short, and then added as f32.
#ifndef GANTRY_BF16_CUH
#define GANTRY_BF16_CUH

#include "mma.cuh"

namespace bf16 {

using namespace mma;

constexpr int PARTS = 3;

// Two activations, a part of both in a word: the smallest part first.
DEVICE void split(float a, float b, uint (&parts)[PARTS]) {
    UNROLL
    for (int i = PARTS - 1; i >= 0; i--) {
        const uint u = BITS(a), v = BITS(b);
        parts[i] = __byte_perm(u, v, 0x7632);
        a = SUB(a, FROM_BITS(u & 0xffff0000u)), b = SUB(b, FROM_BITS(v & 0xffff0000u));
    }
}

// d += a b.
DEVICE void multiply(float (&d)[4], const uint4 &a, uint b0, uint b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// A of 16 rows by 16 columns in shared memory: lane i gives the address of 8 columns of row i % 16, the first or, from lane 16
// on, the last.
DEVICE uint4 load_rows(uint address) {
    uint4 a;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a.x), "=r"(a.y), "=r"(a.z), "=r"(a.w)
                 : "r"(address));
    return a;
}

// Begins to copy 16 bytes that are read once.
DEVICE void copy_once(uint to, const void *from, uint bytes, ulong policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(policy)
                 : "memory");
}

} // namespace bf16

#endif
