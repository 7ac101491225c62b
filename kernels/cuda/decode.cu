// y = scale * W x + bias for few tokens, by matrix instructions, weights read once for every 32 of them.
//
// Up to 8 tokens by few.cuh. For more, a group has a tile of 16 rows, or two, each of its warps a chunk of the columns, or two. A
// lane loads its part of some blocks of 32 columns at once, all that belongs to them, and multiplies; other warps do so meanwhile.
// The chunks are added in shared memory.
#include "../device/product.h"
#include "few.cuh"
#include "mma.cuh"

namespace decode {

using namespace mma;

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

DEVICE void store(const output &o, float value, uint row, uint token) {
    if (o.scale) value = MUL(value, o.scale[0]);
    if (o.bias) value = ADD(value, o.bias[row]);
    o.y[token * o.y_row + row] = value;
}

// Scales b .. b + U of weights of the row that begins at `row`, two in a word; those from `last` on are zeros. `whole`: they
// are aligned.
template <uint U>
DEVICE uint2 load_scales(const ushort *plane, uint row, uint b, uint last, bool whole) {
    uint2 v = make_uint2(0, 0);
    if (whole && U == 4) {
        v = *(const uint2 *)(plane + (row + b));
    } else if (whole) {
        v.x = *(const uint *)(plane + (row + b));
    } else {
        if (b < last) v.x = plane[row + b];
        if (b + 1 < last) v.x |= (uint)plane[row + b + 1] << 16;
        if (U == 4 && b + 2 < last) v.y = plane[row + b + 2];
        if (U == 4 && b + 3 < last) v.y |= (uint)plane[row + b + 3] << 16;
    }
    return v;
}
DEVICE float scale_of(const uint2 &v, uint i) { return from_half((ushort)((i < 2 ? v.x : v.y) >> (16 * (i % 2)))); }

// LAYOUT: I8_BLOCK32 or I8_CHANNEL, in the order nv_a32 or, PAIRS, nv_a64. T instructions of 8 tokens by R tiles of rows, UNIT
// blocks at once, by WARPS warps, each of which has a chunk of the columns or more.
template <uint LAYOUT, bool PAIRS, int T, int R, uint UNIT, uint WARPS>
struct product {
    static constexpr bool CHANNEL = LAYOUT == I8_CHANNEL;
    static constexpr int EACH = CHUNKS / WARPS;
    static constexpr uint ROWS = 16 * R, TOKENS = 8 * T;
    using number = typename std::conditional<CHANNEL, int, float>::type;

    // First activations, two units of each warp (straight from memory a read of a fragment would be of as many cache lines as
    // it has tokens), then the chunks' sums.
    struct channel_unit {
        uchar q[TOKENS * UNIT * 32];
    };
    struct block_unit : channel_unit {
        float scales[UNIT][TOKENS];
    };
    using unit = typename std::conditional<CHANNEL, channel_unit, block_unit>::type;
    union room {
        unit units[WARPS][2];
        number sums[CHUNKS * TOKENS * STRIDE];
    };

    // A lane's part of blocks b .. b + UNIT of a tile; a tile past the last repeats it.
    DEVICE_MEMBER static void load_tile(uint4 (&a)[UNIT], const matrix &w, uint row, uint b, uint last, ulong policy) {
        const uint from = min(row, w.rows - 1) / 16 * (w.cols / 32) * 512 + LID % 32 * 16;
        UNROLL
        for (uint i = 0; i < UNIT; i++) {
            a[i] = make_uint4(0, 0, 0, 0);
            if (b + i < last) a[i] = weights_16(w.bytes + (from + (b + i) * 512), policy);
        }
    }

    // Where 16 bytes of a token's unit are in shared memory: the lanes of a read meet different banks.
    DEVICE_MEMBER static uint place(uint token, uint part) {
        const uint pair = UNIT == 4 ? part / 4 ^ (token & 1) : 0, block = part / 2 ^ (UNIT == 4 ? token & 3 : token / 2 & 1);
        return token * UNIT * 32 + (PAIRS ? pair * 64 + part % 4 * 16 : block * 32 + part % 2 * 16);
    }

