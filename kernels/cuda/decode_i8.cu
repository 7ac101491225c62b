// y = scale * W x + bias for up to 32 tokens, with weights in the order of matrix instructions, read once.
//
// A group has one tile of 16 rows, each of its warps one chunk of the columns, in groups of 4 blocks of 32: one 16-byte load of
// a lane is its part of a block of 16 rows, and the next four are under way while four are multiplied. The chunks are added
// in shared memory.
#include "mma.cuh"

namespace decode {

using namespace mma;

constexpr uint GROUP = 32 * CHUNKS;
// Blocks that are loaded together.
constexpr uint UNIT = 4;
// Between the tokens of a warp's sums.
constexpr uint STRIDE = 20;

struct matrix {
    const uchar *bytes;
    ulong scales;
    ulong first_row;
    uint rows;
    uint cols;
};

struct output {
    const float *scale;
    const float *bias;
    float *y;
    ulong y_row;
    ulong y_start;
    uint n;
};

DEVICE void store(const output &o, float value, uint row, uint token) {
    if (o.scale) value = MUL(value, o.scale[0]);
    if (o.bias) value = ADD(value, o.bias[row]);
    o.y[token * o.y_row + o.y_start + row] = value;
}

// This lane's parts of blocks b .. b + 4 of a tile; those from `last` on are zeros.
DEVICE void load_unit(uint4 (&a)[UNIT], const uchar *tile, uint b, uint last, ulong policy) {
    UNROLL
    for (uint i = 0; i < UNIT; i++) {
        a[i] = make_uint4(0, 0, 0, 0);
        if (b + i < last) a[i] = weights_16(tile + (ulong)(b + i) * 512, policy);
    }
}

// Scales b .. b + 4 of a row of weights or of activations; those from `last` on are zeros.
DEVICE void load_scales(float (&d)[UNIT], const ushort *row, uint b, uint last, bool whole) {
    if (whole) {
        const uint2 v = *(const uint2 *)(row + b);
        d[0] = from_half((ushort)v.x), d[1] = from_half((ushort)(v.x >> 16));
        d[2] = from_half((ushort)v.y), d[3] = from_half((ushort)(v.y >> 16));
        return;
    }
    UNROLL
    for (uint i = 0; i < UNIT; i++) d[i] = b + i < last ? from_half(row[b + i]) : 0.0f;
}
DEVICE void load_scales(float (&d)[UNIT], const float *row, uint b, uint last, bool whole) {
    if (whole) {
        const float4 v = *(const float4 *)(row + b);
        d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
        return;
    }
    UNROLL
    for (uint i = 0; i < UNIT; i++) d[i] = b + i < last ? row[b + i] : 0.0f;
}

// A stored row, and one past the last repeats it.
DEVICE ulong row_at(const matrix &w, uint row) { return w.first_row + min(row, w.rows - 1); }

template <int TILES>
DEVICE void block32(const matrix &w, const uchar *xq, const float *xs, const output &o, float *room) {
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
    const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks), first = warp * chunk;
    const uint last = min(first + chunk, blocks), row = GROUP_X * 16;
    const bool whole = blocks % UNIT == 0;
    if (first < last) {
        const ulong policy = read_once();
        const uchar *tile = w.bytes + (w.first_row + row) / 16 * blocks * 512 + lane * 16;
        const ushort *plane = (const ushort *)(w.bytes + w.scales);
        const ushort *rows[2] = {plane + row_at(w, row + g) * blocks, plane + row_at(w, row + g + 8) * blocks};
        float sums[TILES][4] = {};
        uint4 now[UNIT];
        load_unit(now, tile, first, last, policy);
        NO_UNROLL
        for (uint b = first; b < last; b += UNIT) {
            uint4 next[UNIT];
            load_unit(next, tile, b + UNIT, last, policy);
            float d[2][UNIT];
            load_scales(d[0], rows[0], b, last, whole);
            load_scales(d[1], rows[1], b, last, whole);
            UNROLL
            for (int j = 0; j < TILES; j++) {
                const uchar *x = xq + (ulong)min(8 * j + g, o.n - 1) * w.cols + 8 * t;
                uint2 q[UNIT];
                float e[2][UNIT];
                UNROLL
                for (uint i = 0; i < UNIT; i++) {
                    q[i] = make_uint2(0, 0);
                    if (whole || b + i < last) q[i] = *(const uint2 *)(x + (b + i) * 32);
                }
                load_scales(e[0], xs + (ulong)min(8 * j + 2 * t, o.n - 1) * blocks, b, last, whole);
                load_scales(e[1], xs + (ulong)min(8 * j + 2 * t + 1, o.n - 1) * blocks, b, last, whole);
                UNROLL
                for (uint i = 0; i < UNIT; i++) {
                    add_block(sums[j], now[i], q[i], scales_of(d[0][i], d[1][i]), e[0][i], e[1][i]);
                }
            }
            UNROLL
            for (uint i = 0; i < UNIT; i++) now[i] = next[i];
        }
        float *own = room + warp * TILES * 8 * STRIDE;
        UNROLL
        for (int j = 0; j < TILES; j++) {
            UNROLL
            for (uint c = 0; c < 4; c++) own[(8 * j + 2 * t + c % 2) * STRIDE + g + c / 2 * 8] = sums[j][c];
        }
    }
    BARRIER();
    for (uint i = LID; i < 16 * o.n; i += GROUP) {
        const uint r = i % 16, token = i / 16;
        float sum = 0.0f;
        for (uint c = 0; c * chunk < blocks; c++) sum = ADD(sum, room[(c * TILES * 8 + token) * STRIDE + r]);
        if (row + r < w.rows) store(o, sum, row + r, token);
    }
}

