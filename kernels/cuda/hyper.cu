// The second half of a read of hyper-connections from q8_0.split by matrix instructions: gantry_hyper_up_q8_0_split of hyper.c.
//
// A group has 32 values of all streams and up to 8 tokens: a warp has 16 rows of a stream. All that a lane needs of its rows is on
// its way before BEGIN, as rows have few columns: to registers, for a group with much shared memory cannot start beside others.
// Functions of single values stand once, in loops: the group runs once, and fetching instructions takes its time.
#include "../device/q8.h"
#include "mma.cuh"

namespace hyper {

using namespace mma;

constexpr uint GROUP = 256, VALUES = 32, STREAMS = 4, TOKENS = 8, ROWS = STREAMS * VALUES, MOST_RANK = 1024;
// Blocks of 32 columns that a lane loads at once: 320 columns, as models have them.
constexpr uint UNIT = 10;
// Words between tokens beyond their own: lanes meet different banks.
constexpr uint APART = 8;

struct part {
    uint2 rows[2][UNIT];
    uint scales[2][UNIT];
};

// A lane's part of blocks b .. b + UNIT of rows that begin at `rows` and `scales`; those from `blocks` on are zeros.
DEVICE void load(part &p, const uchar *rows, const ushort *scales, uint rank, uint b, uint blocks, ulong policy) {
    UNROLL
    for (uint i = 0; i < 2; i++) {
        UNROLL
        for (uint j = 0; j < UNIT; j++) {
            const bool some = b + j < blocks;
            p.rows[i][j] = make_uint2(0, 0), p.scales[i][j] = 0;
            weights_8_if(p.rows[i][j], some, (const ushort *)(rows + 8 * i * rank + (b + j) * 32), policy);
            weights_2_if(p.scales[i][j], some, scales + 8 * i * blocks + b + j, policy);
        }
    }
}

// What a warp's 32 values are quantized with.
DEVICE float scale_of_warp(float v, float *inverse) {
    uint most = BITS(v) & 0x7fffffffu;
    UNROLL
    for (uint step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    return q8_scale(most, inverse);
}
DEVICE signed char quant(float v, float inverse) { return inverse == 0.0f ? 0 : (signed char)(int)NEAREST(MUL(v, inverse)); }

// Arguments as for gantry_hyper_up_q8_0_split. The sum over k: blocks of 32 columns ascending, each with one rounding (mma.cuh).
// Grid: x = len / 32, y = n / 8 rounded up.
extern "C" __global__ void __launch_bounds__(GROUP)
gantry_mma_hyper_up(const uchar *RESTRICT bytes, const float *RESTRICT x, const float *RESTRICT low, float *RESTRICT m,
                    signed char *RESTRICT q, float *RESTRICT scales, ulong plane, ulong first_row, uint n, uint count, uint len,
                    uint rank, float factor) {
    __shared__ uint words[TOKENS * (MOST_RANK / 4 + APART)];
    __shared__ float word_scales[TOKENS][MOST_RANK / 32];
    __shared__ float gates[STREAMS][TOKENS][VALUES + 1];
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4, blocks = rank / 32;
    const uint first = GROUP_X * VALUES, token = GROUP_Y * TOKENS, some = min(n - token, TOKENS);
    const ulong policy = read_once();
    const uint stream = warp / 2 < count ? warp / 2 : 0;
    const ulong row = first_row + (ulong)stream * len + first + warp % 2 * 16 + g;
    const uchar *own = bytes + row * rank + 8 * t;
    const ushort *own_scales = (const ushort *)(bytes + plane) + row * blocks;
    part p;
    load(p, own, own_scales, rank, 0, blocks, policy);
    BEGIN();
    // Of every token its streams, one value for each member: the first on their way.
    const auto value_of = [&](uint i) {
        const uint of = i / ROWS, stream = i % ROWS / VALUES;
        return of < some && stream < count ? x[((ulong)(token + of) * count + stream) * len + first + i % VALUES] : 0.0f;
    };
    const float mine = value_of(LID);
    const uint stride = rank + 4 * APART;
    uchar *quants = (uchar *)words;
    NO_UNROLL
    for (uint i = LID; i < some * rank; i += GROUP) {
        const uint to = i / rank, at = i % rank;
        const float v = silu(MUL(low[(ulong)token * rank + i], factor));
        float inverse;
        const float scale = scale_of_warp(v, &inverse);
        quants[to * stride + at] = (uchar)quant(v, inverse);
        if (lane == 0) word_scales[to][at / 32] = scale;
    }
    BARRIER();
    float sums[4] = {};
    const uint *own_words = words + min(g, some - 1) * (stride / 4) + 2 * t;
    const float *e0 = word_scales[min(2 * t, some - 1)], *e1 = word_scales[min(2 * t + 1, some - 1)];
    NO_UNROLL
    for (uint b = 0; b < blocks; b += UNIT) {
        if (b > 0) load(p, own, own_scales, rank, b, blocks, policy);
        UNROLL
        for (uint j = 0; j < UNIT; j++) {
            const uint at = min(b + j, blocks - 1);
            const uint4 a = make_uint4(p.rows[0][j].x, p.rows[1][j].x, p.rows[0][j].y, p.rows[1][j].y);
            const row_scales d = scales_of(from_half((ushort)p.scales[0][j]), from_half((ushort)p.scales[1][j]));
            add_block(sums, a, *(const uint2 *)(own_words + at * 8), d, e0[at], e1[at]);
        }
    }
    if (warp / 2 < count) {
        UNROLL
        for (uint k = 0; k < 4; k++) gates[stream][2 * t + k % 2][warp % 2 * 16 + g + k / 2 * 8] = sums[k];
    }
    BARRIER();
    NO_UNROLL
    for (uint i = LID; i < some * ROWS; i += GROUP) {
        float *gate = &gates[i % ROWS / VALUES][i / ROWS][i % VALUES];
        *gate = MUL(i == LID ? mine : value_of(i), sigmoid(*gate));
    }
    BARRIER();
    if (warp >= some) return;
    float mixed = gates[0][warp][lane];
    NO_UNROLL
    for (uint h = 1; h < count; h++) mixed = ADD(mixed, gates[h][warp][lane]);
    mixed = MUL(mixed, DIV(1.0f, (float)count));
    const ulong at = (ulong)(token + warp) * len + first + lane;
    m[at] = mixed;
    if (q) {
        float inverse;
        const float scale = scale_of_warp(mixed, &inverse);
        q[at] = quant(mixed, inverse);
        if (lane == 0) scales[at / 32] = scale;
    }
}

} // namespace hyper
