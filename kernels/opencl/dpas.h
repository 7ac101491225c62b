/* Intel's matrix instruction (DPAS) for int8, by a sub-group of 8 (Xe HPG) or 16 lanes (Xe HPC, Xe2), DPAS_LANES:
 * c[m][n] += sum over k of a[m][k] b[k][n], 8 rows m, 32 columns k, DPAS_LANES columns n.
 *
 * Lane n holds of a, for each row, the columns that are its share (4 n .. of 8 lanes, 2 n .. of 16); of b eight words, of which
 * word d has k = 4 d .. 4 d + 4 of column n; of c its column n, component m being row m. Where there is no such
 * instruction a group's members do the same over local memory, so that what surrounds it is tested as it is. */
#ifndef GANTRY_DPAS_H
#define GANTRY_DPAS_H

#include "portable.h"

#if DPAS_LANES == 16
typedef short8 dpas_a;
typedef ushort dpas_share;
#define DPAS_A(x) as_short8(x)
#define DPAS_SHARES ushort8
#else
typedef int8 dpas_a;
typedef uint dpas_share;
#define DPAS_A(x) as_int8(x)
#define DPAS_SHARES uint8
#endif

#if defined(GANTRY_SPIRV)

/* cl_intel_subgroup_matrix_multiply_accumulate and cl_intel_subgroups, _short: clang does not know the first. */
int8 __attribute__((overloadable)) intel_sub_group_i8_i8_matrix_mad_k32(dpas_a a, int8 b, int8 acc);
uint8 __attribute__((overloadable)) intel_sub_group_block_read8(const GLOBAL uint *p);
uint __attribute__((overloadable)) intel_sub_group_block_read(const GLOBAL uint *p);
ushort __attribute__((overloadable)) intel_sub_group_block_read_us(const GLOBAL ushort *p);

#define DPAS_KERNEL(size) __attribute__((intel_reqd_sub_group_size(DPAS_LANES))) KERNEL(size)
#define DPAS_SHARED(group)
#define DPAS(a, b, acc) intel_sub_group_i8_i8_matrix_mad_k32(a, as_int8(b), acc)

/* Words LID % DPAS_LANES of each of eight rows of DPAS_LANES words. */
DEVICE uint8 dpas_read_b(GLOBAL const uchar *at) { return intel_sub_group_block_read8((GLOBAL const uint *)at); }
/* A lane's share of 32 bytes. */
DEVICE dpas_share dpas_read_a(GLOBAL const uchar *at) {
#if DPAS_LANES == 16
    return intel_sub_group_block_read_us((GLOBAL const ushort *)at);
#else
    return intel_sub_group_block_read((GLOBAL const uint *)at);
#endif
}

#else

#define DPAS_KERNEL(size) KERNEL(size)
/* Words of a and b for each sub-group. */
#define DPAS_WORDS (64 + 8 * DPAS_LANES)
#define DPAS_SHARED(group) SHARED(uint, dpas_room, (group) / DPAS_LANES * DPAS_WORDS)
#define DPAS(a, b, acc) dpas(a, b, acc, dpas_room + LID / DPAS_LANES * DPAS_WORDS)

DEVICE uint8 dpas_read_b(GLOBAL const uchar *at) {
    GLOBAL const uint *from = (GLOBAL const uint *)at + LID % DPAS_LANES;
    return (uint8)(from[0], from[DPAS_LANES], from[2 * DPAS_LANES], from[3 * DPAS_LANES], from[4 * DPAS_LANES],
                   from[5 * DPAS_LANES], from[6 * DPAS_LANES], from[7 * DPAS_LANES]);
}
DEVICE dpas_share dpas_read_a(GLOBAL const uchar *at) {
    return ((GLOBAL const dpas_share *)at)[LID % DPAS_LANES];
}

/* By all members of the group at once. */
DEVICE int8 dpas(dpas_a a, uint8 b, int8 acc, LOCAL uint *room) {
    const uint lane = LID % DPAS_LANES;
    LOCAL dpas_share *rows = (LOCAL dpas_share *)room + lane;
    rows[0] = a.s0, rows[DPAS_LANES] = a.s1, rows[2 * DPAS_LANES] = a.s2, rows[3 * DPAS_LANES] = a.s3;
    rows[4 * DPAS_LANES] = a.s4, rows[5 * DPAS_LANES] = a.s5, rows[6 * DPAS_LANES] = a.s6, rows[7 * DPAS_LANES] = a.s7;
    LOCAL uint *column = room + 64 + lane;
    column[0] = b.s0, column[DPAS_LANES] = b.s1, column[2 * DPAS_LANES] = b.s2, column[3 * DPAS_LANES] = b.s3;
    column[4 * DPAS_LANES] = b.s4, column[5 * DPAS_LANES] = b.s5, column[6 * DPAS_LANES] = b.s6;
    column[7 * DPAS_LANES] = b.s7;
    BARRIER();
    for (uint d = 0; d < 8; d++) {
        const uint w = column[d * DPAS_LANES];
        LOCAL const uint *x = room + d;
        acc.s0 = DOT4(x[0], w, acc.s0), acc.s1 = DOT4(x[8], w, acc.s1);
        acc.s2 = DOT4(x[16], w, acc.s2), acc.s3 = DOT4(x[24], w, acc.s3);
        acc.s4 = DOT4(x[32], w, acc.s4), acc.s5 = DOT4(x[40], w, acc.s5);
        acc.s6 = DOT4(x[48], w, acc.s6), acc.s7 = DOT4(x[56], w, acc.s7);
    }
    BARRIER();
    return acc;
}

#endif

#endif