    // Begins to copy a unit of n tokens. What lies past them, and their products, nobody looks at.
    DEVICE_MEMBER static void copy_tokens(unit &to, const uchar *xq, const float *xs, uint cols, uint n, uint b, uint last) {
        const uint part = LID % (2 * UNIT), at = b * 32 + part * 16, bytes = at < last * 32 ? 16 : 0;
        UNROLL
        for (uint i = 0; i < TOKENS * UNIT / 16; i++) {
            const uint token = LID % 32 / (2 * UNIT) + 16 / UNIT * i;
            if (token < n) copy_16(shared_address(to.q + place(token, part)), xq + (token * cols + (bytes ? at : 0)), bytes);
        }
        if constexpr (!CHANNEL) {
            const uint block = LID % UNIT, some = b + block < last ? 4 : 0;
            UNROLL
            for (uint i = 0; i < TOKENS * UNIT / 32; i++) {
                const uint token = LID % 32 / UNIT + 32 / UNIT * i;
                const float *own = xs + (token * (cols / 32) + (some ? b + block : 0));
                if (token < n) copy_4(shared_address(&to.scales[block][token]), own, some);
            }
        }
    }

    // A lane's part of a unit of a token.
    DEVICE_MEMBER static void load_token(uint2 (&q)[UNIT], const uchar *x, uint token) {
        const uint t = LID % 4;
        UNROLL
        for (uint i = 0; i < UNIT; i += PAIRS ? 2 : 1) {
            if constexpr (PAIRS) {
                const uint4 v = *(const uint4 *)(x + place(token, 2 * i + t));
                q[i] = make_uint2(v.x, v.y), q[i + 1] = make_uint2(v.z, v.w);
            } else {
                q[i] = *(const uint2 *)(x + place(token, 2 * i + t / 2) + t % 2 * 8);
            }
        }
    }

    // Adds a chunk's products to the sums.
    DEVICE_MEMBER static void add_chunk(number (&sums)[R][T][4], const matrix &w, const uchar *xq, const float *xs, uint n,
                                        room &space, uint first, uint last, ulong policy) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4, blocks = w.cols / 32;
        const bool whole = blocks % UNIT == 0;
        unit(&units)[2] = space.units[LID / 32];
        uint now = 0;
        copy_tokens(units[0], xq, xs, w.cols, n, first, last);
        copies_end();
        NO_UNROLL
        for (uint b = first; b < last; b += UNIT) {
            // Weights first: they come from farthest away. (Written after the copies, their loads may end up behind the wait.)
            uint4 a[R][UNIT];
            UNROLL
            for (int r = 0; r < R; r++) load_tile(a[r], w, 16 * r, b, last, policy);
            uint2 d[CHANNEL ? 1 : R][2];
            if constexpr (!CHANNEL) {
                UNROLL
                for (int r = 0; r < R; r++) {
                    UNROLL
                    for (uint i = 0; i < 2; i++) {
                        const uint at = min(16 * r + g + 8 * i, w.rows - 1) * blocks;
                        d[r][i] = load_scales<UNIT>((const ushort *)w.scales, at, b, last, whole);
                    }
                }
            }
            if (b + UNIT < last) copy_tokens(units[now ^ 1], xq, xs, w.cols, n, b + UNIT, last);
            copies_end();
            copies_wait<1>();
            __syncwarp();
            if constexpr (CHANNEL) {
                UNROLL
                for (int j = 0; j < T; j++) {
                    uint2 q[UNIT];
                    load_token(q, units[now].q, 8 * j + g);
                    UNROLL
                    for (int r = 0; r < R; r++) {
                        UNROLL
                        for (uint i = 0; i < UNIT; i++) multiply(sums[r][j], a[r][i], q[i], sums[r][j]);
                    }
                }
            } else {
                UNROLL
                for (uint i = 0; i < UNIT; i++) {
                    UNROLL
                    for (int j = 0; j < T; j++) {
                        const uint2 q = *(const uint2 *)(units[now].q + place(8 * j + g, 2 * i + t / 2) + t % 2 * 8);
                        const float2 e = *(const float2 *)&units[now].scales[i][8 * j + 2 * t];
                        UNROLL
                        for (int r = 0; r < R; r++) {
                            add_block(sums[r][j], a[r][i], q, scales_of(scale_of(d[r][0], i), scale_of(d[r][1], i)), e.x, e.y);
                        }
                    }
                }
            }
            __syncwarp();
            now ^= 1;
        }
        copies_wait<0>();
    }

