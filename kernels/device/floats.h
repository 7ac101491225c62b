/* Products of weights that are read as floats with f32 activations. */
#ifndef GANTRY_FLOATS_H
#define GANTRY_FLOATS_H

#include "product.h"

/* Columns of a unit. */
#define FLOATS_UNIT 8

/* Weight k of a row, as f32. */
DEVICE float float_weight(uint layout, const weights *w, ulong row, uint k) {
    const ulong at = row * w->cols + k;
    if (layout == RAW_F32) return float_at(w->bytes, at * 4);
    if (layout == RAW_F16) return half_at(w->bytes, at * 2);
    return bf16_at(w->bytes, at * 2);
}

/* Weights k .. k + 8 of a row; k a multiple of 8, as is the number of columns. */
DEVICE void float_weights(uint layout, const weights *w, ulong row, uint k, float *out) {
    const ulong at = row * w->cols + k;
    if (layout == RAW_F32) {
        const float4 a = ((GLOBAL const float4 *)(w->bytes + at * 4))[0];
        const float4 b = ((GLOBAL const float4 *)(w->bytes + at * 4))[1];
        out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
        out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
    } else if (layout == RAW_F16 || layout == RAW_BF16) {
        const uint4 v = *(GLOBAL const uint4 *)(w->bytes + at * 2);
        const uint pairs[4] = {v.x, v.y, v.z, v.w};
        UNROLL
        for (uint i = 0; i < 4; i++) {
            const ushort low = (ushort)pairs[i], high = (ushort)(pairs[i] >> 16);
            out[2 * i] = layout == RAW_F16 ? from_half(low) : from_bf16(low);
            out[2 * i + 1] = layout == RAW_F16 ? from_half(high) : from_bf16(high);
        }
    } else if (layout == GGUF_Q8_0) {
        /* fp16 d, 32 int8: d q. */
        GLOBAL const uchar *block = w->bytes + at / 32 * 34;
        const float d = half_at(block, 0);
        UNROLL
        for (uint i = 0; i < 4; i++) {
            const ushort two = ushort_at(block, 2 + k % 32 + 2 * i);
            out[2 * i] = MUL(d, (float)(signed char)(two & 0xff));
            out[2 * i + 1] = MUL(d, (float)(signed char)(two >> 8));
        }
    } else {
        /* fp16 d, 16 bytes: value j in the low nibble of byte j, j + 16 in the high one: d (q - 8). */
        GLOBAL const uchar *block = w->bytes + at / 32 * 18;
        const float d = half_at(block, 0);
        const uint shift = k % 32 / 16 * 4;
        UNROLL
        for (uint i = 0; i < 4; i++) {
            const uint two = (uint)ushort_at(block, 2 + k % 16 + 2 * i) >> shift;
            out[2 * i] = MUL(d, (float)(two & 15u) - 8.0f);
            out[2 * i + 1] = MUL(d, (float)(two >> 8 & 15u) - 8.0f);
        }
    }
}

/* Adds to the sums those of the first `tokens` activations, of which the part has at least one; more are computed for
 * nothing, so that no branch keeps loads from being under way together. */
DEVICE void float_sums(uint layout, uint tokens, const weights *w, const part *p, GLOBAL const float *RESTRICT x,
                       float *sums) {
    const uint lane = p->lane, lanes = p->lanes, cols = w->cols;
    const ulong rows[2] = {part_row(p, 0), part_row(p, 1)};
    if (cols % FLOATS_UNIT == 0) {
        for (uint k = lane * FLOATS_UNIT; k < cols; k += lanes * FLOATS_UNIT) {
            float a[FLOATS_UNIT], b[FLOATS_UNIT];
            float_weights(layout, w, rows[0], k, a);
            float_weights(layout, w, rows[1], k, b);
            UNROLL
            for (uint t = 0; t < tokens; t++) {
                GLOBAL const float4 *from = (GLOBAL const float4 *)(x + (ulong)p->x[t] * cols + k);
                const float4 u = from[0], v = from[1];
                const float values[FLOATS_UNIT] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
                UNROLL
                for (uint i = 0; i < FLOATS_UNIT; i++) {
                    sums[t] = MAD(a[i], values[i], sums[t]);
                    sums[PRODUCT_TOKENS + t] = MAD(b[i], values[i], sums[PRODUCT_TOKENS + t]);
                }
            }
        }
    } else {
        for (uint k = lane; k < cols; k += lanes) {
            const float a = float_weight(layout, w, rows[0], k), b = float_weight(layout, w, rows[1], k);
            UNROLL
            for (uint t = 0; t < tokens; t++) {
                const float value = x[(ulong)p->x[t] * cols + k];
                sums[t] = MAD(a, value, sums[t]);
                sums[PRODUCT_TOKENS + t] = MAD(b, value, sums[PRODUCT_TOKENS + t]);
            }
        }
    }
}

/* The output of member LID < 128: row LID % 16 of the part by activations LID / 16. x is f32 [rows][cols], aligned to
 * 16 bytes where the columns are a multiple of 8, as raw weights then are. */
DEVICE float float_product(uint layout, const weights *w, const part *p, GLOBAL const float *RESTRICT x,
                           LOCAL float *room) {
    float sums[2 * PRODUCT_TOKENS];
    UNROLL
    for (uint i = 0; i < 2 * PRODUCT_TOKENS; i++) sums[i] = 0.0f;
    if (p->count <= 1) float_sums(layout, 1, w, p, x, sums);
    else if (p->count <= 4) float_sums(layout, 4, w, p, x, sums);
    else float_sums(layout, 8, w, p, x, sums);
    return lane_sum(room, sums, p->count);
}

#endif
