/* Products of experts: y = scale[e] * W_e x for every token and every expert e of it. */
#include "blocks.h"
#include "floats.h"

#define GROUP_GROUP 256
/* Experts of a member in gantry_experts_group: 1024 in all. */
#define GROUP_EACH 4

/* The expert of a pair, NONE where it has none on this card. */
DEVICE uint pair_expert(GLOBAL const uint *ids, GLOBAL const uint *positions, GLOBAL const ulong *at,
                        GLOBAL const uint *turns, uint pair, uint all, uint used, uint experts) {
    if (pair >= all) return NONE;
    const uint id = ids ? ids[pair] : pair % used;
    if (id >= experts || at[id] == ~(ulong)0) return NONE;
    if (turns && positions[pair / used] % turns[2 * id] != turns[2 * id + 1]) return NONE;
    return id;
}

/* Sorts pairs by expert, so that its weights are read once for up to 8 of them; `pair` = token * used + slot. Pairs
 * keep their order within an expert.
 *   ids        [n][used], or null: slot s has expert s
 *   positions  [n] of the tokens in their sequences; only read with `turns`
 *   at         [experts]: byte of the expert's matrices, ~0: not on this card, its pairs are left out
 *   turns      [experts][2], or null: copies of the expert on all cards, and which of them is this card's; a token at
 *              position p takes copy p mod copies
 *   ranks      room for [n * used]
 *   pairs      out [n * used]
 *   tiles      out [bound][3]: expert, first in `pairs`, how many (1..8; 0: no tile)
 *   bound      at least min(n * used, n * used / 8 + experts)
 *   experts    at most 1024
 * Grid: 1. */
KERNEL(GROUP_GROUP)
gantry_experts_group(GLOBAL const uint *RESTRICT ids, GLOBAL const uint *RESTRICT positions,
                     GLOBAL const ulong *RESTRICT at, GLOBAL const uint *RESTRICT turns, GLOBAL uint *RESTRICT ranks,
                     GLOBAL uint *RESTRICT pairs, GLOBAL uint *RESTRICT tiles, uint n, uint used, uint experts,
                     uint bound) {
    BEGIN();
    SHARED(uint, counts, GROUP_GROUP *GROUP_EACH);
    SHARED(uint, staged, GROUP_GROUP);
    SHARED(uint, pair_sums, GROUP_GROUP);
    SHARED(uint, tile_sums, GROUP_GROUP);
    const uint all = n * used;
    for (uint e = LID; e < GROUP_GROUP * GROUP_EACH; e += GROUP_GROUP) counts[e] = 0;
    /* The rank of each pair among those of its expert: those of earlier stretches, then those before it in its own. */
    for (uint start = 0; start < all; start += GROUP_GROUP) {
        const uint id = pair_expert(ids, positions, at, turns, start + LID, all, used, experts);
        staged[LID] = id;
        BARRIER();
        uint before = 0, same = 0;
        for (uint i = 0; i < GROUP_GROUP; i += 4) {
            const uint4 v = *(LOCAL const uint4 *)(staged + i);
            const uint x = v.x == id, y = v.y == id, z = v.z == id, w = v.w == id;
            same += x + y + z + w;
            before += (x & (i < LID)) + (y & (i + 1 < LID)) + (z & (i + 2 < LID)) + (w & (i + 3 < LID));
        }
        if (id != NONE) ranks[start + LID] = counts[id] + before;
        BARRIER();
        /* The last of an expert's counts them. */
        if (id != NONE && before + 1 == same) counts[id] += same;
        BARRIER();
    }
    BARRIER();
    /* Where the experts' pairs and tiles start: sums up to each member, inclusive, who has GROUP_EACH experts. */
    const uint first = LID * GROUP_EACH;
    uint own_pairs = 0, own_tiles = 0;
    for (uint e = first; e < first + GROUP_EACH; e++) {
        own_pairs += counts[e];
        own_tiles += (counts[e] + PRODUCT_TOKENS - 1) / PRODUCT_TOKENS;
    }
    pair_sums[LID] = own_pairs;
    tile_sums[LID] = own_tiles;
    BARRIER();
    for (uint step = 1; step < GROUP_GROUP; step *= 2) {
        const uint more_pairs = LID >= step ? pair_sums[LID - step] : 0;
        const uint more_tiles = LID >= step ? tile_sums[LID - step] : 0;
        BARRIER();
        pair_sums[LID] += more_pairs;
        tile_sums[LID] += more_tiles;
        BARRIER();
    }
    uint pair = pair_sums[LID] - own_pairs, tile = tile_sums[LID] - own_tiles;
    for (uint e = first; e < first + GROUP_EACH; e++) {
        const uint count = counts[e];
        counts[e] = pair;
        for (uint i = 0; i < count; i += PRODUCT_TOKENS, tile++) {
            tiles[3 * tile] = e;
            tiles[3 * tile + 1] = pair + i;
            tiles[3 * tile + 2] = count - i < PRODUCT_TOKENS ? count - i : PRODUCT_TOKENS;
        }
        pair += count;
    }
    for (uint i = tile_sums[GROUP_GROUP - 1] + LID; i < bound; i += GROUP_GROUP) tiles[3 * i + 2] = 0;
    BARRIER();
    /* A member reads the ranks that it wrote. */
    for (uint i = LID; i < all; i += GROUP_GROUP) {
        const uint id = pair_expert(ids, positions, at, turns, i, all, used, experts);
        if (id != NONE) pairs[counts[id] + ranks[i]] = i;
    }
}