    DEVICE_MEMBER static void run(const matrix &w, const uchar *xq, const float *xs, const output &o, room &space) {
        const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
        const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks);
        const ulong policy = read_once();
        number sums[EACH][R][T][4] = {};
        UNROLL
        for (int c = 0; c < EACH; c++) {
            const uint first = (warp + WARPS * c) * chunk;
            if (first < blocks) add_chunk(sums[c], w, xq, xs, o.n, space, first, min(first + chunk, blocks), policy);
        }
        UNROLL
        for (int r = 0; r < R; r++) {
            BARRIER();
            UNROLL
            for (int c = 0; c < EACH; c++) {
                number *own = space.sums + (warp + WARPS * c) * TOKENS * STRIDE;
                UNROLL
                for (int j = 0; j < T; j++) {
                    UNROLL
                    for (uint k = 0; k < 4; k++) own[(8 * j + 2 * t + k % 2) * STRIDE + g + k / 2 * 8] = sums[c][r][j][k];
                }
            }
            BARRIER();
            add_chunks(w, xs, o, space.sums, 16 * r);
        }
    }

    // Adds the chunks of 16 rows from `row` on.
    DEVICE_MEMBER static void add_chunks(const matrix &w, const float *xs, const output &o, const number *sums, uint row) {
        const uint blocks = w.cols / 32, chunk = chunk_blocks(blocks), chunks = (blocks + chunk - 1) / chunk;
        for (uint i = LID; i < 16 * o.n; i += 32 * WARPS) {
            const uint at = row + i % 16, token = i / 16;
            if (at >= w.rows) continue;
            number sum = 0;
            for (uint c = 0; c < chunks; c++) {
                const number more = sums[(c * TOKENS + token) * STRIDE + i % 16];
                if constexpr (CHANNEL) sum += more;
                else sum = ADD(sum, more);
            }
            if constexpr (CHANNEL) store(o, MUL(MUL((float)sum, xs[token]), ((const float *)w.scales)[at]), at, token);
            else store(o, sum, at, token);
        }
    }
};

// The group's part of a product of n tokens: rows and tokens from its own on.
template <typename P>
DEVICE void gemm(matrix w, const uchar *xq, const float *xs, output o, typename P::room &room) {
    const uint row = GROUP_X * P::ROWS, token = GROUP_Y * P::TOKENS, blocks = w.cols / 32;
    BEGIN();
    w.bytes += (ulong)row * w.cols;
    w.scales += (ulong)row * (P::CHANNEL ? 4 : blocks * 2);
    w.rows -= row;
    o.n = min(o.n - token, P::TOKENS);
    o.y += token * o.y_row + o.y_start + row;
    if (o.bias) o.bias += row;
    P::run(w, xq + (ulong)token * w.cols, xs + (ulong)token * (P::CHANNEL ? 1 : blocks), o, room);
}

// The same for 8 tokens at once, by few.cuh; the group's rows are those from `row` on.
template <uint LAYOUT>
DEVICE void few_tokens(const uchar *bytes, const uchar *scales, ulong first_row, const uchar *xq, const float *xs, output o,
                       uint row, uint rows, uint cols, bool pairs) {
    using P = few::product<LAYOUT>;
    __shared__ typename P::room room;
    P own;
    const uint blocks = cols / 32, tiles = few::rows_of(cols) / 16, token = GROUP_Y * few::TOKENS;
    // The whole group leaves, where there is one too many.
    if (row >= rows) return;
    own.begin({bytes, scales, first_row + row, rows - row, cols});
    BEGIN();
    const uint n = min(o.n - token, few::TOKENS), each = P::CHANNEL ? 1 : blocks;
    xs += (ulong)token * each;
    const uint first = min(LID % 4 * 2, n - 1), second = min(LID % 4 * 2 + 1, n - 1);
    own.run(room, xq + (ulong)(token + min(LID % 32 / 4, n - 1)) * cols, xs + first * each, (second - first) * each, pairs);
    BARRIER();
    o.y += token * o.y_row + o.y_start;
    for (uint i = LID; i < tiles * 16 * n; i += blockDim.x) {
        const uint tile = i / (16 * n), t = i / 16 % n, at = row + tile * 16 + i % 16;
        if (at >= rows) continue;
        const typename P::number sum = own.sum(room, tile, i % 16, t);
        if constexpr (P::CHANNEL) store(o, MUL(MUL((float)sum, xs[t]), ((const float *)scales)[first_row + at]), at, t);
        else store(o, sum, at, t);
    }
}

} // namespace decode

// Arguments as for gantry_gemm_i8_block32 and gantry_gemm_i8_channel; order 0 (nv_a32, columns a multiple of 32) or, per channel,
// 1 (nv_a64, of 64). Grid: x = rows / (16 * R) rounded up, y = n / TOKENS rounded up.
#define DECODE_I8(name, WARPS, GROUPS, ...) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, GROUPS) \
    name(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
         const float *RESTRICT bias, float *RESTRICT y, ulong scales, ulong first_row, ulong, ulong y_row, \
         ulong y_start, uint n, uint rows, uint cols, uint order) { \
        const decode::output o = {scale, bias, y, y_row, y_start, n}; \
        __VA_ARGS__ \
    }

