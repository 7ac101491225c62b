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

/* Units of four values of a member that gantry_stream_norm holds: rows of up to 4096. */
#define STREAMS_HELD 4

/* gantry_stream_write where `add` is not null, then y[t][h] = rms norm of x[t][h] times gamma[h]: (x * r) * gamma,
 * r = 1 / sqrt(mean(x^2) + eps). x has the CPU's bits; the sum is in f32, members take units of four values i, i + 256, ..
 * ascending, then as sum_of_256. Where q is not null, y quantized as well, as by gantry_quantize_q8.
 *   gamma  f32 [count][len]; y  f32 [n][count][len]; the others as there
 *   q      int8 [n][count][len] and scales f32 [n][count][len / 32], len a multiple of 32 and at most 4096; or null
 * Grid: x = count, y = n. */
KERNEL(STREAMS_GROUP)
gantry_stream_norm(GLOBAL float *RESTRICT x, GLOBAL const float *RESTRICT add, GLOBAL const float *RESTRICT inject,
                   GLOBAL const float *RESTRICT gamma, GLOBAL float *RESTRICT y, GLOBAL uint *RESTRICT q,
                   GLOBAL float *RESTRICT scales, ulong inject_row, uint count, uint len, float eps) {
    if (LID == 0 && len % 4 == 0) PREFETCH(gamma + (ulong)GROUP_X * len, len * 4);
    BEGIN();
    SHARED(float, room, STREAMS_GROUP);
    SHARED(uint, most, STREAMS_GROUP);
    const uint h = GROUP_X, t = GROUP_Y;
    const ulong at = ((ulong)t * count + h) * len;
    /* The first values stay in registers, so that all loads are under way together. */
    float held[STREAMS_HELD * 4], terms[STREAMS_HELD * 4], factors[STREAMS_HELD * 4];
    UNROLL
    for (uint k = 0; k < STREAMS_HELD * 4; k++) {
        const uint i = (LID + k / 4 * STREAMS_GROUP) * 4 + k % 4;
        held[k] = i < len ? x[at + i] : 0.0f;
        terms[k] = add && i < len ? add[(ulong)t * len + i] : 0.0f;
        factors[k] = i < len ? gamma[(ulong)h * len + i] : 0.0f;
    }
    const float factor = add && inject ? stream_factor(inject, t * inject_row + h, count) : 1.0f;
    float sum = 0.0f;
    UNROLL
    for (uint k = 0; k < STREAMS_HELD * 4; k++) {
        const uint i = (LID + k / 4 * STREAMS_GROUP) * 4 + k % 4;
        if (add) {
            held[k] = ADD(held[k], inject ? MUL(terms[k], factor) : terms[k]);
            if (i < len) x[at + i] = held[k];
        }
        sum = MAD(held[k], held[k], sum);
    }
    NO_UNROLL
    for (uint i = STREAMS_HELD * 4 * STREAMS_GROUP + LID; i < len; i += STREAMS_GROUP) {
        float v = x[at + i];
        if (add) {
            const float term = add[(ulong)t * len + i];
            v = ADD(v, inject ? MUL(term, factor) : term);
            x[at + i] = v;
        }
        sum = MAD(v, v, sum);
    }
    sum = sum_of_256(room, sum);
    const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps)));
    UNROLL
    for (uint k = 0; k < STREAMS_HELD; k++) {
        const uint unit = LID + k * STREAMS_GROUP;
        float v[4];
        UNROLL
        for (uint j = 0; j < 4; j++) {
            v[j] = MUL(MUL(held[4 * k + j], r), factors[4 * k + j]);
            if (unit * 4 + j < len) y[at + unit * 4 + j] = v[j];
        }
        most[LID] = q8_most(v);
        BARRIER();
        float scale;
        const uint word = q8_word(q8_of_block(most), v, &scale);
        if (q && unit * 4 < len) {
            q[at / 4 + unit] = word;
            if (unit % 8 == 0) scales[at / 32 + unit / 8] = scale;
        }
        BARRIER();
    }
    NO_UNROLL
    for (uint i = STREAMS_HELD * 4 * STREAMS_GROUP + LID; i < len; i += STREAMS_GROUP) {
        y[at + i] = MUL(MUL(x[at + i], r), gamma[(ulong)h * len + i]);
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
