/* y = scale * W x + bias of k-major int8 with a scale per row, for few tokens and few rows: columns are split over groups, and
 * the last group to arrive adds up what all have left. gfx928 takes fused projections in this order; the other instructions of
 * waves of 64 compute it as well.
 *
 * A group has 64 rows and 16 tokens, each of its four waves 16 of the rows. Weights go through local memory by stages of 64
 * columns, 16 bytes a member, two stages in turn: one barrier each. */
#include "few.h"

#if defined(MMA_LANES) && MMA_LANES == 64

#define SPLIT_GROUP 256
#define SPLIT_ROWS 64
#define SPLIT_COLS 64
/* Bytes of a stage's weights, [column][row]; of its tokens, [token][column], apart so that members meet different banks. */
#define SPLIT_WEIGHTS (SPLIT_COLS * SPLIT_ROWS)
#define SPLIT_APART 80
#define SPLIT_STAGE (SPLIT_WEIGHTS + FEW_TILE * SPLIT_APART)

/* Counts an arrival; 1 for the last of `all`. A counter holds a tag of 24 bits, and how many arrived under it, at most 255: what
 * another launch has left, even one that was given up, is not counted on. The last arrival leaves 0. */
DEVICE uint split_arrive(GLOBAL uint *counter, uint tag, uint all) {
    uint found = *(volatile GLOBAL uint *)counter, next;
    for (;;) {
        next = found >> 8 == (tag & 0xffffffu) ? found + 1 : (tag << 8 | 1);
#if defined(__HIP__)
        if (__hip_atomic_compare_exchange_strong(counter, &found, (next & 255u) == all ? 0 : next, __ATOMIC_ACQ_REL,
                                                 __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT)) {
            break;
        }
#else
        const uint before = atomic_cmpxchg((volatile GLOBAL uint *)counter, found, (next & 255u) == all ? 0 : next);
        if (before == found) break;
        found = before;
#endif
    }
    return (next & 255u) == all;
}

/* What a member brings of a stage: 16 bytes of weights, and if it is one of the first 64, of a token. */
typedef struct {
    uint4 weights;
    uint4 token;
} split_stage;

DEVICE void split_load(GLOBAL const uchar *w, GLOBAL const uchar *x, ulong stored, uint stage, split_stage *s) {
    s->weights = *(GLOBAL const uint4 *)(w + (ulong)stage * SPLIT_COLS * stored);
    if (LID < 64) s->token = *(GLOBAL const uint4 *)(x + (ulong)stage * SPLIT_COLS);
}

/* A member's 8 columns of a row of weights. */
DEVICE ulong split_column(LOCAL const uchar *from) {
    uint low = 0, high = 0;
    UNROLL
    for (uint i = 0; i < 4; i++) {
        low |= (uint)from[i * SPLIT_ROWS] << (8 * i);
        high |= (uint)from[(i + 4) * SPLIT_ROWS] << (8 * i);
    }
    return (ulong)high << 32 | low;
}

/* Arguments up to y and from `scales` to `cols` as for gantry_gemm_i8_channel; besides
 *   planes    int32 [splits][tokens of the grid][rows of the grid], written before it is read
 *   counters  a word for each group of x and y; whatever they hold
 *   tag       a word that differs from launch to launch of those that share counters
 *   splits    at most 255, and cols / 64
 * cols is a multiple of 64; first_row is a multiple of 16.
 * Grid: x = rows / 64 rounded up, y = n / 16 rounded up, z = splits. */
KERNEL(SPLIT_GROUP)
gantry_split_kmajor_channel_16(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq,
                               GLOBAL const float *RESTRICT xs, GLOBAL const float *RESTRICT scale,
                               GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, GLOBAL int *planes,
                               GLOBAL uint *counters, GLOBAL const uint *tag, ulong scales, ulong first_row,
                               ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols,
                               uint splits) {
    BEGIN();
    SHARED(uchar, staged, 2 * SPLIT_STAGE);
    SHARED(uint, last, 1);
    MMA_ROOM(emulated, SPLIT_GROUP);
    const ulong stored = (stored_rows + 15) / 16 * 16;
    const uint groups = (rows + SPLIT_ROWS - 1) / SPLIT_ROWS, stages = cols / SPLIT_COLS;
    const uint from = GROUP_Z * stages / splits, to = (GROUP_Z + 1) * stages / splits;
    const uint line = LID / 4, chunk = LID % 4 * 16, lane = MMA_LANE, wave = MMA_WAVE;
    /* Rows past the last and tokens past the last are some that there are. */
    const ulong first = first_row + GROUP_X * SPLIT_ROWS;
    const ulong row = first + chunk < stored ? first + chunk : stored - 16;
    const uint token = GROUP_Y * FEW_TILE + line % FEW_TILE;
    GLOBAL const uchar *w = bytes + line * stored + row;
    GLOBAL const uchar *x = xq + (ulong)(token < n ? token : n - 1) * cols + chunk;
    int sums[MMA_SUMS];
    UNROLL
    for (uint s = 0; s < MMA_SUMS; s++) sums[s] = 0;
    split_stage next;
    split_load(w, x, stored, from, &next);
    for (uint stage = from; stage < to; stage++) {
        LOCAL uchar *weights = staged + (stage & 1u) * SPLIT_STAGE, *tokens = weights + SPLIT_WEIGHTS;
        *(LOCAL uint4 *)(weights + line * SPLIT_ROWS + chunk) = next.weights;
        if (LID < 64) *(LOCAL uint4 *)(tokens + line * SPLIT_APART + chunk) = next.token;
        BARRIER();
        split_load(w, x, stored, stage + 1 < to ? stage + 1 : stage, &next);
        UNROLL
        for (uint step = 0; step < 2; step++) {
            const uint k = step * 32 + lane / 16 * 8;
            const mma_part a = split_column(weights + k * SPLIT_ROWS + wave * 16 + (lane & 15u));
            const mma_part b = *(LOCAL const mma_part *)(tokens + (lane & 15u) * SPLIT_APART + k);
            mma_block(MMA_GIVEN(emulated), sums, &a, &b);
        }
    }
    /* This group's plane. */
    const uint tiles = (n + FEW_TILE - 1) / FEW_TILE, width = groups * SPLIT_ROWS;
    const uint own_row = GROUP_X * SPLIT_ROWS + wave * 16 + (lane & 15u);
    const ulong plane = (ulong)tiles * FEW_TILE * width;
    UNROLL
    for (uint s = 0; s < MMA_SUMS; s++) {
        const uint own_token = GROUP_Y * FEW_TILE + MMA_TOKEN(lane, s);
        planes[GROUP_Z * plane + (ulong)own_token * width + own_row] = sums[s];
    }
    GLOBAL_BARRIER();
    if (LID == 0) last[0] = split_arrive(counters + GROUP_Y * groups + GROUP_X, tag[0], splits);
    GLOBAL_BARRIER();
    if (last[0] && own_row < rows) {
        UNROLL
        for (uint s = 0; s < MMA_SUMS; s++) {
            const uint own_token = GROUP_Y * FEW_TILE + MMA_TOKEN(lane, s);
            if (own_token < n) {
                int sum = 0;
                for (uint z = 0; z < splits; z++) sum += planes[z * plane + (ulong)own_token * width + own_row];
                float value = MUL(MUL((float)sum, xs[own_token]), float_at(bytes, scales + (first_row + own_row) * 4));
                if (scale) value = MUL(value, scale[0]);
                if (bias) value = ADD(value, bias[own_row]);
                y[own_token * y_row + y_start + own_row] = value;
            }
        }
    }
}

#endif