#define DECODE_BLOCK32(name, TOKENS, R, U, WARPS, GROUPS) \
    DECODE_I8(name, WARPS, GROUPS, using P = decode::product<I8_BLOCK32, false, TOKENS / 8, R, U, WARPS>; \
              __shared__ __align__(16) P::room room; (void)order; \
              const decode::matrix w = {bytes + first_row * cols, bytes + scales + first_row * (cols / 16), rows, cols}; \
              decode::gemm<P>(w, xq, xs, o, room);)
#define DECODE_CHANNEL(name, TOKENS, R, U, WARPS, GROUPS) \
    DECODE_I8(name, WARPS, GROUPS, using A32 = decode::product<I8_CHANNEL, false, TOKENS / 8, R, U, WARPS>; \
              using A64 = decode::product<I8_CHANNEL, true, TOKENS / 8, R, U, WARPS>; \
              __shared__ union { A32::room a32; A64::room a64; uint4 aligned; } room; \
              const decode::matrix w = {bytes + first_row * cols, bytes + scales + first_row * 4, rows, cols}; \
              if (order == 1) decode::gemm<A64>(w, xq, xs, o, room.a64); \
              else decode::gemm<A32>(w, xq, xs, o, room.a32);)

// Groups on a multiprocessor that there are registers for. On some generations the compiler lacks one or two for as many as on
// others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 1000
#define GROUPS_BLOCK32_MANY 1
#else
#define GROUPS_BLOCK32_MANY 2
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 860
#define GROUPS_CHANNEL_MANY 1
#else
#define GROUPS_CHANNEL_MANY 2
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define GROUPS_CHANNEL_32 2
#else
#define GROUPS_CHANNEL_32 3
#endif

// With `more_rows` another product goes along, of the same input and columns, without a factor or a bias: its weights, rows and outputs
// are `more_*`, and so are the groups after those of the first.
// Grid: x = rows / (16 * few::tiles_of) rounded up, and as many for more_rows, y = n / 8 rounded up; groups of as many warps for each
// tile, at most 16.
#define DECODE_FEW(name, LAYOUT) \
    extern "C" __global__ void __launch_bounds__(32 * mma::CHUNKS, GROUPS_FEW) \
    name(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
         const float *RESTRICT bias, float *RESTRICT y, const uchar *RESTRICT more_bytes, float *RESTRICT more_y, \
         ulong scales, ulong first_row, ulong, ulong y_row, ulong y_start, ulong more_scales, ulong more_first_row, \
         ulong more_y_row, ulong more_y_start, uint n, uint rows, uint cols, uint order, uint more_rows) { \
        uint group = GROUP_X; \
        const uint each = few::rows_of(cols), groups = (rows + each - 1) / each; \
        if (group >= groups && more_rows) { \
            group -= groups, bytes = more_bytes, scales = more_scales, first_row = more_first_row, rows = more_rows; \
            scale = bias = nullptr, y = more_y, y_row = more_y_row, y_start = more_y_start; \
        } \
        const decode::output o = {scale, bias, y, y_row, y_start, n}; \
        decode::few_tokens<LAYOUT>(bytes, bytes + scales, first_row, xq, xs, o, group * each, rows, cols, \
                                   LAYOUT == I8_CHANNEL && order == 1); \
    }
DECODE_FEW(gantry_decode_i8_block32_8, I8_BLOCK32)
DECODE_FEW(gantry_decode_i8_channel_8, I8_CHANNEL)
// For few rows, and for many, where groups of more rows do better.
DECODE_BLOCK32(gantry_decode_i8_block32_16, 16, 1, 4, 8, 3)
DECODE_BLOCK32(gantry_decode_i8_block32_16_many, 16, 2, 4, 8, GROUPS_BLOCK32_MANY)
DECODE_BLOCK32(gantry_decode_i8_block32_32, 32, 1, 2, 8, 2)
DECODE_CHANNEL(gantry_decode_i8_channel_16, 16, 1, 4, 8, 4)
DECODE_CHANNEL(gantry_decode_i8_channel_32, 32, 1, 2, 8, GROUPS_CHANNEL_32)
DECODE_CHANNEL(gantry_decode_i8_channel_32_many, 32, 2, 2, 8, GROUPS_CHANNEL_MANY)
