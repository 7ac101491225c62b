/* Products of int8 weights, in the orders of AMD's and Hygon's matrix instructions, with few tokens: the weights are read once,
 * 8 or 16 bytes a lane, straight into the operands.
 *
 * A group has 16 rows of weights and 16 tokens, or 32 in two tiles; its waves share the columns. Of each 32 blocks of 32
 * columns wave w has those from w * FEW_EACH on, and keeps a sum for each of its blocks' places: place p sums blocks p, p + 32,
 * .. ascending, and the 32 places are added as product.h adds its lanes. So results have the bits of the kernels that multiply
 * without matrix instructions. Columns are a multiple of 128: a wave has all of its blocks or none. */
#ifndef GANTRY_FEW_H
#define GANTRY_FEW_H

#include "../device/product.h"
#include "mma.h"

#if defined(MMA_LANES)

#define FEW_GROUP 512
#define FEW_WAVES (FEW_GROUP / MMA_LANES)
#define FEW_EACH (32 / FEW_WAVES)
#define FEW_TILE 16
/* Outputs of a tile. */
#define FEW_OUTPUTS 256
#define FEW_TILES 2

/* A number is there at this point: what it is made of takes no registers beyond. */
#if defined(__HIP__)
#define FEW_DONE(x) asm volatile("" : "+v"(x))
#else
#define FEW_DONE(x) ((void)0)
#endif

/* Orders, by their index in formats::layout::Order::ALL. */
#define SLOT8 2
#define SLOT16 3
#define CK16 4
#define RDNA3 5
#define RDNA4 6
#define NMAJOR 9

/* What a group works on. */
typedef struct {
    /* 16 rows of weights, all their columns; scales of the first of them: f16 by block, or f32. */
    GLOBAL const uchar *tile;
    GLOBAL const uchar *scales;
    /* Activations and their scales. */
    GLOBAL const uchar *xq;
    GLOBAL const uchar *xs;
    /* Of a row, and turns to go through them: none where there is nothing to do. */
    uint blocks;
    uint turns;
    /* For each tile of tokens the bytes before the row of activations of this lane's token in the operand, and before the scales
     * of those of its sums; before its weights, and the scales of its row. What differs by lane is one number beside what does
     * not. */
    uint x[FEW_TILES];
    uint d[FEW_TILES][MMA_SUMS];
    uint w;
    uint scale;
} few;

/* What a wave has of a turn: its blocks' weights, and their scales. */
typedef struct {
    mma_part w[FEW_EACH][MMA_PARTS];
    uint scales[FEW_EACH / 2];
} few_weights;

/* And the activations of each tile of tokens, with the scales of each sum's row. */
typedef struct {
    mma_part x[FEW_TILES][FEW_EACH][MMA_PARTS];
    float d[FEW_TILES][MMA_SUMS][FEW_EACH];
} few_tokens;

/* Whether a lane has 16 columns of 64, which it gives to two instructions by halves: those together see 64 columns, and their
 * activations in the same way. So it is where a scale is for all of a row. */
#define FEW_HALVES(order, scaled) ((order) == CK16 || ((order) == NMAJOR && !(scaled)))

/* Tells a lane where its weights are, and its activations: `row` of its token in the operand of a tile, `rows` of those of its
 * sums. */
DEVICE void few_rows(few *f, uint order, uint scaled, uint tile, uint row, const uint *rows) {
    const uint lane = MMA_LANE, cols = f->blocks * 32;
    const uint own = FEW_HALVES(order, scaled) ? lane / 16 * 16 : order == RDNA3 ? 0 : lane / 16 * 8;
    f->x[tile] = row * cols + own;
    UNROLL
    for (uint s = 0; s < MMA_SUMS; s++) f->d[tile][s] = rows[s] * f->blocks * 4;
    f->scale = (lane & 15u) * f->blocks * 2;
    if (order == NMAJOR) f->w = (lane & 15u) * cols + own;
    else if (order == RDNA3) f->w = (lane & 15u) * 16;
    else f->w = order == SLOT8 || order == RDNA4 ? lane * 8 : lane * 16;
}

/* First block of a wave in a turn; the last ones that there are, where it has none. */
DEVICE uint few_first(uint turn, uint blocks) {
    const uint first = turn * 32 + MMA_WAVE * FEW_EACH;
    return first < blocks ? first : blocks - FEW_EACH;
}

