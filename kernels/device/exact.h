/* Division and square root with the bits of IEEE's, rounded to nearest even, subnormal ones too, by whole numbers.
 *
 * OpenCL asks for no more than 2.5 ulp of a division and 3 ulp of a root; the option for more is not taken by all drivers,
 * and what SPIR-V says cannot ask for it. Here the native operation only guesses, for a divisor or radicand of usual size, so
 * that no mode for small numbers matters; the exact remainder then says by how much the guess is wrong.
 *
 * Division: with mantissas as whole numbers m and d, d <= m < 2 d, the quotient q = floor(m 2^24 / d) has 25 bits: a
 * result's 24 and the one behind them; whether more follow says the remainder m 2^24 - q d. Of a guess's remainder 32 bits
 * are enough while q is off by less than 128: while the inverse is by less than 31 ulp. Divided by d as a float and rounded,
 * it is that error or one beside it. Root: the same with floor(sqrt(m 2^25)) and the remainder m 2^25 - s^2, which
 * has 32 bits while s is off by less than 32: while the guess is by less than 8 ulp. */
#ifndef GANTRY_EXACT_H
#define GANTRY_EXACT_H

/* The guesses. A test puts worse ones in their place. */
#ifndef GUESS_INVERSE
#define GUESS_INVERSE(x) (1.0f / (x))
#define GUESS_ROOT(x) sqrt(x)
#endif

#define EXACT_INFINITY 0x7f800000u
#define EXACT_NAN 0x7fc00000u
#define EXACT_ONE 0x00800000u

/* The mantissa, its highest bit at 23, of what is not 0 and finite, without sign; `exponent` as if there were no subnormals. */
DEVICE uint exact_parts(uint bits, int *exponent) {
    if (bits >= EXACT_ONE) {
        *exponent = (int)(bits >> 23);
        return (bits & (EXACT_ONE - 1)) | EXACT_ONE;
    }
    const uint up = (uint)clz(bits) - 8;
    *exponent = 1 - (int)up;
    return bits << up;
}

/* A float nearest to q 2^-24 2^(exponent - 127), 2^24 <= q < 2^25, where `more` says that a bit less than one of q follows. */
DEVICE uint exact_nearest(uint q, uint more, int exponent) {
    if (exponent >= 255) return EXACT_INFINITY;
    const uint lost = exponent >= 1 ? 1 : exponent <= -24 ? 26 : (uint)(2 - exponent);
    const uint mantissa = q >> lost, half_bit = (q >> (lost - 1)) & 1;
    const uint rest = more | (q & ((1u << (lost - 1)) - 1));
    /* Where rounding carries, it does so into the exponent, as it must. */
    const uint base = exponent >= 1 ? (uint)(exponent - 1) << 23 : 0;
    return base + mantissa + (half_bit & ((rest != 0) | (mantissa & 1)));
}

DEVICE float exact_div(float a, float b) {
    const uint x = BITS(a) & 0x7fffffffu, y = BITS(b) & 0x7fffffffu, sign = (BITS(a) ^ BITS(b)) & 0x80000000u;
    if (x - 1 >= EXACT_INFINITY - 1 || y - 1 >= EXACT_INFINITY - 1) {
        if (x > EXACT_INFINITY || y > EXACT_INFINITY || x == y) return FROM_BITS(EXACT_NAN);
        return FROM_BITS(sign | (x == EXACT_INFINITY || y == 0 ? EXACT_INFINITY : 0));
    }
    int above, below;
    uint m = exact_parts(x, &above);
    const uint d = exact_parts(y, &below);
    int exponent = above - below + 127;
    if (m < d) {
        m <<= 1;
        exponent -= 1;
    }
    const float inverse = GUESS_INVERSE((float)d);
    uint q = (uint)((float)m * inverse * 16777216.0f);
    int r = (int)((m << 24) - q * d);
    const int off = (int)rint((float)r * inverse);
    q += (uint)off;
    r -= off * (int)d;
    if (r < 0) {
        q -= 1;
        r += (int)d;
    }
    return FROM_BITS(sign | exact_nearest(q, r != 0, exponent));
}

DEVICE float exact_sqrt(float a) {
    const uint x = BITS(a);
    if (x - 1 >= EXACT_INFINITY - 1) {
        /* Zeros and infinity are their own roots; what is below zero, and NaN, has none. */
        return (x << 1) == 0 || x == EXACT_INFINITY ? a : FROM_BITS(EXACT_NAN);
    }
    int exponent;
    uint m = exact_parts(x, &exponent);
    /* 2^(exponent - 127) must be a square. */
    if (exponent % 2 == 0) {
        m <<= 1;
        exponent -= 1;
    }
    uint s = (uint)(GUESS_ROOT((float)(2 * m)) * 4096.0f);
    int r = (int)((m << 25) - s * s);
    const int off = (int)rint((float)r / (float)(2 * s));
    s += (uint)off;
    r -= off * (int)(2 * s - (uint)off);
    if (r < 0) {
        s -= 1;
        r += (int)(2 * s + 1);
    } else if ((uint)r > 2 * s) {
        r -= (int)(2 * s + 1);
        s += 1;
    }
    return FROM_BITS(exact_nearest(s, r != 0, (exponent - 127) / 2 + 127));
}

#endif
