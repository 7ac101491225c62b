/* Hyper-connections that mix their streams by a matrix of Sinkhorn's. x is f32 [n][count][len]. */
#include "portable.h"

#define SINKHORN_GROUP 256
#define SINKHORN_FACTORS_GROUP 64
/* Most streams. */
#define SINKHORN_STREAMS 8

/* y[t] = sum_h w[h] x[t][h], h ascending, w[h] = 1 / (1 + e^-(mixes[t][h] * scale[0] + base[h])) + eps: what a layer, or
 * the head, reads. The CPU's bits.
 *   mixes  f32, rows of mix_row logits: count * (count + 2) for a layer, count for the head
 *   scale  f32, its first; base  f32, its first `count`
 *   y      f32 [n][len]; count at most 8
 * Grid: x = len / 256 rounded up, y = n. */
KERNEL(SINKHORN_GROUP)
gantry_sinkhorn_read(GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT mixes,
                     GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT base, GLOBAL float *RESTRICT y,
                     ulong mix_row, uint count, uint len, float eps) {
    BEGIN();
    SHARED(float, w, SINKHORN_STREAMS);
    const uint i = GROUP_X * SINKHORN_GROUP + LID, t = GROUP_Y;
    if (LID < count) w[LID] = ADD(sigmoid(ADD(MUL(mixes[t * mix_row + LID], scale[0]), base[LID])), eps);
    BARRIER();
    if (i >= len) return;
    x += (ulong)t * count * len + i;
    float sum = MUL(w[0], x[0]);
    for (uint h = 1; h < count; h++) sum = ADD(sum, MUL(w[h], x[(ulong)h * len]));
    y[(ulong)t * len + i] = sum;
}

/* With l = mixes * scale + base, H = count: post[h] = 2 / (1 + e^-l[H + h]), by scale[1];
 * C[to][from] = l[2H + from * H + to], by scale[2]: for each `from` a softmax over `to`, plus eps; then `iterations`
 * times each `from` is divided by its sum + eps (not the first time), after that each `to` by its sum + eps.
 * comb[from * H + to] = C[to][from]. post has the CPU's bits; sums of C are in f32, ascending.
 *   mixes  f32 [n][H * (H + 2)]; scale  f32 [3]; base  f32 [H * (H + 2)]
 *   post   f32 [n][H]; comb  f32 [n][H * H]; H at most 8
 * Grid: x = n. */
KERNEL(SINKHORN_FACTORS_GROUP)
gantry_sinkhorn_factors(GLOBAL const float *RESTRICT mixes, GLOBAL const float *RESTRICT scale,
                        GLOBAL const float *RESTRICT base, GLOBAL float *RESTRICT post, GLOBAL float *RESTRICT comb,
                        uint count, uint iterations, float eps) {
    BEGIN();
    SHARED(float, c, SINKHORN_FACTORS_GROUP);
    SHARED(float, next, SINKHORN_FACTORS_GROUP);
    const uint t = GROUP_X, all = count * count, from = LID / count, to = LID % count;
    mixes += (ulong)t * count * (count + 2);
    if (LID < count) {
        const float l = ADD(MUL(mixes[count + LID], scale[1]), base[count + LID]);
        post[(ulong)t * count + LID] = MUL(2.0f, sigmoid(l));
    }
    c[LID] = LID < all ? ADD(MUL(mixes[2 * count + LID], scale[2]), base[2 * count + LID]) : 0.0f;
    BARRIER();
    float value = 0.0f;
    if (LID < all) {
        float most = FROM_BITS(0xff800000u);
        for (uint i = 0; i < count; i++) most = c[from * count + i] > most ? c[from * count + i] : most;
        float sum = 0.0f;
        for (uint i = 0; i < count; i++) sum += exp_of(SUB(c[from * count + i], most));
        value = exp_of(SUB(c[LID], most)) * DIV(1.0f, sum) + eps;
    }
    BARRIER();
    for (uint round = 0; round < iterations; round++) {
        c[LID] = value;
        BARRIER();
        if (round > 0 && LID < all) {
            float sum = 0.0f;
            for (uint i = 0; i < count; i++) sum += c[from * count + i];
            value *= DIV(1.0f, sum + eps);
        }
        next[LID] = value;
        BARRIER();
        if (LID < all) {
            float sum = 0.0f;
            for (uint i = 0; i < count; i++) sum += next[i * count + to];
            value *= DIV(1.0f, sum + eps);
        }
    }
    if (LID < all) comb[(ulong)t * all + LID] = value;
}

/* x[t][to] = add[t] * post[t][to] + sum_from comb[t][from * count + to] * x[t][from], ascending, in place; the CPU's
 * bits.
 *   x  f32 [n][count][len]; add  f32 [n][len]; post  f32 [n][count]; comb  f32 [n][count * count]; count at most 8
 * Grid: x = len / 256 rounded up, y = n. */
KERNEL(SINKHORN_GROUP)
gantry_sinkhorn_write(GLOBAL float *RESTRICT x, GLOBAL const float *RESTRICT add, GLOBAL const float *RESTRICT post,
                      GLOBAL const float *RESTRICT comb, uint count, uint len) {
    BEGIN();
    const uint i = GROUP_X * SINKHORN_GROUP + LID, t = GROUP_Y;
    if (i >= len) return;
    x += (ulong)t * count * len + i;
    post += (ulong)t * count;
    comb += (ulong)t * count * count;
    const float term = add[(ulong)t * len + i];
    float old[SINKHORN_STREAMS];
    UNROLL
    for (uint h = 0; h < SINKHORN_STREAMS; h++) old[h] = h < count ? x[(ulong)h * len] : 0.0f;
    for (uint to = 0; to < count; to++) {
        float sum = MUL(term, post[to]);
        UNROLL
        for (uint from = 0; from < SINKHORN_STREAMS; from++) {
            if (from < count) sum = ADD(sum, MUL(comb[from * count + to], old[from]));
        }
        x[(ulong)to * len] = sum;
    }
}
