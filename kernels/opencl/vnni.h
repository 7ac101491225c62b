/* y = scale * W x + bias for up to 32 tokens and int8 weights in an order for DPAS: vnni16 or vnni8, a tile of DPAS_LANES
 * rows by 32 columns being what the instruction takes as it lies.
 *
 * A group has one tile of rows, and a sub-group of it every 32nd block of columns: the lanes of product.h. Their sums
 * are added as there, so that the bits are those of gantry_gemm_i8_block32 and gantry_gemm_i8_channel, whatever the number of tokens. */
#include "dpas.h"

#define VNNI_SPLITS 32
#define VNNI_GROUP (DPAS_LANES * VNNI_SPLITS)
/* Tokens that one instruction takes, and outputs of a group for them. */
#define VNNI_TOKENS 8
#define VNNI_OUTPUTS (VNNI_TOKENS * DPAS_LANES)
/* Words of local memory: the sums of all sub-groups for each output, apart by one so that lanes meet different banks, and one half's
 * sum. */
#define VNNI_APART (VNNI_SPLITS + 1)
#define VNNI_ROOM (VNNI_OUTPUTS * (VNNI_APART + 1))

/* Token m of eight, from `first` on; ones past the last repeat it. */
DEVICE uint vnni_token(uint first, uint m, uint n) { return first + m < n ? first + m : n - 1; }

/* This lane's share of block b of eight tokens, of `cols` bytes each. */
DEVICE dpas_a vnni_tokens(GLOBAL const uchar *xq, uint first, uint n, ulong cols, uint b) {
    GLOBAL const uchar *at = xq + (ulong)b * 32;
    return DPAS_A((DPAS_SHARES)(dpas_read_a(at + vnni_token(first, 0, n) * cols), dpas_read_a(at + vnni_token(first, 1, n) * cols),
                                dpas_read_a(at + vnni_token(first, 2, n) * cols), dpas_read_a(at + vnni_token(first, 3, n) * cols),
                                dpas_read_a(at + vnni_token(first, 4, n) * cols), dpas_read_a(at + vnni_token(first, 5, n) * cols),
                                dpas_read_a(at + vnni_token(first, 6, n) * cols), dpas_read_a(at + vnni_token(first, 7, n) * cols)));
}

/* The scales of block b of eight tokens, `blocks` of each. */
DEVICE float8 vnni_scales(GLOBAL const float *xs, uint first, uint n, ulong blocks, uint b) {
    GLOBAL const float *at = xs + b;
    return (float8)(at[vnni_token(first, 0, n) * blocks], at[vnni_token(first, 1, n) * blocks],
                    at[vnni_token(first, 2, n) * blocks], at[vnni_token(first, 3, n) * blocks],
                    at[vnni_token(first, 4, n) * blocks], at[vnni_token(first, 5, n) * blocks],
                    at[vnni_token(first, 6, n) * blocks], at[vnni_token(first, 7, n) * blocks]);
}

/* A lane's sums to where their outputs' are. */
#define VNNI_SHARE(room, sums) \
    do { \
        const uint at = LID % DPAS_LANES * VNNI_APART + LID / DPAS_LANES, step = DPAS_LANES * VNNI_APART; \
        (room)[at] = (sums).s0, (room)[at + step] = (sums).s1, (room)[at + 2 * step] = (sums).s2; \
        (room)[at + 3 * step] = (sums).s3, (room)[at + 4 * step] = (sums).s4, (room)[at + 5 * step] = (sums).s5; \
        (room)[at + 6 * step] = (sums).s6, (room)[at + 7 * step] = (sums).s7; \
    } while (0)

/* The sum of output LID < VNNI_OUTPUTS: row LID % DPAS_LANES, token LID / DPAS_LANES of eight. */
DEVICE float vnni_sum(LOCAL float *room, float8 sums) {
    VNNI_SHARE(room, sums);
    BARRIER();
    const uint output = LID % VNNI_OUTPUTS, part = LID / VNNI_OUTPUTS;
    LOCAL float *other = room + VNNI_OUTPUTS * VNNI_APART + output;
    LOCAL const float *lanes = room + output * VNNI_APART + part % 2 * (VNNI_SPLITS / 2);
    float sum = lanes[0];
    for (uint i = 1; i < VNNI_SPLITS / 2; i++) sum += lanes[i];
    if (part == 1) *other = sum;
    BARRIER();
    return sum + *other;
}

/* The same for integers, which have no order. */
DEVICE int vnni_sum_int(LOCAL int *room, int8 sums) {
    VNNI_SHARE(room, sums);
    BARRIER();
    LOCAL const int *lanes = room + LID % VNNI_OUTPUTS * VNNI_APART;
    int sum = 0;
    for (uint i = 0; i < VNNI_SPLITS; i++) sum += lanes[i];
    BARRIER();
    return sum;
}

