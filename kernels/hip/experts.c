/* Products of experts by matrix instructions, with a scale per row: few.h. Arguments and results are those of
 * gantry_experts_i8_channel, bit for bit; `order` and `stored_rows` are not looked at.
 *
 * cols is a multiple of 128, rows of activations times cols are below 2^32; first_row and row_step are multiples of 16; any
 * rows.
 * Grid: x = rows / 16 rounded up, y = bound of the tiles, or `all`. */
#include "few.h"

#if defined(MMA_LANES)

/* What a group works on: `count` pairs of one expert, at most as many as a tile of tokens has. */
typedef struct {
    uint expert;
    uint start;
    uint count;
    /* Null: the one pair `start`. */
    GLOBAL const uint *pairs;
    /* Pairs that share a row of activations. */
    uint share;
} few_expert;

DEVICE few_expert few_expert_of(GLOBAL const ulong *at, GLOBAL const uint *ids, GLOBAL const uint *tiles,
                                GLOBAL const uint *pairs, uint all, uint used, uint experts, uint x_per_pair) {
    few_expert e;
    const uint tile = GROUP_Y;
    if (tiles) {
        e.expert = tiles[3 * tile];
        e.start = tiles[3 * tile + 1];
        e.count = tiles[3 * tile + 2];
    } else {
        e.expert = ids && tile < all ? ids[tile] : tile % used;
        e.start = tile;
        e.count = tile < all;
    }
    e.pairs = tiles ? pairs : 0;
    if (!e.count || e.expert >= experts || at[e.expert] == ~(ulong)0) {
        e.expert = 0;
        e.start = 0;
        e.count = 0;
        e.pairs = 0;
    }
    e.share = x_per_pair ? 1 : used;
    return e;
}

/* The pair of a token of the tile; one past the last is the last. Some pair where there is none. */
DEVICE uint few_pair(const few_expert *e, uint token) {
    const uint last = e->count ? e->count - 1 : 0, t = token < last ? token : last;
    return e->pairs ? e->pairs[e->start + t] : e->start;
}

DEVICE few few_of_expert(const few_expert *e, GLOBAL const uchar *base, GLOBAL const ulong *at, GLOBAL const uchar *xq,
                         GLOBAL const float *xs, ulong scales, uint scale_bytes, ulong first_row, ulong row_step,
                         uint order, uint scaled, uint cols) {
    few f;
    const ulong row = first_row + e->expert * row_step + GROUP_X * FEW_TILE;
    /* A group without pairs computes for nothing, with weights that there are. */
    f.tile = base + (e->count ? at[e->expert] + row * cols : 0);
    f.scales = base + (e->count ? at[e->expert] + scales + row * scale_bytes : 0);
    f.xq = xq;
    f.xs = (GLOBAL const uchar *)xs;
    f.blocks = cols / 32;
    /* For a group without pairs, too: PoCL makes wrong code of loops with barriers whose bound it cannot see to be one for all. */
    f.turns = (f.blocks + 31) / 32;
    uint rows[MMA_SUMS];
    UNROLL
    for (uint s = 0; s < MMA_SUMS; s++) rows[s] = few_pair(e, MMA_TOKEN(MMA_LANE, s)) / e->share;
    few_rows(&f, order, scaled, 0, few_pair(e, MMA_LANE & 15u) / e->share, rows);
    return f;
}

DEVICE void few_expert_store(const few_expert *e, float value, GLOBAL const float *scale, GLOBAL float *y, ulong y_row,
                             ulong y_start, uint rows) {
    const uint row = GROUP_X * FEW_TILE + few_row(), token = few_token();
    if (LID >= FEW_OUTPUTS || row >= rows || token >= e->count) return;
    if (scale) value = MUL(value, scale[e->expert]);
    y[few_pair(e, token) * y_row + y_start + row] = value;
}

/* All of a group may leave; but not in OpenCL, where its compilers see barriers behind. */
#if defined(__HIP__)
#define FEW_NOTHING(count) \
    if (!(count)) return
#else
#define FEW_NOTHING(count) ((void)0)
#endif

#define FEW_EXPERTS_ARGUMENTS \
    GLOBAL const uchar *RESTRICT base, GLOBAL const ulong *RESTRICT at, GLOBAL const uint *RESTRICT ids, \
        GLOBAL const uint *RESTRICT tiles, GLOBAL const uint *RESTRICT pairs, GLOBAL const uchar *RESTRICT xq, \
        GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale, GLOBAL float *RESTRICT y, ulong scales, \
        ulong first_row, ulong row_step, ulong stored_rows, ulong y_row, ulong y_start, uint all, uint used, \
        uint experts, uint rows, uint cols, uint x_per_pair, uint order

#define EXPERTS_CHANNEL(name, tag) \
    KERNEL(FEW_GROUP) \
    name(FEW_EXPERTS_ARGUMENTS) { \
        BEGIN(); \
        SHARED(int, room, FEW_WAVES *FEW_OUTPUTS); \
        MMA_ROOM(emulated, FEW_GROUP); \
        const few_expert e = few_expert_of(at, ids, tiles, pairs, all, used, experts, x_per_pair); \
        FEW_NOTHING(e.count); \
        const few f = few_of_expert(&e, base, at, xq, xs, scales, 4, first_row, row_step, tag, 0, cols); \
        const int sum = few_channel(tag, 1, &f, MMA_GIVEN(emulated), room); \
        const float d = e.count ? xs[few_pair(&e, few_token()) / e.share] : 0.0f; \
        const float own = e.count ? float_at(f.scales, few_row() * 4) : 0.0f; \
        few_expert_store(&e, MUL(MUL((float)sum, d), own), scale, y, y_row, y_start, rows); \
    }

#if MMA_LANES == 64
EXPERTS_CHANNEL(gantry_decode_experts_slot8_channel, SLOT8)
#endif
#if defined(MMA_GFX928)
EXPERTS_CHANNEL(gantry_decode_experts_nmajor_channel, NMAJOR)
#endif
#if defined(MMA_CDNA3)
EXPERTS_CHANNEL(gantry_decode_experts_slot16_channel, SLOT16)
EXPERTS_CHANNEL(gantry_decode_experts_ck16_channel, CK16)
#endif
#if defined(MMA_RDNA3)
EXPERTS_CHANNEL(gantry_decode_experts_rdna3_channel, RDNA3)
#endif
#if defined(MMA_RDNA4)
EXPERTS_CHANNEL(gantry_decode_experts_rdna4_channel, RDNA4)
#endif

#endif
