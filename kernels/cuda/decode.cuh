// Products with few rows of activations, by matrix instructions, weights read once for every 32 of them.
//
// A group has a tile of 16 rows, or a few, each of its warps one chunk of the columns; there are as many warps as chunks, or more. A lane loads its part of some blocks
// of 32 columns at once, all that belongs to them, and multiplies; other warps do so meanwhile. The chunks are added in shared
// memory.
#ifndef GANTRY_DECODE_CUH
#define GANTRY_DECODE_CUH

#include "../device/product.h"
#include "mma.cuh"

namespace decode {

using namespace mma;

constexpr uint GROUP = 32 * CHUNKS;
// Between the tokens of a warp's sums.
constexpr uint STRIDE = 20;

// A product's rows; its planes from the first of them on.
struct matrix {
    const uchar *bytes;
    const uchar *scales;
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

// Rows of activations and of outputs by token: those of a batch. One past the last repeats it.
struct in_order {
    uint n;
    __device__ uint x(uint t) const { return min(t, n - 1); }
    __device__ uint y(uint t) const { return t; }
};

DEVICE void store(const output &o, float value, uint row, uint y) {
    if (o.scale) value = MUL(value, o.scale[0]);
    if (o.bias) value = ADD(value, o.bias[row]);
    o.y[y * o.y_row + row] = value;
}

// Scales b .. b + U of the row that begins at `row`, of weights or of activations; those from `last` on are zeros. `whole`: they are aligned.
template <uint U>
DEVICE void load_scales(float (&d)[U], const ushort *plane, uint row, uint b, uint last, bool whole) {
    uint v[U / 2] = {};
    if (whole) {
        UNROLL
        for (uint i = 0; i < U / 2; i++) v[i] = ((const uint *)(plane + (row + b)))[i];
    } else {
        UNROLL
        for (uint i = 0; i < U; i++) v[i / 2] |= (b + i < last ? (uint)plane[row + b + i] : 0u) << (16 * (i % 2));
    }
    UNROLL
    for (uint i = 0; i < U; i++) d[i] = from_half((ushort)(v[i / 2] >> (16 * (i % 2))));
}
template <uint U>
DEVICE void load_scales(float (&d)[U], const float *plane, uint row, uint b, uint last, bool whole) {
    if (whole && U == 4) {
        const float4 v = *(const float4 *)(plane + (row + b));
        d[0] = v.x, d[1] = v.y, d[U - 2] = v.z, d[U - 1] = v.w;
    } else if (whole) {
        const float2 v = *(const float2 *)(plane + (row + b));
        d[0] = v.x, d[1] = v.y;
    } else {
        UNROLL
        for (uint i = 0; i < U; i++) d[i] = b + i < last ? plane[row + b + i] : 0.0f;
    }
}

// LAYOUT: Q8_0_SPLIT, I8_BLOCK32 or I8_CHANNEL, the int8 ones in the order nv_a32 or, PAIRS, nv_a64. T instructions of 8 tokens
// by R tiles of rows, U blocks at once.
template <uint LAYOUT, bool PAIRS, int T, int R, uint U>
struct product {
    static constexpr bool CHANNEL = LAYOUT == I8_CHANNEL;
    using number = typename std::conditional<CHANNEL, int, float>::type;
    static constexpr uint ROWS = 16 * R, TOKENS = 8 * T;

    // A lane's part of blocks b .. b + U of a tile.
    DEVICE_MEMBER static void load_tile(uint4 (&a)[U], const matrix &w, uint row, uint b, uint last, ulong policy) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4;
        // Rows past the last, and tiles, repeat it.
        if constexpr (LAYOUT == Q8_0_SPLIT) {
            const uint from = min(row + g, w.rows - 1) * w.cols + 8 * t;
            const uint other = min(row + g + 8, w.rows - 1) * w.cols + 8 * t;
            UNROLL
            for (uint i = 0; i < U; i++) {
                a[i] = make_uint4(0, 0, 0, 0);
                if (b + i >= last) continue;
                const uint2 u = weights_8(w.bytes + (from + (b + i) * 32), policy);
                const uint2 v = weights_8(w.bytes + (other + (b + i) * 32), policy);
                a[i] = make_uint4(u.x, v.x, u.y, v.y);
            }
        } else {
            const uint from = min(row, w.rows - 1) / 16 * (w.cols / 32) * 512 + lane * 16;
            UNROLL
            for (uint i = 0; i < U; i++) {
                a[i] = make_uint4(0, 0, 0, 0);
                if (b + i < last) a[i] = weights_16(w.bytes + (from + (b + i) * 512), policy);
            }
        }
    }

