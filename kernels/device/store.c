/* Keys and values into the caches of sequences. */
#include "portable.h"

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
