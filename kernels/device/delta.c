/* The gated delta rule. */
#include "portable.h"

#define DELTA_PREPARE_GROUP 256
#define DELTA_GROUP 128
/* Columns of a state that a group has, one for each member of a lane; and lanes, which share a column's rows. */
#define DELTA_COLUMNS 32
#define DELTA_LANES 4
/* Largest head. */
#define DELTA_DIM 256

/* Queries and keys at length 1, and the gates.
 *   qkv        f32 [n][2 * key_heads * dim + value_heads * dim]: queries, keys, values
 *   beta,      f32: logits of the update's strength, and what decides about the decay; value head h of token t at
 *   alpha      t * row + start + h / len * stride + h % len
 *   decay, dt  f32 [value_heads]
 *   qk         out f32 [n][2 * key_heads][dim]: x * r, r = 1 / sqrt(sum x^2 + eps)
 *   gates      out f32 [n][2][value_heads]: g = e^(decay * ln(1 + e^(alpha + dt))), then 1 / (1 + e^-beta)
 * Grid: x = 2 * key_heads + 1, y = n. */
KERNEL(DELTA_PREPARE_GROUP)
gantry_delta_prepare(GLOBAL const float *RESTRICT qkv, GLOBAL const float *RESTRICT beta,
                     GLOBAL const float *RESTRICT alpha, GLOBAL const float *RESTRICT decay,
                     GLOBAL const float *RESTRICT dt, GLOBAL float *RESTRICT qk, GLOBAL float *RESTRICT gates,
                     ulong beta_row, ulong beta_start, ulong beta_stride, ulong alpha_row, ulong alpha_start,
                     ulong alpha_stride, uint key_heads, uint value_heads, uint dim, uint beta_len, uint alpha_len,
                     float eps) {
    BEGIN();
    SHARED(float, room, DELTA_PREPARE_GROUP);
    const uint t = GROUP_Y, head = GROUP_X;
    const uint heads = 2 * key_heads, some = head < heads ? dim : 0;
    GLOBAL const float *x = qkv + ((ulong)t * (heads + value_heads) + (head < heads ? head : 0)) * dim;
    float sum = 0.0f;
    NO_UNROLL
    for (uint i = LID; i < some; i += DELTA_PREPARE_GROUP) sum = MAD(x[i], x[i], sum);
    sum = sum_of_256(room, sum);
    if (head < heads) {
        const float r = DIV(1.0f, SQRT(ADD(sum, eps)));
        NO_UNROLL
        for (uint i = LID; i < dim; i += DELTA_PREPARE_GROUP) {
            qk[((ulong)t * 2 * key_heads + head) * dim + i] = MUL(x[i], r);
        }
    } else {
        gates += (ulong)t * 2 * value_heads;
        NO_UNROLL
        for (uint h = LID; h < value_heads; h += DELTA_PREPARE_GROUP) {
            const float a = alpha[t * alpha_row + alpha_start + h / alpha_len * alpha_stride + h % alpha_len];
            gates[h] = exp_of(MUL(softplus(ADD(a, dt[h])), decay[h]));
            const float b = beta[t * beta_row + beta_start + h / beta_len * beta_stride + h % beta_len];
            gates[value_heads + h] = sigmoid(b);
        }
    }
}

/* The row i of a state that a lane holds as its m-th: four in a row, then those of the other lanes. */
DEVICE uint delta_row(uint m, uint lane) { return m / 4 * 16 + lane * 4 + m % 4; }

/* A member's value m of a state, whose values from its column on are at `states`. clang is shown that what members differ by is one
 * number for all of a member's rows, which takes one register; nvcc finds it, and does worse where it is shown. */
#if defined(__HIP__)
#define DELTA_COLUMN 0
#define DELTA_STATE(states, m) (((states) + (ulong)delta_row(m, 0) * columns)[lane * 4 * columns + j])
#else
#define DELTA_COLUMN j
#define DELTA_STATE(states, m) ((states)[(ulong)delta_row(m, lane) * columns])
#endif