/* Loads weights: the 16 bytes that a lane has of 64 columns are parts of two blocks. */
DEVICE void few_load_weights(uint order, uint scaled, const few *f, uint turn, few_weights *t) {
    const uint first = few_first(turn, f->blocks);
    GLOBAL const uchar *weights = f->tile + (ulong)first * (order == NMAJOR ? 32 : 512) + f->w;
    UNROLL
    for (uint e = 0; e < FEW_EACH; e++) {
#if MMA_LANES == 64
        const uint at = e * (order == NMAJOR ? 32 : 512);
        if (order == SLOT8 || (order == NMAJOR && scaled)) {
            t->w[e][0] = *(GLOBAL const ulong *)(weights + at);
        } else if (e % 2 == 0) {
            const ulong2 two = *(GLOBAL const ulong2 *)(weights + at);
            t->w[e][0] = two.x;
            t->w[e + 1][0] = two.y;
        }
#else
        UNROLL
        for (uint i = 0; i < 2; i++) t->w[e][i] = *(GLOBAL const mma_part *)(weights + e * 512 + i * 256);
#endif
    }
    if (scaled) {
        GLOBAL const uchar *scales = f->scales + (ulong)first * 2 + f->scale;
#if MMA_LANES == 64
        const uint2 two = *(GLOBAL const uint2 *)scales;
        t->scales[0] = two.x, t->scales[1] = two.y;
#else
        t->scales[0] = *(GLOBAL const uint *)scales;
#endif
    }
}

/* Loads activations, and their scales where weights are `scaled` by block. */
DEVICE void few_load_tokens(uint order, uint tiles, uint scaled, const few *f, uint turn, few_tokens *t) {
    const uint first = few_first(turn, f->blocks);
    UNROLL
    for (uint i = 0; i < tiles; i++) {
        GLOBAL const uchar *x = f->xq + (ulong)first * 32 + f->x[i];
        UNROLL
        for (uint e = 0; e < FEW_EACH; e++) {
#if MMA_LANES == 64
            if (!FEW_HALVES(order, scaled)) {
                t->x[i][e][0] = *(GLOBAL const ulong *)(x + e * 32);
            } else if (e % 2 == 0) {
                const ulong2 two = *(GLOBAL const ulong2 *)(x + e * 32);
                t->x[i][e][0] = two.x;
                t->x[i][e + 1][0] = two.y;
            }
#else
            UNROLL
            for (uint j = 0; j < 2; j++) t->x[i][e][j] = *(GLOBAL const mma_part *)(x + e * 32 + j * 16);
#endif
        }
        UNROLL
        for (uint s = 0; scaled && s < MMA_SUMS; s++) {
            GLOBAL const uchar *at = f->xs + (ulong)first * 4 + f->d[i][s];
            float *d = t->d[i][s];
#if MMA_LANES == 64
            const float4 v = *(GLOBAL const float4 *)at;
            d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
#else
            const float2 v = *(GLOBAL const float2 *)at;
            d[0] = v.x, d[1] = v.y;
#endif
        }
    }
}

/* Adds the blocks of a turn to the sums of their places. A wave without blocks has loaded the last ones and adds them times 0:
 * no branch parts loads from what uses them. (An activation's scale that is NaN makes its token's results NaN in any case.) */
DEVICE void few_add_blocks(uint tiles, const few *f, uint turn, const few_weights *w, const few_tokens *t,
                           LOCAL mma_part *room, float sums[FEW_TILES][FEW_EACH][MMA_SUMS]) {
    const uint there = turn * 32 + MMA_WAVE * FEW_EACH < f->blocks;
    UNROLL
    for (uint i = 0; i < tiles; i++) {
        int of_block[FEW_EACH][MMA_SUMS];
        UNROLL
        for (uint e = 0; e < FEW_EACH; e++) {
            UNROLL
            for (uint s = 0; s < MMA_SUMS; s++) of_block[e][s] = 0;
            mma_block(room, of_block[e], w->w[e], t->x[i][e]);
        }
        UNROLL
        for (uint e = 0; e < FEW_EACH; e++) {
            const uint half_bits = there ? w->scales[e / 2] >> (16 * (e % 2)) : 0;
            const float own = from_half((ushort)half_bits);
            UNROLL
            for (uint s = 0; s < MMA_SUMS; s++) {
                sums[i][e][s] = ADD(sums[i][e][s], MUL((float)of_block[e][s], MUL(own, t->d[i][s][e])));
                FEW_DONE(sums[i][e][s]);
            }
        }
    }
}

/* Adds the products of a turn to the sums of a wave. */
DEVICE void few_add(uint tiles, const few *f, uint turn, few_weights *w, const few_tokens *t, LOCAL mma_part *room,
                    int sums[FEW_TILES][MMA_SUMS]) {
    const uint there = turn * 32 + MMA_WAVE * FEW_EACH < f->blocks;
    UNROLL
    for (uint e = 0; e < FEW_EACH; e++) {
        UNROLL
        for (uint j = 0; j < MMA_PARTS; j++) w->w[e][j] = there ? w->w[e][j] : (mma_part)(0);
        UNROLL
        for (uint i = 0; i < tiles; i++) mma_block(room, sums[i], w->w[e], t->x[i][e]);
    }
}

