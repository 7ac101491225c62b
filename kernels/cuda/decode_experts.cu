// Products of experts for few tokens, by matrix instructions: each pair of a token and an expert by itself, or tiles of up to 8 pairs
// of one expert.
//
// A group has 16 rows, each of its warps one chunk of the columns (mma.cuh), so that all of a row's loads are under way at once;
// the chunks are added in shared memory. Activations are few: each lane reads its own.
#include "../device/product.h"
#include "mma.cuh"

namespace few_experts {

using namespace mma;

constexpr uint PAIRS = 8, UNIT = 4;
// Between the tokens of a warp's sums.
constexpr uint STRIDE = 20;

// The arguments are those of gantry_experts_*.
struct input {
    const uchar *base;
    const ulong *at;
    const uint *ids;
    const uint *tiles;
    const uint *pairs;
    const uchar *xq;
    const float *xs;
    const float *scale;
    float *y;
    ulong scales;
    ulong first_row;
    ulong row_step;
    ulong y_row;
    ulong y_start;
    uint all;
    uint used;
    uint experts;
    uint rows;
    uint cols;
    uint x_per_pair;
};

// Scales b .. b + UNIT of a row; those from `last` on are zeros. `whole`: they are aligned.
DEVICE void load_scales(float (&d)[UNIT], const ushort *row, uint b, uint last, bool whole) {
    uint v[UNIT / 2] = {};
    if (whole) {
        UNROLL
        for (uint i = 0; i < UNIT / 2; i++) v[i] = ((const uint *)(row + b))[i];
    } else {
        UNROLL
        for (uint i = 0; i < UNIT; i++) v[i / 2] |= (b + i < last ? (uint)row[b + i] : 0u) << (16 * (i % 2));
    }
    UNROLL
    for (uint i = 0; i < UNIT; i++) d[i] = from_half((ushort)(v[i / 2] >> (16 * (i % 2))));
}
DEVICE void load_scales(float (&d)[UNIT], const float *row, uint b, uint last, bool whole) {
    if (whole) {
        const float4 v = *(const float4 *)(row + b);
        d[0] = v.x, d[1] = v.y, d[2] = v.z, d[3] = v.w;
    } else {
        UNROLL
        for (uint i = 0; i < UNIT; i++) d[i] = b + i < last ? row[b + i] : 0.0f;
    }
}

// LAYOUT: I8_BLOCK32 or I8_CHANNEL, in the order nv_a32 or, WIDE, nv_a64.
template <uint LAYOUT, bool WIDE>
DEVICE void experts(const input &in) {
    constexpr bool CHANNEL = LAYOUT == I8_CHANNEL;
    using number = typename std::conditional<CHANNEL, int, float>::type;
    __shared__ number room[CHUNKS * PAIRS * STRIDE];
    __shared__ uint pairs[PAIRS];
    BEGIN();
    const uint tile = GROUP_Y;
    uint expert, start = tile, count = 1;
    if (in.tiles) {
        expert = in.tiles[3 * tile], start = in.tiles[3 * tile + 1], count = in.tiles[3 * tile + 2];
    } else {
        expert = in.ids ? in.ids[tile] : tile % in.used;
    }
    // The whole group leaves.
    if (count == 0 || tile >= in.all || expert >= in.experts || in.at[expert] == ~(ulong)0) return;
    if (LID < PAIRS) pairs[LID] = in.tiles ? in.pairs[start + min(LID, count - 1)] : start;
    BARRIER();
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
    const uint row = GROUP_X * 16, rows = in.rows - row, blocks = in.cols / 32, chunk = chunk_blocks(blocks);
    const uint first = warp * chunk, last = min(first + chunk, blocks);
    const bool whole = blocks % UNIT == 0;
    const ulong stored = in.first_row + expert * in.row_step + row;
    const uchar *bytes = in.base + in.at[expert];
    const uchar *own = bytes + stored * in.cols + lane * 16;
    const auto input_of = [&](uint token) { return in.x_per_pair ? pairs[token] : pairs[token] / in.used; };
    const uchar *x = in.xq + (ulong)input_of(g) * in.cols;
    number sums[4] = {};
    const ulong policy = read_once();
    NO_UNROLL
    for (uint b = first; b < last; b += UNIT) {
        uint4 a[UNIT];
        uint2 q[UNIT];
        UNROLL
        for (uint i = 0; i < UNIT; i++) {
            a[i] = make_uint4(0, 0, 0, 0), q[i] = make_uint2(0, 0);
            if (b + i < last) a[i] = weights_16(own + (ulong)(b + i) * 512, policy);
        }
        UNROLL
        for (uint i = 0; i < UNIT; i += WIDE ? 2 : 1) {
            if (b + i >= last) continue;
            if (WIDE) {
                const uint4 v = *(const uint4 *)(x + (b + i) * 32 + 16 * t);
                q[i] = make_uint2(v.x, v.y), q[(i + 1) % UNIT] = make_uint2(v.z, v.w);
            } else {
                q[i] = *(const uint2 *)(x + (b + i) * 32 + 8 * t);
            }
        }
        if constexpr (CHANNEL) {
            UNROLL
            for (uint i = 0; i < UNIT; i++) multiply(sums, a[i], q[i], sums);
        } else {
            float d[2][UNIT], e[2][UNIT];
            UNROLL
            for (uint i = 0; i < 2; i++) {
                const ushort *plane = (const ushort *)(bytes + in.scales);
                load_scales(d[i], plane + (stored + min(g + 8 * i, rows - 1)) * blocks, b, last, whole);
                load_scales(e[i], in.xs + (ulong)input_of(2 * t + i) * blocks, b, last, whole);
            }
            UNROLL
            for (uint i = 0; i < UNIT; i++) add_block(sums, a[i], q[i], scales_of(d[0][i], d[1][i]), e[0][i], e[1][i]);
        }
    }
    UNROLL
    for (uint c = 0; c < 4; c++) room[(warp * PAIRS + 2 * t + c % 2) * STRIDE + g + c / 2 * 8] = sums[c];
    BARRIER();
    for (uint i = LID; i < 16 * count; i += blockDim.x) {
        const uint at = i % 16, token = i / 16;
        if (at >= rows) continue;
        number sum = 0;
        for (uint c = 0; c * chunk < blocks; c++) {
            const number more = room[(c * PAIRS + token) * STRIDE + at];
            if constexpr (CHANNEL) sum += more;
            else sum = ADD(sum, more);
        }
        float value = sum;
        if constexpr (CHANNEL) {
            value = MUL(MUL((float)sum, in.xs[input_of(token)]), float_at(bytes, in.scales + (stored + at) * 4));
        }
        if (in.scale) value = MUL(value, in.scale[expert]);
        in.y[pairs[token] * in.y_row + in.y_start + row + at] = value;
    }
}

} // namespace few_experts

