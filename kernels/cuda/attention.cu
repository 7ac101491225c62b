// Attention of single tokens over f16 or int8 keys and values, by matrix instructions.
#include "attention.cuh"

namespace attend {

// Brings the pieces of a token's head together, 64 values of it.
constexpr uint JOIN = 256;
// Two values of a piece for each thread of a warp, every WARPS-th piece for each warp, so many of them loaded at once.
constexpr uint PART = 64;
constexpr uint AT_ONCE = 8;

DEVICE void join(const float *partial, const float *sinks, float *y, uint heads, uint len, uint splits) {
    BEGIN();
    __shared__ float weights[JOIN], high[WARPS], total[WARPS];
    __shared__ float2 sums[WARPS][32];
    const uint head = GROUP_Y, width = 2 + len, warp = LID / 32, lane = LID % 32, d = GROUP_Z * PART + 2 * lane;
    const ulong at = (ulong)GROUP_X * heads + head;
    partial += at * splits * width;
    const float lowest = FROM_BITS(0xff800000u), sink = sinks ? MUL(sinks[head], LOG2_E) : lowest;
    // Whatever needs no weights is loaded first.
    float2 v[AT_ONCE];
    UNROLL for (uint i = 0; i < AT_ONCE; i++) {
        const uint s = warp + i * WARPS;
        v[i] = make_float2(0.0f, 0.0f);
        if (s < splits) v[i] = *(const float2 *)(partial + s * width + 2 + d);
    }
    const float2 own = LID < splits ? *(const float2 *)(partial + LID * width) : make_float2(lowest, 0.0f);
    float most = fmaxf(sink, own.x);
    UNROLL for (uint step = 1; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (lane == 0) high[warp] = most;
    __syncthreads();
    UNROLL for (uint w = 0; w < WARPS; w++) most = fmaxf(most, high[w]);
    // A piece without keys has the sum 0.
    const float weight = own.y != 0.0f ? power_of_two(SUB(own.x, most)) : 0.0f;
    float sum = MUL(own.y, weight);
    weights[LID] = weight;
    UNROLL for (uint step = 1; step < 32; step *= 2) sum = ADD(sum, __shfl_xor_sync(0xffffffffu, sum, step));
    if (lane == 0) total[warp] = sum;
    __syncthreads();
    float2 out = make_float2(0.0f, 0.0f);
    for (uint from = warp; from < splits; from += AT_ONCE * WARPS) {
        if (from != warp) {
            UNROLL for (uint i = 0; i < AT_ONCE; i++) {
                const uint s = from + i * WARPS;
                if (s < splits) v[i] = *(const float2 *)(partial + s * width + 2 + d);
            }
        }
        UNROLL for (uint i = 0; i < AT_ONCE; i++) {
            const uint s = from + i * WARPS;
            const float w = s < splits ? weights[s] : 0.0f;
            out.x = w != 0.0f ? fmaf(v[i].x, w, out.x) : out.x;
            out.y = w != 0.0f ? fmaf(v[i].y, w, out.y) : out.y;
        }
    }
    sums[warp][lane] = out;
    __syncthreads();
    if (warp > 0) return;
    sum = 0.0f;
    UNROLL for (uint w = 0; w < WARPS; w++) sum = ADD(sum, total[w]);
    const float inverse = DIV(1.0f, ADD(sum, power_of_two(SUB(sink, most))));
    UNROLL for (uint w = 1; w < WARPS; w++) {
        out.x += sums[w][lane].x;
        out.y += sums[w][lane].y;
    }
    *(float2 *)(y + at * len + d) = make_float2(MUL(out.x, inverse), MUL(out.y, inverse));
}

} // namespace attend

// y of what gantry_attend_* left in `partial`; len is a multiple of 64, splits 2 to 256.
// Grid: x = n, y = heads, z = len / 64.
extern "C" __global__ void __launch_bounds__(256)
    gantry_attend_join(const float *partial, const float *sinks, float *y, uint heads, uint len, uint splits) {
    attend::join(partial, sinks, y, heads, len, splits);
}

// Of gantry_attention_f16 what needs no lists, no entries and no shared keys: key_len = value_len = `len`, as many query heads
// as there are `group` or fewer for each group. The same arguments, and
//   pieces  that what a token sees is cut into at most, 1 to 256: a token's bits depend on it
//   splits  at least as many as the longest token's
// states of int8: as device/kept.h says.
// Grid: x = n, y = kv_heads * (heads / kv_heads / group rounded up), z = splits.
#define ATTEND(name, int8, len, group_heads, least) \
    extern "C" __global__ void __launch_bounds__(256, least) \
        name(const float *q, const uchar *states, const ulong *offsets, const uint *positions, const uint *slots, \
             const float *sinks, float *y, float *partial, ulong q_row, ulong q_start, ulong capacity, uint heads, \
             uint kv_heads, uint window, uint pieces, uint splits, float scale) { \
        attend::group<int8, len, group_heads>::run({q, states, offsets, positions, slots, sinks, y, partial, q_row, q_start, \
                                                    capacity, heads, kv_heads, window, pieces, splits, scale}); \
    }

ATTEND(gantry_attend_f16_64_4, false, 64, 4, 2)
ATTEND(gantry_attend_f16_64_8, false, 64, 8, 2)
ATTEND(gantry_attend_f16_64_16, false, 64, 16, 1)
ATTEND(gantry_attend_f16_128_4, false, 128, 4, 1)
ATTEND(gantry_attend_f16_128_8, false, 128, 8, 1)
ATTEND(gantry_attend_f16_128_16, false, 128, 16, 1)
ATTEND(gantry_attend_f16_256_8, false, 256, 8, 1)
ATTEND(gantry_attend_i8_64_4, true, 64, 4, 1)
ATTEND(gantry_attend_i8_64_8, true, 64, 8, 1)
ATTEND(gantry_attend_i8_64_16, true, 64, 16, 1)
ATTEND(gantry_attend_i8_128_4, true, 128, 4, 1)
ATTEND(gantry_attend_i8_128_8, true, 128, 8, 1)
ATTEND(gantry_attend_i8_128_16, true, 128, 16, 1)
ATTEND(gantry_attend_i8_256_8, true, 256, 8, 1)