    // A lane's part of blocks b .. b + U of a token.
    DEVICE_MEMBER static void load_token(uint2 (&q)[U], const uchar *xq, uint x, uint b, uint last) {
        const uint t = LID % 4;
        if constexpr (PAIRS) {
            UNROLL
            for (uint i = 0; i < U; i += 2) {
                uint4 v = make_uint4(0, 0, 0, 0);
                if (b + i < last) v = *(const uint4 *)(xq + (x + (b + i) * 32 + 16 * t));
                q[i] = make_uint2(v.x, v.y), q[i + 1] = make_uint2(v.z, v.w);
            }
        } else {
            UNROLL
            for (uint i = 0; i < U; i++) {
                q[i] = make_uint2(0, 0);
                if (b + i < last) q[i] = *(const uint2 *)(xq + (x + (b + i) * 32 + 8 * t));
            }
        }
    }

    template <typename Rows>
    DEVICE_MEMBER static void run(const matrix &w, const uchar *xq, const float *xs, const output &o, const Rows &rows,
                                  number *room) {
        const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
        const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks), first = warp * chunk;
        const uint last = min(first + chunk, blocks);
        const bool whole = blocks % U == 0;
        number sums[R][T][4] = {};
        const ulong policy = read_once();
        NO_UNROLL
        for (uint b = first; b < last; b += U) {
            uint4 a[R][U];
            UNROLL
            for (int r = 0; r < R; r++) load_tile(a[r], w, 16 * r, b, last, policy);
            float d[CHANNEL ? 1 : R][2][U];
            if constexpr (!CHANNEL) {
                UNROLL
                for (int r = 0; r < R; r++) {
                    UNROLL
                    for (uint i = 0; i < 2; i++) {
                        const uint at = min(16 * r + g + 8 * i, w.rows - 1) * blocks;
                        load_scales(d[r][i], (const ushort *)w.scales, at, b, last, whole);
                    }
                }
            }
            UNROLL
            for (int j = 0; j < T; j++) {
                uint2 q[U];
                load_token(q, xq, rows.x(8 * j + g) * w.cols, b, last);
                if constexpr (CHANNEL) {
                    UNROLL
                    for (int r = 0; r < R; r++) {
                        UNROLL
                        for (uint i = 0; i < U; i++) multiply(sums[r][j], a[r][i], q[i], sums[r][j]);
                    }
                } else {
                    float e[2][U];
                    load_scales(e[0], xs, rows.x(8 * j + 2 * t) * blocks, b, last, whole);
                    load_scales(e[1], xs, rows.x(8 * j + 2 * t + 1) * blocks, b, last, whole);
                    UNROLL
                    for (uint i = 0; i < U; i++) {
                        UNROLL
                        for (int r = 0; r < R; r++) {
                            add_block(sums[r][j], a[r][i], q[i], scales_of(d[r][0][i], d[r][1][i]), e[0][i], e[1][i]);
                        }
                    }
                }
            }
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            if (r > 0) BARRIER();
            number *own = room + warp * TOKENS * STRIDE;
            UNROLL
            for (int j = 0; j < T; j++) {
                UNROLL
                for (uint c = 0; c < 4; c++) own[(8 * j + 2 * t + c % 2) * STRIDE + g + c / 2 * 8] = sums[r][j][c];
            }
            BARRIER();
            add_chunks(w, xs, o, rows, room, 16 * r);
        }
    }

    // Adds the chunks of 16 rows from `row` on.
    template <typename Rows>
    DEVICE_MEMBER static void add_chunks(const matrix &w, const float *xs, const output &o, const Rows &rows,
                                         const number *room, uint row) {
        const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks), chunks = (blocks + chunk - 1) / chunk;
        for (uint i = LID; i < 16 * o.n; i += blockDim.x) {
            const uint at = row + i % 16, token = i / 16;
            if (at >= w.rows) continue;
            number sum = 0;
            for (uint c = 0; c < chunks; c++) {
                const number more = room[(c * TOKENS + token) * STRIDE + i % 16];
                if constexpr (CHANNEL) sum += more;
                else sum = ADD(sum, more);
            }
            if constexpr (CHANNEL) {
                const float d = ((const float *)w.scales)[at];
                store(o, MUL(MUL((float)sum, xs[rows.x(token)]), d), at, rows.y(token));
            } else {
                store(o, sum, at, rows.y(token));
            }
        }
    }
};

} // namespace decode

#endif
