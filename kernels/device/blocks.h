/* Products of weights that are int8 in blocks of 32, each with a scale, with int8 activations.
 *
 * A block's sum is an integer; acc = acc + f32(sum) * (d_w * d_x) for each block, as on the CPU, whose order over the
 * blocks differs (product.h has this one). With one scale per row of weights and of activations the whole sum is an
 * integer, and y = (f32(sum) * d_x) * d_w has the CPU's bits. */
#ifndef GANTRY_BLOCKS_H
#define GANTRY_BLOCKS_H

#include "product.h"

/* Where an int8 order has the words of a block: block b, word j (columns 4j .. 4j + 4) of a row at row +
 * b / 2 * pair + b % 2 * block + (j & 1) * steps[0] + (j >> 1 & 1) * steps[1] + (j >> 2) * steps[2], the bytes of a
 * word `column` apart. See formats::layout::Order::offset. */
typedef struct {
    ulong row[2];
    uint block;
    uint pair;
    uint steps[3];
    uint column;
} block_order;

/* This member's rows. Tiles are whole: what lies past the last row is computed, not stored. */
DEVICE void tile_rows(const part *p, ulong *rows) {
    rows[0] = p->row + LID / PRODUCT_LANES;
    rows[1] = rows[0] + 8;
}

DEVICE ulong padded_to(ulong n, uint tile) { return (n + tile - 1) / tile * tile; }

/* The bytes of a row before its first block, in an order whose padded columns are `cols`. */
DEVICE ulong order_row(uint order, ulong n, ulong cols) {
    const ulong r = n & 15;
    if (order == 10) return n;
    if (order == 9) return n * cols;
    if (order == 8) return (n >> 3) * cols * 8 + (n & 7) * 4;
    const ulong tile = (n >> 4) * cols * 16;
    if (order <= 1) return tile + (r & 7) * 64 + (r >> 3) * 4;
    if (order == 2 || order == 6) return tile + r * 8;
    if (order == 7) return tile + r * 4;
    return tile + r * 16;
}

DEVICE void order_steps(block_order *o, uint block, uint pair, uint a, uint b, uint c) {
    o->block = block;
    o->pair = pair;
    o->steps[0] = a;
    o->steps[1] = b;
    o->steps[2] = c;
}

/* The order of two rows of a matrix. */
DEVICE void order_of(const weights *w, ulong first, ulong second, block_order *o) {
    const uint order = w->order;
    const ulong cols = padded_to(w->cols, order == 1 || order == 3 || order == 4 ? 64 : 32);
    /* Below 2^26, so that strides fit 32 bits. */
    const uint rows = (uint)padded_to(w->stored_rows, 16);
    o->row[0] = order_row(order, first, cols);
    o->row[1] = order_row(order, second, cols);
    o->column = order == 10 ? rows : 1;
    switch (order) {
        case 0: order_steps(o, 512, 1024, 8, 16, 32); break;    /* nv_a32 */
        case 1: order_steps(o, 32, 1024, 8, 512, 16); break;    /* nv_a64 */
        case 2: order_steps(o, 512, 1024, 4, 128, 256); break;  /* slot8 */
        case 3: order_steps(o, 8, 1024, 4, 256, 512); break;    /* slot16 */
        case 4: order_steps(o, 512, 1024, 4, 8, 256); break;    /* ck16 */
        case 5: order_steps(o, 512, 1024, 4, 8, 256); break;    /* rdna3 */
        case 6: order_steps(o, 512, 1024, 4, 128, 256); break;  /* rdna4 */
        case 7: order_steps(o, 512, 1024, 64, 128, 256); break; /* vnni16 */
        case 8: order_steps(o, 256, 512, 32, 64, 128); break;   /* vnni8 */
        case 9: order_steps(o, 32, 64, 4, 8, 16); break;        /* nmajor */
        default: order_steps(o, 32 * rows, 64 * rows, 4 * rows, 8 * rows, 16 * rows); break; /* kmajor */
    }
}

DEVICE uint ordered_word(const weights *w, const block_order *o, uint second, uint b, uint j) {
    GLOBAL const uchar *word = w->bytes + o->row[second] + (ulong)(b >> 1) * o->pair + (b & 1) * o->block +
                               (j & 1) * o->steps[0] + (j >> 1 & 1) * o->steps[1] + (j >> 2) * o->steps[2];
    if (o->column == 1) return *(GLOBAL const uint *)word;
    return (uint)word[0] | (uint)word[o->column] << 8 | (uint)word[2ul * o->column] << 16 |
           (uint)word[3ul * o->column] << 24;
}

