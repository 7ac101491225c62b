/* The second half of a read of hyper-connections: gates of low rank, and what they let through. */
#include "blocks.h"
#include "floats.h"
#include "q8.h"

#define HYPER_GROUP 256
/* Values of a stream that a group computes, by so many members each; they share a row's columns. */
#define HYPER_VALUES 32
#define HYPER_LANES 8
/* Most streams, and the largest rank. */
#define HYPER_STREAMS 4
#define HYPER_RANK 1024
/* Tokens of a group. */
#define HYPER_TOKENS 4
#define HYPER_OUTPUTS (HYPER_STREAMS * HYPER_TOKENS)

/* Adds to sums[h * HYPER_TOKENS + t] this member's part of row `rows[h]`; `tokens` are computed, however many there are. */
DEVICE void hyper_sums(uint layout, uint tokens, const weights *w, const ulong *rows, uint lane,
                       LOCAL const uint *low, LOCAL const float *scales, float *sums) {
    if (layout == Q8_0_SPLIT) {
        const uint blocks = w->cols / 32;
        NO_UNROLL
        for (uint b = lane; b < blocks; b += HYPER_LANES) {
            uint q[HYPER_STREAMS][8];
            float d[HYPER_STREAMS];
            UNROLL
            for (uint h = 0; h < HYPER_STREAMS; h++) {
                d[h] = weight_block(Q8_0_SPLIT, w, rows[h], b, q[h]);
            }
            UNROLL
            for (uint t = 0; t < tokens; t++) {
                const uint4 u = *(LOCAL const uint4 *)(low + (t * blocks + b) * 8);
                const uint4 v = *(LOCAL const uint4 *)(low + (t * blocks + b) * 8 + 4);
                const uint x[8] = {u.x, u.y, u.z, u.w, v.x, v.y, v.z, v.w};
                UNROLL
                for (uint h = 0; h < HYPER_STREAMS; h++) {
                    int sum = 0;
                    UNROLL
                    for (uint j = 0; j < 8; j++) sum = DOT4(q[h][j], x[j], sum);
                    const float d_both = MUL(d[h], scales[t * blocks + b]);
                    sums[h * HYPER_TOKENS + t] = ADD(sums[h * HYPER_TOKENS + t], MUL((float)sum, d_both));
                }
            }
        }
        return;
    }
    NO_UNROLL
    for (uint k = lane * FLOATS_UNIT; k < w->cols; k += HYPER_LANES * FLOATS_UNIT) {
        UNROLL
        for (uint h = 0; h < HYPER_STREAMS; h++) {
            float a[FLOATS_UNIT];
            float_weights(layout, w, rows[h], k, a);
            UNROLL
            for (uint t = 0; t < tokens; t++) {
                LOCAL const float *x = (LOCAL const float *)low + t * w->cols + k;
                float sum = sums[h * HYPER_TOKENS + t];
                UNROLL
                for (uint i = 0; i < FLOATS_UNIT; i++) sum = MAD(a[i], x[i], sum);
                sums[h * HYPER_TOKENS + t] = sum;
            }
        }
    }
}

/* low' = silu(low * factor) of `tokens` tokens from `token` on, those past `some` as the last: floats for float layouts, as
 * by gantry_quantize_q8 for others. `most` holds a word for each member. */
DEVICE void hyper_low(uint layout, GLOBAL const float *low, ulong token, uint tokens, uint some, uint rank, float factor,
                      LOCAL uint *words, LOCAL float *scales, LOCAL uint *most) {
    /* Units of four values; a block is eight units. */
    const uint units = tokens * rank / 4;
    NO_UNROLL
    for (uint start = 0; start < units; start += HYPER_GROUP) {
        const uint unit = start + LID, at = unit < units ? unit : units - 1;
        const uint t = at * 4 / rank, here = t < some ? t : some - 1;
        GLOBAL const float *from = low + (token + here) * rank + at * 4 % rank;
        float v[4];
        UNROLL
        for (uint i = 0; i < 4; i++) v[i] = silu(MUL(from[i], factor));
        if (layout != Q8_0_SPLIT) {
            UNROLL
            for (uint i = 0; i < 4; i++) words[at * 4 + i] = BITS(v[i]);
        }
        const uint largest = q8_most(most, v);
        if (layout == Q8_0_SPLIT) {
            float scale;
            const uint word = q8_word(largest, v, &scale);
            if (unit < units) words[unit] = word;
            if (unit < units && unit % 8 == 0) scales[unit / 8] = scale;
        }
        BARRIER();
    }
}

/* m[t][e] = (sum_h x[t][h][e] / (1 + e^-g)) / count, h ascending, g = sum_k W[first_row + h * len + e][k] low'[t][k],
 * low' = silu(low * factor); for q8_0.split low' is quantized as by gantry_quantize_q8. The sum over k: lanes 0 to 7 take
 * every eighth unit each (32 columns, or 8), then they are added ascending. Where q is not null, m quantized as well.
 *   bytes  the stored matrix, [first_row + count * len][rank]; aligned to 256
 *   x      f32 [n][count][len], len a multiple of 32, count at most 4
 *   low    f32 [n][rank], rank a multiple of 32 and at most 1024
 *   m      f32 [n][len]; q int8 [n][len] and scales f32 [n][len / 32], or null
 *   plane  (q8_0.split) byte of the plane of fp16 scales
 * Grid: x = len / 32, y = n / 4 rounded up. */
