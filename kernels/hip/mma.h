/* Matrix instructions of AMD's and Hygon's cards, one wave for all of it: 16 rows of int8 by 16 rows of int8 over some k, sums
 * in int32. The same source has them where they are, and elsewhere (OpenCL, told by MMA_*) by what their makers' manuals say of
 * which lane has what; so what the kernels do with them runs on any OpenCL device.
 *
 *   instruction            lanes  k of an operand's byte i of lane l    in row   sum i of lane l: of A's row, of B's row
 *   CDNA2 mfma 16x16x16      64   4 (l >> 4) + i       (i < 4)         l & 15   4 (l >> 4) + i    l & 15
 *   CDNA3 mfma 16x16x32      64   8 (l >> 4) + i       (i < 8)         l & 15   4 (l >> 4) + i    l & 15
 *   gfx928 mmac 16x16x32     64   8 (l >> 4) + i       (i < 8)         l & 15   l & 15            (l >> 4) + 4 i
 *   RDNA3 wmma 16x16x16      32   i (i < 16), both halves alike        l & 15   2 i + (l >> 4)    l & 15
 *   RDNA4 wmma 16x16x16      32   8 (l >> 4) + i       (i < 8)         l & 15   8 (l >> 4) + i    l & 15
 *
 * Weights are the operand of which a lane's sums are all of one row, row l & 15; tokens are those of MMA_TOKEN. */
#ifndef GANTRY_MMA_H
#define GANTRY_MMA_H

#include "../device/portable.h"

#if defined(__gfx90a__)
#define MMA_CDNA2
#elif defined(__gfx942__) || defined(__gfx950__)
#define MMA_CDNA3
#elif defined(__gfx928__)
#define MMA_GFX928
#elif defined(__GFX11__)
#define MMA_RDNA3
#elif defined(__GFX12__)
#define MMA_RDNA4
#endif

/* Lanes of a wave, k of an instruction, words of an operand for a lane, sums of a lane. */
#if defined(MMA_CDNA2)
#define MMA_LANES 64
#define MMA_K 16
#define MMA_SUMS 4
#define MMA_TOKEN(lane, i) (4 * ((lane) >> 4) + (i))
#elif defined(MMA_CDNA3)
#define MMA_LANES 64
#define MMA_K 32
#define MMA_SUMS 4
#define MMA_TOKEN(lane, i) (4 * ((lane) >> 4) + (i))
#elif defined(MMA_GFX928)
#define MMA_LANES 64
#define MMA_K 32
#define MMA_SUMS 4
#define MMA_TOKEN(lane, i) (((lane) >> 4) + 4 * (i))
#elif defined(MMA_RDNA3)
#define MMA_LANES 32
#define MMA_K 16
#define MMA_SUMS 8
#define MMA_TOKEN(lane, i) (2 * (i) + ((lane) >> 4))
#elif defined(MMA_RDNA4)
#define MMA_LANES 32
#define MMA_K 16
#define MMA_SUMS 8
#define MMA_TOKEN(lane, i) (8 * ((lane) >> 4) + (i))
#endif

#if defined(MMA_LANES)

/* Bytes of an operand that a lane has for an instruction, and instructions for 32 k. */
#if defined(MMA_RDNA3)
#define MMA_BYTES 16
#else
#define MMA_BYTES (16 * MMA_K / MMA_LANES)
#endif
#define MMA_STEPS (32 / MMA_K)

/* An operand's part of a lane, as it is loaded, and how many there are for 32 k. */
#if MMA_LANES == 64
typedef ulong mma_part;
#define MMA_PARTS 1
#elif defined(MMA_RDNA3)
typedef uint4 mma_part;
#define MMA_PARTS 2
#else
typedef uint2 mma_part;
#define MMA_PARTS 2
#endif

/* The wave of a member: one number for all of it. And its lane. */
#if defined(__HIP__)
#define MMA_WAVE ((uint)__builtin_amdgcn_readfirstlane(LID / MMA_LANES))
#else
#define MMA_WAVE (LID / MMA_LANES)
#endif
#define MMA_LANE (LID % MMA_LANES)

#if defined(__HIP__)

/* Local memory of a group of so many members, where the instruction is not there. */
#define MMA_ROOM(name, members)
#define MMA_GIVEN(name) ((mma_part *)0)

