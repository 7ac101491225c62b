// The second half of a read of hyper-connections from q8_0.split by matrix instructions: gantry_hyper_up_q8_0_split of hyper.c.
//
// A group has 32 values of all streams and up to 8 tokens: a warp has 16 rows of a stream. Its weights are on their way to shared
// memory before BEGIN. Hardly a loop is unrolled: the group runs once, and fetching instructions takes its time (24 KB of them took
// longer than what they did).
#include "../device/q8.h"
#include "mma.cuh"

namespace hyper {

using namespace mma;

constexpr uint GROUP = 256, VALUES = 32, STREAMS = 4, TOKENS = 8, ROWS = STREAMS * VALUES;
// Most columns, as many as models have, and their blocks of 32.
constexpr uint COLS = 320, BLOCKS = COLS / 32;
// Scales of a member: those of all rows and blocks, one for each member after the other.
constexpr uint EACH = ROWS * BLOCKS / GROUP;
// Bytes between tokens: lanes meet different banks.
constexpr uint STRIDE = COLS + 32;

struct room {
    union {
        uchar weights[ROWS * COLS];
        float gates[STREAMS][TOKENS][VALUES + 1];
    };
    ushort scales[ROWS * BLOCKS];
    uchar low[TOKENS * STRIDE];
    float low_scales[TOKENS][BLOCKS];
};

// The stored rows of a group: where its 32 of the first stream begin, and how far those of the next are.
struct rows {
    const uchar *bytes;
    const ushort *scales;
    ulong apart;
    uint rank;
    uint count;

    // Begins to copy them; rows of streams that there are not become zeros.
    DEVICE_MEMBER void copy(room &r) const {
        const uint units = rank / 16;
        NO_UNROLL
        for (uint i = LID; i < ROWS * units; i += GROUP) {
            const uint row = i / units, at = i % units * 16, stream = row / VALUES;
            const bool there = stream < count;
            const uchar *from = bytes + (there ? stream * apart + row % VALUES : 0) * rank + at;
            copy_16(shared_address(r.weights + row * COLS + at), from, there ? 16 : 0);
        }
        copies_end();
    }
    // This member's scales: of every 256th row and block.
    DEVICE_MEMBER void load(uint (&s)[EACH], ulong policy) const {
        UNROLL
        for (uint i = 0; i < EACH; i++) {
            const uint at = i * GROUP + LID, row = at / BLOCKS, block = at % BLOCKS, stream = row / VALUES;
            const bool there = stream < count && block < rank / 32;
            s[i] = 0;
            weights_2_if(s[i], there, scales + (there ? stream * apart + row % VALUES : 0) * (rank / 32) + block, policy);
        }
    }
};

// What a warp's 32 values are quantized with.
DEVICE float scale_of_warp(float v, float *inverse) {
    uint most = BITS(v) & 0x7fffffffu;
    UNROLL
    for (uint step = 16; step > 0; step /= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    return q8_scale(most, inverse);
}
DEVICE signed char quant(float v, float inverse) { return inverse == 0.0f ? 0 : (signed char)(int)NEAREST(MUL(v, inverse)); }

// Arguments as for gantry_hyper_up_q8_0_split, rank at most 320. The sum over k: blocks of 32 columns ascending, each with one rounding (mma.cuh).
// Grid: x = len / 32, y = n / 8 rounded up.
extern "C" __global__ void __launch_bounds__(GROUP)
gantry_mma_hyper_up(const uchar *RESTRICT bytes, const float *RESTRICT x, const float *RESTRICT low, float *RESTRICT m,
                    signed char *RESTRICT q, float *RESTRICT scales, ulong plane, ulong first_row, uint n, uint count, uint len,
                    uint rank, float factor) {
    __shared__ __align__(16) room r;
    const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
    const uint first = GROUP_X * VALUES, token = GROUP_Y * TOKENS, some = min(n - token, TOKENS);
    const ulong policy = read_once(), row = first_row + first;
    const rows w = {bytes + row * rank, (const ushort *)(bytes + plane) + row * (rank / 32), len, rank, count};
    uint own[EACH];
    w.copy(r);
    w.load(own, policy);
    BEGIN();
    // Of every token its streams, one value for each member: the first on their way.
    const auto value_of = [&](uint i) {
        const uint of = i / ROWS, stream = i % ROWS / VALUES;
        return of < some && stream < count ? x[((ulong)(token + of) * count + stream) * len + first + i % VALUES] : 0.0f;
    };
    const float mine = value_of(LID);
    NO_UNROLL
    for (uint i = LID; i < some * rank; i += GROUP) {
        const uint to = i / rank, at = i % rank;
        const float v = silu(MUL(low[(ulong)token * rank + i], factor));
        float inverse;
        const float scale = scale_of_warp(v, &inverse);
        r.low[to * STRIDE + at] = (uchar)quant(v, inverse);
        if (lane == 0) r.low_scales[to][at / 32] = scale;
    }
    UNROLL
    for (uint i = 0; i < EACH; i++) r.scales[i * GROUP + LID] = (ushort)own[i];
    copies_wait<0>();
    BARRIER();
    float sums[4] = {};
    const uchar *a = r.weights + (16 * warp + g) * COLS + 8 * t, *b = r.low + min(g, some - 1) * STRIDE + 8 * t;
    const ushort *d = r.scales + (16 * warp + g) * BLOCKS;
    const float *e0 = r.low_scales[min(2 * t, some - 1)], *e1 = r.low_scales[min(2 * t + 1, some - 1)];
#pragma unroll 2
    for (uint block = 0; block < rank / 32; block++) {
        const uint2 upper = *(const uint2 *)(a + block * 32), lower = *(const uint2 *)(a + 8 * COLS + block * 32);
        const row_scales two = scales_of(from_half(d[block]), from_half(d[8 * BLOCKS + block]));
        add_block(sums, make_uint4(upper.x, lower.x, upper.y, lower.y), *(const uint2 *)(b + block * 32), two, e0[block],
                  e1[block]);
    }
    // Gates take the place of weights.
    BARRIER();
    UNROLL
    for (uint k = 0; k < 4; k++) r.gates[warp / 2][2 * t + k % 2][warp % 2 * 16 + g + k / 2 * 8] = sums[k];
    BARRIER();
    NO_UNROLL
    for (uint i = LID; i < some * ROWS; i += GROUP) {
        float *gate = &r.gates[i % ROWS / VALUES][i / ROWS][i % VALUES];
        *gate = MUL(i == LID ? mine : value_of(i), sigmoid(*gate));
    }
    BARRIER();
    if (warp >= some) return;
    float mixed = r.gates[0][warp][lane];
    NO_UNROLL
    for (uint h = 1; h < count; h++) mixed = ADD(mixed, r.gates[h][warp][lane]);
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
