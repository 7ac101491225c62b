/* Activations as int8; the CPU's values and scales, bit for bit. */
#include "q8.h"

#define QUANTIZE_GROUP 256

/* Per 32 values, as q8.h says.
 *   x       f32 [rows][width], width a multiple of 32; 16-byte aligned
 *   q       int8 [rows][width]
 *   scales  f32 [rows][width / 32]
 *   blocks  rows * width / 32
 * Grid: x = blocks / 32 rounded up. */
KERNEL(QUANTIZE_GROUP)
gantry_quantize_q8(GLOBAL const float *RESTRICT x, GLOBAL uint *RESTRICT q, GLOBAL float *RESTRICT scales,
                   ulong blocks) {
    BEGIN();
    SHARED(uint, room, QUANTIZE_GROUP);
    const ulong unit = (ulong)GROUP_X * QUANTIZE_GROUP + LID, block = unit / 8;
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (block < blocks) four = ((GLOBAL const float4 *)x)[unit];
    const float v[4] = {four.x, four.y, four.z, four.w};
    float scale;
    const uint word = q8_word(q8_most(room, v), v, &scale);
    if (block >= blocks) return;
    q[unit] = word;
    if (unit % 8 == 0) scales[block] = scale;
}

/* Per row: d = max|x| / 127, q = x * (1/d) to the nearest, halves away from zero; else as q8.h says.
 *   x       f32 [rows][width]
 *   q       int8 [rows][width]
 *   scales  f32 [rows]
 * Grid: x = rows. */
KERNEL(QUANTIZE_GROUP)
gantry_quantize_i8(GLOBAL const float *RESTRICT x, GLOBAL signed char *RESTRICT q, GLOBAL float *RESTRICT scales, uint width) {
    BEGIN();
    SHARED(uint, room, QUANTIZE_GROUP);
    const uint row = GROUP_X;
    x += (ulong)row * width;
    q += (ulong)row * width;
    const float largest = FROM_BITS(most_of_row(room, QUANTIZE_GROUP, x, width));
    const float d = DIV(largest, 127.0f), inverse = DIV(1.0f, d);
    const uint lost = !is_finite(largest) || !is_finite(inverse);
    for (uint i = LID; i < width; i += QUANTIZE_GROUP) {
        q[i] = lost ? 0 : (signed char)(int)NEAREST_AWAY(MUL(x[i], inverse));
    }
    if (LID == 0) scales[row] = lost ? (is_finite(largest) ? 0.0f : FROM_BITS(0x7fc00000u)) : d;
}