typedef int mma_int2 __attribute__((ext_vector_type(2)));
typedef int mma_int4 __attribute__((ext_vector_type(4)));
typedef int mma_int8 __attribute__((ext_vector_type(8)));

/* Adds to `sums` those of the products of 16 rows of weights and 16 tokens over 32 k. */
DEVICE void mma_block(LOCAL mma_part *room, int *sums, const mma_part *weights, const mma_part *tokens) {
    (void)room;
#if MMA_SUMS == 4
    mma_int4 c = {sums[0], sums[1], sums[2], sums[3]};
#if defined(MMA_CDNA2)
    c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)tokens[0], (int)weights[0], c, 0, 0, 0);
    c = __builtin_amdgcn_mfma_i32_16x16x16i8((int)(tokens[0] >> 32), (int)(weights[0] >> 32), c, 0, 0, 0);
#elif defined(MMA_CDNA3)
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8((long)tokens[0], (long)weights[0], c, 0, 0, 0);
#else
    /* By the assembler's name for it: compilers that know gfx928 differ in that of the builtin. */
    asm("v_mmac_i32_16x16x32_i8 %0, %1, %2, %0" : "+v"(c) : "v"(weights[0]), "v"(tokens[0]));
#endif
    sums[0] = c.x, sums[1] = c.y, sums[2] = c.z, sums[3] = c.w;
#else
    mma_int8 c = {sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};
    UNROLL
    for (uint i = 0; i < MMA_STEPS; i++) {
#if defined(MMA_RDNA3)
        const mma_int4 a = __builtin_bit_cast(mma_int4, tokens[i]), b = __builtin_bit_cast(mma_int4, weights[i]);
        c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32(true, a, true, b, c, false);
#else
        const mma_int2 a = __builtin_bit_cast(mma_int2, tokens[i]), b = __builtin_bit_cast(mma_int2, weights[i]);
        c = __builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12(true, a, true, b, c, false);
#endif
    }
    UNROLL
    for (uint i = 0; i < 8; i++) sums[i] = c[i];
#endif
}

#else

#define MMA_ROOM(name, members) SHARED(mma_part, name, (members) * 2 * MMA_PARTS)
#define MMA_GIVEN(name) (name)

/* The byte of an operand that is k of its row in an instruction, of the wave of a member that asks. */
DEVICE int mma_byte(LOCAL const mma_part *room, uint operand, uint step, uint row, uint k) {
#if defined(MMA_RDNA3)
    const uint lane = (MMA_LANE & 16u) + row;
#else
    const uint lane = k / MMA_BYTES * 16 + row;
#endif
    LOCAL const char *held =
        (LOCAL const char *)(room + ((LID / MMA_LANES * MMA_LANES + lane) * 2 + operand) * MMA_PARTS);
    return held[step * MMA_BYTES + k % MMA_BYTES];
}

DEVICE void mma_block(LOCAL mma_part *room, int *sums, const mma_part *weights, const mma_part *tokens) {
    const uint lane = MMA_LANE;
    for (uint i = 0; i < MMA_PARTS; i++) {
#if defined(MMA_GFX928)
        room[(LID * 2) * MMA_PARTS + i] = weights[i];
        room[(LID * 2 + 1) * MMA_PARTS + i] = tokens[i];
#else
        room[(LID * 2) * MMA_PARTS + i] = tokens[i];
        room[(LID * 2 + 1) * MMA_PARTS + i] = weights[i];
#endif
    }
    BARRIER();
    for (uint i = 0; i < MMA_SUMS; i++) {
#if defined(MMA_GFX928)
        const uint a_row = lane & 15u, b_row = (lane >> 4) + 4 * i;
#elif defined(MMA_RDNA3)
        const uint a_row = 2 * i + (lane >> 4), b_row = lane & 15u;
#elif defined(MMA_RDNA4)
        const uint a_row = 8 * (lane >> 4) + i, b_row = lane & 15u;
#else
        const uint a_row = 4 * (lane >> 4) + i, b_row = lane & 15u;
#endif
        int sum = sums[i];
        for (uint step = 0; step < MMA_STEPS; step++) {
            for (uint k = 0; k < MMA_K; k++) {
                sum += mma_byte(room, 0, step, a_row, k) * mma_byte(room, 1, step, b_row, k);
            }
        }
        sums[i] = sum;
    }
    BARRIER();
}

#endif

#endif
#endif
