// Products of E8 with few tokens: y = scale * W x + bias, and those of experts.
#include "decode_e8.cuh"

namespace decode_e8 {

using namespace e8;

// One matrix: its rows do not depend on the kernel before.
struct gemm {
    static constexpr bool ALONE = true;
    const uchar *bytes;
    ulong words;
    ulong scales;
    ulong first_row;
    const uchar *xq;
    const float *xs;
    const float *scale;
    const float *bias;
    float *y;
    ulong y_row;
    uint tokens;
    uint rows;
    uint units;

    DEVICE_MEMBER uint matrices() const { return 1; }
    DEVICE_MEMBER uint matrices_known() const { return 1; }
    DEVICE_MEMBER matrix at(uint) const { return {0, (uint)first_row}; }
    DEVICE_MEMBER void begin(uint) {}
    // Past the last the last again.
    DEVICE_MEMBER uint row(uint token) const { return min(token, tokens - 1); }
    DEVICE_MEMBER void store(uint row, uint token, float value) const {
        if (scale) value = MUL(value, scale[0]);
        if (bias) value = ADD(value, bias[row]);
        y[(ulong)token * y_row + row] = value;
    }
};

// One of the products of experts that a launch has.
struct factor {
    const ulong *at;
    const float *scale;
    ulong first_row;
    ulong row_step;
    ulong y_start;
};

// Matrices of experts: that of each pair, or of each tile of up to 8 pairs, TOKENS (1: no tile has more; or 4) of them at once, with one
// or two products of the same input. Tiles of more pairs come again after all others, for the rest of them. The arguments are those
// of gantry_experts_*.
template <uint TOKENS>
struct experts {
    static constexpr bool ALONE = false;
    const uchar *bytes;
    ulong words;
    ulong scales;
    const uint *ids;
    const uint *tiles;
    const uint *pairs;
    const uchar *xq;
    const float *xs;
    float *y;
    ulong y_row;
    uint all;
    uint used;
    uint most;
    uint rows;
    uint units;
    uint x_per_pair;
    factor first;
    factor second;
    uint products;
    // Tiles that hold something, and matrices of all.
    uint filled;
    uint count;
    // What is multiplied now: its expert, whether it is of the second product, its first pair and how many there are.
    uint expert;
    bool more;
    uint start;
    uint tokens;

    DEVICE_MEMBER uint size(uint tile) const { return tiles ? tiles[3 * tile + 2] : 1; }
    DEVICE_MEMBER uint bound() const { return tiles ? min(all, all / 8 + most) : all; }
    // How many tiles have more than `least` pairs; for whole warps.
    DEVICE_MEMBER uint larger(uint least) const {
        uint sum = 0;
        for (uint i = LID % 32; i - LID % 32 < bound(); i += 32) {
            sum += POPCOUNT(__ballot_sync(0xffffffffu, i < bound() && size(i) > least));
        }
        return sum;
    }
    DEVICE_MEMBER uint matrices() {
        filled = tiles ? larger(0) : all;
        count = (filled + (tiles ? larger(TOKENS) : 0)) * products;
        return count;
    }
    DEVICE_MEMBER uint matrices_known() const { return count; }
    // The tile of matrix m, and how many of its pairs others have.
    DEVICE_MEMBER uint2 tile_of(uint m) const {
        const uint tile = m / products;
        if (tile < filled) return make_uint2(tile, 0);
        uint found = 0;
        for (uint left = tile - filled;; found++) {
            if (size(found) > TOKENS && left-- == 0) break;
        }
        return make_uint2(found, TOKENS);
    }
    DEVICE_MEMBER uint expert_of(uint tile) const { return tiles ? tiles[3 * tile] : ids ? ids[tile] : tile % used; }
    DEVICE_MEMBER matrix at(uint m) const {
        const uint e = expert_of(tile_of(m).x);
        if (e >= most) return {MISSING, 0};
        const bool other = m % products != 0;
        return {(other ? second.at : first.at)[e],
                (uint)((other ? second.first_row : first.first_row) + e * (other ? second.row_step : first.row_step))};
    }
    DEVICE_MEMBER void begin(uint m) {
        const uint2 tile = tile_of(m);
        expert = expert_of(tile.x), more = m % products != 0;
        start = (tiles ? tiles[3 * tile.x + 1] : tile.x) + tile.y;
        tokens = at(m).at != MISSING ? min(size(tile.x) - tile.y, TOKENS) : 0;
    }
    DEVICE_MEMBER uint pair(uint token) const { return tiles ? pairs[start + token] : start; }
    DEVICE_MEMBER uint row(uint token) const {
        const uint own = pair(min(token, max(tokens, 1u) - 1));
        return x_per_pair ? own : own / used;
    }
    DEVICE_MEMBER void store(uint row, uint token, float value) const {
        const float *scale = more ? second.scale : first.scale;
        if (scale) value = MUL(value, scale[expert]);
        y[pair(token) * y_row + (more ? second.y_start : first.y_start) + row] = value;
    }
};

} // namespace decode_e8

