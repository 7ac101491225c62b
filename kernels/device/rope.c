/* Rotary position embedding. */
#include "portable.h"

#define ROPE_GROUP 256

/* (a, b) of a pair becomes (a cos - b sin, a sin + b cos), in place, the CPU's bits.
 *   x        f32, rows of `row` values; the rotated values of head h of token t are the 2 * pairs at
 *            t * row + first + h * stride
 *   angles   f32 [n][pairs][2]: cos and sin of each token's position
 *   heads    of a token
 *   neox     1: pairs (j, j + pairs); 0: pairs (2j, 2j + 1)
 *   inverse  1: by the negative angle
 * Grid: x = heads * pairs / 256 rounded up, y = n. */
KERNEL(ROPE_GROUP)
gantry_rope(GLOBAL float *x, GLOBAL const float *RESTRICT angles, ulong row, ulong first, ulong stride, uint n,
            uint heads, uint pairs, uint neox, uint inverse) {
    BEGIN();
    const uint at = GROUP_X * ROPE_GROUP + LID, t = GROUP_Y;
    const uint h = at / pairs, j = at % pairs;
    if (h >= heads || t >= n) return;
    GLOBAL float *a = x + t * row + first + h * stride + (neox ? j : 2 * j);
    GLOBAL float *b = a + (neox ? pairs : 1);
    const float c = angles[((ulong)t * pairs + j) * 2];
    float s = angles[((ulong)t * pairs + j) * 2 + 1];
    if (inverse) s = -s;
    const float u = *a, v = *b;
    *a = SUB(MUL(u, c), MUL(v, s));
    *b = ADD(MUL(u, s), MUL(v, c));
}