#define HYPER_UP(name, layout) \
    KERNEL_OF_TWO(HYPER_GROUP) \
    name(GLOBAL const uchar *RESTRICT bytes, GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT low, \
         GLOBAL float *RESTRICT m, GLOBAL uint *RESTRICT q, GLOBAL float *RESTRICT scales, ulong plane, \
         ulong first_row, uint n, uint count, uint len, uint rank, float factor) { \
        SHARED(float, room, HYPER_OUTPUTS *HYPER_GROUP); \
        SHARED(uint, words, HYPER_TOKENS *HYPER_RANK); \
        SHARED(float, word_scales, HYPER_TOKENS *HYPER_RANK / 32); \
        SHARED(uint, most, HYPER_GROUP); \
        const uint value = LID / HYPER_LANES, lane = LID % HYPER_LANES, first = GROUP_X * HYPER_VALUES; \
        const uint token = GROUP_Y * HYPER_TOKENS, left = n - token; \
        const uint some = left < HYPER_TOKENS ? left : HYPER_TOKENS, tokens = some == 1 ? 1 : HYPER_TOKENS; \
        if (LID < count) { \
            const uint of_row = layout == Q8_0_SPLIT ? rank : layout == RAW_F32 ? 4 * rank : 2 * rank; \
            PREFETCH(bytes + (first_row + LID * (ulong)len + first) * of_row, HYPER_VALUES * of_row); \
        } \
        BEGIN(); \
        const weights w = {bytes, plane, 0, 0, rank, 0, 0}; \
        ulong rows[HYPER_STREAMS]; \
        float streams[HYPER_STREAMS]; \
        /* Lane t of a value mixes it for token t. */ \
        const uint mixes = lane < some, t = mixes ? lane : 0; \
        UNROLL \
        for (uint h = 0; h < HYPER_STREAMS; h++) { \
            const uint stream = h < count ? h : 0; \
            rows[h] = first_row + (ulong)stream * len + first + value; \
            streams[h] = x[((ulong)(token + t) * count + stream) * len + first + value]; \
        } \
        hyper_low(layout, low, token, tokens, some, rank, factor, words, word_scales, most); \
        float sums[HYPER_OUTPUTS]; \
        UNROLL \
        for (uint i = 0; i < HYPER_OUTPUTS; i++) sums[i] = 0.0f; \
        if (tokens == 1) hyper_sums(layout, 1, &w, rows, lane, words, word_scales, sums); \
        else hyper_sums(layout, HYPER_TOKENS, &w, rows, lane, words, word_scales, sums); \
        UNROLL \
        for (uint i = 0; i < HYPER_OUTPUTS; i++) { \
            if (i % HYPER_TOKENS < tokens) room[i * HYPER_GROUP + LID] = sums[i]; \
        } \
        BARRIER(); \
        float mixed = 0.0f; \
        UNROLL \
        for (uint h = 0; h < HYPER_STREAMS; h++) { \
            LOCAL const float *lanes = room + (h * HYPER_TOKENS + t) * HYPER_GROUP + value * HYPER_LANES; \
            float gate = lanes[0]; \
            for (uint i = 1; i < HYPER_LANES; i++) gate += lanes[i]; \
            const float term = MUL(streams[h], sigmoid(gate)); \
            mixed = h == 0 ? term : h < count ? ADD(mixed, term) : mixed; \
        } \
        mixed = MUL(mixed, DIV(1.0f, (float)count)); \
        if (mixes) m[(ulong)(token + t) * len + first + value] = mixed; \
        BARRIER(); \
        if (mixes) room[t * HYPER_VALUES + value] = mixed; \
        BARRIER(); \
        /* Eight members for each token now. */ \
        const uint of = LID / 8 < some ? LID / 8 : 0; \
        float v[4]; \
        UNROLL \
        for (uint i = 0; i < 4; i++) v[i] = room[of * HYPER_VALUES + LID % 8 * 4 + i]; \
        float scale; \
        const uint word = q8_word(q8_most(most, v), v, &scale); \
        if (q && LID / 8 < some) { \
            const ulong block = (ulong)(token + of) * (len / 32) + GROUP_X; \
            q[block * 8 + LID % 8] = word; \
            if (LID % 8 == 0) scales[block] = scale; \
        } \
    }

HYPER_UP(gantry_hyper_up_f32, RAW_F32)
HYPER_UP(gantry_hyper_up_f16, RAW_F16)
HYPER_UP(gantry_hyper_up_bf16, RAW_BF16)
HYPER_UP(gantry_hyper_up_q8_0_split, Q8_0_SPLIT)
