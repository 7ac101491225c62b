// Up to 8 tokens by rows of int8 weights, each warp by itself: the inner loop of decode.cu and decode_experts.cu.
//
// A row's columns are chunks (mma.cuh). A group has tiles of 16 rows, as many as have 16 chunks together; each tile has as many
// warps, and each of those has neighbouring chunks. A lane's part of 4 blocks goes straight into registers; each block is followed by
// the one 4 after it. The first are on their way before BEGIN. (Brought into the L2 cache there instead, they cost a tenth of all
// time.) Activations are few and stay in the L1 cache. The chunks' sums meet in shared memory. How many warps a tile has changes
// no bit: `registry` chooses.
#ifndef GANTRY_FEW_CUH
#define GANTRY_FEW_CUH

#include "../device/product.h"
#include "mma.cuh"

// Groups of 512 on a multiprocessor that there are registers for; on sm_86 and sm_89 the compiler lacks some for two.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890)
#define GROUPS_FEW 1
#else
#define GROUPS_FEW 2
#endif

namespace few {

using namespace mma;

// Blocks that a lane loads at once; tokens of an instruction.
constexpr uint UNIT = 4, TOKENS = 8;
// Between the tokens of a chunk's sums.
constexpr uint STRIDE = 20;

// Rows from a multiple of 16 on: where the planes of their matrix begin, the first of them, how many there are, and columns.
struct matrix {
    const uchar *bytes;
    const uchar *scales;
    ulong row;
    uint rows;
    uint cols;
};

// How many tiles of rows a group has, of so many chunks a row.
DEVICE uint tiles_of(uint chunks) { return CHUNKS / chunks; }
// How many rows a group has, of so many columns.
DEVICE uint rows_of(uint cols) {
    const uint blocks = cols / 32, chunk = chunk_blocks(blocks);
    return 16 * tiles_of((blocks + chunk - 1) / chunk);
}

// LAYOUT: I8_BLOCK32 or I8_CHANNEL, in the order nv_a32 or, `pairs`, nv_a64.
template <uint LAYOUT>
struct product {
    static constexpr bool CHANNEL = LAYOUT == I8_CHANNEL;
    using number = typename std::conditional<CHANNEL, int, float>::type;
    struct room {
        number sums[CHUNKS * TOKENS * STRIDE];
    };

    // The warp's tile and blocks. `whole`: rows are whole units.
    uint tile, chunk, chunks, first, last;
    bool whole;
    // Where the lane's next weights lie, and the scales of its two rows, the second so much further.
    const uchar *own;
    const ushort *scales;
    uint apart;
    ulong policy;
    // Those weights.
    uint4 a[UNIT];
    uint2 d[2];

    // Takes the warp's share, and begins to load: of weights alone, so that it may come before BEGIN.
    DEVICE_MEMBER void begin(const matrix &w) {
        const uint warp = LID / 32, lane = LID % 32, blocks = w.cols / 32;
        whole = blocks % UNIT == 0;
        chunk = chunk_blocks(blocks);
        chunks = (blocks + chunk - 1) / chunk;
        const uint tiles = tiles_of(chunks), warps = blockDim.x / 32 / tiles, each = (chunks + warps - 1) / warps;
        tile = warp / warps;
        first = min(warp % warps * each * chunk, blocks);
        last = min(first + each * chunk, blocks);
        if (tile >= tiles || 16 * tile >= w.rows) first = last = 0;
        policy = read_once();
        own = w.bytes + (w.row + 16 * tile) * w.cols + first * 512 + lane * 16;
        const uint row = min(16 * tile + lane / 4, w.rows - 1), more = min(16 * tile + lane / 4 + 8, w.rows - 1);
        scales = (const ushort *)w.scales + (w.row + row) * blocks + first;
        apart = (more - row) * blocks;
        UNROLL
        for (uint i = 0; i < UNIT; i++) a[i] = make_uint4(0, 0, 0, 0);
        d[0] = d[1] = make_uint2(0, 0);
        whole ? load_all<true>(first) : load_all<false>(first);
    }

    // The lane's part of block i of unit b; zeros, or anything for whole units, from `last` on.
    template <bool WHOLE>
    DEVICE_MEMBER void load_block(uint i, uint b) {
        if (!WHOLE) a[i] = make_uint4(0, 0, 0, 0);
        weights_16_if(a[i], WHOLE ? b < last : b + i < last, own + i * 512, policy);
    }
    template <bool WHOLE>
    DEVICE_MEMBER void load_all(uint b) {
        UNROLL
        for (uint i = 0; i < UNIT; i++) load_block<WHOLE>(i, b);
        if constexpr (!CHANNEL) load_scales<WHOLE>(b);
    }
    template <bool WHOLE>
    DEVICE_MEMBER void load_scales(uint b) {
        UNROLL
        for (uint i = 0; i < 2; i++) {
            const ushort *from = scales + i * apart;
            if constexpr (WHOLE) {
                weights_8_if(d[i], b < last, from, policy);
            } else {
                uint v[UNIT] = {};
                UNROLL
                for (uint j = 0; j < UNIT; j++) weights_2_if(v[j], b + j < last, from + j, policy);
                d[i] = make_uint2(v[0] | v[1] << 16, v[2] | v[3] << 16);
            }
        }
    }