// Arguments as for gantry_gemm_e8_planar; columns of no more chunks than a group has warps. Dynamic shared memory: TABLE_BYTES, and ROOM
// for each warp of a group, of which there are 8 or more. Grid: x = any number of groups, which share the rows, y = n / TOKENS
// rounded up.
#define DECODE_E8(name, TOKENS, WARPS, DEPTH) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) \
    name(const uchar *RESTRICT bytes, const uint *RESTRICT codebook, const uchar *RESTRICT xq, const float *RESTRICT xs, \
         const float *RESTRICT scale, const float *RESTRICT bias, float *RESTRICT y, ulong words, ulong scales, \
         ulong first_row, ulong y_row, ulong y_start, uint n, uint rows, uint cols) { \
        extern __shared__ __align__(16) uchar shared[]; \
        const uint token = GROUP_Y * TOKENS, units = cols / 256; \
        const decode_e8::gemm job = {bytes, words, scales, first_row, xq + (ulong)token * cols, xs + (ulong)token * (cols / 32), \
                                     scale, bias, y + token * y_row + y_start, y_row, min(n - token, TOKENS), rows, units}; \
        e8::product<TOKENS, DEPTH>::run(job, codebook, shared); \
    }

// Arguments as for gantry_experts_e8_planar, and for another product of the same input as the kernels of decode_experts.cu have them;
// `products`, at the end, says whether there is one (1 or 2). Grid: x = any number of groups, which share the rows.
#define DECODE_E8_EXPERTS(name, TOKENS, WARPS, DEPTH) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) \
    name(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT codebook, const uint *RESTRICT ids, \
         const uint *RESTRICT tiles, const uint *RESTRICT pairs, const uchar *RESTRICT xq, const float *RESTRICT xs, \
         const float *RESTRICT scale, float *RESTRICT y, const ulong *RESTRICT more_at, const float *RESTRICT more_scale, \
         ulong words, ulong scales, ulong first_row, ulong row_step, ulong more_first_row, ulong more_row_step, \
         ulong more_y_start, ulong y_row, ulong y_start, uint all, uint used, uint experts, uint rows, uint cols, \
         uint x_per_pair, uint products) { \
        extern __shared__ __align__(16) uchar shared[]; \
        const decode_e8::experts<TOKENS> job = { \
            base, words, scales, ids, tiles, pairs, xq, xs, y, y_row, all, used, experts, rows, cols / 256, x_per_pair, \
            {at, scale, first_row, row_step, y_start}, {more_at, more_scale, more_first_row, more_row_step, more_y_start}, \
            products, 0, 0, 0, false, 0, 0}; \
        e8::product<TOKENS, DEPTH>::run(job, codebook, shared); \
    }

// Warps of a group: as many as there are registers for.
DECODE_E8(gantry_decode_e8_planar_1, 1, 20, 2)
DECODE_E8(gantry_decode_e8_planar_2, 2, 16, 2)
DECODE_E8(gantry_decode_e8_planar_4, 4, 12, 2)
DECODE_E8(gantry_decode_e8_planar_8, 8, 8, 2)
DECODE_E8_EXPERTS(gantry_decode_experts_e8_planar_1, 1, 16, 2)
DECODE_E8_EXPERTS(gantry_decode_experts_e8_planar_4, 4, 12, 2)
