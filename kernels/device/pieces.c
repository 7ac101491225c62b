/* Elementwise steps over rows and pieces of rows; each gives the CPU's bits. */
#include "q8.h"

#define PIECES_GROUP 256

/* y piece = x piece.
 *   x, y   f32, rows of x_row and y_row values, piece p of a row at start + p * stride
 *   count  pieces of a row, of `len` values; with x_stride 0 one piece is read count times
 * Grid: x = count * len / 256 rounded up, y = n. */
KERNEL(PIECES_GROUP)
gantry_copy(GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, ulong x_row, ulong x_start, ulong x_stride,
            ulong y_row, ulong y_start, ulong y_stride, uint n, uint count, uint len) {
    BEGIN();
    const uint at = GROUP_X * PIECES_GROUP + LID, t = GROUP_Y;
    const uint p = at / len, i = at % len;
    if (p >= count || t >= n) return;
    y[t * y_row + y_start + p * y_stride + i] = x[t * x_row + x_start + p * x_stride + i];
}

/* y piece = y piece * act(gate piece).
 *   gate, y     f32, rows and pieces as for gantry_copy
 *   gate_len    len, or 1: one factor for a piece
 *   gate_count  count, or 1 with gate_len 1: one factor for all pieces of a row
 *   act         0 sigmoid, 1 silu
 * Grid: x = count * len / 256 rounded up, y = n. */
KERNEL(PIECES_GROUP)
gantry_gate(GLOBAL const float *RESTRICT gate, GLOBAL float *RESTRICT y, ulong gate_row, ulong gate_start,
            ulong gate_stride, ulong y_row, ulong y_start, ulong y_stride, uint n, uint count, uint len,
            uint gate_count, uint gate_len, uint act) {
    BEGIN();
    const uint at = GROUP_X * PIECES_GROUP + LID, t = GROUP_Y;
    const uint p = at / len, i = at % len;
    if (p >= count || t >= n) return;
    const ulong from = gate_count == 1 && gate_len == 1 ? 0 : p * gate_stride + (gate_len == 1 ? 0 : i);
    const float g = gate[t * gate_row + gate_start + from];
    const ulong to = t * y_row + y_start + p * y_stride + i;
    y[to] = MUL(y[to], act == 0 ? sigmoid(g) : silu(g));
}

/* y[r][i] = silu(g) * u, g = x[r][i], u = x[r][width + i]; where `clamped`, g is at most `limit` and u within +-limit.
 * Where q is not null, y quantized as well, as by gantry_quantize_q8.
 *   x  f32 [n][2 * width]; y  f32 [n][width]; n rows (tokens, or experts of tokens)
 *   q  int8 [n][width] and scales f32 [n][width / 32], width a multiple of 32; or null
 * Grid: x = width / 1024 rounded up, y = n. */
KERNEL(PIECES_GROUP)
gantry_silu_mul(GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, GLOBAL uint *RESTRICT q,
                GLOBAL float *RESTRICT scales, uint width, uint clamped, float limit) {
    BEGIN();
    SHARED(uint, room, PIECES_GROUP);
    const uint unit = GROUP_X * PIECES_GROUP + LID;
    const ulong row = (ulong)GROUP_Y * width;
    float v[4];
    float gates[4], ups[4];
    load_4(x + 2 * row, unit * 4, width, gates);
    load_4(x + 2 * row + width, unit * 4, width, ups);
    UNROLL
    for (uint j = 0; j < 4; j++) v[j] = silu_mul(gates[j], ups[j], clamped, limit);
    store_4(y + row, unit * 4, width, v);
    float scale;
    const uint word = q8_word(q8_most(room, v), v, &scale);
    if (q && unit * 4 < width) {
        q[row / 4 + unit] = word;
        if (unit % 8 == 0) scales[row / 32 + unit / 8] = scale;
    }
}

/* x = silu(x * scale).
 *   x  f32 [count]
 * Grid: x = count / 256 rounded up. */
KERNEL(PIECES_GROUP)
gantry_silu_scaled(GLOBAL float *x, ulong count, float scale) {
    BEGIN();
    const ulong i = (ulong)GROUP_X * PIECES_GROUP + LID;
    if (i < count) x[i] = silu(MUL(x[i], scale));
}

/* y = y + x.
 *   x, y  f32 [count]
 * Grid: x = count / 256 rounded up. */
KERNEL(PIECES_GROUP)
gantry_add(GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, ulong count) {
    BEGIN();
    const ulong i = (ulong)GROUP_X * PIECES_GROUP + LID;
    if (i < count) y[i] = ADD(y[i], x[i]);
}

/* y[t][i] = w0 * x0 + w1 * x1 + ... over the slots of a token, ascending; where `more` is not null, then + more[t][i], and
 * where `gate` is not null, + more[t][i] / (1 + e^-gate[t]).
 *   x  f32 [n][used][width]; weights  f32 [n][used]; y  f32 [n][width]
 *   more  f32 [n][width], or null; gate  f32 [n], or null
 * Grid: x = width / 256 rounded up, y = n. */
KERNEL(PIECES_GROUP)
gantry_mix(GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT weights, GLOBAL const float *RESTRICT more,
           GLOBAL const float *RESTRICT gate, GLOBAL float *RESTRICT y, uint n, uint used, uint width) {
    BEGIN();
    const uint i = GROUP_X * PIECES_GROUP + LID, t = GROUP_Y;
    if (i >= width || t >= n) return;
    weights += (ulong)t * used;
    x += (ulong)t * used * width + i;
    float sum = MUL(weights[0], x[0]);
    for (uint s = 1; s < used; s++) sum = ADD(sum, MUL(weights[s], x[(ulong)s * width]));
    if (more) {
        const float other = more[(ulong)t * width + i];
        sum = ADD(sum, gate ? MUL(other, sigmoid(gate[t])) : other);
    }
    y[(ulong)t * width + i] = sum;
}
