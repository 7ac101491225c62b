/* Embeddings of token n-grams. */
#include "portable.h"

#define NGRAM_GROUP 256

/* The rows of the table for each token, as the CPU has them: c[0] the token, c[s] its predecessor at distance s, from
 * the first that is missing or eos on eos; for n = 2 .. size and each head of its group, mix = c[0] m[0] ^ .. ^
 * c[n - 1] m[n - 1] modulo 2^64, row = mix % vocab + offset.
 *   windows         [n][size]: the token, then its predecessors, the nearest first; NONE before the start
 *   multipliers     [size]; offsets, vocabs  [heads], vocabs at least 1
 *   rows            out [n][heads]
 *   heads           a multiple of size - 1, size at least 2
 * Grid: x = n / 256 rounded up. */
KERNEL(NGRAM_GROUP)
gantry_ngram_rows(GLOBAL const uint *RESTRICT windows, GLOBAL const ulong *RESTRICT multipliers,
                  GLOBAL const ulong *RESTRICT offsets, GLOBAL const ulong *RESTRICT vocabs,
                  GLOBAL ulong *RESTRICT rows, uint n, uint size, uint heads, uint eos) {
    BEGIN();
    const uint t = GROUP_X * NGRAM_GROUP + LID;
    if (t >= n) return;
    windows += (ulong)t * size;
    rows += (ulong)t * heads;
    const uint group = heads / (size - 1);
    ulong mix = windows[0] * multipliers[0];
    uint cut = 0;
    for (uint i = 0; i + 1 < size; i++) {
        cut = cut || windows[i + 1] == NONE || windows[i + 1] == eos;
        mix ^= (cut ? eos : windows[i + 1]) * multipliers[i + 1];
        for (uint h = i * group; h < (i + 1) * group; h++) rows[h] = mix % vocabs[h] + offsets[h];
    }
}

/* y[t][h] = value[t] / (1 + e^-s), s = sign(d) sqrt(max(|d|, 1e-6)), d = sum(key[t][h] * query[t][h]) / sqrt(len); d = 0
 * gives s = 0. The sum is in f32.
 *   key, query, y  f32 [n][count][len]; value  f32 [n][len]
 * Grid: x = count, y = n. */
KERNEL(NGRAM_GROUP)
gantry_ngram_gate(GLOBAL const float *RESTRICT key, GLOBAL const float *RESTRICT query,
                  GLOBAL const float *RESTRICT value, GLOBAL float *RESTRICT y, uint count, uint len) {
    BEGIN();
    SHARED(float, room, NGRAM_GROUP);
    const ulong at = ((ulong)GROUP_Y * count + GROUP_X) * len, from = (ulong)GROUP_Y * len;
    float sum = 0.0f;
    for (uint i = LID; i < len; i += NGRAM_GROUP) sum = MAD(key[at + i], query[at + i], sum);
    const float d = DIV(sum_of_256(room, sum), SQRT((float)len));
    const float size = MAGNITUDE(d) < 1e-6f ? 1e-6f : MAGNITUDE(d);
    const float root = SQRT(size);
    const float gate = sigmoid(d == 0.0f ? 0.0f : (d < 0.0f ? -root : root));
    for (uint i = LID; i < len; i += NGRAM_GROUP) y[at + i] = MUL(value[from + i], gate);
}
