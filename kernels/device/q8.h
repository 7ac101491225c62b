/* Blocks of 32 values as int8 with a scale, as the CPU makes them: d = max|x| / 127, q = x * (1/d) to the nearest, halves
 * to even. A block whose 1/d overflows is 0; one that holds a NaN or an infinity is 0 with a scale of NaN.
 *
 * Eight members have a block, four values each: each puts q8_most of its own into local memory, and after a barrier
 * q8_of_block has the block's. */
#ifndef GANTRY_Q8_H
#define GANTRY_Q8_H

#include "portable.h"

DEVICE uint q8_most(const float *v) {
    uint most = 0;
    UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint size = BITS(v[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    return most;
}

/* `most` holds 256 words, one for each member. */
DEVICE uint q8_of_block(LOCAL const uint *most) {
    LOCAL const uint4 *eight = (LOCAL const uint4 *)(most + LID / 8 * 8);
    const uint4 a = eight[0], b = eight[1];
    const uint c = a.x > a.y ? a.x : a.y, d = a.z > a.w ? a.z : a.w;
    const uint e = b.x > b.y ? b.x : b.y, f = b.z > b.w ? b.z : b.w;
    const uint g = c > d ? c : d, h = e > f ? e : f;
    return g > h ? g : h;
}

/* Four values of a block whose q8_most is `most`, as a word; its scale. */
DEVICE uint q8_word(uint most, const float *v, float *scale) {
    const float largest = FROM_BITS(most);
    float d = DIV(largest, 127.0f);
    float inverse = DIV(1.0f, d);
    if (!is_finite(largest)) {
        d = FROM_BITS(0x7fc00000u);
        inverse = 0.0f;
    } else if (!is_finite(inverse)) {
        d = 0.0f;
        inverse = 0.0f;
    }
    *scale = d;
    if (inverse == 0.0f) return 0;
    uint word = 0;
    UNROLL
    for (uint i = 0; i < 4; i++) word |= ((uint)(int)NEAREST(MUL(v[i], inverse)) & 0xffu) << (8 * i);
    return word;
}

#endif