/* Both rows of a member, the second 8 after the first. In the orders for NVIDIA's instructions they are side by side. */
DEVICE void ordered_pair(const weights *w, const block_order *o, uint b, uint *first, uint *second) {
    if (w->order > 1) {
#if defined(__HIP__)
        /* By itself: else clang branches at each word, and waits for one before it loads the next. */
        if (o->column != 1) {
            UNROLL
            for (uint j = 0; j < 8; j++) {
                LOADS_APART();
                first[j] = ordered_word(w, o, 0, b, j);
                second[j] = ordered_word(w, o, 1, b, j);
            }
            return;
        }
#endif
        UNROLL
        for (uint j = 0; j < 8; j++) {
            first[j] = ordered_word(w, o, 0, b, j);
            second[j] = ordered_word(w, o, 1, b, j);
        }
        return;
    }
    GLOBAL const uchar *at = w->bytes + o->row[0] + (ulong)(b >> 1) * o->pair + (b & 1) * o->block;
    UNROLL
    for (uint i = 0; i < 4; i++) {
        /* Words 2i and 2i + 1 of both rows. */
        const uint4 v = *(GLOBAL const uint4 *)(at + (i & 1) * o->steps[1] + (i >> 1) * o->steps[2]);
        first[2 * i] = v.x, second[2 * i] = v.y;
        first[2 * i + 1] = v.z, second[2 * i + 1] = v.w;
    }
}

/* 32 weights of E8: 8 indices (in two words), the word of signs and the sub-scale, the super-scale. The eighth sign of
 * eight is the parity of the other seven. */
DEVICE float e8_words(LOCAL const uint *codebook, uint low, uint high, uint word, float d, uint *q) {
    UNROLL
    for (uint l = 0; l < 4; l++) {
        const uint seven = word >> (7 * l) & 0x7fu;
        const uint signs = seven | (POPCOUNT(seven) & 1u) << 7;
        const uint indices = (l < 2 ? low : high) >> (16 * (l & 1));
        UNROLL
        for (uint i = 0; i < 2; i++) {
            const uint entry = codebook[indices >> (8 * i) & 0xffu];
            /* Bit i of four to byte i. Entries are 1..127, so that no byte carries into the next. */
            const uint one = ((signs >> (4 * i) & 15u) * 0x00204081u) & 0x01010101u;
            q[2 * l + i] = (entry ^ (one * 255u)) + one;
        }
    }
    return MUL(MUL(MUL(d, ADD(0.5f, (float)(word >> 28))), 0.5f), 0.5f);
}

/* Weights of block b of a row as words of 4 int8, and their scale. Not of int8 orders. */
DEVICE float weight_block(uint layout, const weights *w, ulong row, uint b, uint *q) {
    const uint blocks = w->cols / 32;
    if (layout == Q8_0_SPLIT) {
        GLOBAL const uint4 *from = (GLOBAL const uint4 *)(w->bytes + (row * blocks + b) * 32);
        const uint4 u = from[0], v = from[1];
        q[0] = u.x, q[1] = u.y, q[2] = u.z, q[3] = u.w;
        q[4] = v.x, q[5] = v.y, q[6] = v.z, q[7] = v.w;
        return half_at(w->bytes, w->first_plane + (row * blocks + b) * 2);
    }
    if (layout == E8_PLANAR) {
        const ulong at = row * blocks + b;
        const uint2 indices = *(GLOBAL const uint2 *)(w->bytes + at * 8);
        const float d = half_at(w->bytes, w->second_plane + (at / 8) * 2);
        return e8_words(w->codebook, indices.x, indices.y, uint_at(w->bytes, w->first_plane + at * 4), d, q);
    }
    if (layout == E8_BLOCK98) {
        /* Nothing is aligned to more than two bytes. */
        GLOBAL const uchar *block = w->bytes + (row * blocks + b) / 8 * 98;
        const uint sub = b % 8;
        const uint low = ushort_at(block, sub * 8) | (uint)ushort_at(block, sub * 8 + 2) << 16;
        const uint high = ushort_at(block, sub * 8 + 4) | (uint)ushort_at(block, sub * 8 + 6) << 16;
        const uint word = ushort_at(block, 64 + sub * 4) | (uint)ushort_at(block, 66 + sub * 4) << 16;
        return e8_words(w->codebook, low, high, word, half_at(block, 96), q);
    }
    return 0.0f;
}

