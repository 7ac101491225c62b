/* The rotation of activations for matrices stored as W * Q. */
#include "portable.h"

#define ROTATE_GROUP 256
/* The largest block; a row is cut into powers of two, each the lowest set bit of what is left, at most this. */
#define ROTATE_CAP 4096

/* y = x rotated, the CPU's bits: per block of a row the signs flip, then for len = 1, 2, 4, ... every pair (u, v) at
 * distance len becomes (u + v, u - v), then each value is multiplied by 1 / sqrt(block). y may be x.
 *   x, y    f32 [n][cols], cols a multiple of 256
 *   signs   cols / 8 bytes: the sign streams of the blocks of a row one after another, bit e & 7 of byte e >> 3
 * Grid: x = blocks of a row, y = n. */
KERNEL(ROTATE_GROUP)
gantry_rotate(GLOBAL const float *x, GLOBAL const uchar *RESTRICT signs, GLOBAL float *y, uint cols) {
    BEGIN();
    SHARED(float, block, ROTATE_CAP);
    uint first = 0, size = 0;
    for (uint b = 0; b <= GROUP_X; b++) {
        first += size;
        const uint rest = cols - first;
        size = rest & (0 - rest);
        size = size > ROTATE_CAP ? ROTATE_CAP : size;
    }
    const ulong row = (ulong)GROUP_Y * cols + first;
    for (uint i = LID; i < size; i += ROTATE_GROUP) {
        const uint negative = (uint)(signs[(first + i) / 8] >> (i & 7)) & 1u;
        block[i] = FROM_BITS(BITS(x[row + i]) ^ negative << 31);
    }
    uint log = 0;
    for (uint len = 1; len < size; len *= 2, log++) {
        BARRIER();
        for (uint pair = LID; pair < size / 2; pair += ROTATE_GROUP) {
            const uint low = (pair & ~(len - 1)) * 2 + (pair & (len - 1));
            const float u = block[low], v = block[low + len];
            block[low] = ADD(u, v);
            block[low + len] = SUB(u, v);
        }
    }
    BARRIER();
    /* 2^(-log/2): a power of two, times the f32 nearest to 1/sqrt(2) where log is odd. */
    const float power = FROM_BITS((127u - log / 2) << 23);
    const float factor = log % 2 == 1 ? MUL(power, 0.70710678118654752f) : power;
    for (uint i = LID; i < size; i += ROTATE_GROUP) y[row + i] = MUL(block[i], factor);
}
