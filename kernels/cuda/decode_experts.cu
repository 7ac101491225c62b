// Products of experts for few tokens: each pair of a token and an expert by itself, or tiles of up to 8 pairs of one expert.
#include "decode.cuh"

namespace decode {

constexpr uint PAIRS = 8;

// The arguments are those of gantry_experts_*.
struct experts_input {
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

// Rows by pair; those past the last repeat it.
struct by_pair {
    const uint *inputs;
    const uint *outputs;
    __device__ uint x(uint t) const { return inputs[t]; }
    __device__ uint y(uint t) const { return outputs[t]; }
};

template <typename P>
DEVICE void experts(const experts_input &in, typename P::number *room, uint *inputs, uint *outputs) {
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
    if (LID < PAIRS) {
        const uint pair = in.tiles ? in.pairs[start + min(LID, count - 1)] : start;
        inputs[LID] = in.x_per_pair ? pair : pair / in.used;
        outputs[LID] = pair;
    }
    BARRIER();
    const uint row = GROUP_X * P::ROWS;
    const ulong first = in.first_row + expert * in.row_step + row, of_row = P::CHANNEL ? 4 : in.cols / 16;
    const uchar *bytes = in.base + in.at[expert];
    const matrix w = {bytes + first * in.cols, bytes + in.scales + first * of_row, in.rows - row, in.cols};
    const output o = {in.scale ? in.scale + expert : 0, 0, in.y + in.y_start + row, in.y_row, 0, count};
    P::run(w, in.xq, in.xs, o, by_pair{inputs, outputs}, room);
}

} // namespace decode

// Arguments as for gantry_experts_i8_* and gantry_experts_q8_0_split; int8 in the order 0 (nv_a32, columns a multiple of 32) or, per
// channel, 1 (nv_a64, a multiple of 64). Grid: x = rows / 16 rounded up, y = bound of the tiles of up to 8, or `all`;
// z = 1, or 2 with another product of the same input, rows and columns: its experts, factors, rows and outputs are `more_*`; groups of
// at least 32 threads for each chunk of a row.
#define DECODE_EXPERTS_ARGUMENTS \
    const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT ids, const uint *RESTRICT tiles, \
        const uint *RESTRICT pairs, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
        float *RESTRICT y, const ulong *RESTRICT more_at, const float *RESTRICT more_scale, ulong scales, \
        ulong first_row, ulong row_step
#define DECODE_EXPERTS_COUNTS \
    ulong more_first_row, ulong more_row_step, ulong more_y_start, ulong y_row, ulong y_start, uint all, uint used, \
        uint experts, uint rows, uint cols, uint x_per_pair
#define DECODE_EXPERTS_BODY(P) \
    __shared__ P::number room[mma::CHUNKS * decode::PAIRS * decode::STRIDE]; \
    SHARED(uint, inputs, decode::PAIRS); \
    SHARED(uint, outputs, decode::PAIRS); \
    if (GROUP_Z == 1) { \
        at = more_at, scale = more_scale; \
        first_row = more_first_row, row_step = more_row_step, y_start = more_y_start; \
    } \
    decode::experts<P>({base, at, ids, tiles, pairs, xq, xs, scale, y, scales, first_row, row_step, y_row, y_start, all, \
                        used, experts, rows, cols, x_per_pair}, \
                       room, inputs, outputs)

using DecodeExpertsQ8 = decode::product<Q8_0_SPLIT, false, 1, 1, 2>;
using DecodeExpertsBlock32 = decode::product<I8_BLOCK32, false, 1, 1, 4>;
using DecodeExpertsA32 = decode::product<I8_CHANNEL, false, 1, 1, 4>;
using DecodeExpertsA64 = decode::product<I8_CHANNEL, true, 1, 1, 4>;

KERNEL(decode::GROUP)
gantry_decode_experts_q8_0_split(DECODE_EXPERTS_ARGUMENTS, DECODE_EXPERTS_COUNTS) {
    DECODE_EXPERTS_BODY(DecodeExpertsQ8);
}
KERNEL(decode::GROUP)
gantry_decode_experts_i8_block32(DECODE_EXPERTS_ARGUMENTS, ulong, DECODE_EXPERTS_COUNTS, uint) {
    DECODE_EXPERTS_BODY(DecodeExpertsBlock32);
}
KERNEL(decode::GROUP)
gantry_decode_experts_i8_channel_a32(DECODE_EXPERTS_ARGUMENTS, ulong, DECODE_EXPERTS_COUNTS, uint) {
    DECODE_EXPERTS_BODY(DecodeExpertsA32);
}
KERNEL(decode::GROUP)
gantry_decode_experts_i8_channel_a64(DECODE_EXPERTS_ARGUMENTS, ulong, DECODE_EXPERTS_COUNTS, uint) {
    DECODE_EXPERTS_BODY(DecodeExpertsA64);
}
