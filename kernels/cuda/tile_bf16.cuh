// A tile of a product of bf16 weights with many tokens, by matrix instructions from shared memory.
//
// Columns come in stages of 32, of which others are on their way while one is multiplied. In shared memory parts of a row change
// places with the row, so that the lanes of a read meet different banks. Activations are f32 there and are cut into parts
// (bf16.cuh) as they are read. Sums are of 64 columns, then added ascending as f32.
#ifndef GANTRY_TILE_BF16_CUH
#define GANTRY_TILE_BF16_CUH

#include "bf16.cuh"

namespace tile_bf16 {

using namespace bf16;

// Columns of a stage.
constexpr uint COLUMNS = 32;

// What a group multiplies: weights from the tile's first row on, how many rows there are from there on.
struct source {
    const uchar *bytes;
    const float *x;
    uint rows;
    uint cols;
};

// MI x NJ instructions of a warp, WM x WN warps; CHUNK stages of a sum.
template <int MI, int NJ, int WM, int WN, uint STAGES, uint CHUNK = 2>
struct product {
    static constexpr uint GROUP = WM * WN * 32;
    static constexpr uint ROWS = WM * MI * 16, TOKENS = WN * NJ * 8;
    static_assert(ROWS * 4 % GROUP == 0 && TOKENS * 8 % GROUP == 0);

    struct stage {
        uchar a[ROWS * COLUMNS * 2];
        uchar b[TOKENS * COLUMNS * 4];
    };

    float sums[MI][NJ][4];
    float total[MI][NJ][4];

    // Where 8 columns of a row are, and of a token.
    DEVICE_MEMBER static uint row_place(uint row, uint eight) { return row * COLUMNS * 2 + (eight ^ (row >> 1 & 3)) * 16; }
    DEVICE_MEMBER static uint token_place(uint token, uint eight) { return token * COLUMNS * 4 + (eight ^ (token & 3)) * 32; }

    // Begins to copy a stage.
    template <typename RowOf>
    DEVICE_MEMBER static void copy(const source &s, stage &to, uint number, uint tokens, RowOf row_of) {
        const uint first = number * COLUMNS;
        const uint of_row = first + LID % 4 * 8, of_token = first + LID % 8 * 4;
        const uint row_bytes = of_row < s.cols ? 16 : 0, token_bytes = of_token < s.cols ? 16 : 0;
        UNROLL
        for (uint i = 0; i < ROWS * 4 / GROUP; i++) {
            const uint row = LID / 4 + GROUP / 4 * i;
            const uchar *own = s.bytes + ((ulong)min(row, s.rows - 1) * s.cols + (row_bytes ? of_row : 0)) * 2;
            copy_16(shared_address(to.a + row_place(row, LID % 4)), own, row_bytes);
        }
        UNROLL
        for (uint i = 0; i < TOKENS * 8 / GROUP; i++) {
            const uint token = LID / 8 + GROUP / 8 * i;
            if (token >= tokens) continue;
            const float *own = s.x + (ulong)row_of(token) * s.cols + (token_bytes ? of_token : 0);
            copy_16(shared_address(to.b + token_place(token, LID % 8 / 2) + LID % 2 * 16), own, token_bytes);
        }
    }