/* A loop over turns. The next one's weights, which come from memory, are under way while one is computed; they are asked for
 * after its activations, which come from a cache, since a wait for what was asked for last is one for all. */
#define FEW_TURN(turn, now, next, scaled, add) \
    few_load_tokens(order, tiles, scaled, f, turn, &t); \
    few_load_weights(order, scaled, f, (turn) + 1, &next); \
    LOADS_APART(); \
    add(tiles, f, turn, &now, &t, emulated, sums); \
    LOADS_APART()
#define FEW_TURNS(scaled, add) \
    few_weights a, b; \
    few_tokens t; \
    uint turn = 0; \
    few_load_weights(order, scaled, f, 0, &a); \
    for (; turn + 1 < f->turns; turn += 2) { \
        FEW_TURN(turn, a, b, scaled, add); \
        FEW_TURN(turn + 1, b, a, scaled, add); \
    } \
    for (; turn < f->turns; turn++) { \
        few_load_tokens(order, tiles, scaled, f, turn, &t); \
        add(tiles, f, turn, &a, &t, emulated, sums); \
    }

/* Weights with a scale per 32. Output o of tile i, o = LID % 256, i = LID / 256, is given to its member. `room` holds
 * FEW_TILES * 2 * FEW_OUTPUTS. */
DEVICE float few_blocks(uint order, uint tiles, const few *f, LOCAL mma_part *emulated, LOCAL float *room) {
    float sums[FEW_TILES][FEW_EACH][MMA_SUMS];
    UNROLL
    for (uint i = 0; i < FEW_TILES; i++) {
        UNROLL
        for (uint e = 0; e < FEW_EACH; e++) {
            UNROLL
            for (uint s = 0; s < MMA_SUMS; s++) sums[i][e][s] = 0.0f;
        }
    }
    FEW_TURNS(1, few_add_blocks);
    /* Places 0 to 15 ascending, and 16 to 31; wave after wave takes up what the one before has summed. */
    const uint wave = MMA_WAVE, lane = MMA_LANE, upper = wave / (FEW_WAVES / 2), turn_of = wave % (FEW_WAVES / 2);
    for (uint pass = 0; pass < FEW_WAVES / 2; pass++) {
        if (turn_of == pass) {
            UNROLL
            for (uint i = 0; i < tiles; i++) {
                UNROLL
                for (uint s = 0; s < MMA_SUMS; s++) {
                    LOCAL float *at = room + (i * 2 + upper) * FEW_OUTPUTS + s * MMA_LANES + lane;
                    float sum = sums[i][0][s];
                    if (pass) sum = ADD(at[0], sum);
                    UNROLL
                    for (uint e = 1; e < FEW_EACH; e++) sum = ADD(sum, sums[i][e][s]);
                    at[0] = sum;
                }
            }
        }
        BARRIER();
    }
    const uint o = LID % FEW_OUTPUTS, i = LID / FEW_OUTPUTS % tiles;
    return ADD(room[i * 2 * FEW_OUTPUTS + o], room[(i * 2 + 1) * FEW_OUTPUTS + o]);
}

/* Weights with a scale per row: the sum, an integer. `room` holds FEW_WAVES * FEW_TILES * FEW_OUTPUTS. */
DEVICE int few_channel(uint order, uint tiles, const few *f, LOCAL mma_part *emulated, LOCAL int *room) {
    int sums[FEW_TILES][MMA_SUMS];
    UNROLL
    for (uint i = 0; i < FEW_TILES; i++) {
        UNROLL
        for (uint s = 0; s < MMA_SUMS; s++) sums[i][s] = 0;
    }
    FEW_TURNS(0, few_add);
    UNROLL
    for (uint i = 0; i < tiles; i++) {
        UNROLL
        for (uint s = 0; s < MMA_SUMS; s++) {
            room[(MMA_WAVE * tiles + i) * FEW_OUTPUTS + s * MMA_LANES + MMA_LANE] = sums[i][s];
        }
    }
    BARRIER();
    const uint o = LID % FEW_OUTPUTS, i = LID / FEW_OUTPUTS % tiles;
    int sum = 0;
    UNROLL
    for (uint w = 0; w < FEW_WAVES; w++) sum += room[(w * tiles + i) * FEW_OUTPUTS + o];
    return sum;
}

/* Row in its 16, and token in its tile, of output LID % 256. */
DEVICE uint few_row(void) { return LID % MMA_LANES & 15u; }
DEVICE uint few_token(void) {
    const uint o = LID % FEW_OUTPUTS;
    return MMA_TOKEN(o % MMA_LANES, o / MMA_LANES);
}

#endif
#endif
