// y = scale * W x + bias for few tokens; see decode.cuh.
#include "decode.cuh"

namespace decode {

// Groups that may begin before the kernel before them has ended: they fetch weights meanwhile.
constexpr uint EARLY = 264;

// The group's part of a product of n tokens: rows and tokens from its own on.
template <typename P>
DEVICE void gemm(matrix w, const uchar *xq, const float *xs, output o, typename P::number *room) {
    const uint row = GROUP_X * P::ROWS, token = GROUP_Y * P::TOKENS, blocks = w.cols / 32;
    if (LID == 0 && GROUP_X < EARLY && GROUP_Y == 0) {
        prefetch(w.bytes + (ulong)row * w.cols, min((uint)P::ROWS, w.rows - row) * w.cols);
    }
    BEGIN();
    w.bytes += (ulong)row * w.cols;
    w.scales += (ulong)row * (P::CHANNEL ? 4 : blocks * 2);
    w.rows -= row;
    o.n = min(o.n - token, P::TOKENS);
    o.y += token * o.y_row + o.y_start + row;
    if (o.bias) o.bias += row;
    P::run(w, xq + (ulong)token * w.cols, xs + (ulong)token * (P::CHANNEL ? 1 : blocks), o, in_order{o.n}, room);
}

} // namespace decode

// Arguments as for the gantry_gemm_* of the layout; int8 in the order 0 (nv_a32, columns a multiple of 32) or, per channel, 1
// (nv_a64, a multiple of 64). Grid: x = rows / (16 * R) rounded up, y = n / TOKENS rounded up; groups of at least
// 32 threads for each chunk of a row.
#define DECODE_ARGUMENTS \
    const uchar *RESTRICT bytes, const uchar *RESTRICT xq, const float *RESTRICT xs, const float *RESTRICT scale, \
        const float *RESTRICT bias, float *RESTRICT y, ulong scales, ulong first_row
#define DECODE_COUNTS ulong y_row, ulong y_start, uint n, uint rows, uint cols
#define DECODE_BODY(TOKENS, type, ...) \
    SHARED(type, room, mma::CHUNKS *TOKENS *decode::STRIDE); \
    const ulong of_row = std::is_same<type, int>::value ? 4 : cols / 16; \
    const decode::matrix w = {bytes + first_row * cols, bytes + scales + first_row * of_row, rows, cols}; \
    const decode::output o = {scale, bias, y, y_row, y_start, n}; \
    __VA_ARGS__

#define DECODE_Q8(name, TOKENS, R, U, GROUPS) \
    extern "C" __global__ void __launch_bounds__(decode::GROUP, GROUPS) name(DECODE_ARGUMENTS, DECODE_COUNTS) { \
        DECODE_BODY(TOKENS, float, \
                    decode::gemm<decode::product<Q8_0_SPLIT, false, TOKENS / 8, R, U>>(w, xq, xs, o, room);) \
    }
#define DECODE_BLOCK32(name, TOKENS, R, U, GROUPS) \
    extern "C" __global__ void __launch_bounds__(decode::GROUP, GROUPS) \
    name(DECODE_ARGUMENTS, ulong, DECODE_COUNTS, uint) { \
        DECODE_BODY(TOKENS, float, \
                    decode::gemm<decode::product<I8_BLOCK32, false, TOKENS / 8, R, U>>(w, xq, xs, o, room);) \
    }
#define DECODE_CHANNEL(name, TOKENS, R, U, GROUPS) \
    extern "C" __global__ void __launch_bounds__(decode::GROUP, GROUPS) \
    name(DECODE_ARGUMENTS, ulong, DECODE_COUNTS, uint order) { \
        DECODE_BODY(TOKENS, int, \
                    if (order == 1) decode::gemm<decode::product<I8_CHANNEL, true, TOKENS / 8, R, U>>(w, xq, xs, o, room); \
                    else decode::gemm<decode::product<I8_CHANNEL, false, TOKENS / 8, R, U>>(w, xq, xs, o, room);) \
    }

DECODE_Q8(gantry_decode_q8_0_split_8, 8, 1, 4, 2)
DECODE_Q8(gantry_decode_q8_0_split_16, 16, 1, 2, 2)
DECODE_Q8(gantry_decode_q8_0_split_32, 32, 2, 2, 1)
DECODE_BLOCK32(gantry_decode_i8_block32_8, 8, 1, 4, 2)
DECODE_BLOCK32(gantry_decode_i8_block32_16, 16, 1, 2, 2)
DECODE_BLOCK32(gantry_decode_i8_block32_32, 32, 2, 2, 1)
DECODE_CHANNEL(gantry_decode_i8_channel_8, 8, 1, 4, 2)
DECODE_CHANNEL(gantry_decode_i8_channel_16, 16, 2, 2, 2)
DECODE_CHANNEL(gantry_decode_i8_channel_32, 32, 2, 4, 1)
