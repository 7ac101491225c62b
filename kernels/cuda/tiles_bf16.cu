// y = scale * W x + bias of bf16 weights for many tokens, by matrix instructions.
#include "tile_bf16.cuh"

// Arguments as for gantry_gemm_bf16, columns a multiple of 8. Launched with 64 KiB of shared memory.
// Grid: x = rows / 128 rounded up, y = n / 64 rounded up.
KERNEL_OF_TWO(tile_bf16::Tile::GROUP)
gantry_tiles_bf16(const uchar *RESTRICT bytes, const float *RESTRICT x, const float *RESTRICT scale,
                  const float *RESTRICT bias, float *RESTRICT y, ulong first_row, ulong y_row, ulong y_start, uint n,
                  uint rows, uint cols) {
    BEGIN();
    using Tile = tile_bf16::Tile;
    extern __shared__ __align__(16) uchar more[];
    // All tokens of some rows, one after the other: weights are read once.
    const uint number = GROUP_Y * gridDim.x + GROUP_X;
    const uint token = number % gridDim.y * Tile::TOKENS, row = number / gridDim.y * Tile::ROWS;
    const uint tokens = min(n - token, Tile::TOKENS);
    const tile_bf16::source s = {bytes + (first_row + row) * cols * 2, x, rows - row, cols};
    Tile tile;
    tile.run<false>(s, (Tile::stage *)more, Tile::TOKENS, [&](uint t) { return token + min(t, tokens - 1); });
    tile.each(s, tokens, [&](uint i, uint t, float value) {
        if (scale) value = MUL(value, scale[0]);
        if (bias) value = ADD(value, bias[row + i]);
        y[(ulong)(token + t) * y_row + y_start + row + i] = value;
    });
}
