// A tile of a product of many tokens: rows of weights by tokens, by matrix instructions from shared memory.
//
// Columns come in stages of 64, of which others are on their way while one is multiplied. In shared memory a row of 64 bytes has
// two blocks of 32, swapped in every other pair of rows so that the lanes of a read meet different banks; weights in the
// order of matrix instructions are copied as they are. Sums are those of mma.cuh: of int8 in these orders a token has the bits
// that decode.cu gives.
#ifndef GANTRY_TILE_CUH
#define GANTRY_TILE_CUH

#include "../device/blocks.h"
#include "mma.cuh"

// Registers for two groups on a multiprocessor, but on generations where the compiler then lacks a few and would spill.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ % 100 != 0 || __CUDA_ARCH__ > 1000)
#define KERNEL_TILE(size) extern "C" __global__ void __launch_bounds__(size, 1)
#else
#define KERNEL_TILE(size) KERNEL_OF_TWO(size)
#endif

namespace tile {

using namespace mma;

constexpr uint GROUP = 256;
// Columns of a stage.
constexpr uint COLUMNS = 64;

// What a group multiplies.
struct source {
    // The planes from the tile's first row on, and how many rows there are from there on.
    const uchar *bytes;
    const uchar *first_plane;
    const uchar *second_plane;
    uint rows;
    uint cols;
    const uchar *xq;
    const float *xs;
    // E8: in global memory.
    const uint *codebook;
};

// Rows from `row` on of a stored matrix whose planes begin at these bytes; of an int8 order `row` is a multiple of 16.
template <uint LAYOUT>
DEVICE source source_at(const uchar *bytes, ulong first_plane, ulong second_plane, ulong row, uint rows, uint cols,
                        const uchar *xq, const float *xs, const uint *codebook) {
    const ulong blocks = row * (cols / 32);
    const uchar *first = bytes + first_plane, *second = bytes + second_plane;
    first += LAYOUT == I8_CHANNEL ? row * 4 : LAYOUT == E8_PLANAR ? blocks * 4 : blocks * 2;
    return {bytes + blocks * (LAYOUT == E8_PLANAR ? 8 : 32), first, second + blocks / 8 * 2, rows, cols, xq, xs, codebook};
}

// MI x NJ instructions of a warp, WM x WN warps. PAIRS: the order nv_a64.
template <uint LAYOUT, bool PAIRS, int MI, int NJ, int WM, int WN, uint STAGES = 3>
struct product {
    static_assert(WM * WN * 32 == GROUP);
    static constexpr uint KIND = LAYOUT;
    static constexpr uint ROWS = WM * MI * 16, TOKENS = WN * NJ * 8;
    static constexpr bool CHANNEL = LAYOUT == I8_CHANNEL, ORDERED = CHANNEL || LAYOUT == I8_BLOCK32;
    static constexpr bool E8 = LAYOUT == E8_PLANAR;
    static_assert(CHANNEL || (ROWS * 2 == GROUP && STAGES == 3), "a block of a row for each thread");
    static_assert(TOKENS % 64 == 0 && ROWS % 64 == 0);

    struct channel_room {
        uchar a[STAGES][ROWS * COLUMNS];
        uchar b[STAGES][TOKENS * COLUMNS];
    };
    struct block_room : channel_room {
        float dw[STAGES][2][ROWS];
        float dx[STAGES][2][TOKENS];
    };
    struct e8_room : block_room {
        uint codebook[256];
    };
    using other_room = typename std::conditional<E8, e8_room, block_room>::type;
    using room = typename std::conditional<CHANNEL, channel_room, other_room>::type;

    using number = typename std::conditional<CHANNEL, int, float>::type;
    number sums[MI][NJ][4];
    float total[CHANNEL ? 1 : MI][CHANNEL ? 1 : NJ][4];

    // Of weights with a scale per 32, a thread brings one scale, and of E8 its block.
    ushort d;

    DEVICE_MEMBER static uint half_of(uint row, uint half) { return row * COLUMNS + ((half ^ (row >> 1 & 1)) << 5); }

    // Loads this thread's scale, of block 2 * stage or the next.
    DEVICE_MEMBER void load(const source &s, uint stage) {
        if constexpr (CHANNEL) return;
        const uint blocks = s.cols / 32, b = 2 * stage + LID % 2;
        d = 0;
        if (b >= blocks) return;
        const uint at = min(LID / 2, s.rows - 1) * blocks + b;
        d = E8 ? ((const ushort *)s.second_plane)[at / 8] : ((const ushort *)s.first_plane)[at];
    }

