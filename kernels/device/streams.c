/* Residual streams: x is f32 [n][count][len], `count` streams of `len` values for each token. */
#include "q8.h"

#define STREAMS_GROUP 256

/* What `add` is multiplied with for a logit; without logits 1. */
DEVICE float stream_factor(GLOBAL const float *inject, ulong at, uint count) {
    return MUL(2.0f, sigmoid(DIV(inject[at], (float)count)));
}

/* x[t][h] = x[t][h] + add[t] * 2 / (1 + e^(-inject[t][h] / count)), the CPU's bits.
 *   x       f32 [n][count][len]; add  f32 [n][len]
 *   inject  f32, logit of stream h of token t at t * inject_row + h; null: the factor is 1
 * Grid: x = len / 256 rounded up, y = n * count. */
KERNEL(STREAMS_GROUP)
gantry_stream_write(GLOBAL float *RESTRICT x, GLOBAL const float *RESTRICT add, GLOBAL const float *RESTRICT inject,
                    ulong inject_row, uint count, uint len) {
    BEGIN();
    const uint i = GROUP_X * STREAMS_GROUP + LID, t = GROUP_Y / count, h = GROUP_Y % count;
    if (i >= len) return;
    float term = add[(ulong)t * len + i];
    if (inject) term = MUL(term, stream_factor(inject, t * inject_row + h, count));
    x[(ulong)GROUP_Y * len + i] = ADD(x[(ulong)GROUP_Y * len + i], term);
}

/* Most members of gantry_stream_norm. */
#define STREAMS_LARGE 1024

/* gantry_stream_write where `add` is not null, then y[t][h] = rms norm of x[t][h] times gamma[h]: (x * r) * gamma,
 * r = 1 / sqrt(mean(x^2) + eps). x has the CPU's bits; the sum is in f32, members take units of four values i, i + members, ..
 * ascending, then as sum_of_group. Where q is not null, y quantized as well, as by gantry_quantize_q8.
 *   gamma  f32 [count][len]; y  f32 [n][count][len]; the others as there
 *   q      int8 [n][count][len] and scales f32 [n][count][len / 32], len a multiple of 32; or null
 * Grid: x = count, y = n. */
KERNEL(STREAMS_LARGE)
gantry_stream_norm(GLOBAL float *RESTRICT x, GLOBAL const float *RESTRICT add, GLOBAL const float *RESTRICT inject,
                   GLOBAL const float *RESTRICT gamma, GLOBAL float *RESTRICT y, GLOBAL uint *RESTRICT q,
                   GLOBAL float *RESTRICT scales, ulong inject_row, uint count, uint len, float eps) {
    BEGIN();
    SHARED(float, room, STREAMS_LARGE);
    SHARED(uint, most, STREAMS_LARGE);
    const uint h = GROUP_X, t = GROUP_Y, members = MEMBERS(STREAMS_LARGE);
    const ulong at = ((ulong)t * count + h) * len;
    x += at;
    y += at;
    gamma += (ulong)h * len;
    if (add) add += (ulong)t * len;
    const float factor = add && inject ? stream_factor(inject, t * inject_row + h, count) : 1.0f;
    /* A member's first unit stays in registers. */
    float first[4], gammas[4], sum = 0.0f;
    load_4(gamma, LID * 4, len, gammas);
    NO_UNROLL
    for (uint start = 0; start * 4 < len; start += members) {
        const uint i = (start + LID) * 4;
        float v[4], terms[4];
        load_4(x, i, len, v);
        if (add) {
            load_4(add, i, len, terms);
            UNROLL
            for (uint j = 0; j < 4; j++) v[j] = ADD(v[j], inject ? MUL(terms[j], factor) : terms[j]);
            store_4(x, i, len, v);
        }
        UNROLL
        for (uint j = 0; j < 4; j++) {
            sum = MAD(v[j], v[j], sum);
            first[j] = start == 0 ? v[j] : first[j];
        }
    }
    sum = sum_of_group(room, members, sum);
    const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps)));
    NO_UNROLL
    for (uint start = 0; start * 4 < len; start += members) {
        const uint i = (start + LID) * 4;
        float v[4];
        if (start > 0) {
            load_4(x, i, len, first);
            load_4(gamma, i, len, gammas);
        }
        UNROLL
        for (uint j = 0; j < 4; j++) v[j] = MUL(MUL(first[j], r), gammas[j]);
        store_4(y, i, len, v);
        float scale;
        const uint word = q8_word(q8_most(most, v), v, &scale);
        if (q && i < len) {
            q[(at + i) / 4] = word;
            if (i % 32 == 0) scales[(at + i) / 32] = scale;
        }
    }
}

/* y[t] = (sum_h x[t][h] / (1 + e^-gates[t][h])) / count, h ascending; the CPU's bits.
 *   x, gates  f32 [n][count][len]; y  f32 [n][len]
 * Grid: x = len / 256 rounded up, y = n. */
KERNEL(STREAMS_GROUP)
gantry_stream_mix(GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT gates, GLOBAL float *RESTRICT y,
                  uint count, uint len) {
    BEGIN();
    const uint i = GROUP_X * STREAMS_GROUP + LID, t = GROUP_Y;
    if (i >= len) return;
    const ulong at = (ulong)t * count * len + i;
    float sum = MUL(x[at], sigmoid(gates[at]));
    for (uint h = 1; h < count; h++) {
        const ulong other = at + (ulong)h * len;
        sum = ADD(sum, MUL(x[other], sigmoid(gates[other])));
    }
    y[(ulong)t * len + i] = MUL(sum, DIV(1.0f, (float)count));
}
