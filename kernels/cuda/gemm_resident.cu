// y = scale * W x + bias for many tokens by matrix instructions, int8 weights with a scale per 32, order nv_a32: what tile.cuh does,
// but copied as resident.cuh says. The bits of mma.cuh. (Hopper's instructions of four warps would need an addition for each sum of
// a block, and wait for each other: slower.)
#include "resident.cuh"

namespace resident {

#ifdef GANTRY_RESIDENT

// Warps have 32 rows by 64 tokens, four by two of them.
struct block32 {
    static constexpr uint TOKENS = 128, COLUMNS = 32, BLOCKS = SPAN / 32;
    static constexpr int MI = 2, NJ = 8;
    static constexpr uint A_BYTES = ROWS * SPAN, B_BYTES = TOKENS * SPAN;
    // In a stage after weights and activations: scales of activations and of weights, block by block.
    static constexpr uint DX = A_BYTES + B_BYTES, DW = DX + BLOCKS * TOKENS * 4, STAGE = DW + BLOCKS * ROWS * 4, STAGES = 5;
    static constexpr uint BARRIERS = STAGES * STAGE, ROOM = BARRIERS + STAGES * 16;
    // Threads that bring scales.
    static constexpr uint SCALERS = 64;
    static_assert(TOKENS == 2 * SCALERS && ROWS == 2 * SCALERS);
    using tiles = walk<TOKENS>;

    DEVICE_MEMBER static void run(const maps &m, const gemm_input &o, uchar *room) {
        const tiles w(o);
        const uint base = shared_address(room), full = base + BARRIERS, empty = full + STAGES * 8;
        if (LID == 0) {
            for (uint i = 0; i < STAGES; i++) {
                barrier_start(full + 8 * i, 1 + SCALERS / 32);
                barrier_start(empty + 8 * i, CONSUMERS / 32);
            }
            barriers_started();
        }
        BARRIER();
        if (LID >= CONSUMERS) {
            fewer_registers<FEW>();
            if (LID == CONSUMERS) copy_all<block32>(m, o, w, base, full, empty);
            else if (LID >= CONSUMERS + 32 && LID < CONSUMERS + 32 + SCALERS) scale_all(o, w, room, full, empty);
        } else {
            more_registers<MANY>();
            multiply_all(o, w, room, full, empty);
        }
    }

    // Brings scales: a thread has two tokens and two rows.
    DEVICE_MEMBER static void scale_all(const gemm_input &o, const tiles &w, uchar *room, uint full, uint empty) {
        const uint own = LID - CONSUMERS - 32, blocks = o.cols / 32;
        const ushort *plane = (const ushort *)(o.bytes + o.scales);
        place<STAGES> p;
        for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
            const spot t = w.at(i);
            const float *dx[2];
            const ushort *dw[2];
            UNROLL
            for (uint k = 0; k < 2; k++) {
                dx[k] = o.xs + (ulong)min(t.token + own + SCALERS * k, o.n - 1) * blocks;
                dw[k] = plane + (o.first_row + min(t.row + own + SCALERS * k, o.rows - 1)) * blocks;
            }
            NO_UNROLL
            for (uint b = 0; b < blocks; b += BLOCKS) {
                float x[2][BLOCKS];
                ushort d[2][BLOCKS];
                UNROLL
                for (uint k = 0; k < 2; k++) {
                    UNROLL
                    for (uint c = 0; c < BLOCKS; c++) {
                        x[k][c] = b + c < blocks ? dx[k][b + c] : 0.0f;
                        d[k][c] = b + c < blocks ? dw[k][b + c] : 0;
                    }
                }
                barrier_wait(empty + 8 * p.slot, p.parity ^ 1);
                float *to = (float *)(room + p.slot * STAGE + DX) + own;
                UNROLL
                for (uint k = 0; k < 2; k++) {
                    UNROLL
                    for (uint c = 0; c < BLOCKS; c++) {
                        to[c * TOKENS + SCALERS * k] = x[k][c];
                        to[BLOCKS * TOKENS + c * ROWS + SCALERS * k] = from_half(d[k][c]);
                    }
                }
                __syncwarp();
                if (LID % 32 == 0) barrier_arrive(full + 8 * p.slot);
                p.next();
            }
        }
    }