    // Puts what was loaded where it is multiplied: E8 is decoded where it was copied to.
    DEVICE_MEMBER void put(room &r, uint slot) {
        float scale = 0.0f;
        if constexpr (E8) {
            uint q[8];
            uint4 *to = (uint4 *)(r.a[slot] + half_of(LID / 2, LID % 2));
            const uint4 v = *to;
            scale = e8_words(r.codebook, v.x, v.y, v.z, from_half(d), q);
            to[0] = make_uint4(q[0], q[1], q[2], q[3]);
            to[1] = make_uint4(q[4], q[5], q[6], q[7]);
        } else if constexpr (!CHANNEL) {
            scale = from_half(d);
        }
        if constexpr (!CHANNEL) r.dw[slot][LID % 2][LID / 2] = scale;
    }

    // Begins to copy a stage.
    template <typename RowOf>
    DEVICE_MEMBER void copy(const source &s, room &r, uint stage, uint slot, uint tokens, RowOf row_of) {
        const uint blocks = s.cols / 32, column = stage * COLUMNS + LID % 4 * 16;
        const uint bytes = column < s.cols ? 16 : 0;
        UNROLL
        for (uint i = 0; i < TOKENS / 64; i++) {
            const uint token = LID / 4 + 64 * i;
            const uint to = PAIRS ? token * COLUMNS + LID % 4 * 16 : half_of(token, LID % 4 / 2) + LID % 2 * 16;
            if (token >= tokens) continue;
            const uchar *own = s.xq + (ulong)row_of(token) * s.cols + (bytes ? column : 0);
            copy_16(shared_address(r.b[slot] + to), own, bytes);
        }
        if constexpr (!CHANNEL) {
            const uint b = 2 * stage + LID % 4;
            const uint some = b < blocks ? 4 : 0;
            if (LID % 4 < 2 && LID / 4 < tokens) {
                const float *own = s.xs + (ulong)row_of(LID / 4) * blocks + (some ? b : 0);
                copy_4(shared_address(&r.dx[slot][LID % 4][LID / 4]), own, some);
            }
        }
        if constexpr (ORDERED) {
            UNROLL
            for (uint i = 0; i < ROWS / 64; i++) {
                const uint at = (LID + GROUP * i) * 16;
                // Of a tile of 16 rows, two blocks lie side by side.
                const uint tile = min(at / 1024, (s.rows - 1) / 16), some = 2 * stage + at % 1024 / 512 < blocks ? 16 : 0;
                const uint own = (tile * blocks + 2 * stage) * 512 + at % 1024;
                copy_16(shared_address(r.a[slot] + at), s.bytes + (some ? own : 0), some);
            }
        } else if constexpr (E8) {
            const uint b = 2 * stage + LID % 2, some = b < blocks;
            const uint at = some ? min(LID / 2, s.rows - 1) * blocks + b : 0;
            const uint to = shared_address(r.a[slot] + half_of(LID / 2, LID % 2));
            copy_8(to, (const uint2 *)s.bytes + at, some * 8);
            copy_4(to + 8, (const uint *)s.first_plane + at, some * 4);
        } else {
            UNROLL
            for (uint i = 0; i < ROWS / 64; i++) {
                const uint row = LID / 4 + 64 * i;
                const uint own = min(row, s.rows - 1) * s.cols + column;
                const uint to = half_of(row, LID % 4 / 2) + LID % 2 * 16;
                copy_16(shared_address(r.a[slot] + to), s.bytes + (bytes ? own : 0), bytes);
            }
        }
    }

    // The part that this lane has of block `b` of the 16 rows from `first` on.
    DEVICE_MEMBER static uint4 rows_of(const room &r, uint slot, uint first, uint b) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4;
        if constexpr (ORDERED) {
            return *(const uint4 *)(r.a[slot] + first * COLUMNS + b * 512 + lane * 16);
        } else {
            const uchar *at = r.a[slot] + half_of(first + g, b) + 8 * t;
            const uint2 low = *(const uint2 *)at, high = *(const uint2 *)(at + 8 * COLUMNS);
            return make_uint4(low.x, high.x, low.y, high.y);
        }
    }

