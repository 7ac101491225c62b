// Products of experts for many tokens, by matrix instructions: tiles of up to 64 pairs of one expert.
#include "tile.cuh"

namespace tile {

// Pairs of a tile.
constexpr uint PAIRS_OF_TILE = 64;

// What is the same for all layouts; the arguments are those of gantry_experts_*.
struct expert_input {
    const uchar *base;
    const ulong *at;
    const uint *tiles;
    const uint *pairs;
    const uchar *xq;
    const float *xs;
    const float *scale;
    float *y;
    ulong first_plane;
    ulong second_plane;
    ulong first_row;
    ulong row_step;
    ulong y_row;
    ulong y_start;
    const uint *codebook;
    uint used;
    uint experts;
    uint rows;
    uint cols;
    uint x_per_pair;
};

// What a group has in shared memory: registers do not suffice for all.
template <typename P>
struct expert_room {
    typename P::room product;
    // Pairs, and their rows of activations.
    uint pairs[PAIRS_OF_TILE];
    uint rows[PAIRS_OF_TILE];
};

template <typename P>
DEVICE void experts(const expert_input &o, expert_room<P> &r) {
    static_assert(P::TOKENS == PAIRS_OF_TILE);
    const uint expert = o.tiles[3 * GROUP_Y], start = o.tiles[3 * GROUP_Y + 1], count = o.tiles[3 * GROUP_Y + 2];
    // The whole group leaves.
    if (count == 0 || expert >= o.experts || o.at[expert] == ~(ulong)0) return;
    const uint row = GROUP_X * P::ROWS;
    if (LID < P::TOKENS) {
        const uint pair = o.pairs[start + min(LID, count - 1)];
        r.pairs[LID] = pair;
        r.rows[LID] = o.x_per_pair ? pair : pair / o.used;
    }
    const source s = source_at<P::KIND>(o.base + o.at[expert], o.first_plane, o.second_plane,
                                 o.first_row + expert * o.row_step + row, o.rows - row, o.cols, o.xq, o.xs, o.codebook);
    BARRIER();
    const auto row_of = [&](uint t) { return r.rows[t]; };
    P p;
    p.template run<true>(s, r.product, count, row_of);
    p.each(s, count, row_of, [&](uint i, uint t, float value) {
        if (o.scale) value = MUL(value, o.scale[expert]);
        o.y[(ulong)r.pairs[t] * o.y_row + o.y_start + row + i] = value;
    });
}

template <uint LAYOUT, bool PAIRS = false>
using Experts = product<LAYOUT, PAIRS, 2, 4, 4, 2>;

} // namespace tile

#define TILE_TABLES const uint *RESTRICT, const uint *RESTRICT tiles, const uint *RESTRICT pairs
#define TILE_COUNTS uint, uint used, uint experts, uint rows, uint cols, uint x_per_pair
#define TILE_EXPERTS(P, first, second, book) \
    using Product = P; \
    __shared__ __align__(16) tile::expert_room<Product> room; \
    tile::experts<Product>({base, at, tiles, pairs, xq, xs, scale, y, first, second, first_row, row_step, y_row, y_start, \
                            book, used, experts, rows, cols, x_per_pair}, \
                           room)

// Arguments as for gantry_experts_* of the layout, `tiles` and `pairs` as gantry_experts_group_tiles wrote them for tiles of 64.
// Grid: x = rows / 128 rounded up, y = bound of the tiles.
KERNEL_TILE(tile::GROUP)
gantry_tiles_experts_q8_0_split(const uchar *RESTRICT base, const ulong *RESTRICT at, TILE_TABLES,
                                const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale,
                                float *RESTRICT y, ulong scales, ulong first_row, ulong row_step, ulong y_row,
                                ulong y_start, TILE_COUNTS) {
    BEGIN();
    TILE_EXPERTS(tile::Experts<Q8_0_SPLIT>, scales, 0, 0);
}

KERNEL_TILE(tile::GROUP)
gantry_tiles_experts_e8_planar(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT codebook,
                               TILE_TABLES, const uchar *RESTRICT xq, const float *RESTRICT xs,
                               const float *RESTRICT scale, float *RESTRICT y, ulong words, ulong scales,
                               ulong first_row, ulong row_step, ulong y_row, ulong y_start, TILE_COUNTS) {
    BEGIN();
    TILE_EXPERTS(tile::Experts<E8_PLANAR>, words, scales, codebook);
}

#define TILE_EXPERTS_I8(name, ...) \
    KERNEL_TILE(tile::GROUP) \
    name(const uchar *RESTRICT base, const ulong *RESTRICT at, TILE_TABLES, const uchar *RESTRICT xq, \
         const float *RESTRICT xs, const float *RESTRICT scale, float *RESTRICT y, ulong scales, ulong first_row, \
         ulong row_step, ulong, ulong y_row, ulong y_start, TILE_COUNTS, uint) { \
        BEGIN(); \
        using Which = __VA_ARGS__; \
        TILE_EXPERTS(Which, scales, 0, 0); \
    }

// Orders 0 (nv_a32) and 1 (nv_a64).
TILE_EXPERTS_I8(gantry_tiles_experts_i8_block32, tile::Experts<I8_BLOCK32>)
TILE_EXPERTS_I8(gantry_tiles_experts_i8_channel_a32, tile::Experts<I8_CHANNEL>)
TILE_EXPERTS_I8(gantry_tiles_experts_i8_channel_a64, tile::Experts<I8_CHANNEL, true>)
