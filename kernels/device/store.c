/* Keys and values into the caches of sequences. */
#include "kept.h"

#define STORE_GROUP 256

/* The keys, and where there is a plane of them the values, of each token to row position % capacity of its sequence's
 * cache: keys [capacity][heads][key_len], then values [capacity][heads][value_len].
 *   x             f32, rows of `row` values: heads * key_len keys from key_start, heads * value_len values from
 *                 value_start
 *   states        what sequences keep
 *   offsets       [slots] byte of each sequence's cache in `states`
 *   positions     [n] of the tokens in their sequences
 *   slots         [n] of the tokens: index into `offsets`
 *   capacity      rows of a cache
 *   key_values    heads * key_len
 *   value_values  heads * value_len; 0: values are the beginnings of keys
 * f16: rounded to nearest even.
 * Grid: x = (key_values + value_values) / 256 rounded up, y = n. */
#define STORE(name, type, stored) \
    KERNEL(STORE_GROUP) \
    name(GLOBAL const float *RESTRICT x, GLOBAL uchar *RESTRICT states, GLOBAL const ulong *RESTRICT offsets, \
         GLOBAL const uint *RESTRICT positions, GLOBAL const uint *RESTRICT slots, ulong row, ulong key_start, \
         ulong value_start, ulong capacity, uint n, uint key_values, uint value_values) { \
        BEGIN(); \
        const uint i = GROUP_X * STORE_GROUP + LID, t = GROUP_Y; \
        if (i >= key_values + value_values || t >= n) return; \
        const ulong at = ring_row(positions[t], capacity); \
        GLOBAL type *cache = (GLOBAL type *)(states + offsets[slots[t]]); \
        x += t * row; \
        if (i < key_values) { \
            const float v = x[key_start + i]; \
            cache[at * key_values + i] = stored; \
        } else { \
            const float v = x[value_start + (i - key_values)]; \
            cache[capacity * key_values + at * value_values + (i - key_values)] = stored; \
        } \
    }

STORE(gantry_store_f32, float, v)
STORE(gantry_store_f16, ushort, to_half(v))

#define STORE_ROW 128

/* The same as int8 (kept.h): a row of a head with the scale of its largest value.
 *   heads  of keys, and of values
 * Grid: x = heads, twice as many where there are values, y = n. */
KERNEL(STORE_ROW)
gantry_store_i8(GLOBAL const float *RESTRICT x, GLOBAL uchar *RESTRICT states, GLOBAL const ulong *RESTRICT offsets,
                GLOBAL const uint *RESTRICT positions, GLOBAL const uint *RESTRICT slots, ulong row, ulong key_start,
                ulong value_start, ulong capacity, uint n, uint key_values, uint value_values, uint heads) {
    BEGIN();
    SHARED(uint, room, STORE_ROW);
    const uint t = GROUP_Y, values = GROUP_X >= heads, head = values ? GROUP_X - heads : GROUP_X;
    const uint key_len = key_values / heads, value_len = value_values / heads, len = values ? value_len : key_len;
    x += t * row + (values ? value_start : key_start) + (ulong)head * len;
    const ushort bits = scale_of_int8(FROM_BITS(most_of_row(room, STORE_ROW, x, len)));
    const float scale = from_half(bits);
    const kept_planes planes = planes_of_int8(capacity, heads, key_len, value_len, value_values == 0);
    const ulong at = (ulong)ring_row(positions[t], capacity) * heads + head;
    GLOBAL uchar *cache = states + offsets[slots[t]];
    GLOBAL uchar *to = cache + (values ? planes.values : 0) + at * len;
    for (uint i = LID; i < len; i += STORE_ROW) to[i] = int8_of(x[i], scale);
    if (LID == 0) *(GLOBAL ushort *)(cache + (values ? planes.value_scales : planes.key_scales) + 2 * at) = bits;
}
