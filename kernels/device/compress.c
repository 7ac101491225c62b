/* Blocks of positions become entries: compressed keys, and the keys that an index searches. */
#include "portable.h"

#define COMPRESS_GROUP 256
/* Most values of an entry. */
#define COMPRESS_LEN 1024

DEVICE void compress_store_f32(GLOBAL uchar *p, ulong i, float x) { ((GLOBAL float *)p)[i] = x; }
DEVICE void compress_store_f16(GLOBAL uchar *p, ulong i, float x) { ((GLOBAL ushort *)p)[i] = to_half(x); }

/* Value d of block b pooled, the CPU's bits. Without scores: the mean of the rows of its positions. With them: per d the
 * softmax over positions p of score[p] + ape[p mod ratio], times the rows; with `overlap` rows have 2 * len values, and
 * the positions of block b - 1 come first, with values 0 .. len of their rows, the block's own with len .. 2 * len. */
DEVICE float pooled(GLOBAL const float *rows, GLOBAL const float *scores, GLOBAL const float *ape, ulong capacity,
                    ulong score_capacity, uint b, uint d, uint ratio, uint overlap, uint len) {
    const uint width = overlap ? 2 * len : len;
    if (!scores) {
        float sum = rows[(ulong)ring_row(b * ratio, capacity) * width + d];
        for (uint r = 1; r < ratio; r++) sum = ADD(sum, rows[(ulong)ring_row(b * ratio + r, capacity) * width + d]);
        return DIV(sum, (float)ratio);
    }
    const uint before = overlap && b > 0 ? ratio : 0;
    float most = FROM_BITS(0xff800000u), weights = 0.0f, sum = 0.0f;
    for (uint pass = 0; pass < 2; pass++) {
        for (uint r = 0; r < before + ratio; r++) {
            const uint p = b * ratio + r - before;
            const uint column = r < before ? d : width - len + d;
            const float x = ADD(scores[(ulong)ring_row(p, score_capacity) * width + column], ape[p % ratio * width + column]);
            if (pass == 0) {
                most = x > most ? x : most;
            } else {
                const float e = exp_of(SUB(x, most));
                weights = ADD(weights, e);
                sum = ADD(sum, MUL(e, rows[(ulong)ring_row(p, capacity) * width + column]));
            }
        }
    }
    return DIV(sum, weights);
}

/* The entries of the blocks that this batch completes: pooled, rms norm times `norm` (sum in f32), `pairs` pairs rotated
 * from value `start` on by the position at which the block starts, and put into the cache of entries.
 *   states         what sequences keep
 *   row_offsets    [slots] byte of the positions' rows: f32 [capacity][width], position p in row p % capacity; width is
 *                  len, with `overlap` 2 * len
 *   score_offsets  the same of their scores (score_capacity rows), or null: the mean
 *   ape            f32 [ratio][width], or null without scores
 *   norm           f32 [len]
 *   angles         f32 [slots][blocks][pairs][2]: cos and sin of position b * ratio of the blocks of each sequence, the
 *                  first being span_start / ratio
 *   entry_offsets  [slots] byte of the cache of entries: [entry_capacity][len], entry b in row b % entry_capacity
 *   span_tokens, span_start  [slots]
 *   len            at most 1024; neox  as for gantry_rope
 *   blocks         at least those that any sequence completes
 * Grid: x = blocks, y = slots. */
#define COMPRESS(name, store) \
    KERNEL_OF_TWO(COMPRESS_GROUP) \
    name(GLOBAL uchar *states, GLOBAL const ulong *RESTRICT row_offsets, GLOBAL const ulong *RESTRICT score_offsets, \
         GLOBAL const float *RESTRICT ape, GLOBAL const float *RESTRICT norm, GLOBAL const float *RESTRICT angles, \
         GLOBAL const ulong *RESTRICT entry_offsets, GLOBAL const uint *RESTRICT span_tokens, \
         GLOBAL const uint *RESTRICT span_start, ulong capacity, ulong score_capacity, ulong entry_capacity, \
         uint ratio, uint overlap, uint len, uint start, uint pairs, uint neox, uint blocks, float eps) { \
        BEGIN(); \
        SHARED(float, entry, COMPRESS_LEN); \
        SHARED(float, room, COMPRESS_GROUP); \
        const uint slot = GROUP_Y, b = span_start[slot] / ratio + GROUP_X; \
        const uint complete = b < (span_start[slot] + span_tokens[slot]) / ratio; \
        GLOBAL const float *rows = (GLOBAL const float *)(states + row_offsets[slot]); \
        GLOBAL const float *scores = 0; \
        if (score_offsets) scores = (GLOBAL const float *)(states + score_offsets[slot]); \
        float sum = 0.0f; \
        for (uint d = LID; d < len; d += COMPRESS_GROUP) { \
            float x = 0.0f; \
            if (complete) x = pooled(rows, scores, ape, capacity, score_capacity, b, d, ratio, overlap, len); \
            entry[d] = x; \
            sum = MAD(x, x, sum); \
        } \
        sum = sum_of_256(room, sum); \
        const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps))); \
        for (uint d = LID; d < len; d += COMPRESS_GROUP) entry[d] = MUL(MUL(entry[d], r), norm[d]); \
        BARRIER(); \
        for (uint j = LID; j < pairs; j += COMPRESS_GROUP) { \
            const uint at = start + (neox ? j : 2 * j), other = at + (neox ? pairs : 1); \
            const ulong angle = (((ulong)slot * blocks + GROUP_X) * pairs + j) * 2; \
            const float u = entry[at], v = entry[other], c = angles[angle], s = angles[angle + 1]; \
            entry[at] = SUB(MUL(u, c), MUL(v, s)); \
            entry[other] = ADD(MUL(u, s), MUL(v, c)); \
        } \
        BARRIER(); \
        for (uint d = LID; d < len; d += COMPRESS_GROUP) { \
            if (complete) store(states + entry_offsets[slot], (ulong)ring_row(b, entry_capacity) * len + d, entry[d]); \
        } \
    }

COMPRESS(gantry_compress_f32, compress_store_f32)
COMPRESS(gantry_compress_f16, compress_store_f16)
