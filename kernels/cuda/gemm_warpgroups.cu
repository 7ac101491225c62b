// y = scale * W x + bias for many tokens by Hopper's matrix instructions of four warps, int8 weights: these go from shared memory
// into registers, activations are read where they lie. With a scale per row the bits of decode.cu, with a scale per 32 those of
// mma.cuh.
#include "warpgroup.cuh"

namespace warpgroup {

#ifdef GANTRY_RESIDENT

// A scale per row. PAIRS: the order nv_a64, else nv_a32.
template <uint TOKENS_, bool PAIRS>
struct channel {
    static constexpr uint TOKENS = TOKENS_, COLUMNS = SPAN;
    static constexpr uint B_BYTES = TOKENS * SPAN, A_BYTES = ROWS * SPAN, STAGE = A_BYTES + B_BYTES;
    static constexpr uint STAGES = TOKENS == 256 ? 4 : 6;
    // Stages, scales of activations of two tiles, barriers.
    static constexpr uint SCALES = STAGES * STAGE, BARRIERS = SCALES + 2 * TOKENS * 4, ROOM = BARRIERS + STAGES * 16;
    using tiles = walk<TOKENS>;

    DEVICE_MEMBER static void run(const maps &m, const gemm_input &o, uchar *room) {
        const tiles w(o);
        const uint base = shared_address(room), full = base + BARRIERS, empty = full + STAGES * 8;
        if (LID == 0) {
            for (uint i = 0; i < STAGES; i++) {
                barrier_start(full + 8 * i, 1);
                barrier_start(empty + 8 * i, CONSUMERS / 32);
            }
            barriers_started();
        }
        BARRIER();
        if (LID >= CONSUMERS) {
            if constexpr (TOKENS == 256) fewer_registers<FEW>();
            if (LID == CONSUMERS) copy_all<channel>(m, o, w, base, full, empty);
        } else {
            if constexpr (TOKENS == 256) more_registers<MANY>();
            multiply_all(o, w, room, full, empty);
        }
    }

    // Weights of 16 rows by 128 columns, for four instructions.
    DEVICE_MEMBER static void load(uint4 (&a)[4], const uchar *from) {
        UNROLL
        for (int k = 0; k < 4; k++) a[k] = *(const uint4 *)(from + 512 * k);
        UNROLL
        for (int k = 0; k < 4; k += 2) {
            if constexpr (PAIRS) in_order_64(a[k], a[k + 1]);
            else in_order_32(a[k]), in_order_32(a[k + 1]);
        }
    }

    DEVICE_MEMBER static void multiply_all(const gemm_input &o, const tiles &w, uchar *room, uint full, uint empty) {
        const uint lane = LID % 32, own = LID / 32 * 16 * SPAN + lane * 16, base = shared_address(room);
        const uint stages = (o.cols + SPAN - 1) / SPAN;
        float *dx = (float *)(room + SCALES);
        int sums[TOKENS / 2];
        place<STAGES> p;
        for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
            const spot t = w.at(i);
            const output to(o, t.row + LID / 32 * 16 + lane / 4);
            const float *dw = (const float *)(o.bytes + o.scales) + o.first_row;
            const float d[2] = {to.is[0] ? dw[to.row] : 0.0f, to.is[1] ? dw[to.row + 8] : 0.0f};
            if (LID < TOKENS) dx[LID] = o.xs[min(t.token + LID, o.n - 1)];
            UNROLL
            for (uint k = 0; k < TOKENS / 2; k++) sums[k] = 0;
            uint before = ~0u;
            const auto one = [&](uint4 (&a)[4]) {
                barrier_wait(full + 8 * p.slot, p.parity);
                load(a, room + p.slot * STAGE + own);
                begin();
                UNROLL
                for (uint k = 0; k < 4; k++) multiply(sums, a[k], tokens_at(base + p.slot * STAGE + A_BYTES, k), 1);
                end();
                // The stage before is done: there is room for another.
                wait<1>();
                if (before != ~0u) release(empty + 8 * before);
                before = p.slot;
                p.next();
            };
            // Registers that are multiplied from must not change meanwhile.
            uint4 a[2][4];
            NO_UNROLL
            for (uint stage = 0; stage + 1 < stages; stage += 2) {
                one(a[0]);
                one(a[1]);
            }
            if (stages & 1) one(a[0]);
            wait<0>();
            release(empty + 8 * before);
            // Scales that were brought are seen by all; those of the next tile go elsewhere.
            consumers_barrier();
            to.template store<TOKENS / 2>(t.token + lane % 4 * 2, [&](uint j, uint k, uint r) {
                return MUL(MUL((float)sums[4 * j + 2 * r + k], dx[lane % 4 * 2 + 8 * j + k]), d[r]);
            });
            dx = dx == (float *)(room + SCALES) ? dx + TOKENS : dx - TOKENS;
        }
    }
};

