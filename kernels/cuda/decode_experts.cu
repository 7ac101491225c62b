// Products of experts for few tokens, by matrix instructions: each pair of a token and an expert by itself, or tiles of up to 8 pairs
// of one expert.
//
// Groups share rows and columns as few.cuh says.
#include "expert_pairs.cuh"
#include "few.cuh"

namespace few_experts {

using namespace mma;

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

// LAYOUT: I8_BLOCK32 or I8_CHANNEL, in the order nv_a32 or, WIDE, nv_a64.
template <uint LAYOUT, bool WIDE>
DEVICE void experts(const input &in) {
    using P = few::product<LAYOUT>;
    __shared__ typename P::room room;
    __shared__ uint pairs[few::TOKENS];
    BEGIN();
    const expert_pairs p = expert_pairs_of(GROUP_Y, in.ids, in.tiles, in.all, in.used, in.experts);
    const uint expert = p.expert, count = p.count;
    // The whole group leaves.
    if (count == 0 || in.at[expert] == ~(ulong)0) return;
    const uchar *bytes = in.base + in.at[expert];
    const uint blocks = in.cols / 32, each = few::rows_of(in.cols), row = GROUP_X * each;
    const ulong stored = in.first_row + expert * in.row_step;
    if (row >= in.rows) return;
    P own;
    own.begin({bytes, bytes + in.scales, stored + row, in.rows - row, in.cols});
    if (LID < few::TOKENS) pairs[LID] = in.tiles ? in.pairs[p.start + min(LID, count - 1)] : p.start;
    BARRIER();
    const auto input_of = [&](uint token) { return in.x_per_pair ? pairs[token] : pairs[token] / in.used; };
    const uint t = LID % 4, e = input_of(2 * t);
    own.run(room, in.xq + (ulong)input_of(LID % 32 / 4) * in.cols, in.xs + (ulong)e * blocks, (input_of(2 * t + 1) - e) * blocks,
            WIDE);
    BARRIER();
    for (uint i = LID; i < each * count; i += blockDim.x) {
        const uint tile = i / (16 * count), token = i / 16 % count, at = row + tile * 16 + i % 16;
        if (at >= in.rows) continue;
        const typename P::number sum = own.sum(room, tile, i % 16, token);
        float value = sum;
        if constexpr (P::CHANNEL) {
            value = MUL(MUL((float)sum, in.xs[input_of(token)]), float_at(bytes, in.scales + (stored + at) * 4));
        }
        if (in.scale) value = MUL(value, in.scale[expert]);
        in.y[pairs[token] * in.y_row + in.y_start + at] = value;
    }
}

} // namespace few_experts

// Arguments as for gantry_experts_i8_*, order 0 (nv_a32, columns a multiple of 32) or, per channel, 1 (nv_a64, of 64). With z = 2
// another product of the same input, rows and columns: its experts, factors, rows and outputs are `more_*`.
// Grid: x = rows / (16 * few::tiles_of) rounded up, y = bound of the tiles of up to 8, or `all`, z = 1 or 2; groups of as many warps
// for each tile, at most 16.
#define FEW_EXPERTS(name, ...) \
    extern "C" __global__ void __launch_bounds__(32 * mma::CHUNKS, GROUPS_FEW) \
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