/* Adds to the sums those of the first `tokens` activations; see float_sums. */
DEVICE void block_sums(uint layout, uint tokens, const weights *w, const part *p, GLOBAL const uchar *RESTRICT xq,
                       GLOBAL const float *RESTRICT xs, float *sums) {
    const uint lane = p->lane, lanes = p->lanes, blocks = w->cols / 32;
    ulong rows[2] = {part_row(p, 0), part_row(p, 1)};
    block_order o;
    ulong padded = 0;
    if (layout == I8_BLOCK32) {
        tile_rows(p, rows);
        order_of(w, rows[0], rows[1], &o);
        /* The scales of a row are padded as its columns. */
        padded = padded_to(w->cols, w->order == 3 ? 64 : 32) / 32;
    }
    for (uint b = lane; b < blocks; b += lanes) {
        uint q[2][8];
        float d[2];
        if (layout == I8_BLOCK32) {
            ordered_pair(w, &o, b, q[0], q[1]);
            d[0] = half_at(w->bytes, w->first_plane + (rows[0] * padded + b) * 2);
            d[1] = half_at(w->bytes, w->first_plane + (rows[1] * padded + b) * 2);
        } else {
            d[0] = weight_block(layout, w, rows[0], b, q[0]);
            d[1] = weight_block(layout, w, rows[1], b, q[1]);
        }
        UNROLL
        for (uint t = 0; t < tokens; t++) {
            if (t == 4) LOADS_APART();
            const ulong at = (ulong)p->x[t] * blocks + b;
            GLOBAL const uint4 *from = (GLOBAL const uint4 *)(xq + at * 32);
            const uint4 u = from[0], v = from[1];
            const uint x[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
            int first = 0, second = 0;
            UNROLL
            for (uint j = 0; j < 8; j++) {
                first = DOT4(q[0][j], x[j], first);
                second = DOT4(q[1][j], x[j], second);
            }
            sums[t] = ADD(sums[t], MUL((float)first, MUL(d[0], xs[at])));
            sums[PRODUCT_TOKENS + t] = ADD(sums[PRODUCT_TOKENS + t], MUL((float)second, MUL(d[1], xs[at])));
        }
    }
}

/* The output of member LID < 128: row LID % 16 of the part by activations LID / 16. xq int8 [rows][cols], xs f32
 * [rows][cols / 32], xq aligned to 16 bytes. */
DEVICE float block_product(uint layout, const weights *w, const part *p, GLOBAL const uchar *RESTRICT xq,
                           GLOBAL const float *RESTRICT xs, LOCAL float *room) {
    float sums[2 * PRODUCT_TOKENS];
    UNROLL
    for (uint i = 0; i < 2 * PRODUCT_TOKENS; i++) sums[i] = 0.0f;
    if (p->count <= 1) block_sums(layout, 1, w, p, xq, xs, sums);
    else if (p->count <= 4) block_sums(layout, 4, w, p, xq, xs, sums);
    else block_sums(layout, 8, w, p, xq, xs, sums);
    return lane_sum(room, sums, p->count);
}

/* Columns k .. k + 4 of a row of int8 activations, 0 past its end. */
DEVICE uint row_word(GLOBAL const uchar *row, uint cols, uint k) {
    uint x = 0;
    for (uint i = 0; i < 4; i++) {
        if (k + i < cols) x |= (uint)row[k + i] << (8 * i);
    }
    return x;
}

/* The same with one scale a row: xq int8 [rows][cols], any columns, aligned to 16 bytes where they are a multiple of
 * 32; xs f32 [rows]. */
DEVICE float channel_product(const weights *w, const part *p, GLOBAL const uchar *RESTRICT xq,
                             GLOBAL const float *RESTRICT xs, LOCAL int *room) {
    const uint lane = LID % PRODUCT_LANES, cols = w->cols;
    ulong rows[2];
    tile_rows(p, rows);
    block_order o;
    order_of(w, rows[0], rows[1], &o);
    int sums[2 * PRODUCT_TOKENS];
    UNROLL
    for (uint i = 0; i < 2 * PRODUCT_TOKENS; i++) sums[i] = 0;
    const uint whole = cols % 32 == 0;
    for (uint b = lane; !whole && b * 32 < cols; b += PRODUCT_LANES) {
        NO_UNROLL
        for (uint j = 0; j < 8; j++) {
            const uint first = ordered_word(w, &o, 0, b, j), second = ordered_word(w, &o, 1, b, j);
            UNROLL
            for (uint t = 0; t < PRODUCT_TOKENS; t++) {
                if (t < p->count) {
                    const uint x = row_word(xq + (ulong)p->x[t] * cols, cols, b * 32 + 4 * j);
                    sums[t] = DOT4(first, x, sums[t]);
                    sums[PRODUCT_TOKENS + t] = DOT4(second, x, sums[PRODUCT_TOKENS + t]);
                }
            }
        }
    }
    for (uint b = lane; whole && b * 32 < cols; b += PRODUCT_LANES) {
        uint q[2][8];
        ordered_pair(w, &o, b, q[0], q[1]);
        UNROLL
        for (uint t = 0; t < PRODUCT_TOKENS; t++) {
            if (t < p->count) {
                GLOBAL const uint4 *from = (GLOBAL const uint4 *)(xq + (ulong)p->x[t] * cols + b * 32);
                const uint4 u = from[0], v = from[1];
                const uint x[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
                UNROLL
                for (uint j = 0; j < 8; j++) {
                    sums[t] = DOT4(q[0][j], x[j], sums[t]);
                    sums[PRODUCT_TOKENS + t] = DOT4(q[1][j], x[j], sums[PRODUCT_TOKENS + t]);
                }
            }
        }
    }
    const int sum = lane_sum_int(room, sums, p->count);
    const uint row = LID % PRODUCT_ROWS, t = LID % PRODUCT_OUTPUTS / PRODUCT_ROWS;
    if (row >= p->rows || t >= p->count) return 0.0f;
    uint x = p->x[0];
    UNROLL
    for (uint i = 1; i < PRODUCT_TOKENS; i++) x = i == t ? p->x[i] : x;
    return MUL(MUL((float)sum, xs[x]), float_at(w->bytes, w->first_plane + (p->row + row) * 4));
}

#endif
