/* Norms of pieces of rows. */
#include "q8.h"

#define NORM_GROUP 256
/* Most members of gantry_rms_norm, and values that each holds: rows of up to 4096. */
#define NORM_LARGE 1024
#define NORM_HELD 4

/* y piece = (x piece * r) * weight, r = 1 / sqrt(mean(x^2) + eps). Sums in f32: member i of the group takes i, i + members,
 * ... ascending, then as sum_of_group. x may be y with the same pieces; what lies between pieces stays.
 *   x, y     f32, rows of x_row and y_row values, piece p of a row at start + p * stride
 *   weight   f32 [len], or [count][len] where `per_piece`; null: 1
 *   len      values of a piece
 * Grid: x = pieces of a row, y = n. */
KERNEL(NORM_LARGE)
gantry_rms_norm(GLOBAL const float *x, GLOBAL const float *weight, GLOBAL float *y, ulong x_row, ulong x_start,
                ulong x_stride, ulong y_row, ulong y_start, ulong y_stride, uint len, uint per_piece,
                float eps) {
    BEGIN();
    SHARED(float, room, NORM_LARGE);
    const uint p = GROUP_X, t = GROUP_Y, members = MEMBERS(NORM_LARGE);
    x += t * x_row + x_start + p * x_stride;
    y += t * y_row + y_start + p * y_stride;
    if (weight && per_piece) weight += (ulong)p * len;
    /* The first values, and their weights, stay in registers: their loads are under way together. */
    float held[NORM_HELD], weights[NORM_HELD];
    float sum = 0.0f;
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) {
        const uint i = LID + h * members;
        held[h] = i < len ? x[i] : 0.0f;
        weights[h] = weight && i < len ? weight[i] : 0.0f;
    }
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) sum = MAD(held[h], held[h], sum);
    NO_UNROLL
    for (uint i = LID + NORM_HELD * members; i < len; i += members) sum = MAD(x[i], x[i], sum);
    sum = sum_of_group(room, members, sum);
    const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps)));
    UNROLL
    for (uint h = 0; h < NORM_HELD; h++) {
        const uint i = LID + h * members;
        if (i < len) y[i] = weight ? MUL(MUL(held[h], r), weights[h]) : MUL(held[h], r);
    }
    NO_UNROLL
    for (uint i = LID + NORM_HELD * members; i < len; i += members) {
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
    BEGIN();
    SHARED(float, room, NORM_GROUP);
    x += (ulong)GROUP_X * len;
    y += (ulong)GROUP_X * len;
    float sum = 0.0f;
    NO_UNROLL
    for (uint i = LID; i < len; i += NORM_GROUP) sum += x[i];
    const float center = DIV(sum_of_256(room, sum), (float)len);
    float rest = 0.0f, squares = 0.0f;
    NO_UNROLL
    for (uint i = LID; i < len; i += NORM_GROUP) {
        const float d = x[i] - center;
        rest += d;
        squares = MAD(d, d, squares);
    }
    const float delta = DIV(sum_of_256(room, rest), (float)len);
    float variance = DIV(sum_of_256(room, squares), (float)len) - delta * delta;
    variance = variance < 0.0f ? 0.0f : variance;
    const float r = DIV(1.0f, SQRT(ADD(variance, eps)));
    NO_UNROLL
    for (uint i = LID; i < len; i += NORM_GROUP) {
        y[i] = ADD(MUL(MUL(SUB(SUB(x[i], center), delta), r), weight[i]), bias[i]);
    }
}

/* y piece = (y piece * r) * weight, as by gantry_rms_norm, where `norm`; then y piece = y piece * act(gate piece), as by
 * gantry_gate; where q is not null, y quantized as well, as by gantry_quantize_q8. Sums: members take four values each,
 * then as sum_of_256.
 *   y       f32, rows of y_row values, piece p of a row at y_start + p * len
 *   gate    f32, the same with gate_row and gate_start, pieces gate_stride apart
 *   weight  f32 [len], or null: 1
 *   q       int8 [n][y_row] and scales f32 [n][y_row / 32], y_start and len multiples of 32; or null
 *   len     at most 1024
 *   act     0 sigmoid, 1 silu
 * Grid: x = pieces of a row, y = n. */
KERNEL(NORM_GROUP)
gantry_norm_gate(GLOBAL float *RESTRICT y, GLOBAL const float *RESTRICT gate, GLOBAL const float *RESTRICT weight,
                 GLOBAL uint *RESTRICT q, GLOBAL float *RESTRICT scales, ulong y_row, ulong y_start, ulong gate_row,
                 ulong gate_start, ulong gate_stride, uint len, uint norm, uint act, float eps) {
    BEGIN();
    SHARED(float, room, NORM_GROUP);
    SHARED(uint, most, NORM_GROUP);
    const ulong at = GROUP_Y * y_row + y_start + (ulong)GROUP_X * len;
    gate += GROUP_Y * gate_row + gate_start + GROUP_X * gate_stride;
    float v[4], g[4], sum = 0.0f;
    UNROLL
    for (uint j = 0; j < 4; j++) {
        const uint i = LID * 4 + j;
        v[j] = i < len ? y[at + i] : 0.0f;
        g[j] = i < len ? gate[i] : 0.0f;
        sum = MAD(v[j], v[j], sum);
    }
    sum = sum_of_256(room, sum);
    const float r = DIV(1.0f, SQRT(ADD(DIV(sum, (float)len), eps)));
    UNROLL
    for (uint j = 0; j < 4; j++) {
        const uint i = LID * 4 + j;
        if (norm) v[j] = weight && i < len ? MUL(MUL(v[j], r), weight[i]) : MUL(v[j], r);
        v[j] = MUL(v[j], act == 0 ? sigmoid(g[j]) : silu(g[j]));
        if (i < len) y[at + i] = v[j];
    }
    float scale;
    const uint word = q8_word(q8_most(most, v), v, &scale);
    if (q && LID * 4 < len) {
        q[at / 4 + LID] = word;
        if (LID % 8 == 0) scales[at / 32 + LID / 8] = scale;
    }
}