    // Multiplies a stage by the first N instructions' tokens.
    template <int N>
    DEVICE_MEMBER void multiply_stage(const room &r, uint slot, uint row, uint token) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4;
        uint4 pair[PAIRS ? N : 1];
        if constexpr (PAIRS) {
            UNROLL
            for (int j = 0; j < N; j++) pair[j] = *(const uint4 *)(r.b[slot] + (token + 8 * j + g) * COLUMNS + 16 * t);
        }
        // Registers do not suffice for both blocks at once.
#pragma unroll(CHANNEL ? 2 : 1)
        for (uint b = 0; b < 2; b++) {
            const auto tokens_of = [&](int j) {
                if constexpr (PAIRS) return b == 0 ? make_uint2(pair[j].x, pair[j].y) : make_uint2(pair[j].z, pair[j].w);
                else return *(const uint2 *)(r.b[slot] + half_of(token + 8 * j + g, b) + 8 * t);
            };
            if constexpr (CHANNEL) {
                uint2 q[N];
                UNROLL
                for (int j = 0; j < N; j++) q[j] = tokens_of(j);
                UNROLL
                for (int i = 0; i < MI; i++) {
                    const uint4 a = rows_of(r, slot, row + 16 * i, b);
                    UNROLL
                    for (int j = 0; j < N; j++) multiply(sums[i][j], a, q[j], sums[i][j]);
                }
            } else {
                uint4 a[MI];
                row_scales w[MI];
                UNROLL
                for (int i = 0; i < MI; i++) {
                    a[i] = rows_of(r, slot, row + 16 * i, b);
                    const float *dw = &r.dw[slot][b][row + 16 * i + g];
                    w[i] = scales_of(dw[0], dw[8]);
                }
                UNROLL
                for (int j = 0; j < N; j++) {
                    const uint2 q = tokens_of(j);
                    const float2 dx = *(const float2 *)&r.dx[slot][b][token + 8 * j + 2 * t];
                    UNROLL
                    for (int i = 0; i < MI; i++) add_block(sums[i][j], a[i], q, w[i], dx.x, dx.y);
                }
            }
        }
    }

    DEVICE_MEMBER void end_chunk() {
        if constexpr (!CHANNEL) {
            UNROLL
            for (int i = 0; i < MI; i++) {
                UNROLL
                for (int j = 0; j < NJ; j++) {
                    UNROLL
                    for (int c = 0; c < 4; c++) {
                        total[i][j][c] = ADD(total[i][j][c], sums[i][j][c]);
                        sums[i][j][c] = 0.0f;
                    }
                }
            }
        }
    }

    // Multiplies all columns by `tokens` tokens, of which token i has activations row_of(i), also past the last. EACH: with
    // fewer instructions where there are few tokens.
    template <bool EACH, typename RowOf>
    DEVICE_MEMBER void run(const source &s, room &r, uint tokens, RowOf row_of) {
        const uint warp = LID / 32, row = warp % WM * MI * 16, token = warp / WM * NJ * 8;
        const uint blocks = s.cols / 32, stages = (s.cols + COLUMNS - 1) / COLUMNS, chunk = chunk_blocks(blocks) / 2;
        UNROLL
        for (int i = 0; i < MI; i++) {
            UNROLL
            for (int j = 0; j < NJ; j++) {
                UNROLL
                for (int c = 0; c < 4; c++) {
                    sums[i][j][c] = 0;
                    if constexpr (!CHANNEL) total[i][j][c] = 0.0f;
                }
            }
        }
        if constexpr (E8) {
            r.codebook[LID] = s.codebook[LID];
            BARRIER();
        }
        load(s, 0);
        copy(s, r, 0, 0, tokens, row_of);
        copies_end();
        if constexpr (E8) copies_wait<0>();
        put(r, 0);
        load(s, 1);
        UNROLL
        for (uint i = 1; i + 1 < STAGES; i++) {
            if (i < stages) copy(s, r, i, i, tokens, row_of);
            copies_end();
        }
        uint slot = 0, left = chunk;
        NO_UNROLL
        for (uint stage = 0; stage < stages; stage++) {
            copies_wait<E8 ? 0 : STAGES - 2>();
            BARRIER();
            // What is multiplied next, and what was multiplied last, where there is room again.
            const uint next = slot + 1 == STAGES ? 0 : slot + 1, free = slot == 0 ? STAGES - 1 : slot - 1;
            put(r, next);
            if (stage + STAGES - 1 < stages) copy(s, r, stage + STAGES - 1, free, tokens, row_of);
            copies_end();
            load(s, stage + 2);
            if (!EACH || tokens > token + NJ * 4) multiply_stage<NJ>(r, slot, row, token);
            else if (tokens > token) multiply_stage<NJ / 2>(r, slot, row, token);
            if (!CHANNEL && --left == 0) {
                end_chunk();
                left = chunk;
            }
            slot = next;
        }
        end_chunk();
    }

    // Gives each output that there is to `store(row, token, value)`.
    template <typename RowOf, typename Store>
    DEVICE_MEMBER void each(const source &s, uint tokens, RowOf row_of, Store store) const {
        const uint warp = LID / 32, lane = LID % 32;
        const uint row = warp % WM * MI * 16 + lane / 4, token = warp / WM * NJ * 8 + lane % 4 * 2;
        UNROLL
        for (int i = 0; i < MI; i++) {
            UNROLL
            for (uint k = 0; k < 2; k++) {
                const uint at = row + 16 * i + 8 * k;
                if (at >= s.rows) continue;
                const float dw = CHANNEL ? ((const float *)s.first_plane)[at] : 0.0f;
                UNROLL
                for (int j = 0; j < NJ; j++) {
                    UNROLL
                    for (uint c = 0; c < 2; c++) {
                        const uint u = token + 8 * j + c;
                        if (u >= tokens) continue;
                        if constexpr (CHANNEL) store(at, u, MUL(MUL((float)sums[i][j][2 * k + c], s.xs[row_of(u)]), dw));
                        else store(at, u, total[i][j][2 * k + c]);
                    }
                }
            }
        }
    }
};

} // namespace tile

#endif