// Arguments as for gantry_experts_i8_*, order 0 (nv_a32, columns a multiple of 32) or, per channel, 1 (nv_a64, of 64). With z = 2
// another product of the same input, rows and columns: its experts, factors, rows and outputs are `more_*`.
// Grid: x = rows / 16 rounded up, y = bound of the tiles of up to 8, or `all`, z = 1 or 2; groups of at least 32 threads for each
// chunk of a row.
#define FEW_EXPERTS(name, ...) \
    KERNEL(32 * mma::CHUNKS) \
    name(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT ids, const uint *RESTRICT tiles, \
         const uint *RESTRICT pairs, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
         float *RESTRICT y, const ulong *RESTRICT more_at, const float *RESTRICT more_scale, ulong scales, ulong first_row, \
         ulong row_step, ulong, ulong more_first_row, ulong more_row_step, ulong more_y_start, ulong y_row, ulong y_start, \
         uint all, uint used, uint experts, uint rows, uint cols, uint x_per_pair, uint) { \
        if (GROUP_Z == 1) { \
            at = more_at, scale = more_scale; \
            first_row = more_first_row, row_step = more_row_step, y_start = more_y_start; \
        } \
        few_experts::experts<__VA_ARGS__>({base, at, ids, tiles, pairs, xq, xs, scale, y, scales, first_row, row_step, y_row, \
                                           y_start, all, used, experts, rows, cols, x_per_pair}); \
    }

FEW_EXPERTS(gantry_decode_experts_i8_block32, I8_BLOCK32, false)
FEW_EXPERTS(gantry_decode_experts_i8_channel_a32, I8_CHANNEL, false)
FEW_EXPERTS(gantry_decode_experts_i8_channel_a64, I8_CHANNEL, true)
