// Products of experts of bf16 weights, by matrix instructions: for few tokens each pair of a token and an expert by itself, or
// tiles of up to 8 pairs of one expert; for many, tiles of up to 64.
//
// For few tokens a group has 16 rows, each of its warps a chunk of the columns. Sums are of 64 columns, added ascending to their
// chunk's, the chunks ascending too.
#include "expert_pairs.cuh"
#include "tile_bf16.cuh"

namespace experts_bf16 {

using namespace bf16;

// The arguments are those of gantry_experts_bf16.
struct input {
    const uchar *base;
    const ulong *at;
    const uint *ids;
    const uint *tiles;
    const uint *pairs;
    const float *x;
    const float *scale;
    float *y;
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

DEVICE expert_pairs part_of(const input &in) {
    expert_pairs p = expert_pairs_of(GROUP_Y, in.ids, in.tiles, in.all, in.used, in.experts);
    if (p.count > 0 && in.at[p.expert] == ~(ulong)0) p.count = 0;
    return p;
}

// The stored weights of an expert from `row` of its rows on.
DEVICE const uchar *weights_of(const input &in, uint expert, uint row) {
    return in.base + in.at[expert] + (in.first_row + expert * in.row_step + row) * in.cols * 2;
}

DEVICE void store(const input &in, uint expert, uint pair, uint row, float value) {
    if (in.scale) value = MUL(value, in.scale[expert]);
    in.y[pair * in.y_row + in.y_start + row] = value;
}

// Pairs, columns at once, and chunks of a row at most.
constexpr uint PAIRS = 8, COLUMNS = 64;

DEVICE void few(const input &in) {
    __shared__ float room[CHUNKS][16 * PAIRS];
    __shared__ uint pairs[PAIRS];
    const expert_pairs p = part_of(in);
    // The whole group leaves.
    if (p.count == 0) return;
    if (LID < PAIRS) pairs[LID] = in.tiles ? in.pairs[p.start + min(LID, p.count - 1)] : p.start;
    BARRIER();
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4, row = GROUP_X * 16, rows = in.rows - row;
    const uint groups = (in.cols + COLUMNS - 1) / COLUMNS, chunk = (groups + CHUNKS - 1) / CHUNKS;
    const uint last = min((warp + 1) * chunk, groups);
    const uchar *bytes = weights_of(in, p.expert, row);
    const float *x = in.x + (ulong)(in.x_per_pair ? pairs[g] : pairs[g] / in.used) * in.cols;
    const ulong policy = read_once();
    float total[4] = {};
    NO_UNROLL
    for (uint group = warp * chunk; group < last; group++) {
        uint4 a[2][2];
        float4 v[2][2];
        UNROLL
        for (uint k = 0; k < 2; k++) {
            const uint column = group * COLUMNS + 32 * k + 8 * t;
            UNROLL
            for (uint i = 0; i < 2; i++) {
                a[k][i] = make_uint4(0, 0, 0, 0), v[k][i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                const ulong own = (ulong)min(g + 8 * i, rows - 1) * in.cols + column;
                if (column < in.cols) a[k][i] = weights_16(bytes + own * 2, policy);
                if (column < in.cols && g < p.count) v[k][i] = *(const float4 *)(x + column + 4 * i);
            }
        }
        float sums[4] = {};
        UNROLL
        for (uint k = 0; k < 2; k++) {
            // Of 32 columns a lane has 8 t .. 8 t + 8 in two steps, of weights and of activations.
            const uint4 first_half = make_uint4(a[k][0].x, a[k][1].x, a[k][0].y, a[k][1].y);
            const uint4 second_half = make_uint4(a[k][0].z, a[k][1].z, a[k][0].w, a[k][1].w);
            UNROLL
            for (uint i = 0; i < 2; i++) {
                uint first[PARTS], second[PARTS];
                split(v[k][i].x, v[k][i].y, first);
                split(v[k][i].z, v[k][i].w, second);
                UNROLL
                for (int q = 0; q < PARTS; q++) multiply(sums, i == 0 ? first_half : second_half, first[q], second[q]);
            }
        }
        UNROLL
        for (uint c = 0; c < 4; c++) total[c] = ADD(total[c], sums[c]);
    }
    *(float2 *)&room[warp][g * PAIRS + 2 * t] = make_float2(total[0], total[1]);
    *(float2 *)&room[warp][(g + 8) * PAIRS + 2 * t] = make_float2(total[2], total[3]);
    BARRIER();
    for (uint i = LID; i < 16 * p.count; i += blockDim.x) {
        const uint own = i % 16, token = i / 16;
        if (own >= rows) continue;
        float sum = room[0][own * PAIRS + token];
        for (uint c = 1; c * chunk < groups; c++) sum = ADD(sum, room[c][own * PAIRS + token]);
        store(in, p.expert, pairs[token], row + own, sum);
    }
}

constexpr uint PAIRS_OF_TILE = 64;
using tile_bf16::Tile;

DEVICE void many(const input &in, Tile::stage *ring) {
    static_assert(Tile::TOKENS == PAIRS_OF_TILE);
    __shared__ uint pairs[PAIRS_OF_TILE], rows[PAIRS_OF_TILE];
    const expert_pairs p = part_of(in);
    // The whole group leaves.
    if (p.count == 0) return;
    const uint row = GROUP_X * Tile::ROWS;
    if (LID < PAIRS_OF_TILE) {
        const uint pair = in.pairs[p.start + min(LID, p.count - 1)];
        pairs[LID] = pair;
        rows[LID] = in.x_per_pair ? pair : pair / in.used;
    }
    const tile_bf16::source s = {weights_of(in, p.expert, row), in.x, in.rows - row, in.cols};
    BARRIER();
    Tile tile;
    tile.run<true>(s, ring, p.count, [&](uint t) { return rows[t]; });
    tile.each(s, p.count, [&](uint i, uint t, float value) { store(in, p.expert, pairs[t], row + i, value); });
}

} // namespace experts_bf16

// Arguments as for gantry_experts_bf16, columns a multiple of 8. With z = 2 another product of the same input, rows and columns:
// its experts, factors, rows and outputs are `more_*`.
// Grid: x = rows / 16 rounded up, y = bound of the tiles of up to 8, or `all`, z = 1 or 2; groups of at least 32 threads for each
// chunk of a row.
KERNEL(32 * mma::CHUNKS)
gantry_decode_experts_bf16(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT ids,
                           const uint *RESTRICT tiles, const uint *RESTRICT pairs, const float *RESTRICT x,
                           const float *RESTRICT scale, float *RESTRICT y, const ulong *RESTRICT more_at,
                           const float *RESTRICT more_scale, ulong first_row, ulong row_step, ulong more_first_row,
                           ulong more_row_step, ulong more_y_start, ulong y_row, ulong y_start, uint all, uint used,
                           uint experts, uint rows, uint cols, uint x_per_pair) {
    BEGIN();
    if (GROUP_Z == 1) {
        at = more_at, scale = more_scale;
        first_row = more_first_row, row_step = more_row_step, y_start = more_y_start;
    }
    experts_bf16::few({base, at, ids, tiles, pairs, x, scale, y, first_row, row_step, y_row, y_start, all, used, experts, rows,
                       cols, x_per_pair});
}

// Arguments as for gantry_experts_bf16, columns a multiple of 8, `tiles` and `pairs` as gantry_experts_group_tiles wrote them for
// tiles of 64. Launched with 64 KiB of shared memory. Grid: x = rows / 128 rounded up, y = bound of the tiles.
KERNEL_OF_TWO(tile_bf16::Tile::GROUP)
gantry_tiles_experts_bf16(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT ids,
                          const uint *RESTRICT tiles, const uint *RESTRICT pairs, const float *RESTRICT x,
                          const float *RESTRICT scale, float *RESTRICT y, ulong first_row, ulong row_step, ulong y_row,
                          ulong y_start, uint all, uint used, uint experts, uint rows, uint cols, uint x_per_pair) {
    BEGIN();
    extern __shared__ __align__(16) uchar more[];
    experts_bf16::many({base, at, ids, tiles, pairs, x, scale, y, first_row, row_step, y_row, y_start, all, used, experts, rows,
                        cols, x_per_pair},
                       (tile_bf16::Tile::stage *)more);
}