// The same with one scale per row; columns are a multiple of 32, or of 64 where a pair of blocks is in the order nv_a64.
template <int TILES, bool PAIRS>
DEVICE void channel(const matrix &w, const uchar *xq, const float *xs, const output &o, int *room) {
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
    const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks), first = warp * chunk;
    const uint last = min(first + chunk, blocks), row = GROUP_X * 16;
    if (first < last) {
        const ulong policy = read_once();
        const uchar *tile = w.bytes + (w.first_row + row) / 16 * blocks * 512 + lane * 16;
        int sums[TILES][4] = {};
        uint4 now[UNIT];
        load_unit(now, tile, first, last, policy);
        NO_UNROLL
        for (uint b = first; b < last; b += UNIT) {
            uint4 next[UNIT];
            load_unit(next, tile, b + UNIT, last, policy);
            UNROLL
            for (int j = 0; j < TILES; j++) {
                const uchar *x = xq + (ulong)min(8 * j + g, o.n - 1) * w.cols + b * 32;
                uint2 q[UNIT];
                if (PAIRS) {
                    UNROLL
                    for (uint i = 0; i < UNIT; i += 2) {
                        uint4 v = make_uint4(0, 0, 0, 0);
                        if (b + i < last) v = *(const uint4 *)(x + i * 32 + 16 * t);
                        q[i] = make_uint2(v.x, v.y), q[i + 1] = make_uint2(v.z, v.w);
                    }
                } else {
                    UNROLL
                    for (uint i = 0; i < UNIT; i++) {
                        q[i] = make_uint2(0, 0);
                        if (b + i < last) q[i] = *(const uint2 *)(x + i * 32 + 8 * t);
                    }
                }
                UNROLL
                for (uint i = 0; i < UNIT; i++) multiply(sums[j], now[i], q[i], sums[j]);
            }
            UNROLL
            for (uint i = 0; i < UNIT; i++) now[i] = next[i];
        }
        int *own = room + warp * TILES * 8 * STRIDE;
        UNROLL
        for (int j = 0; j < TILES; j++) {
            UNROLL
            for (uint c = 0; c < 4; c++) own[(8 * j + 2 * t + c % 2) * STRIDE + g + c / 2 * 8] = sums[j][c];
        }
    }
    BARRIER();
    for (uint i = LID; i < 16 * o.n; i += GROUP) {
        const uint r = i % 16, token = i / 16;
        int sum = 0;
        for (uint c = 0; c * chunk < blocks; c++) sum += room[(c * TILES * 8 + token) * STRIDE + r];
        if (row + r >= w.rows) continue;
        const float d = float_at(w.bytes, w.scales + (w.first_row + row + r) * 4);
        store(o, MUL(MUL((float)sum, xs[token]), d), row + r, token);
    }
}

} // namespace decode

// Arguments as for gantry_gemm_i8_block32 and gantry_gemm_i8_channel; n at most TOKENS, order 0 (nv_a32, columns a multiple of
// 32) or, per channel, 1 (nv_a64, a multiple of 64). Grid: x = rows / 16 rounded up.
#define DECODE_I8(name, TOKENS, GROUPS, type, ...) \
    extern "C" __global__ void __launch_bounds__(decode::GROUP, GROUPS) \
    name(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
         const float *RESTRICT bias, float *RESTRICT y, ulong scales, ulong first_row, ulong, ulong y_row, \
         ulong y_start, uint n, uint rows, uint cols, uint order) { \
        SHARED(type, room, mma::CHUNKS *TOKENS *decode::STRIDE); \
        const decode::matrix w = {bytes, scales, first_row, rows, cols}; \
        const decode::output o = {scale, bias, y, y_row, y_start, n}; \
        __VA_ARGS__; \
    }

#define DECODE_BLOCK32(name, TOKENS, GROUPS) \
    DECODE_I8(name, TOKENS, GROUPS, float, (void)order, decode::block32<TOKENS / 8>(w, xq, xs, o, room))
#define DECODE_CHANNEL(name, TOKENS, GROUPS) \
    DECODE_I8(name, TOKENS, GROUPS, int, \
              if (order == 1) decode::channel<TOKENS / 8, true>(w, xq, xs, o, room); \
              else decode::channel<TOKENS / 8, false>(w, xq, xs, o, room))

DECODE_BLOCK32(gantry_decode_i8_block32_8, 8, 3)
DECODE_BLOCK32(gantry_decode_i8_block32_16, 16, 2)
DECODE_BLOCK32(gantry_decode_i8_block32_32, 32, 2)
DECODE_CHANNEL(gantry_decode_i8_channel_8, 8, 4)
DECODE_CHANNEL(gantry_decode_i8_channel_16, 16, 4)
DECODE_CHANNEL(gantry_decode_i8_channel_32, 32, 3)
