/* Causal attention over the caches of sequences: dense, windowed or over chosen positions, with compressed entries and
 * sinks. */
#include "kept.h"

#define ATTENTION_GROUP 128
/* Query heads of a group, which share a key-value head. */
#define ATTENTION_HEADS 4
/* Keys that are scored at a time; four members share one. */
#define ATTENTION_TILE 32
/* Most values of a key or value head; a member sums every 128th of them. */
#define ATTENTION_LEN 576
#define ATTENTION_EACH 5
/* Values of so many keys are loaded together. */
#define ATTENTION_BLOCK 8

/* What a token sees of one cache: `count` rows, those of `ids`, or from position `first` on. */
typedef struct {
    GLOBAL const uint *ids;
    uint first;
    uint count;
} seen_rows;

/* How many of n ascending ids lie below a limit. */
DEVICE uint ids_below(GLOBAL const uint *ids, uint n, uint limit) {
    uint low = 0, high = n;
    while (low < high) {
        const uint middle = (low + high) / 2;
        if (ids[middle] < limit) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Positions first .. end, or those of them that the token has chosen. */
DEVICE seen_rows rows_seen(GLOBAL const uint *chosen, ulong token, uint per_token, uint first, uint end) {
    seen_rows s = {0, first, end - first};
    if (chosen) {
        GLOBAL const uint *ids = chosen + token * per_token;
        const uint skipped = ids_below(ids, per_token, first);
        s.ids = ids + skipped;
        s.count = ids_below(ids, per_token, end) - skipped;
    }
    return s;
}

/* What values are kept as. */
#define KEPT_F32 0
#define KEPT_F16 1
#define KEPT_INT8 2
#define KEPT_SIZE(kept) ((kept) == KEPT_F32 ? 4 : (kept) == KEPT_F16 ? 2 : 1)

/* One value; of int8 without its scale. */
DEVICE float kept_value(uint kept, GLOBAL const uchar *p, ulong i) {
    if (kept == KEPT_INT8) return (float)(signed char)p[i];
    return kept == KEPT_F16 ? half_at(p, i * 2) : float_at(p, i * 4);
}

/* Values i .. i + 4; i and the row's start are multiples of 4. */
DEVICE float4 kept_values(uint kept, GLOBAL const uchar *p, ulong i) {
    if (kept == KEPT_F32) return *(GLOBAL const float4 *)(p + i * 4);
    float4 v;
    if (kept == KEPT_INT8) {
        const uint four = uint_at(p, i);
        v.x = (float)(signed char)(uchar)four;
        v.y = (float)(signed char)(uchar)(four >> 8);
        v.z = (float)(signed char)(uchar)(four >> 16);
        v.w = (float)(signed char)(uchar)(four >> 24);
        return v;
    }
    const uint2 two = *(GLOBAL const uint2 *)(p + i * 2);
    v.x = from_half((ushort)two.x);
    v.y = from_half((ushort)(two.x >> 16));
    v.z = from_half((ushort)two.y);
    v.w = from_half((ushort)(two.y >> 16));
    return v;
}

/* out[t][h] = sum_i softmax_i(scale * q[t][h] . k_i) v_i, in one softmax over what the token at position p sees: of the
 * positions <= p those of the window and `chosen`, ascending, then of the entries b < (p + 1) / ratio those of
 * `entry_chosen`, ascending. A token that sees nothing gets 0. In one pass: the running maximum, and sums in f32 in that
 * order, 32 at a time. The seen are cut into `splits` stretches of `chunk`; with one, y is written, with more `partial`,
 * and gantry_attention_combine makes y of it. The bits of a token depend on `chunk`, not on `splits`.
 *   q              f32, rows of q_row values, head h at q_start + h * key_len
 *   states         what sequences keep
 *   offsets        [slots] byte of each cache: keys [capacity][kv_heads][key_len], then, unless `shared`, values
 *                  [capacity][kv_heads][value_len]; position p in row p % capacity. Multiples of 16.
 *   entry_offsets  the same of the cache of entries (entry_capacity rows), or null: none
 *   positions, slots  [n]
 *   chosen         [n][per_token] ascending positions, NONE after the last; or null: all
 *   entry_chosen   [n][entry_per_token] ascending entries, or null: all that are complete
 *   sinks          f32 [heads], a logit that takes part and adds nothing; or null
 *   y              f32 [n][heads][value_len]
 *   partial        f32 [n][heads][splits][2 + value_len]: maximum, sum of e^, unscaled sums
 *   shared         1: values are the beginnings of keys
 *   window         positions that a token sees at most, its own the last; 0: all
 *   ratio          positions of an entry
 *   chunk          a multiple of 32
 *   splits         at least what the longest token sees / chunk
 * key_len, value_len <= 576. Of int8 (kept.h) keys' products, and values, are multiplied by their scales.
 * Grid: x = n, y = kv_heads * (heads / kv_heads / 4 rounded up), z = splits. */
#define ATTENTION(name, kept) \
    KERNEL_OF_TWO(ATTENTION_GROUP) \
    name(GLOBAL const float *RESTRICT q, GLOBAL const uchar *RESTRICT states, GLOBAL const ulong *RESTRICT offsets, \
         GLOBAL const ulong *RESTRICT entry_offsets, GLOBAL const uint *RESTRICT positions, \
         GLOBAL const uint *RESTRICT slots, GLOBAL const uint *RESTRICT chosen, \
         GLOBAL const uint *RESTRICT entry_chosen, GLOBAL const float *RESTRICT sinks, GLOBAL float *RESTRICT y, \
         GLOBAL float *RESTRICT partial, ulong q_row, ulong q_start, ulong capacity, ulong entry_capacity, \
         uint heads, uint kv_heads, uint key_len, uint value_len, uint shared, uint window, uint per_token, \
         uint entry_per_token, uint ratio, uint chunk, uint splits, float scale) { \
        BEGIN(); \
        SHARED(float, queries, ATTENTION_HEADS *ATTENTION_LEN); \
        SHARED(float, quarters, 4 * ATTENTION_HEADS * ATTENTION_TILE); \
        SHARED(float, scores, ATTENTION_HEADS *ATTENTION_TILE); \
        SHARED(float, weights, ATTENTION_HEADS *ATTENTION_TILE); \
        SHARED(float, factors, ATTENTION_HEADS); \
        SHARED(ulong, key_at, ATTENTION_TILE); \
        SHARED(ulong, value_at, ATTENTION_TILE); \
        SHARED(float, key_scales, ATTENTION_TILE); \
        SHARED(float, value_scales, ATTENTION_TILE); \
        ATTENTION_BODY(kept) \
    }

#define ATTENTION_BODY(kept) \
    const uint size = KEPT_SIZE(kept), lowest = 0xff800000u; \
    const uint t = GROUP_X, slot = slots[t], end = positions[t] + 1; \
    const uint grouped = heads / kv_heads, blocks = (grouped + ATTENTION_HEADS - 1) / ATTENTION_HEADS; \
    const uint kv = GROUP_Y / blocks, head = kv * grouped + GROUP_Y % blocks * ATTENTION_HEADS; \
    const uint rest = (kv + 1) * grouped - head, count = rest < ATTENTION_HEADS ? rest : ATTENTION_HEADS; \
    const uint first = window && window < end ? end - window : 0; \
    const seen_rows own = rows_seen(chosen, t, per_token, first, end); \
    seen_rows more = {0, 0, 0}; \
    if (entry_offsets) more = rows_seen(entry_chosen, t, entry_per_token, 0, end / ratio); \
    const uint all = own.count + more.count, start = GROUP_Z * chunk; \
    const uint stop = all < start + chunk ? all : start + chunk; \
    /* Heads past the last are computed with zeros and not stored: no branch keeps loads from being under way together. */ \
    for (uint i = LID; i < ATTENTION_HEADS * key_len; i += ATTENTION_GROUP) { \
        queries[i / key_len * ATTENTION_LEN + i % key_len] = \
            i < count * key_len ? q[t * q_row + q_start + (ulong)head * key_len + i] : 0.0f; \
    } \
    /* In the softmax a member has key LID % 32 of head LID / 32. */ \
    const uint key = LID % ATTENTION_TILE, own_head = LID / ATTENTION_TILE; \
    float most = sinks && own_head < count ? sinks[head + own_head] : FROM_BITS(lowest); \
    float sums[ATTENTION_HEADS], out[ATTENTION_HEADS][ATTENTION_EACH]; \
    UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
        sums[h] = 0.0f; \
        UNROLL for (uint i = 0; i < ATTENTION_EACH; i++) out[h][i] = 0.0f; \
    } \
    for (uint tile = start; tile < stop; tile += ATTENTION_TILE) { \
        const uint some = stop - tile < ATTENTION_TILE ? stop - tile : ATTENTION_TILE; \
        if (LID < some) { \
            const uint i = tile + LID, here = i < own.count, at = here ? i : i - own.count; \
            const uint position = here ? (own.ids ? own.ids[at] : own.first + at) : (more.ids ? more.ids[at] : at); \
            const ulong rows = here ? capacity : entry_capacity; \
            const ulong row = (ulong)ring_row(position, rows) * kv_heads + kv; \
            const ulong cache = here ? offsets[slot] : entry_offsets[slot]; \
            key_at[LID] = cache + row * key_len * size; \
            value_at[LID] = \
                shared ? key_at[LID] : cache + (rows * kv_heads * key_len + row * value_len) * size; \
            if (kept == KEPT_INT8) { \
                const kept_planes planes = planes_of_int8(rows, kv_heads, key_len, value_len, shared); \
                if (!shared) value_at[LID] = cache + planes.values + row * value_len; \
                key_scales[LID] = half_at(states, cache + planes.key_scales + 2 * row); \
                value_scales[LID] = half_at(states, cache + planes.value_scales + 2 * row); \
            } \
        } \
        BARRIER(); \
        { \
            const uint j = LID / 4, part = LID % 4; \
            float dots[ATTENTION_HEADS]; \
            UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) dots[h] = 0.0f; \
            if (j < some) { \
                GLOBAL const uchar *keys = states + key_at[j]; \
                if (key_len % 4 == 0) { \
                    for (uint start_d = 4 * part; start_d < key_len; start_d += 64) { \
                        /* Loads first, so that they are under way together. */ \
                        float4 k[4]; \
                        UNROLL for (uint u = 0; u < 4; u++) { \
                            const uint d = start_d + 16 * u; \
                            k[u] = kept_values(kept, keys, d < key_len ? d : 0); \
                            k[u].x = d < key_len ? k[u].x : 0.0f; \
                            k[u].y = d < key_len ? k[u].y : 0.0f; \
                            k[u].z = d < key_len ? k[u].z : 0.0f; \
                            k[u].w = d < key_len ? k[u].w : 0.0f; \
                        } \
                        UNROLL for (uint u = 0; u < 4; u++) { \
                            const uint d = start_d + 16 * u < key_len ? start_d + 16 * u : 0; \
                            UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
                                const float4 x = *(LOCAL const float4 *)(queries + h * ATTENTION_LEN + d); \
                                dots[h] = MAD(x.x, k[u].x, dots[h]); \
                                dots[h] = MAD(x.y, k[u].y, dots[h]); \
                                dots[h] = MAD(x.z, k[u].z, dots[h]); \
                                dots[h] = MAD(x.w, k[u].w, dots[h]); \
                            } \
                        } \
                    } \
                } else { \
                    for (uint d = part; d < key_len; d += 4) { \
                        const float k = kept_value(kept, keys, d); \
                        UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
                            dots[h] = MAD(queries[h * ATTENTION_LEN + d], k, dots[h]); \
                        } \
                    } \
                } \
            } \
            UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
                quarters[(part * ATTENTION_HEADS + h) * ATTENTION_TILE + j] = dots[h]; \
            } \
        } \
        BARRIER(); \
        const uint step = ATTENTION_HEADS * ATTENTION_TILE; \
        const float two = quarters[LID] + quarters[LID + step]; \
        float dot = two + (quarters[LID + 2 * step] + quarters[LID + 3 * step]); \
        if (kept == KEPT_INT8 && key < some) dot = MUL(dot, key_scales[key]); \
        const float score = key < some ? MUL(dot, scale) : FROM_BITS(lowest); \
        scores[LID] = score; \
        BARRIER(); \
        { \
            float next = most; \
            UNROLL for (uint j = 0; j < ATTENTION_TILE; j += 4) { \
                const float4 s = *(LOCAL const float4 *)(scores + own_head * ATTENTION_TILE + j); \
                const float low = s.y > s.x ? s.y : s.x, high = s.w > s.z ? s.w : s.z; \
                next = low > next ? low : next; \
                next = high > next ? high : next; \
            } \
            weights[key * ATTENTION_HEADS + own_head] = key < some ? exp_of(SUB(score, next)) : 0.0f; \
            if (key == 0) factors[own_head] = most == next ? 1.0f : exp_of(SUB(most, next)); \
            most = next; \
        } \
        BARRIER(); \
        UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
            const float factor = factors[h]; \
            sums[h] *= factor; \
            UNROLL for (uint i = 0; i < ATTENTION_EACH; i++) out[h][i] *= factor; \
        } \
        if (value_len <= ATTENTION_GROUP) { \
            ATTENTION_VALUES(kept, 1) \
        } else { \
            ATTENTION_VALUES(kept, ATTENTION_EACH) \
        } \
        BARRIER(); \
    } \
    if (key == 0) factors[own_head] = most; \
    BARRIER(); \
    UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
        if (h < count) { \
            const ulong at = (ulong)t * heads + head + h; \
            if (splits == 1) { \
                float sum = sums[h]; \
                if (sinks) sum += exp_of(SUB(sinks[head + h], factors[h])); \
                const float inverse = all > 0 ? DIV(1.0f, sum) : 0.0f; \
                UNROLL for (uint i = 0; i < ATTENTION_EACH; i++) { \
                    const uint d = LID + i * ATTENTION_GROUP; \
                    if (d < value_len) y[at * value_len + d] = MUL(out[h][i], inverse); \
                } \
            } else { \
                GLOBAL float *to = partial + (at * splits + GROUP_Z) * (2 + value_len); \
                if (LID == 0) { \
                    to[0] = factors[h]; \
                    to[1] = sums[h]; \
                } \
                UNROLL for (uint i = 0; i < ATTENTION_EACH; i++) { \
                    const uint d = LID + i * ATTENTION_GROUP; \
                    if (d < value_len) to[2 + d] = out[h][i]; \
                } \
            } \
        } \
    }

