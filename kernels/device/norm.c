/* Norms of pieces of rows. */
#include "portable.h"

#define NORM_GROUP 256
/* Values of a member that gantry_rms_norm holds: rows of up to 4096. */
#define NORM_HELD 16

/* y piece = (x piece * r) * weight, r = 1 / sqrt(mean(x^2) + eps). Sums in f32: member i of the group takes i, i + 256,
 * ... ascending, then as sum_of_256. x may be y with the same pieces; what lies between pieces stays.
 *   x, y     f32, rows of x_row and y_row values, piece p of a row at start + p * stride
 *   weight   f32 [len], or [count][len] where `per_piece`; null: 1
 *   len      values of a piece
 * Grid: x = pieces of a row, y = n. */
KERNEL(NORM_GROUP)
gantry_rms_norm(GLOBAL const float *x, GLOBAL const float *weight, GLOBAL float *y, ulong x_row, ulong x_start,
                ulong x_stride, ulong y_row, ulong y_start, ulong y_stride, uint len, uint per_piece,
                float eps) {
    SHARED(float, room, NORM_GROUP);
    const uint p = GROUP_X, t = GROUP_Y;
    x += t * x_row + x_start + p * x_stride;
    y += t * y_row + y_start + p * y_stride;
    if (weight && per_piece) weight += (ulong)p * len;
    /* The first values stay in registers: their loads are under way together, and are not repeated. */
    float held[NORM_HELD];
    float sum = 0.0f;
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) held[h] = LID + h * NORM_GROUP < len ? x[LID + h * NORM_GROUP] : 0.0f;
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) sum = MAD(held[h], held[h], sum);
    for (uint i = LID + NORM_HELD * NORM_GROUP; i < len; i += NORM_GROUP) sum = MAD(x[i], x[i], sum);
    sum = sum_of_256(room, sum);
    const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps)));
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) {
        const uint i = LID + h * NORM_GROUP;
        if (i < len) y[i] = weight ? MUL(MUL(held[h], r), weight[i]) : MUL(held[h], r);
    }
    for (uint i = LID + NORM_HELD * NORM_GROUP; i < len; i += NORM_GROUP) {
        y[i] = weight ? MUL(MUL(x[i], r), weight[i]) : MUL(x[i], r);
    }
}

/* y = (x - mean) / sqrt(var + eps) * weight + bias by row: c = sum(x) / len, d = x - c, delta = sum(d) / len,
 * var = max(sum(d^2) / len - delta^2, 0), y = ((d - delta) * r) * weight + bias.
 *   x, y          f32 [n][len]
 *   weight, bias  f32 [len]
 * Grid: x = n. */
KERNEL(NORM_GROUP)
gantry_layer_norm(GLOBAL const float *x, GLOBAL const float *RESTRICT weight, GLOBAL const float *RESTRICT bias,
                  GLOBAL float *y, uint len, float eps) {
    SHARED(float, room, NORM_GROUP);
    x += (ulong)GROUP_X * len;
    y += (ulong)GROUP_X * len;
    float sum = 0.0f;
    for (uint i = LID; i < len; i += NORM_GROUP) sum += x[i];
    const float center = DIV(sum_of_256(room, sum), (float)len);
    float rest = 0.0f, squares = 0.0f;
    for (uint i = LID; i < len; i += NORM_GROUP) {
        const float d = x[i] - center;
        rest += d;
        squares = MAD(d, d, squares);
    }
    const float delta = DIV(sum_of_256(room, rest), (float)len);
    float variance = DIV(sum_of_256(room, squares), (float)len) - delta * delta;
    variance = variance < 0.0f ? 0.0f : variance;
    const float r = DIV(1.0f, SQRT(ADD(variance, eps)));
    for (uint i = LID; i < len; i += NORM_GROUP) {
        y[i] = ADD(MUL(MUL(SUB(SUB(x[i], center), delta), r), weight[i]), bias[i]);
    }
}
