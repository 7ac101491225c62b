// The second half of a read of hyper-connections from q8_0.split, for few tokens: see kernels/device/hyper.c.
//
// A token's time is that of its launches: weights are copied to shared memory while the kernel before ends, and what comes after it
// is as little as can be, one instruction after the other.
#include "../device/q8.h"
#include "mma.cuh"

namespace hyper_up {

using namespace mma;

constexpr uint GROUP = 512, WARPS = GROUP / 32;
// Values of a stream that a group computes, tokens, streams at most, and threads that share a row's blocks.
constexpr uint VALUES = 32, TOKENS = 4, STREAMS = 4, SHARES = 4;
// The largest rank.
constexpr uint RANK = 320, BLOCKS = RANK / 32;

struct room {
    // Streams are apart by a little more than their rows, so that threads meet different banks.
    uchar q[STREAMS][VALUES * RANK + 16];
    ushort d[STREAMS][VALUES * BLOCKS];
    uchar low[TOKENS][RANK];
    float scales[TOKENS][BLOCKS];
    float mixed[TOKENS][VALUES];
};

// A value of a block of 32, of which each lane has one, as gantry_quantize_q8 makes it; the block's scale.
DEVICE uchar quantized(float value, float *scale) {
    const float four[4] = {value, 0.0f, 0.0f, 0.0f};
    return (uchar)q8_word(__reduce_max_sync(~0u, BITS(value) & 0x7fffffffu), four, scale);
}

} // namespace hyper_up

// Arguments as for gantry_hyper_up_q8_0_split; rank at most 320, first_row * rank a multiple of 256. The sum over k: thread i of 4
// takes every fourth block, then (0 + 1) + (2 + 3). Grid: the same.
extern "C" __global__ void __launch_bounds__(hyper_up::GROUP)
gantry_hyper_up_few(const uchar *RESTRICT bytes, const float *RESTRICT x, const float *RESTRICT low, float *RESTRICT m,
                    uchar *RESTRICT q, float *RESTRICT scales, ulong plane, ulong first_row, uint n, uint count, uint len,
                    uint rank, float factor) {
    using namespace hyper_up;
    __shared__ __align__(16) room r;
    const uint warp = LID / 32, lane = LID % 32, blocks = rank / 32, first = GROUP_X * VALUES;
    const uint token = GROUP_Y * TOKENS, some = min(n - token, TOKENS);
    NO_UNROLL
    for (uint h = 0; h < count; h++) {
        const ulong row = first_row + h * len + first;
        const uchar *own = bytes + row * rank, *own_d = bytes + plane + row * blocks * 2;
        for (uint i = LID; i < 2 * rank; i += GROUP) copy_16(shared_address(r.q[h] + 16 * i), own + 16 * i, 16);
        if (LID < 4 * blocks) copy_16(shared_address(r.d[h] + 8 * LID), own_d + 16 * LID, 16);
    }
    copies_end();
    BEGIN();
    // Of a value, a thread has one stream and a share of the columns; afterwards the token of that number.
    const uint value = LID / 16, stream = LID / SHARES % STREAMS, share = LID % SHARES;
    float term = 0.0f;
    if (stream < count && share < some) term = x[((token + share) * count + stream) * (ulong)len + first + value];
    NO_UNROLL
    for (uint i = warp; i < some * blocks; i += WARPS) {
        const uint t = i / blocks, b = i % blocks;
        float scale;
        r.low[t][b * 32 + lane] = quantized(silu(MUL(low[(ulong)(token + t) * rank + b * 32 + lane], factor)), &scale);
        if (lane == 0) r.scales[t][b] = scale;
    }
    copies_wait<0>();
    BARRIER();
    float sums[TOKENS] = {};
    NO_UNROLL
    for (uint b = share; b < blocks; b += SHARES) {
        const uint4 *own = (const uint4 *)(r.q[stream] + value * rank + b * 32);
        const uint4 u = own[0], v = own[1];
        const float d = from_half(r.d[stream][value * blocks + b]);
        UNROLL
        for (uint t = 0; t < TOKENS; t++) {
            if (t >= some) break;
            const uint4 e = *(const uint4 *)(r.low[t] + b * 32), f = *(const uint4 *)(r.low[t] + b * 32 + 16);
            int sum = DOT4(u.x, e.x, 0);
            sum = DOT4(u.y, e.y, sum), sum = DOT4(u.z, e.z, sum), sum = DOT4(u.w, e.w, sum);
            sum = DOT4(v.x, f.x, sum), sum = DOT4(v.y, f.y, sum), sum = DOT4(v.z, f.z, sum), sum = DOT4(v.w, f.w, sum);
            sums[t] = ADD(sums[t], MUL((float)sum, MUL(d, r.scales[t][b])));
        }
    }
    float gate = 0.0f;
    UNROLL
    for (uint t = 0; t < TOKENS; t++) {
        if (t >= some) break;
        sums[t] = ADD(sums[t], __shfl_xor_sync(~0u, sums[t], 1));
        sums[t] = ADD(sums[t], __shfl_xor_sync(~0u, sums[t], 2));
        if (t == share) gate = sums[t];
    }
    term = MUL(term, sigmoid(gate));
    float mixed = term;
    UNROLL
    for (uint h = 1; h < STREAMS; h++) {
        const float more = __shfl_down_sync(~0u, term, h * SHARES);
        if (h < count) mixed = ADD(mixed, more);
    }
    mixed = MUL(mixed, DIV(1.0f, (float)count));
    if (stream == 0 && share < some) r.mixed[share][value] = mixed;
    BARRIER();
    if (warp >= some) return;
    mixed = r.mixed[warp][lane];
    const ulong at = (ulong)(token + warp) * len + first;
    m[at + lane] = mixed;
    if (!q) return;
    float scale;
    q[at + lane] = quantized(mixed, &scale);
    if (lane == 0) scales[at / 32] = scale;
}