    // Multiplies by tokens: x, the quants of token `lane / 4`; e, the scales of token 2 (lane % 4), those of one more e1 further
    // (rows of tokens ascend). Any token may stand for those that there are not. `pairs`: the order nv_a64.
    DEVICE_MEMBER void run(room &space, const uchar *x, const float *e, uint e1, bool pairs) {
        if (!CHANNEL || !pairs) whole ? part<true, false>(space, x, e, e1) : part<false, false>(space, x, e, e1);
        else whole ? part<true, true>(space, x, e, e1) : part<false, true>(space, x, e, e1);
    }
    template <bool WHOLE, bool PAIRS>
    DEVICE_MEMBER void part(room &space, const uchar *x, const float *e, uint e1) {
        const uint g = LID % 32 / 4, t = LID % 4;
        number sums[4] = {};
        number *to = space.sums + (tile * chunks + first / chunk) * TOKENS * STRIDE + 2 * t * STRIDE + g;
        x += first * 32 + t * (PAIRS ? 16 : 8);
        e += first;
        uint left = chunk;
        NO_UNROLL
        for (uint b = first; b < last; b += UNIT) {
            uint2 q[UNIT];
            float f[2][UNIT] = {};
            UNROLL
            for (uint i = 0; i < UNIT; i += PAIRS ? 2 : 1) {
                const bool some = WHOLE || b + i < last;
                if constexpr (PAIRS) {
                    const uint4 v = some ? *(const uint4 *)(x + i * 32) : make_uint4(0, 0, 0, 0);
                    q[i] = make_uint2(v.x, v.y), q[(i + 1) % UNIT] = make_uint2(v.z, v.w);
                } else {
                    q[i] = some ? *(const uint2 *)(x + i * 32) : make_uint2(0, 0);
                }
            }
            uint2 w[2];
            if constexpr (!CHANNEL) {
                UNROLL
                for (uint i = 0; i < 2; i++) {
                    if constexpr (WHOLE) {
                        const float4 v = *(const float4 *)(e + i * e1);
                        f[i][0] = v.x, f[i][1] = v.y, f[i][2] = v.z, f[i][3] = v.w;
                    } else {
                        UNROLL
                        for (uint j = 0; j < UNIT; j++) f[i][j] = b + j < last ? e[i * e1 + j] : 0.0f;
                    }
                }
                w[0] = d[0], w[1] = d[1];
            }
            x += UNIT * 32, e += UNIT, own += UNIT * 512, scales += UNIT;
            if constexpr (!CHANNEL) load_scales<WHOLE>(b + UNIT);
            // Each block makes room for the one after the next three.
            UNROLL
            for (uint i = 0; i < UNIT; i++) {
                if constexpr (CHANNEL) {
                    multiply(sums, a[i], q[i], sums);
                } else {
                    const uint v0 = i < 2 ? w[0].x : w[0].y, v1 = i < 2 ? w[1].x : w[1].y;
                    const float w0 = from_half((ushort)(v0 >> 16 * (i % 2))), w1 = from_half((ushort)(v1 >> 16 * (i % 2)));
                    add_block(sums, a[i], q[i], scales_of(w0, w1), f[0][i], f[1][i]);
                }
                load_block<WHOLE>(i, b + UNIT);
            }
            left -= UNIT;
            if (left == 0 || b + UNIT >= last) {
                UNROLL
                for (uint k = 0; k < 4; k++) to[k % 2 * STRIDE + k / 2 * 8] = sums[k], sums[k] = 0;
                to += TOKENS * STRIDE;
                left = chunk;
            }
        }
    }

    // The sum of a row's chunks, for a token.
    DEVICE_MEMBER number sum(const room &space, uint tile, uint row, uint token) const {
        const number *own = space.sums + tile * chunks * TOKENS * STRIDE + token * STRIDE + row;
        number sum = 0;
        NO_UNROLL
        for (uint c = 0; c < chunks; c += 4) {
            number parts[4];
            UNROLL
            for (uint i = 0; i < 4; i++) parts[i] = own[min(c + i, chunks - 1) * TOKENS * STRIDE];
            UNROLL
            for (uint i = 0; i < 4; i++) {
                if constexpr (CHANNEL) sum += c + i < chunks ? parts[i] : 0;
                else sum = c + i < chunks ? ADD(sum, parts[i]) : sum;
            }
        }
        return sum;
    }
};

} // namespace few

#endif