/* This member's part of what a token brings; values past dim are 0, so that they add nothing. */
typedef struct {
    float q[DELTA_DIM / DELTA_GROUP];
    float k[DELTA_DIM / DELTA_GROUP];
    float g;
    float beta;
    float v;
} delta_token;

DEVICE delta_token delta_load(GLOBAL const float *qk, GLOBAL const float *gates, GLOBAL const float *qkv, uint t,
                              uint there, uint key_heads, uint value_heads, uint dim, uint key_head, uint head,
                              uint first) {
    delta_token d;
    GLOBAL const float *heads = qk + (ulong)t * 2 * key_heads * dim;
    UNROLL
    for (uint h = 0; h < DELTA_DIM / DELTA_GROUP; h++) {
        const uint i = LID + h * DELTA_GROUP, inside = there && i < dim;
        d.q[h] = inside ? heads[(ulong)key_head * dim + i] : 0.0f;
        d.k[h] = inside ? heads[(ulong)(key_heads + key_head) * dim + i] : 0.0f;
    }
    d.g = there ? gates[(ulong)t * 2 * value_heads + head] : 0.0f;
    d.beta = there ? gates[((ulong)t * 2 + 1) * value_heads + head] : 0.0f;
    const uint column = first + LID % DELTA_COLUMNS;
    const ulong at = (ulong)t * (2 * key_heads + value_heads) + 2 * key_heads + head;
    d.v = there && column < dim ? qkv[at * dim + column] : 0.0f;
    return d;
}

/* For each value head, with the state S[i][j], token after token of a sequence: u_j = sum_i S_ij k_i,
 * d_j = beta (v_j - g u_j), S_ij = g S_ij + k_i d_j, y_j = sum_i S_ij q_i / sqrt(dim). A sum has four parts, i / 4
 * mod 4, each ascending.
 *   qk, gates    as gantry_delta_prepare gives them; qkv  as it takes them
 *   states       what sequences keep; from, to  [slots] byte of the state that is read, and of the one that is written
 *                (the same, or another that is to be given up): f32 [value_heads][dim / 32][dim i][32 values j], the
 *                last block as narrow as what is left of dim
 *   span_row, span_tokens, span_start  [slots]; a sequence that starts at position 0 starts from zeros
 *   y            f32 [n][value_heads][dim]
 *   dim          at most 256
 *   grouped      1: value head h has key head h / (value_heads / key_heads); 0: h mod key_heads
 * Grid: x = dim / 32 rounded up, y = value_heads, z = slots. */