DEVICE void vnni_store(float value, uint token, uint n, uint row, uint rows, GLOBAL const float *scale,
                       GLOBAL const float *bias, GLOBAL float *y, ulong y_row, ulong y_start) {
    if (LID >= VNNI_OUTPUTS || row >= rows || token >= n) return;
    if (scale) value = MUL(value, scale[0]);
    if (bias) value = ADD(value, bias[row]);
    y[token * y_row + y_start + row] = value;
}

/* Arguments as of gantry_gemm_i8_block32; first_row and cols are multiples of DPAS_LANES and of 32, `order` is this kernel's.
 * `tiles` of 8 tokens are a group's. Grid: x = rows / DPAS_LANES rounded up, y = n / (8 tiles) rounded up. */
#define VNNI_BLOCK32(name, tiles) \
    DPAS_KERNEL(VNNI_GROUP) \
    name(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs, \
         GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, \
         ulong first_row, ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint order) { \
        (void)stored_rows, (void)order; \
        SHARED(float, room, VNNI_ROOM); \
        DPAS_SHARED(VNNI_GROUP); \
        const uint first = GROUP_Y * VNNI_TOKENS * tiles, blocks = cols / 32, split = LID / DPAS_LANES; \
        const uint first_of_tile = GROUP_X * DPAS_LANES; \
        const ulong row = first_row + first_of_tile + LID % DPAS_LANES; \
        GLOBAL const uchar *tile = bytes + (first_row + first_of_tile) * cols; \
        float8 sums[tiles]; \
        _Pragma("unroll") for (uint t = 0; t < tiles; t++) sums[t] = (float8)(0.0f); \
        /* All sub-groups take as many turns: the last may have nothing left for some. */ \
        for (uint turn = 0; turn < blocks; turn += VNNI_SPLITS) { \
            const uint is_there = turn + split < blocks, b = is_there ? turn + split : blocks - 1; \
            const uint8 w = dpas_read_b(tile + (ulong)b * (32 * DPAS_LANES)); \
            const float d = half_at(bytes, scales + (row * blocks + b) * 2); \
            _Pragma("unroll") for (uint t = 0; t < tiles; t++) { \
                const uint token = first + t * VNNI_TOKENS; \
                const int8 sum = DPAS(vnni_tokens(xq, token, n, cols, b), w, (int8)(0)); \
                const float8 more = MUL(convert_float8(sum), MUL(d, vnni_scales(xs, token, n, blocks, b))); \
                if (is_there) sums[t] = ADD(sums[t], more); \
            } \
        } \
        _Pragma("unroll") for (uint t = 0; t < tiles; t++) { \
            const float value = vnni_sum(room, sums[t]); \
            const uint token = first + t * VNNI_TOKENS + LID / DPAS_LANES; \
            vnni_store(value, token, n, first_of_tile + LID % DPAS_LANES, rows, scale, bias, y, y_row, y_start); \
        } \
    }

/* As of gantry_gemm_i8_channel, in the same manner. */
#define VNNI_CHANNEL(name, tiles) \
    DPAS_KERNEL(VNNI_GROUP) \
    name(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs, \
         GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, \
         ulong first_row, ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint order) { \
        (void)stored_rows, (void)order; \
        SHARED(int, room, VNNI_ROOM); \
        DPAS_SHARED(VNNI_GROUP); \
        const uint first = GROUP_Y * VNNI_TOKENS * tiles, blocks = cols / 32, split = LID / DPAS_LANES; \
        const uint first_of_tile = GROUP_X * DPAS_LANES, row = first_of_tile + LID % DPAS_LANES; \
        GLOBAL const uchar *tile = bytes + (first_row + first_of_tile) * cols; \
        int8 sums[tiles]; \
        _Pragma("unroll") for (uint t = 0; t < tiles; t++) sums[t] = (int8)(0); \
        for (uint turn = 0; turn < blocks; turn += VNNI_SPLITS) { \
            const uint is_there = turn + split < blocks, b = is_there ? turn + split : blocks - 1; \
            const uint8 w = dpas_read_b(tile + (ulong)b * (32 * DPAS_LANES)) & (uint8)(0 - is_there); \
            _Pragma("unroll") for (uint t = 0; t < tiles; t++) { \
                sums[t] = DPAS(vnni_tokens(xq, first + t * VNNI_TOKENS, n, cols, b), w, sums[t]); \
            } \
        } \
        _Pragma("unroll") for (uint t = 0; t < tiles; t++) { \
            const int sum = vnni_sum_int(room, sums[t]); \
            const uint token = first + t * VNNI_TOKENS + LID / DPAS_LANES; \
            const float d = row < rows ? float_at(bytes, scales + (first_row + row) * 4) : 0.0f; \
            const float value = MUL(MUL((float)sum, xs[token < n ? token : n - 1]), d); \
            vnni_store(value, token, n, row, rows, scale, bias, y, y_row, y_start); \
        } \
    }
