/* How a group shares a product: 16 rows of weights by up to 8 rows of activations.
 *
 * Member LID has slot s = LID / 32, with rows s and s + 8, and lane LID % 32: the 32nds of the columns, in the units of
 * the layout, that the lane takes in turn. So a row's columns are read side by side. Each of the 16 sums of a member is
 * in order of its units; the 32 lanes of an output are then added, 0 to 15 and 16 to 31, each ascending, and those two.
 * The order depends on nothing else: a token alone has the bits that it has in a batch. */
#ifndef GANTRY_PRODUCT_H
#define GANTRY_PRODUCT_H

#include "portable.h"

#define PRODUCT_GROUP 256
#define PRODUCT_ROWS 16
#define PRODUCT_TOKENS 8
#define PRODUCT_LANES 32
/* Words of local memory: the lanes of each output, apart by one so that members meet different banks, and one half's
 * sum. */
#define PRODUCT_OUTPUTS (PRODUCT_ROWS * PRODUCT_TOKENS)
#define PRODUCT_ROOM (PRODUCT_OUTPUTS * (PRODUCT_LANES + 1) + PRODUCT_OUTPUTS)

/* Layouts of weights. */
#define RAW_F32 0
#define RAW_F16 1
#define RAW_BF16 2
#define GGUF_Q8_0 3
#define GGUF_Q4_0 4
#define Q8_0_SPLIT 5
#define I8_BLOCK32 6
#define I8_CHANNEL 7
#define E8_PLANAR 8
#define E8_BLOCK98 9

/* Where weights lie. */
typedef struct {
    /* The stored matrix; further planes at `first_plane` and `second_plane`. */
    GLOBAL const uchar *bytes;
    ulong first_plane;
    ulong second_plane;
    /* Of the stored matrix; the rows of an int8 order with padding. */
    ulong stored_rows;
    uint cols;
    /* Of an int8 layout, in the order of formats::layout::Order::ALL. */
    uint order;
    /* E8: 256 entries of 4 bytes, each 1..127, in local memory. */
    LOCAL const uint *codebook;
} weights;

/* One group's part of a product. */
typedef struct {
    /* First of its rows in the stored matrix, and how many rows there are from there on. */
    ulong row;
    uint rows;
    /* Activations: how many, and which; rows past the last are any that exist. */
    uint count;
    uint x[PRODUCT_TOKENS];
    /* This member's first row; the second is `apart` further. */
    uint slot;
    uint apart;
    /* Its lane, of how many. */
    uint lane;
    uint lanes;
} part;

/* Shares the rows of a part as said above. */
DEVICE void share_rows(part *p) {
    p->slot = LID / PRODUCT_LANES;
    p->apart = PRODUCT_ROWS / 2;
    p->lane = LID % PRODUCT_LANES;
    p->lanes = PRODUCT_LANES;
}

/* The stored row of this member, its first (0) or second (1): one past the end repeats the last. */
DEVICE ulong part_row(const part *p, uint second) {
    const uint row = p->slot + p->apart * second;
    return p->row + (row < p->rows ? row : p->rows - 1);
}

/* The sum of the lanes of output LID < 128: row LID % 16, activations LID / 16. */
DEVICE float lane_sum(LOCAL float *room, const float *sums, uint count) {
    const uint slot = LID / PRODUCT_LANES, lane = LID % PRODUCT_LANES;
    UNROLL
    for (uint t = 0; t < PRODUCT_TOKENS; t++) {
        if (t < count) {
            room[(t * PRODUCT_ROWS + slot) * (PRODUCT_LANES + 1) + lane] = sums[t];
            room[(t * PRODUCT_ROWS + slot + 8) * (PRODUCT_LANES + 1) + lane] = sums[PRODUCT_TOKENS + t];
        }
    }
    BARRIER();
    const uint output = LID % PRODUCT_OUTPUTS, upper = LID / PRODUCT_OUTPUTS;
    float sum = 0.0f;
    if (output / PRODUCT_ROWS < count) {
        LOCAL const float *lanes = room + output * (PRODUCT_LANES + 1) + upper * (PRODUCT_LANES / 2);
        sum = lanes[0];
        for (uint i = 1; i < PRODUCT_LANES / 2; i++) sum += lanes[i];
    }
    if (upper) room[PRODUCT_OUTPUTS * (PRODUCT_LANES + 1) + output] = sum;
    BARRIER();
    return sum + room[PRODUCT_OUTPUTS * (PRODUCT_LANES + 1) + output];
}

/* The same for integers, which have no order. */
DEVICE int lane_sum_int(LOCAL int *room, const int *sums, uint count) {
    const uint slot = LID / PRODUCT_LANES, lane = LID % PRODUCT_LANES;
    UNROLL
    for (uint t = 0; t < PRODUCT_TOKENS; t++) {
        if (t < count) {
            room[(t * PRODUCT_ROWS + slot) * (PRODUCT_LANES + 1) + lane] = sums[t];
            room[(t * PRODUCT_ROWS + slot + 8) * (PRODUCT_LANES + 1) + lane] = sums[PRODUCT_TOKENS + t];
        }
    }
    BARRIER();
    const uint output = LID % PRODUCT_OUTPUTS;
    int sum = 0;
    if (output / PRODUCT_ROWS < count) {
        for (uint i = 0; i < PRODUCT_LANES; i++) sum += room[output * (PRODUCT_LANES + 1) + i];
    }
    return sum;
}

#endif