/* Adds the weighted values of a tile; a member has `each` dimensions. Loads come first; keys past the last have the
 * weight 0. */
#define ATTENTION_VALUES(kept, each) \
    for (uint block = 0; block < some; block += ATTENTION_BLOCK) { \
        float v[ATTENTION_BLOCK][each]; \
        UNROLL for (uint j = 0; j < ATTENTION_BLOCK; j++) { \
            UNROLL for (uint i = 0; i < each; i++) { \
                const uint d = LID + i * ATTENTION_GROUP; \
                v[j][i] = 0.0f; \
                if (block + j < some && d < value_len) { \
                    v[j][i] = kept_value(kept, states + value_at[block + j], d); \
                    if (kept == KEPT_INT8) v[j][i] = MUL(v[j][i], value_scales[block + j]); \
                } \
            } \
        } \
        UNROLL for (uint j = 0; j < ATTENTION_BLOCK; j++) { \
            const float4 four = *(LOCAL const float4 *)(weights + (block + j) * ATTENTION_HEADS); \
            const float w[ATTENTION_HEADS] = {four.x, four.y, four.z, four.w}; \
            UNROLL for (uint h = 0; h < ATTENTION_HEADS; h++) { \
                sums[h] += w[h]; \
                UNROLL for (uint i = 0; i < each; i++) out[h][i] = MAD(w[h], v[j][i], out[h][i]); \
            } \
        } \
    }

ATTENTION(gantry_attention_f32, KEPT_F32)
ATTENTION(gantry_attention_f16, KEPT_F16)
ATTENTION(gantry_attention_i8, KEPT_INT8)