KERNEL(DELTA_GROUP)
gantry_delta_net(GLOBAL const float *RESTRICT qk, GLOBAL const float *RESTRICT gates,
                 GLOBAL const float *RESTRICT qkv, GLOBAL uchar *states, GLOBAL const ulong *RESTRICT from,
                 GLOBAL const ulong *RESTRICT to, GLOBAL const uint *RESTRICT span_row,
                 GLOBAL const uint *RESTRICT span_tokens, GLOBAL const uint *RESTRICT span_start,
                 GLOBAL float *RESTRICT y, uint key_heads, uint value_heads, uint dim, uint grouped) {
    BEGIN();
    SHARED(float, q, DELTA_DIM);
    SHARED(float, k, DELTA_DIM);
    SHARED(float, room, DELTA_GROUP);
    SHARED(float, other_room, DELTA_GROUP);
    const uint head = GROUP_Y, slot = GROUP_Z, tokens = span_tokens[slot], row = span_row[slot];
    const uint first = GROUP_X * DELTA_COLUMNS, columns = dim - first < DELTA_COLUMNS ? dim - first : DELTA_COLUMNS;
    const uint j = LID % DELTA_COLUMNS, lane = LID / DELTA_COLUMNS;
    const uint key_head = grouped ? head / (value_heads / key_heads) : head % key_heads;
    const ulong at = ((ulong)head * dim + first) * dim + DELTA_COLUMN;
    GLOBAL const float *before = (GLOBAL const float *)(states + from[slot]) + at;
    GLOBAL float *after = (GLOBAL float *)(states + to[slot]) + at;
    float s[DELTA_DIM / DELTA_LANES];
    const uint fresh = span_start[slot] == 0 || j >= columns;
    UNROLL
    for (uint m = 0; m < DELTA_DIM / DELTA_LANES; m++) {
        const uint i = delta_row(m, lane);
        s[m] = i < dim && !fresh ? DELTA_STATE(before, m) : 0.0f;
    }
    const float scale = DIV(1.0f, SQRT((float)dim));
    /* What the next token needs is loaded while this one is computed. */
    delta_token next = delta_load(qk, gates, qkv, row, tokens > 0, key_heads, value_heads, dim, key_head, head, first);
    for (uint t = row; t < row + tokens; t++) {
        BARRIER();
        UNROLL
        for (uint h = 0; h < DELTA_DIM / DELTA_GROUP; h++) {
            q[LID + h * DELTA_GROUP] = next.q[h];
            k[LID + h * DELTA_GROUP] = next.k[h];
        }
        const float g = next.g, beta = next.beta, v = next.v;
        BARRIER();
        const uint more = t + 1 < row + tokens;
        next = delta_load(qk, gates, qkv, t + 1, more, key_heads, value_heads, dim, key_head, head, first);
        float u = 0.0f;
        UNROLL
        for (uint m = 0; m < DELTA_DIM / DELTA_LANES; m += 8) {
            /* Few branches, so that loads are under way together; past dim there are zeros. */
            if (m * DELTA_LANES < dim) {
                UNROLL
                for (uint i = m; i < m + 8; i += 4) {
                    const float4 four = *(LOCAL const float4 *)(k + delta_row(i, lane));
                    u = MAD(s[i], four.x, u);
                    u = MAD(s[i + 1], four.y, u);
                    u = MAD(s[i + 2], four.z, u);
                    u = MAD(s[i + 3], four.w, u);
                }
            }
        }
        room[LID] = u;
        BARRIER();
        u = (room[j] + room[j + 32]) + (room[j + 64] + room[j + 96]);
        const float d = MUL(beta, SUB(v, MUL(g, u)));
        float sum = 0.0f;
        UNROLL
        for (uint m = 0; m < DELTA_DIM / DELTA_LANES; m += 8) {
            if (m * DELTA_LANES < dim) {
                UNROLL
                for (uint i = m; i < m + 8; i += 4) {
                    const float4 ks = *(LOCAL const float4 *)(k + delta_row(i, lane));
                    const float4 qs = *(LOCAL const float4 *)(q + delta_row(i, lane));
                    s[i] = ADD(MUL(g, s[i]), MUL(ks.x, d));
                    s[i + 1] = ADD(MUL(g, s[i + 1]), MUL(ks.y, d));
                    s[i + 2] = ADD(MUL(g, s[i + 2]), MUL(ks.z, d));
                    s[i + 3] = ADD(MUL(g, s[i + 3]), MUL(ks.w, d));
                    sum = MAD(s[i], qs.x, sum);
                    sum = MAD(s[i + 1], qs.y, sum);
                    sum = MAD(s[i + 2], qs.z, sum);
                    sum = MAD(s[i + 3], qs.w, sum);
                }
            }
        }
        other_room[LID] = sum;
        BARRIER();
        if (lane == 0 && j < columns) {
            sum = (other_room[j] + other_room[j + 32]) + (other_room[j + 64] + other_room[j + 96]);
            y[((ulong)t * value_heads + head) * dim + first + j] = MUL(sum, scale);
        }
    }
    UNROLL
    for (uint m = 0; m < DELTA_DIM / DELTA_LANES; m++) {
        const uint i = delta_row(m, lane);
        if (i < dim && j < columns && tokens > 0) DELTA_STATE(after, m) = s[m];
    }
}
