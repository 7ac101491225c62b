// y = scale * W x + bias for many tokens, by matrix instructions.
#include "tile.cuh"

namespace tile {

// What is the same for all layouts; the arguments are those of gantry_gemm_*.
struct gemm_output {
    const float *scale;
    const float *bias;
    float *y;
    ulong first_row;
    ulong y_row;
    ulong y_start;
    uint n;
    uint rows;
};

// What is multiplied; the planes by their bytes.
struct gemm_input {
    const uchar *bytes;
    ulong first_plane;
    ulong second_plane;
    uint cols;
    const uchar *xq;
    const float *xs;
    const uint *codebook;
};

template <typename P>
DEVICE void gemm(const gemm_input &w, const gemm_output &o, typename P::room &r) {
    const uint row = GROUP_X * P::ROWS, token = GROUP_Y * P::TOKENS, tokens = min(o.n - token, P::TOKENS);
    const source s = source_at<P::KIND>(w.bytes, w.first_plane, w.second_plane, o.first_row + row, o.rows - row, w.cols, w.xq,
                                        w.xs, w.codebook);
    P p;
    const auto row_of = [&](uint t) { return token + min(t, tokens - 1); };
    p.template run<false>(s, r, P::TOKENS, row_of);
    p.each(s, tokens, row_of, [&](uint i, uint t, float value) {
        if (o.scale) value = MUL(value, o.scale[0]);
        if (o.bias) value = ADD(value, o.bias[row + i]);
        o.y[(ulong)(token + t) * o.y_row + o.y_start + row + i] = value;
    });
}

using Q8 = product<Q8_0_SPLIT, false, 2, 4, 4, 2>;
using Block32 = product<I8_BLOCK32, false, 2, 4, 4, 2>;
using E8 = product<E8_PLANAR, false, 2, 4, 4, 2>;
template <bool PAIRS>
using Channel = product<I8_CHANNEL, PAIRS, 4, 4, 2, 4>;

} // namespace tile

// Arguments as for gantry_gemm_q8_0_split. Grid: x = rows / 128 rounded up, y = n / 64 rounded up.
KERNEL_TILE(tile::GROUP)
gantry_tiles_q8_0_split(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs,
                        const float *RESTRICT scale, const float *RESTRICT bias, float *RESTRICT y, ulong scales,
                        ulong first_row, ulong y_row, ulong y_start, uint n, uint rows, uint cols) {
    BEGIN();
    __shared__ __align__(16) tile::Q8::room room;
    const tile::gemm_input w = {bytes, scales, 0, cols, xq, xs, 0};
    tile::gemm<tile::Q8>(w, {scale, bias, y, first_row, y_row, y_start, n, rows}, room);
}

// Arguments as for gantry_gemm_i8_block32, order 0. Grid: as above.
KERNEL_TILE(tile::GROUP)
gantry_tiles_i8_block32(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs,
                        const float *RESTRICT scale, const float *RESTRICT bias, float *RESTRICT y, ulong scales,
                        ulong first_row, ulong, ulong y_row, ulong y_start, uint n, uint rows, uint cols, uint) {
    BEGIN();
    __shared__ __align__(16) tile::Block32::room room;
    const tile::gemm_input w = {bytes, scales, 0, cols, xq, xs, 0};
    tile::gemm<tile::Block32>(w, {scale, bias, y, first_row, y_row, y_start, n, rows}, room);
}

// Arguments as for gantry_gemm_e8_planar. Grid: as above.
KERNEL_TILE(tile::GROUP)
gantry_tiles_e8_planar(const uchar *RESTRICT bytes, const uint *RESTRICT codebook, const uchar *RESTRICT xq,
                       const float *RESTRICT xs, const float *RESTRICT scale, const float *RESTRICT bias,
                       float *RESTRICT y, ulong words, ulong scales, ulong first_row, ulong y_row, ulong y_start,
                       uint n, uint rows, uint cols) {
    BEGIN();
    __shared__ __align__(16) tile::E8::room room;
    const tile::gemm_input w = {bytes, words, scales, cols, xq, xs, codebook};
    tile::gemm<tile::E8>(w, {scale, bias, y, first_row, y_row, y_start, n, rows}, room);
}

// Arguments as for gantry_gemm_i8_channel, order 0 (columns a multiple of 32) or 1 (of 64). Grid: x = rows / 128 rounded up,
// y = n / 128 rounded up.
#define TILES_CHANNEL(name, Product) \
    KERNEL_OF_TWO(tile::GROUP) \
    name(const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
         const float *RESTRICT bias, float *RESTRICT y, ulong scales, ulong first_row, ulong, ulong y_row, \
         ulong y_start, uint n, uint rows, uint cols, uint) { \
        BEGIN(); \
        __shared__ __align__(16) Product::room room; \
        const tile::gemm_input w = {bytes, scales, 0, cols, xq, xs, 0}; \
        tile::gemm<Product>(w, {scale, bias, y, first_row, y_row, y_start, n, rows}, room); \
    }

TILES_CHANNEL(gantry_tiles_i8_channel_a32, tile::Channel<false>)
TILES_CHANNEL(gantry_tiles_i8_channel_a64, tile::Channel<true>)
