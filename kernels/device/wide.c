/* Products with few rows and many columns: a group has two rows, all of its members share their columns. */
#include "blocks.h"
#include "floats.h"

#define WIDE_ROWS 2
/* Activations of a group. */
#define WIDE_TOKENS 4
/* Words of local memory: a member's sums of both rows, for each activation. */
#define WIDE_ROOM (WIDE_ROWS * WIDE_TOKENS * PRODUCT_GROUP)

/* One matrix of a launch, and where its products go. */
typedef struct {
    GLOBAL const uchar *bytes;
    GLOBAL const uchar *x;
    GLOBAL const float *xs;
    GLOBAL float *y;
    ulong plane;
    ulong first_row;
    ulong y_row;
    ulong y_start;
    uint rows;
    uint cols;
    uint layout;
    /* The group of the launch that has its first rows. */
    uint group;
} wide_job;

/* This member's part of both rows, for up to `tokens` activations. */
DEVICE void wide_sums(uint tokens, const wide_job *job, const part *p, float *sums) {
    const weights w = {job->bytes, job->plane, 0, 0, job->cols, 0, 0};
    GLOBAL const float *floats = (GLOBAL const float *)job->x;
    if (job->layout == Q8_0_SPLIT) block_sums(Q8_0_SPLIT, tokens, &w, p, job->x, job->xs, sums);
    else if (job->layout == RAW_F32) float_sums(RAW_F32, tokens, &w, p, floats, sums);
    else if (job->layout == RAW_F16) float_sums(RAW_F16, tokens, &w, p, floats, sums);
    else if (job->layout == RAW_BF16) float_sums(RAW_BF16, tokens, &w, p, floats, sums);
}

/* y[t][i] = sum_k W[first_row + i][k] x[t][k] for two matrices, which may have inputs of their own. A member's sum is in
 * order of its units of columns, every 256th; the members' are added as by sum_of_256.
 *   bytes, more_bytes   the stored matrices; aligned to 256
 *   x, xs               activations of n rows: f32, or int8 and scales (q8_0.split)
 *   y, more_y           f32, output i of token t at t * y_row + y_start + i
 *   plane, more_plane   (q8_0.split) byte of the plane of fp16 scales
 *   first_row, rows, cols, layout: of each; layout 0 f32, 1 f16, 2 bf16, 5 q8_0.split. more_rows may be 0
 * Grid: x = rows / 2 rounded up + more_rows / 2 rounded up, y = n / 4 rounded up. */
KERNEL_OF_TWO(PRODUCT_GROUP)
gantry_gemm_wide(GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT x, GLOBAL const float *RESTRICT xs,
                 GLOBAL float *RESTRICT y, GLOBAL const uchar *RESTRICT more_bytes, GLOBAL const uchar *RESTRICT more_x,
                 GLOBAL const float *RESTRICT more_xs, GLOBAL float *RESTRICT more_y, ulong plane, ulong first_row,
                 ulong y_row, ulong y_start, ulong more_plane, ulong more_first_row, ulong more_y_row,
                 ulong more_y_start, uint n, uint rows, uint cols, uint layout, uint more_rows, uint more_cols,
                 uint more_layout) {
    SHARED(float, room, WIDE_ROOM);
    const uint groups = (rows + WIDE_ROWS - 1) / WIDE_ROWS, more = GROUP_X >= groups;
    wide_job job = {bytes, x, xs, y, plane, first_row, y_row, y_start, rows, cols, layout, 0};
    if (more) {
        const wide_job other = {more_bytes, more_x,    more_xs,   more_y,     more_plane, more_first_row, more_y_row,
                                more_y_start, more_rows, more_cols, more_layout, groups};
        job = other;
    }
    const uint row = (GROUP_X - job.group) * WIDE_ROWS, token = GROUP_Y * WIDE_TOKENS;
    part p;
    p.row = job.first_row + row;
    p.rows = job.rows - row < WIDE_ROWS ? job.rows - row : WIDE_ROWS;
    p.count = n - token < WIDE_TOKENS ? n - token : WIDE_TOKENS;
    UNROLL
    for (uint t = 0; t < WIDE_TOKENS; t++) p.x[t] = token + t < n ? token + t : n - 1;
    p.slot = 0;
    p.apart = 1;
    p.lane = LID;
    p.lanes = PRODUCT_GROUP;
    if (LID == 0) {
        const uint of_row = job.layout == RAW_F32 ? 4 * job.cols : job.layout == Q8_0_SPLIT ? job.cols : 2 * job.cols;
        if (of_row % 16 == 0) PREFETCH(job.bytes + p.row * of_row, p.rows * of_row);
    }
    BEGIN();
    float sums[2 * PRODUCT_TOKENS];
    UNROLL
    for (uint i = 0; i < 2 * PRODUCT_TOKENS; i++) sums[i] = 0.0f;
    const uint tokens = p.count == 1 ? 1 : WIDE_TOKENS;
    if (tokens == 1) wide_sums(1, &job, &p, sums);
    else wide_sums(WIDE_TOKENS, &job, &p, sums);
    /* Output 2t + r of member m at (2t + r) * 256 + m. */
    UNROLL
    for (uint t = 0; t < WIDE_TOKENS; t++) {
        if (t < tokens) {
            room[2 * t * PRODUCT_GROUP + LID] = sums[t];
            room[(2 * t + 1) * PRODUCT_GROUP + LID] = sums[PRODUCT_TOKENS + t];
        }
    }
    sums_of_256(room, WIDE_ROWS * tokens);
    const uint t = LID / WIDE_ROWS, r = LID % WIDE_ROWS;
    if (t < p.count && r < p.rows) {
        job.y[((ulong)token + t) * job.y_row + job.y_start + row + r] = room[LID * PRODUCT_GROUP];
    }
}
