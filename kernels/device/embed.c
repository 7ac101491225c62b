/* Rows of a table by token. */
#include "portable.h"

#define EMBED_GROUP 256

/* y[t][r][i] = the value i of row first_row + tokens[t] of the table, for each of `rows` rows r of y; the CPU's bits.
 *   table   the stored matrix, [stored rows][width] in its layout
 *   tokens  [n] ids
 *   y       f32 [n][rows][width]
 *   scales  byte of the plane of scales (q8_0.split)
 * Grid: x = width / 256 rounded up, y = n. */
#define EMBED(name, value) \
    KERNEL(EMBED_GROUP) \
    name(GLOBAL const uchar *RESTRICT table, GLOBAL const uint *RESTRICT tokens, GLOBAL float *RESTRICT y, \
         ulong first_row, uint n, uint rows, uint width) { \
        BEGIN(); \
        const uint i = GROUP_X * EMBED_GROUP + LID, t = GROUP_Y; \
        if (i >= width || t >= n) return; \
        const ulong row = first_row + tokens[t]; \
        const float x = value; \
        for (uint r = 0; r < rows; r++) y[((ulong)t * rows + r) * width + i] = x; \
    }

EMBED(gantry_embed_f32, float_at(table, (row * width + i) * 4))
EMBED(gantry_embed_f16, half_at(table, (row * width + i) * 2))
EMBED(gantry_embed_bf16, bf16_at(table, (row * width + i) * 2))

/* gguf.q8_0: blocks of 34 bytes, fp16 scale and 32 int8. */
DEVICE float q8_0_value(GLOBAL const uchar *table, ulong element) {
    GLOBAL const uchar *block = table + element / 32 * 34;
    return MUL(half_at(block, 0), (float)(signed char)block[2 + element % 32]);
}
EMBED(gantry_embed_q8_0, q8_0_value(table, row * width + i))

/* As the others. */
KERNEL(EMBED_GROUP)
gantry_embed_q8_0_split(GLOBAL const uchar *RESTRICT table, GLOBAL const uint *RESTRICT tokens,
                        GLOBAL float *RESTRICT y, ulong first_row, ulong scales, uint n, uint rows, uint width) {
    BEGIN();
    const uint i = GROUP_X * EMBED_GROUP + LID, t = GROUP_Y;
    if (i >= width || t >= n) return;
    const ulong element = (first_row + tokens[t]) * width + i;
    const float x = MUL(half_at(table, scales + element / 32 * 2), (float)(signed char)table[element]);
    for (uint r = 0; r < rows; r++) y[((ulong)t * rows + r) * width + i] = x;
}
