/* y = scale * W x + bias, for every layout of weights. */
#include "blocks.h"
#include "floats.h"

/* A group has rows 16 * GROUP_X and on, tokens 8 * GROUP_Y and on. */
DEVICE part gemm_part(ulong first_row, uint n, uint rows) {
    part p;
    const uint row = GROUP_X * PRODUCT_ROWS, token = GROUP_Y * PRODUCT_TOKENS;
    p.row = first_row + row;
    p.rows = rows > row ? rows - row : 0;
    p.count = n > token ? n - token : 0;
    p.count = p.count > PRODUCT_TOKENS ? PRODUCT_TOKENS : p.count;
    UNROLL
    for (uint t = 0; t < PRODUCT_TOKENS; t++) p.x[t] = token + t < n ? token + t : n - 1;
    share_rows(&p);
    return p;
}

/* The output of this member, where it has one. */
DEVICE void gemm_store(const part *p, float value, GLOBAL const float *scale, GLOBAL const float *bias,
                       GLOBAL float *y, ulong y_row, ulong y_start) {
    const uint row = LID % PRODUCT_ROWS, t = LID / PRODUCT_ROWS;
    if (LID >= PRODUCT_OUTPUTS || row >= p->rows || t >= p->count) return;
    const uint i = GROUP_X * PRODUCT_ROWS + row;
    if (scale) value = MUL(value, scale[0]);
    if (bias) value = ADD(value, bias[i]);
    y[((ulong)GROUP_Y * PRODUCT_TOKENS + t) * y_row + y_start + i] = value;
}

/* y[t][i] = scale * sum_k W[first_row + i][k] x[t][k] + bias[i].
 *   bytes      the stored matrix, its first byte; aligned to 256
 *   x          activations, n rows of `cols`: f32; or xq int8 and xs f32, per 32 columns (Q8) or per row (I8)
 *   scale      f32 [1], or null; bias  f32 [rows], or null
 *   y          f32, rows of y_row values, output i of token t at t * y_row + y_start + i
 *   first_row  in the stored matrix
 *   rows       outputs of a token; cols  columns
 *   scales, words, stored_rows, order, codebook: of some layouts, below
 * f32 layouts (raw.*, gguf.q8_0, gguf.q4_0): f32 activations.
 * Grid: x = rows / 16 rounded up, y = n / 8 rounded up. */
#define GEMM_FLOATS(name, layout) \
    KERNEL_OF_TWO(PRODUCT_GROUP) \
    name(GLOBAL const uchar *RESTRICT bytes, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT scale, \
         GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong first_row, ulong y_row, ulong y_start, \
         uint n, uint rows, uint cols) { \
        BEGIN(); \
        SHARED(float, room, PRODUCT_ROOM); \
        const weights w = {bytes, 0, 0, 0, cols, 0, 0}; \
        const part p = gemm_part(first_row, n, rows); \
        gemm_store(&p, float_product(layout, &w, &p, x, room), scale, bias, y, y_row, y_start); \
    }

GEMM_FLOATS(gantry_gemm_f32, RAW_F32)
GEMM_FLOATS(gantry_gemm_f16, RAW_F16)
GEMM_FLOATS(gantry_gemm_bf16, RAW_BF16)
GEMM_FLOATS(gantry_gemm_q8_0, GGUF_Q8_0)
GEMM_FLOATS(gantry_gemm_q4_0, GGUF_Q4_0)

/* q8_0.split with Q8 activations; scales: byte of the plane of fp16 scales. */
KERNEL_LARGE(PRODUCT_GROUP)
gantry_gemm_q8_0_split(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq,
                       GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale,
                       GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                       ulong y_row, ulong y_start, uint n, uint rows, uint cols) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    const weights w = {bytes, scales, 0, 0, cols, 0, 0};
    const part p = gemm_part(first_row, n, rows);
    gemm_store(&p, block_product(Q8_0_SPLIT, &w, &p, xq, xs, room), scale, bias, y, y_row, y_start);
}

/* i8.* with a scale per 32 and Q8 activations; scales: byte of the plane of fp16 scales; stored_rows: of the matrix,
 * without padding; order: the index in formats::layout::Order::ALL. first_row is a multiple of 16. */
KERNEL_LARGE(PRODUCT_GROUP)
gantry_gemm_i8_block32(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq,
                       GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale,
                       GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                       ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint order) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    const weights w = {bytes, scales, 0, stored_rows, cols, order, 0};
    const part p = gemm_part(first_row, n, rows);
    gemm_store(&p, block_product(I8_BLOCK32, &w, &p, xq, xs, room), scale, bias, y, y_row, y_start);
}

/* i8.* with a scale per row and I8 activations (any columns); scales: byte of the plane of f32 scales. The CPU's bits. */
KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_gemm_i8_channel(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq,
                       GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale,
                       GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                       ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint order) {
    BEGIN();
    SHARED(int, room, PRODUCT_ROOM);
    const weights w = {bytes, scales, 0, stored_rows, cols, order, 0};
    const part p = gemm_part(first_row, n, rows);
    gemm_store(&p, channel_product(&w, &p, xq, xs, room), scale, bias, y, y_row, y_start);
}

/* e8.planar with Q8 activations (rotated ones where the layout is rotated); words, scales: bytes of the planes of words
 * and of fp16 scales; codebook: 256 entries of 4 bytes, each 1..127, in the order of formats::block::iq3xxs_grid. */
KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_gemm_e8_planar(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uint *RESTRICT codebook,
                      GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs,
                      GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y,
                      ulong words, ulong scales, ulong first_row, ulong y_row, ulong y_start, uint n, uint rows,
                      uint cols) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    SHARED(uint, entries, 256);
    entries[LID] = codebook[LID];
    BARRIER();
    const weights w = {bytes, words, scales, 0, cols, 0, entries};
    const part p = gemm_part(first_row, n, rows);
    gemm_store(&p, block_product(E8_PLANAR, &w, &p, xq, xs, room), scale, bias, y, y_row, y_start);
}

/* e8.block98: the same from blocks of 98 bytes. */
KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_gemm_e8_block98(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uint *RESTRICT codebook,
                       GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs,
                       GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT bias,
                       GLOBAL float *RESTRICT y, ulong first_row, ulong y_row, ulong y_start, uint n, uint rows,
                       uint cols) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    SHARED(uint, entries, 256);
    entries[LID] = codebook[LID];
    BARRIER();
    const weights w = {bytes, 0, 0, 0, cols, 0, entries};
    const part p = gemm_part(first_row, n, rows);
    gemm_store(&p, block_product(E8_BLOCK98, &w, &p, xq, xs, room), scale, bias, y, y_row, y_start);
}
