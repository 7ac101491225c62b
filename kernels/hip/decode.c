/* y = scale * W x + bias by matrix instructions, for few tokens: few.h. Arguments and results are those of
 * gantry_gemm_i8_channel and gantry_gemm_i8_block32, bit for bit; `order` and `stored_rows` are not looked at.
 *
 * cols is a multiple of 128; n * cols is below 2^32; any rows. The end of a name says how many tokens a group has, 16 or 32:
 * where there are fewer, some are multiplied for nothing.
 * Grid: x = rows / 16 rounded up, y = n / tokens rounded up. */
#include "few.h"

#if defined(MMA_LANES)

DEVICE few decode_few(GLOBAL const uchar *bytes, GLOBAL const uchar *xq, GLOBAL const float *xs, ulong scales,
                      uint scale_bytes, ulong first_row, uint order, uint scaled, uint tiles, uint n, uint cols) {
    few f;
    const ulong row = first_row + GROUP_X * FEW_TILE;
    f.tile = bytes + row * cols;
    f.scales = bytes + scales + row * scale_bytes;
    f.xq = xq;
    f.xs = (GLOBAL const uchar *)xs;
    f.blocks = cols / 32;
    f.turns = (f.blocks + 31) / 32;
    /* A token past the last repeats it, and is not stored. */
    UNROLL
    for (uint i = 0; i < FEW_TILES; i++) {
        const uint first = (GROUP_Y * tiles + i) * FEW_TILE;
        const uint token = first + (MMA_LANE & 15u);
        uint rows[MMA_SUMS];
        UNROLL
        for (uint s = 0; s < MMA_SUMS; s++) {
            const uint of_sum = first + MMA_TOKEN(MMA_LANE, s);
            rows[s] = of_sum < n ? of_sum : n - 1;
        }
        few_rows(&f, order, scaled, i, token < n ? token : n - 1, rows);
    }
    return f;
}

DEVICE void decode_store(float value, GLOBAL const float *scale, GLOBAL const float *bias, GLOBAL float *y, ulong y_row,
                         ulong y_start, uint tiles, uint n, uint rows) {
    const uint row = GROUP_X * FEW_TILE + few_row();
    const uint token = (GROUP_Y * tiles + LID / FEW_OUTPUTS) * FEW_TILE + few_token();
    if (LID >= tiles * FEW_OUTPUTS || row >= rows || token >= n) return;
    if (scale) value = MUL(value, scale[0]);
    if (bias) value = ADD(value, bias[row]);
    y[token * y_row + y_start + row] = value;
}

#define DECODE_ARGUMENTS \
    GLOBAL const uchar *RESTRICT bytes, GLOBAL const uchar *RESTRICT xq, GLOBAL const float *RESTRICT xs, \
        GLOBAL const float *RESTRICT scale, GLOBAL const float *RESTRICT bias, GLOBAL float *RESTRICT y, ulong scales, \
        ulong first_row, ulong stored_rows, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint order

#define DECODE_BLOCK32(name, tag, tiles) \
    KERNEL(FEW_GROUP) \
    name(DECODE_ARGUMENTS) { \
        BEGIN(); \
        SHARED(float, room, tiles * 2 * FEW_OUTPUTS); \
        MMA_ROOM(emulated, FEW_GROUP); \
        const few f = decode_few(bytes, xq, xs, scales, cols / 16, first_row, tag, 1, tiles, n, cols); \
        const float value = few_blocks(tag, tiles, &f, MMA_GIVEN(emulated), room); \
        decode_store(value, scale, bias, y, y_row, y_start, tiles, n, rows); \
    }

#define DECODE_CHANNEL(name, tag, tiles) \
    KERNEL(FEW_GROUP) \
    name(DECODE_ARGUMENTS) { \
        BEGIN(); \
        SHARED(int, room, FEW_WAVES *tiles *FEW_OUTPUTS); \
        MMA_ROOM(emulated, FEW_GROUP); \
        const few f = decode_few(bytes, xq, xs, scales, 4, first_row, tag, 0, tiles, n, cols); \
        const int sum = few_channel(tag, tiles, &f, MMA_GIVEN(emulated), room); \
        const uint token = (GROUP_Y * tiles + LID / FEW_OUTPUTS % tiles) * FEW_TILE + few_token(); \
        const float d = xs[token < n ? token : n - 1]; \
        const float value = MUL(MUL((float)sum, d), float_at(f.scales, few_row() * 4)); \
        decode_store(value, scale, bias, y, y_row, y_start, tiles, n, rows); \
    }

#if MMA_LANES == 64
DECODE_BLOCK32(gantry_decode_slot8_block32_16, SLOT8, 1)
DECODE_BLOCK32(gantry_decode_slot8_block32_32, SLOT8, 2)
DECODE_CHANNEL(gantry_decode_slot8_channel_16, SLOT8, 1)
DECODE_CHANNEL(gantry_decode_slot8_channel_32, SLOT8, 2)
#endif
#if defined(MMA_GFX928)
DECODE_BLOCK32(gantry_decode_nmajor_block32_16, NMAJOR, 1)
DECODE_BLOCK32(gantry_decode_nmajor_block32_32, NMAJOR, 2)
DECODE_CHANNEL(gantry_decode_nmajor_channel_16, NMAJOR, 1)
DECODE_CHANNEL(gantry_decode_nmajor_channel_32, NMAJOR, 2)
#endif
#if defined(MMA_CDNA3)
DECODE_BLOCK32(gantry_decode_slot16_block32_16, SLOT16, 1)
DECODE_BLOCK32(gantry_decode_slot16_block32_32, SLOT16, 2)
DECODE_CHANNEL(gantry_decode_slot16_channel_16, SLOT16, 1)
DECODE_CHANNEL(gantry_decode_slot16_channel_32, SLOT16, 2)
DECODE_CHANNEL(gantry_decode_ck16_channel_16, CK16, 1)
DECODE_CHANNEL(gantry_decode_ck16_channel_32, CK16, 2)
#endif
#if defined(MMA_RDNA3)
DECODE_BLOCK32(gantry_decode_rdna3_block32_16, RDNA3, 1)
DECODE_BLOCK32(gantry_decode_rdna3_block32_32, RDNA3, 2)
DECODE_CHANNEL(gantry_decode_rdna3_channel_16, RDNA3, 1)
DECODE_CHANNEL(gantry_decode_rdna3_channel_32, RDNA3, 2)
#endif
#if defined(MMA_RDNA4)
DECODE_BLOCK32(gantry_decode_rdna4_block32_16, RDNA4, 1)
DECODE_BLOCK32(gantry_decode_rdna4_block32_32, RDNA4, 2)
DECODE_CHANNEL(gantry_decode_rdna4_channel_16, RDNA4, 1)
DECODE_CHANNEL(gantry_decode_rdna4_channel_32, RDNA4, 2)
#endif

#endif
