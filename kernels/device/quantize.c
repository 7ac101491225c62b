/* Activations as int8; the CPU's values and scales, bit for bit. */
#include "portable.h"

#define QUANTIZE_GROUP 256

/* Per 32 values: d = max|x| / 127, q = x * (1/d) to the nearest, halves to even. A block whose 1/d overflows is 0; one
 * that holds a NaN or an infinity is 0 with a scale of NaN.
 *   x       f32 [rows][width], width a multiple of 32; 16-byte aligned
 *   q       int8 [rows][width]
 *   scales  f32 [rows][width / 32]
 *   blocks  rows * width / 32
 * Grid: x = blocks / 32 rounded up. */
KERNEL(QUANTIZE_GROUP)
gantry_quantize_q8(GLOBAL const float *RESTRICT x, GLOBAL signed char *RESTRICT q, GLOBAL float *RESTRICT scales,
                   ulong blocks) {
    SHARED(uint, room, QUANTIZE_GROUP);
    /* Eight members have a block, four values each. */
    const ulong block = (ulong)GROUP_X * 32 + LID / 8;
    const uint eighth = LID % 8;
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (block < blocks) v = ((GLOBAL const float4 *)x)[block * 8 + eighth];
    const uint sizes[4] = {BITS(v.x) & 0x7fffffffu, BITS(v.y) & 0x7fffffffu, BITS(v.z) & 0x7fffffffu,
                           BITS(v.w) & 0x7fffffffu};
    uint most = sizes[0];
    for (uint i = 1; i < 4; i++) most = sizes[i] > most ? sizes[i] : most;
    room[LID] = most;
    BARRIER();
    for (uint i = 0; i < 8; i++) most = room[LID / 8 * 8 + i] > most ? room[LID / 8 * 8 + i] : most;
    if (block >= blocks) return;
    const float largest = FROM_BITS(most);
    float d = DIV(largest, 127.0f);
    float inverse = DIV(1.0f, d);
    if (!is_finite(largest)) {
        d = FROM_BITS(0x7fc00000u);
        inverse = 0.0f;
    } else if (!is_finite(inverse)) {
        d = 0.0f;
        inverse = 0.0f;
    }
    char4 out = {0, 0, 0, 0};
    if (inverse != 0.0f) {
        out.x = (signed char)(int)NEAREST(MUL(v.x, inverse));
        out.y = (signed char)(int)NEAREST(MUL(v.y, inverse));
        out.z = (signed char)(int)NEAREST(MUL(v.z, inverse));
        out.w = (signed char)(int)NEAREST(MUL(v.w, inverse));
    }
    ((GLOBAL char4 *)q)[block * 8 + eighth] = out;
    if (eighth == 0) scales[block] = d;
}

/* Per row: d = max|x| / 127, q = x * (1/d) to the nearest, halves away from zero; else as gantry_quantize_q8.
 *   x       f32 [rows][width]
 *   q       int8 [rows][width]
 *   scales  f32 [rows]
 * Grid: x = rows. */
KERNEL(QUANTIZE_GROUP)
gantry_quantize_i8(GLOBAL const float *RESTRICT x, GLOBAL signed char *RESTRICT q, GLOBAL float *RESTRICT scales, uint width) {
    SHARED(uint, room, QUANTIZE_GROUP);
    const uint row = GROUP_X;
    x += (ulong)row * width;
    q += (ulong)row * width;
    uint most = 0;
    for (uint i = LID; i < width; i += QUANTIZE_GROUP) {
        const uint size = BITS(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    room[LID] = most;
    BARRIER();
    for (uint half_of = QUANTIZE_GROUP / 2; half_of > 0; half_of /= 2) {
        if (LID < half_of && room[LID + half_of] > room[LID]) room[LID] = room[LID + half_of];
        BARRIER();
    }
    const float largest = FROM_BITS(room[0]);
    const float d = DIV(largest, 127.0f), inverse = DIV(1.0f, d);
    const uint lost = !is_finite(largest) || !is_finite(inverse);
    for (uint i = LID; i < width; i += QUANTIZE_GROUP) {
        q[i] = lost ? 0 : (signed char)(int)NEAREST_AWAY(MUL(x[i], inverse));
    }
    if (LID == 0) scales[row] = lost ? (is_finite(largest) ? 0.0f : FROM_BITS(0x7fc00000u)) : d;
}