    // Multiplies a stage by the first N instructions' tokens. Each step is of 16 columns and 8 tokens, and those of the next are cut
    // into parts meanwhile.
    template <int N>
    DEVICE_MEMBER void multiply_stage(const stage &r, uint row, uint token) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4;
        const auto load = [&](int step, float2 (&to)[2]) {
            const uint own = token + 8 * (step % N) + g;
            UNROLL
            for (int k = 0; k < 2; k++) to[k] = *(const float2 *)(r.b + token_place(own, 2 * (step / N) + k) + 8 * t);
        };
        float2 v[2];
        uint now[2][PARTS], next[2][PARTS];
        load(0, v);
        UNROLL
        for (int k = 0; k < 2; k++) split(v[k].x, v[k].y, now[k]);
        if (2 * N > 1) load(1, v);
        uint4 a[MI];
        UNROLL
        for (int step = 0; step < 2 * N; step++) {
            if (step % N == 0) {
                UNROLL
                for (int i = 0; i < MI; i++) {
                    const uint eight = 2 * (step / N) + lane / 16;
                    a[i] = load_rows(shared_address(r.a + row_place(row + 16 * i + lane % 16, eight)));
                }
            }
            if (step + 1 < 2 * N) {
                UNROLL
                for (int k = 0; k < 2; k++) split(v[k].x, v[k].y, next[k]);
            }
            if (step + 2 < 2 * N) load(step + 2, v);
            UNROLL
            for (int p = 0; p < PARTS; p++) {
                UNROLL
                for (int i = 0; i < MI; i++) multiply(sums[i][step % N], a[i], now[0][p], now[1][p]);
            }
            UNROLL
            for (int k = 0; k < 2; k++) {
                UNROLL
                for (int p = 0; p < PARTS; p++) now[k][p] = next[k][p];
            }
        }
    }

    DEVICE_MEMBER void end_chunk() {
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

    // Multiplies all columns by `tokens` tokens, of which token i has activations row_of(i), also past the last. EACH: with
    // fewer instructions where there are few tokens.
    template <bool EACH, typename RowOf>
    DEVICE_MEMBER void run(const source &s, stage *ring, uint tokens, RowOf row_of) {
        const uint warp = LID / 32, row = warp % WM * MI * 16, token = warp / WM * NJ * 8;
        const uint stages = (s.cols + COLUMNS - 1) / COLUMNS;
        UNROLL
        for (int i = 0; i < MI; i++) {
            UNROLL
            for (int j = 0; j < NJ; j++) {
                UNROLL
                for (int c = 0; c < 4; c++) sums[i][j][c] = total[i][j][c] = 0.0f;
            }
        }
        UNROLL
        for (uint i = 0; i + 1 < STAGES; i++) {
            if (i < stages) copy(s, ring[i], i, tokens, row_of);
            copies_end();
        }
        uint slot = 0;
        NO_UNROLL
        for (uint number = 0; number < stages; number++) {
            copies_wait<STAGES - 2>();
            BARRIER();
            // What was multiplied last is free.
            const uint free = slot == 0 ? STAGES - 1 : slot - 1;
            if (number + STAGES - 1 < stages) copy(s, ring[free], number + STAGES - 1, tokens, row_of);
            copies_end();
            if (!EACH || tokens > token + NJ * 4) multiply_stage<NJ>(ring[slot], row, token);
            else if (tokens > token) multiply_stage<NJ / 2>(ring[slot], row, token);
            if (number % CHUNK == CHUNK - 1) end_chunk();
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
        end_chunk();
    }

    // Gives each output that there is to `store(row, token, value)`.
    template <typename Store>
    DEVICE_MEMBER void each(const source &s, uint tokens, Store store) const {
        const uint warp = LID / 32, lane = LID % 32;
        const uint row = warp % WM * MI * 16 + lane / 4, token = warp / WM * NJ * 8 + lane % 4 * 2;
        UNROLL
        for (int i = 0; i < MI; i++) {
            UNROLL
            for (int j = 0; j < NJ; j++) {
                UNROLL
                for (uint c = 0; c < 4; c++) {
                    const uint at = row + 16 * i + c / 2 * 8, u = token + 8 * j + c % 2;
                    if (at < s.rows && u < tokens) store(at, u, total[i][j][c]);
                }
            }
        }
    }
};

// Of prompts, and of their experts. Two groups on a multiprocessor, where there is shared memory for both.
using Tile = product<8, 2, 1, 4, 4>;
// Bytes of shared memory that they are launched with.
constexpr uint ROOM = 65536;
static_assert(sizeof(Tile::stage) * 4 == ROOM);

} // namespace tile_bf16

#endif
