/* How a cache of int8 lies: keys [rows][heads][key_len], values [rows][heads][value_len] unless keys are also values, then
 * scales of keys and of values, f16 [rows][heads] each. Every plane begins at a multiple of 16. A value is int8 times the
 * scale of its row and head. */
#ifndef GANTRY_KEPT_H
#define GANTRY_KEPT_H

#include "portable.h"

typedef struct {
    /* Byte of each plane; those of values are those of keys where they are shared. */
    ulong values;
    ulong key_scales;
    ulong value_scales;
} kept_planes;

DEVICE ulong up_to_16(ulong bytes) { return (bytes + 15) / 16 * 16; }

DEVICE kept_planes planes_of_int8(ulong rows, uint heads, uint key_len, uint value_len, uint shared) {
    const ulong each = rows * heads, keys = up_to_16(each * key_len);
    kept_planes p;
    p.values = shared ? 0 : keys;
    p.key_scales = keys + (shared ? 0 : up_to_16(each * value_len));
    p.value_scales = p.key_scales + (shared ? 0 : up_to_16(2 * each));
    return p;
}

/* The scale of a row whose largest magnitude is `most`, as its f16 bits: most / 127, at most the largest f16; NaN and infinity
 * stay, so that what is read of such a row is NaN. */
DEVICE ushort scale_of_int8(float most) {
    const ushort bits = to_half(DIV(most, 127.0f));
    return bits == 0x7c00 && is_finite(most) ? (ushort)0x7bff : bits;
}

/* x / scale to the nearest of -127 .. 127, ties to even; 0 where that is no number. */
DEVICE uchar int8_of(float x, float scale) {
    float q = NEAREST(DIV(x, scale));
    q = q > 127.0f ? 127.0f : q;
    q = q < -127.0f ? -127.0f : q;
    return (uchar)(q == q ? (int)q : 0);
}

#endif