// A scale per 32, order nv_a32. Registers do not suffice for the sums of chunks too: they are in shared memory.
template <uint TOKENS_>
struct block32 {
    static constexpr uint TOKENS = TOKENS_, COLUMNS = SPAN, HALF = TOKENS / 2;
    static constexpr uint B_BYTES = TOKENS * SPAN, A_BYTES = ROWS * SPAN, DX = A_BYTES + B_BYTES, BLOCKS = SPAN / 32;
    static constexpr uint STAGE = DX + BLOCKS * TOKENS * 4, STAGES = 4;
    // Stages, sums of chunks, barriers.
    static constexpr uint TOTALS = STAGES * STAGE;
    static constexpr uint BARRIERS = TOTALS + CONSUMERS * TOKENS * 2, ROOM = BARRIERS + STAGES * 16;
    static constexpr uint SCALERS = 64;
    static_assert(STAGE % 1024 == 0 && TOKENS == 2 * SCALERS);
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

    // Brings the scales of activations: a thread has two tokens.
    DEVICE_MEMBER static void scale_all(const gemm_input &o, const tiles &w, uchar *room, uint full, uint empty) {
        const uint own = LID - CONSUMERS - 32, blocks = o.cols / 32;
        place<STAGES> p;
        for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
            const spot t = w.at(i);
            const float *from[2];
            UNROLL
            for (uint k = 0; k < 2; k++) from[k] = o.xs + (ulong)min(t.token + own + SCALERS * k, o.n - 1) * blocks;
            NO_UNROLL
            for (uint b = 0; b < blocks; b += BLOCKS) {
                float d[2][BLOCKS];
                UNROLL
                for (uint k = 0; k < 2; k++) {
                    UNROLL
                    for (uint c = 0; c < BLOCKS; c++) d[k][c] = b + c < blocks ? from[k][b + c] : 0.0f;
                }
                barrier_wait(empty + 8 * p.slot, p.parity ^ 1);
                float *to = (float *)(room + p.slot * STAGE + DX) + own;
                UNROLL
                for (uint k = 0; k < 2; k++) {
                    UNROLL
                    for (uint c = 0; c < BLOCKS; c++) to[c * TOKENS + SCALERS * k] = d[k][c];
                }
                __syncwarp();
                if (LID % 32 == 0) barrier_arrive(full + 8 * p.slot);
                p.next();
            }
        }
    }

    // The scales of a row's blocks b .. b + 4, two in a word; those past the last are zeros.
    DEVICE_MEMBER static uint2 scales_at(const ushort *plane, ulong row, uint b, uint blocks) {
        const ushort *from = plane + row * blocks + b;
        if (blocks % BLOCKS == 0) return b < blocks ? *(const uint2 *)from : make_uint2(0, 0);
        const auto one = [&](uint c) { return b + c < blocks ? (uint)from[c] : 0u; };
        return make_uint2(one(0) | one(1) << 16, one(2) | one(3) << 16);
    }

    DEVICE_MEMBER static void multiply_all(const gemm_input &o, const tiles &w, uchar *room, uint full, uint empty) {
        const uint lane = LID % 32, own = LID / 32 * 16 * SPAN + lane * 16, base = shared_address(room);
        const uint blocks = o.cols / 32, chunk = mma::chunk_blocks(blocks) / BLOCKS;
        const ushort *plane = (const ushort *)(o.bytes + o.scales);
        float4 *totals = (float4 *)(room + TOTALS) + LID;
        place<STAGES> p;
        for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
            const spot t = w.at(i);
            const output to(o, t.row + LID / 32 * 16 + lane / 4);
            ulong rows[2];
            UNROLL
            for (uint r = 0; r < 2; r++) rows[r] = o.first_row + min(to.row + 8 * r, o.rows - 1);
            float sums[2][HALF / 2];
            UNROLL
            for (uint k = 0; k < HALF / 2; k++) sums[0][k] = sums[1][k] = 0.0f;
            UNROLL
            for (uint k = 0; k < HALF / 4; k++) totals[k * CONSUMERS] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            uint2 next[2] = {scales_at(plane, rows[0], 0, blocks), scales_at(plane, rows[1], 0, blocks)};
            uint left = chunk;
            NO_UNROLL
            for (uint b = 0; b < blocks; b += BLOCKS) {
                const uint2 dw[2] = {next[0], next[1]};
                UNROLL
                for (uint r = 0; r < 2; r++) next[r] = scales_at(plane, rows[r], b + BLOCKS, blocks);
                barrier_wait(full + 8 * p.slot, p.parity);
                multiply_stage(sums, dw, room + p.slot * STAGE, own);
                release(empty + 8 * p.slot);
                p.next();
                if (--left == 0 || b + BLOCKS >= blocks) {
                    left = chunk;
                    end_chunk(sums, totals);
                }
            }
            UNROLL
            for (uint h = 0; h < 2; h++) {
                to.template store<HALF / 2>(t.token + HALF * h + lane % 4 * 2, [&](uint j, uint k, uint r) {
                    return ((const float *)(totals + (h * HALF / 8 + j) * CONSUMERS))[2 * r + k];
                });
            }
        }
    }

    DEVICE_MEMBER static void end_chunk(float (&sums)[2][HALF / 2], float4 *totals) {
        UNROLL
        for (uint k = 0; k < HALF / 4; k++) {
            float *s = sums[k / (HALF / 8)] + k % (HALF / 8) * 4;
            const float4 v = totals[k * CONSUMERS];
            totals[k * CONSUMERS] = make_float4(ADD(v.x, s[0]), ADD(v.y, s[1]), ADD(v.z, s[2]), ADD(v.w, s[3]));
            UNROLL
            for (uint c = 0; c < 4; c++) s[c] = 0.0f;
        }
    }

    // Half of the tokens of a block after the other, of which one is multiplied while the one before is scaled.
    DEVICE_MEMBER static void multiply_stage(float (&sums)[2][HALF / 2], const uint2 (&dw)[2], const uchar *stage, uint own) {
        const uint tokens = shared_address(stage) + A_BYTES;
        int d[2][HALF / 2];
        uint4 a[2];
        const auto issue = [&](uint k) {
            if (k % 2 == 0) {
                a[k / 2 % 2] = *(const uint4 *)(stage + own + 512 * (k / 2));
                in_order_32(a[k / 2 % 2]);
            }
            begin();
            multiply(d[k % 2], a[k / 2 % 2], tokens_at(tokens + k % 2 * HALF * SPAN, k / 2), 0);
            end();
        };
        float scale[2], take[2];
        issue(0);
        UNROLL
        for (uint k = 0; k < 2 * BLOCKS; k++) {
            if (k % 2 == 0) {
                UNROLL
                for (uint r = 0; r < 2; r++) {
                    const float x = from_half((ushort)((k / 2 < 2 ? dw[r].x : dw[r].y) >> (k / 2 % 2 * 16)));
                    scale[r] = x;
                    take[r] = MUL(x, -mma::MAGIC);
                }
            }
            if (k + 1 < 2 * BLOCKS) {
                issue(k + 1);
                wait<1>();
            } else {
                wait<0>();
            }
            const float *dx = (const float *)(stage + DX) + k / 2 * TOKENS + k % 2 * HALF + LID % 4 * 2;
            UNROLL
            for (uint j = 0; j < HALF / 8; j++) {
                const float2 x = *(const float2 *)(dx + 8 * j);
                UNROLL
                for (uint c = 0; c < 4; c++) {
                    const float scaled = fmaf(__int_as_float(d[k % 2][4 * j + c] + mma::MAGIC_BITS), scale[c / 2], take[c / 2]);
                    float &sum = sums[k % 2][4 * j + c];
                    sum = fmaf(scaled, c % 2 ? x.y : x.x, sum);
                }
            }
        }
    }
};

#endif

} // namespace warpgroup

// Arguments as for gantry_gemm_i8_channel, order 0 (columns a multiple of 32) or 1 (of 64), and gantry_gemm_i8_block32, order 0, after
// what resident.cuh states; activations in swapped tiles of so many rows, as the name says (block32: 128), by 128 bytes.
RESIDENT(gantry_warpgroups_i8_channel_a32_64, 148064, warpgroup::channel<64, false>)
RESIDENT(gantry_warpgroups_i8_channel_a32_128, 197728, warpgroup::channel<128, false>)
RESIDENT(gantry_warpgroups_i8_channel_a32_256, 198720, warpgroup::channel<256, false>)
RESIDENT(gantry_warpgroups_i8_channel_a64_64, 148064, warpgroup::channel<64, true>)
RESIDENT(gantry_warpgroups_i8_channel_a64_128, 197728, warpgroup::channel<128, true>)
RESIDENT(gantry_warpgroups_i8_channel_a64_256, 198720, warpgroup::channel<256, true>)
RESIDENT(gantry_warpgroups_i8_block32, 204864, warpgroup::block32<128>)
