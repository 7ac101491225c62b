/* Attention over stretches of what a token sees, brought together. */
#include "portable.h"

#define COMBINE_GROUP 128
/* Most stretches. */
#define COMBINE_SPLITS 1024
/* Stretches whose values are loaded together. */
#define COMBINE_BLOCK 8

/* y[t][h] of the stretches that gantry_attention_* left in `partial`, in order; sums of theirs by a tree over s mod 128.
 *   partial, sinks, y  as there; splits  2 to 1024
 * Grid: x = n, y = heads. */
KERNEL(COMBINE_GROUP)
gantry_attention_combine(GLOBAL const float *RESTRICT partial, GLOBAL const float *RESTRICT sinks,
                         GLOBAL float *RESTRICT y, uint heads, uint value_len, uint splits) {
    BEGIN();
    SHARED(float, weights, COMBINE_SPLITS);
    SHARED(float, largest, COMBINE_GROUP);
    SHARED(float, sums, COMBINE_GROUP);
    const ulong at = (ulong)GROUP_X * heads + GROUP_Y;
    const uint width = 2 + value_len;
    partial += at * splits * width;
    const float lowest = FROM_BITS(0xff800000u), sink = sinks ? sinks[GROUP_Y] : lowest;
    float most = sink;
    for (uint s = LID; s < splits; s += COMBINE_GROUP) {
        const float x = partial[(ulong)s * width];
        most = x > most ? x : most;
    }
    largest[LID] = most;
    BARRIER();
    for (uint step = COMBINE_GROUP / 2; step > 0; step /= 2) {
        if (LID < step && largest[LID + step] > largest[LID]) largest[LID] = largest[LID + step];
        BARRIER();
    }
    most = largest[0];
    float sum = 0.0f;
    for (uint s = LID; s < splits; s += COMBINE_GROUP) {
        /* A stretch without keys has the sum 0. */
        const float part = partial[(ulong)s * width + 1];
        const float w = part != 0.0f ? exp_of(SUB(partial[(ulong)s * width], most)) : 0.0f;
        weights[s] = w;
        sum = MAD(part, w, sum);
    }
    sums[LID] = sum;
    BARRIER();
    for (uint step = COMBINE_GROUP / 2; step > 0; step /= 2) {
        if (LID < step) sums[LID] += sums[LID + step];
        BARRIER();
    }
    sum = sums[0];
    /* Nothing is seen: 0, whatever the sink. */
    const uint some = sum != 0.0f;
    if (sinks) sum += exp_of(SUB(sink, most));
    const float inverse = some ? DIV(1.0f, sum) : 0.0f;
    for (uint d = LID; d < value_len; d += COMBINE_GROUP) {
        float out = 0.0f;
        for (uint s = 0; s < splits; s += COMBINE_BLOCK) {
            float v[COMBINE_BLOCK], w[COMBINE_BLOCK];
            UNROLL
            for (uint i = 0; i < COMBINE_BLOCK; i++) {
                const uint here = s + i < splits ? s + i : s;
                v[i] = partial[(ulong)here * width + 2 + d];
                w[i] = s + i < splits ? weights[here] : 0.0f;
            }
            UNROLL
            for (uint i = 0; i < COMBINE_BLOCK; i++) out = w[i] != 0.0f ? MAD(v[i], w[i], out) : out;
        }
        y[at * value_len + d] = MUL(out, inverse);
    }
}
