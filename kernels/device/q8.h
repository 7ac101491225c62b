/* Blocks of 32 values as int8 with a scale, as the CPU makes them: d = max|x| / 127, q = x * (1/d) to the nearest, halves
 * to even. A block whose 1/d overflows is 0; one that holds a NaN or an infinity is 0 with a scale of NaN.
 *
 * Eight members have a block, four values each. */
#ifndef GANTRY_Q8_H
#define GANTRY_Q8_H

#include "portable.h"

/* The largest magnitude of a block, as bits, for each of its members; all members of the group ask at once. `room` holds a word
 * for each of them and is free again afterwards. */
DEVICE uint q8_most(LOCAL uint *room, const float *v) {
    uint most = 0;
    UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint size = BITS(v[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
#if defined(__CUDACC__)
    (void)room;
    UNROLL
    for (uint step = 4; step > 0; step /= 2) {
        const uint other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
    }
#else
    room[LID] = most;
    BARRIER();
    LOCAL const uint *eight = room + LID / 8 * 8;
    for (uint i = 0; i < 8; i++) most = eight[i] > most ? eight[i] : most;
    BARRIER();
#endif
    return most;
}

/* The scale of a block whose largest magnitude is `most`; what its values are multiplied with, 0 where all become 0. */
DEVICE float q8_scale(uint most, float *inverse) {
    const float largest = FROM_BITS(most);
    float d = DIV(largest, 127.0f);
    *inverse = DIV(1.0f, d);
    if (!is_finite(largest)) {
        d = FROM_BITS(0x7fc00000u);
        *inverse = 0.0f;
    } else if (!is_finite(*inverse)) {
        d = 0.0f;
        *inverse = 0.0f;
    }
    return d;
}

/* Four values of such a block as a word; its scale. */
DEVICE uint q8_word(uint most, const float *v, float *scale) {
    float inverse;
    *scale = q8_scale(most, &inverse);
    if (inverse == 0.0f) return 0;
    uint word = 0;
    UNROLL
    for (uint i = 0; i < 4; i++) word |= ((uint)(int)NEAREST(MUL(v[i], inverse)) & 0xffu) << (8 * i);
    return word;
}

#endif
