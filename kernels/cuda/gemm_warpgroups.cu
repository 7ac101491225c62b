// y = scale * W x + bias for many tokens by Hopper's matrix instructions of four warps, int8 weights with a scale per row: weights go
// from shared memory into registers, activations are read where they lie. The bits of decode.cu.
#include "warpgroup.cuh"

namespace warpgroup {

#ifdef GANTRY_RESIDENT

// A scale per row. PAIRS: the order nv_a64, else nv_a32.
template <uint TOKENS_, bool PAIRS>
struct channel {
    static constexpr uint TOKENS = TOKENS_;
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
            to.template store<TOKENS>(t.token + lane % 4 * 2, [&](uint j, uint k, uint r) {
                return MUL(MUL((float)sums[4 * j + 2 * r + k], dx[lane % 4 * 2 + 8 * j + k]), d[r]);
            });
            dx = dx == (float *)(room + SCALES) ? dx + TOKENS : dx - TOKENS;
        }
    }
};

#endif

} // namespace warpgroup

// Arguments as for gantry_gemm_i8_channel, order 0 (columns a multiple of 32) or 1 (of 64), after what resident.cuh states;
// activations in swapped tiles of so many rows, as the name says, by 128 bytes.
RESIDENT(gantry_warpgroups_i8_channel_a32_64, 148064, warpgroup::channel<64, false>)
RESIDENT(gantry_warpgroups_i8_channel_a32_128, 197728, warpgroup::channel<128, false>)
RESIDENT(gantry_warpgroups_i8_channel_a32_256, 198720, warpgroup::channel<256, false>)
RESIDENT(gantry_warpgroups_i8_channel_a64_64, 148064, warpgroup::channel<64, true>)
RESIDENT(gantry_warpgroups_i8_channel_a64_128, 197728, warpgroup::channel<128, true>)
RESIDENT(gantry_warpgroups_i8_channel_a64_256, 198720, warpgroup::channel<256, true>)