/* What a group of gantry_experts_* works on: `pairs` of one expert. */
typedef struct {
    part p;
    uint expert;
    /* Where its pairs are listed; null: the one pair `start`. */
    GLOBAL const uint *pairs;
    uint start;
} expert_part;

/* count 0: nothing. Without tiles, tile i is pair i. */
DEVICE expert_part expert_of(GLOBAL const ulong *at, GLOBAL const uint *ids, GLOBAL const uint *tiles,
                             GLOBAL const uint *pairs, ulong first_row, ulong row_step, uint all, uint used,
                             uint experts, uint rows, uint x_per_pair) {
    expert_part e;
    const uint tile = GROUP_Y;
    uint start = tile, count = 1;
    if (tiles) {
        e.expert = tiles[3 * tile];
        start = tiles[3 * tile + 1];
        count = tiles[3 * tile + 2];
    } else {
        e.expert = ids && tile < all ? ids[tile] : tile % used;
        count = tile < all;
    }
    if (!count || e.expert >= experts || at[e.expert] == ~(ulong)0) {
        count = 0;
        e.expert = 0;
    }
    e.pairs = tiles ? pairs : 0;
    e.start = start;
    UNROLL
    for (uint t = 0; t < PRODUCT_TOKENS; t++) {
        const uint pair = t < count ? (tiles ? pairs[start + t] : start) : 0;
        e.p.x[t] = x_per_pair ? pair : pair / used;
    }
    e.p.count = count;
    e.p.row = first_row + e.expert * row_step + GROUP_X * PRODUCT_ROWS;
    e.p.rows = rows - GROUP_X * PRODUCT_ROWS;
    share_rows(&e.p);
    return e;
}

DEVICE void expert_store(const expert_part *e, float value, GLOBAL const float *scale, GLOBAL float *y, ulong y_row,
                         ulong y_start) {
    const uint row = LID % PRODUCT_ROWS, t = LID / PRODUCT_ROWS;
    if (LID >= PRODUCT_OUTPUTS || row >= e->p.rows || t >= e->p.count) return;
    const ulong pair = e->pairs ? e->pairs[e->start + t] : e->start;
    if (scale) value = MUL(value, scale[e->expert]);
    y[pair * y_row + y_start + GROUP_X * PRODUCT_ROWS + row] = value;
}

/* y[pair][i] = scale[e] * sum_k W_e[first_row + e * row_step + i][k] x[..][k], e the pair's expert.
 *   base        the card's weights; the stored matrix of expert e starts at byte at[e] (~0: not here, and its rows of y
 *               stay), a multiple of 256
 *   codebook    (e8) as for gantry_gemm_e8_planar
 *   ids         [n][used], or null: slot s has expert s; read where tiles is null
 *   tiles,      as gantry_experts_group wrote them; null: each pair by itself
 *   pairs
 *   x           f32, or xq and xs, as for the gemm of the layout: a row for each token, or with `x_per_pair` for each
 *               pair
 *   scale       f32 [experts], or null
 *   y           f32, rows of y_row values, one for each pair; outputs at y_start + i
 *   scales, words, stored_rows, order: as for the gemm of the layout
 *   first_row, row_step: row_step 0 where each expert has a matrix of its own, rows where all are one matrix
 *   all         n * used
 * Grid: x = rows / 16 rounded up, y = bound of the tiles, or `all`. */
#define EXPERT_TABLES \
    GLOBAL const uint *RESTRICT ids, GLOBAL const uint *RESTRICT tiles, GLOBAL const uint *RESTRICT pairs