    DEVICE_MEMBER static void multiply_all(const gemm_input &o, const tiles &w, const uchar *room, uint full, uint empty) {
        const uint warp = LID / 32, lane = LID % 32, row = warp % 4 * 16 * MI, token = warp / 4 * 8 * NJ;
        const uint blocks = o.cols / 32, chunk = mma::chunk_blocks(blocks) / BLOCKS;
        place<STAGES> p;
        for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
            const spot t = w.at(i);
            float sums[MI][NJ][4], totals[MI][NJ][4];
            UNROLL
            for (int i = 0; i < MI; i++) {
                UNROLL
                for (int j = 0; j < NJ; j++) {
                    UNROLL
                    for (int c = 0; c < 4; c++) sums[i][j][c] = totals[i][j][c] = 0.0f;
                }
            }
            uint left = chunk;
            NO_UNROLL
            for (uint b = 0; b < blocks; b += BLOCKS) {
                const uchar *stage = room + p.slot * STAGE;
                barrier_wait(full + 8 * p.slot, p.parity);
                UNROLL
                for (uint c = 0; c < BLOCKS; c++) multiply_block(sums, stage, c, row, token);
                release(empty + 8 * p.slot);
                p.next();
                if (--left == 0 || b + BLOCKS >= blocks) {
                    left = chunk;
                    end_chunk(sums, totals);
                }
            }
            UNROLL
            for (uint i = 0; i < MI; i++) {
                const output to(o, t.row + row + 16 * i + lane / 4);
                to.template store<4 * NJ>(t.token + token + lane % 4 * 2,
                                          [&](uint j, uint k, uint r) { return totals[i][j][2 * r + k]; });
            }
        }
    }

    DEVICE_MEMBER static void end_chunk(float (&sums)[MI][NJ][4], float (&totals)[MI][NJ][4]) {
        UNROLL
        for (int i = 0; i < MI; i++) {
            UNROLL
            for (int j = 0; j < NJ; j++) {
                UNROLL
                for (int c = 0; c < 4; c++) totals[i][j][c] = ADD(totals[i][j][c], sums[i][j][c]), sums[i][j][c] = 0.0f;
            }
        }
    }

    // Block c of a stage.
    DEVICE_MEMBER static void multiply_block(float (&sums)[MI][NJ][4], const uchar *stage, uint c, uint row, uint token) {
        const uint lane = LID % 32, g = lane / 4, t = lane % 4;
        uint4 a[MI];
        mma::row_scales w[MI];
        UNROLL
        for (int i = 0; i < MI; i++) {
            a[i] = *(const uint4 *)(stage + (row + 16 * i) * SPAN + 512 * c + lane * 16);
            const float *dw = (const float *)(stage + DW) + c * ROWS + row + 16 * i + g;
            w[i] = mma::scales_of(dw[0], dw[8]);
        }
        const uchar *q = stage + A_BYTES + (c * TOKENS + token + g) * 32 + 8 * t;
        const float *dx = (const float *)(stage + DX) + c * TOKENS + token + 2 * t;
        UNROLL
        for (int j = 0; j < NJ; j++) {
            const uint2 b = *(const uint2 *)(q + 8 * 32 * j);
            const float2 x = *(const float2 *)(dx + 8 * j);
            UNROLL
            for (int i = 0; i < MI; i++) mma::add_block(sums[i][j], a[i], b, w[i], x.x, x.y);
        }
    }
};

#endif

} // namespace resident

// Arguments as for gantry_gemm_i8_block32, order 0, after what resident.cuh states; activations in tiles of 128 rows by 32 bytes.
RESIDENT(gantry_resident_i8_block32, 184400, resident::block32)