#define EXPERT_COUNTS uint all, uint used, uint experts, uint rows, uint cols, uint x_per_pair
/* Nobody returns before a barrier: without pairs there are no columns. */
#define EXPERT_PART \
    const expert_part e = \
        expert_of(at, ids, tiles, pairs, first_row, row_step, all, used, experts, rows, x_per_pair); \
    const uint some_cols = e.p.count ? cols : 0

#define EXPERTS_FLOATS(kernel, name, layout) \
    kernel(PRODUCT_GROUP) \
    name(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at, EXPERT_TABLES, \
         GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y, \
         ulong first_row, ulong row_step, ulong y_row, ulong y_start, EXPERT_COUNTS) { \
        BEGIN(); \
        SHARED(float, room, PRODUCT_ROOM); \
        EXPERT_PART; \
        const weights w = {base + at[e.expert], 0, 0, 0, some_cols, 0, 0}; \
        expert_store(&e, float_product(layout, &w, &e.p, x, room), scale, y, y_row, y_start); \
    }

EXPERTS_FLOATS(KERNEL_OF_TWO, gantry_experts_f32, RAW_F32)
EXPERTS_FLOATS(KERNEL_OF_TWO, gantry_experts_f16, RAW_F16)
EXPERTS_FLOATS(KERNEL_OF_TWO, gantry_experts_bf16, RAW_BF16)
EXPERTS_FLOATS(KERNEL_OF_TWO, gantry_experts_q8_0, GGUF_Q8_0)
EXPERTS_FLOATS(KERNEL, gantry_experts_q4_0, GGUF_Q4_0)

KERNEL_LARGE(PRODUCT_GROUP)
gantry_experts_q8_0_split(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at, EXPERT_TABLES,
                          GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs,
                          GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                          ulong row_step, ulong y_row, ulong y_start, EXPERT_COUNTS) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    EXPERT_PART;
    const weights w = {base + at[e.expert], scales, 0, 0, some_cols, 0, 0};
    expert_store(&e, block_product(Q8_0_SPLIT, &w, &e.p, xq, xs, room), scale, y, y_row, y_start);
}

KERNEL_LARGE(PRODUCT_GROUP)
gantry_experts_i8_block32(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at, EXPERT_TABLES,
                          GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs,
                          GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                          ulong row_step, ulong stored_rows, ulong y_row, ulong y_start, EXPERT_COUNTS, uint order) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    EXPERT_PART;
    const weights w = {base + at[e.expert], scales, 0, stored_rows, some_cols, order, 0};
    expert_store(&e, block_product(I8_BLOCK32, &w, &e.p, xq, xs, room), scale, y, y_row, y_start);
}

KERNEL(PRODUCT_GROUP)
gantry_experts_i8_channel(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at, EXPERT_TABLES,
                          GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs,
                          GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y, ulong scales, ulong first_row,
                          ulong row_step, ulong stored_rows, ulong y_row, ulong y_start, EXPERT_COUNTS, uint order) {
    BEGIN();
    SHARED(int, room, PRODUCT_ROOM);
    EXPERT_PART;
    const weights w = {base + at[e.expert], scales, 0, stored_rows, some_cols, order, 0};
    expert_store(&e, channel_product(&w, &e.p, xq, xs, room), scale, y, y_row, y_start);
}

KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_experts_e8_planar(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at,
                         GLOBAL const uint *RESTRICT codebook, EXPERT_TABLES, GLOBAL const uchar *RESTRICT xq,
                         GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y,
                         ulong words, ulong scales, ulong first_row, ulong row_step, ulong y_row, ulong y_start,
                         EXPERT_COUNTS) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    SHARED(uint, entries, 256);
    EXPERT_PART;
    entries[LID] = codebook[LID];
    BARRIER();
    const weights w = {base + at[e.expert], words, scales, 0, some_cols, 0, entries};
    expert_store(&e, block_product(E8_PLANAR, &w, &e.p, xq, xs, room), scale, y, y_row, y_start);
}

KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_experts_e8_block98(GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at,
                          GLOBAL const uint *RESTRICT codebook, EXPERT_TABLES, GLOBAL const uchar *RESTRICT xq,
                          GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale,
                          GLOBAL float *RESTRICT y, ulong first_row, ulong row_step, ulong y_row, ulong y_start,
                          EXPERT_COUNTS) {
    BEGIN();
    SHARED(float, room, PRODUCT_ROOM);
    SHARED(uint, entries, 256);
    EXPERT_PART;
    entries[LID] = codebook[LID];
    BARRIER();
    const weights w = {base + at[e.expert], 0, 0, 0, some_cols, 0, entries};
    expert_store(&e, block_product(E8_BLOCK98, &w, &e.p, xq, xs, room), scale, y, y_row, y_start);
}
