// A layer's experts for few tokens, and beside them the expert that all tokens share: gates and ups in one launch, downs in another,
// which makes silu(gate) * up of what the first wrote, quantized, by itself. int8 with a scale per 32 in the order nv_a32; each
// product has the bits of gantry_decode_experts_i8_block32, whose groups share rows and columns in the same way (few.cuh).
#include "../device/q8.h"
#include "expert_pairs.cuh"
#include "few.cuh"

namespace layer {

using namespace mma;

using P = few::product<I8_BLOCK32>;

// Most experts, and columns of downs.
constexpr uint EXPERTS = 1024, HIDDEN = 2048;
// Words between the tokens of a group's activations: lanes meet different banks, and scales are aligned to 16 bytes.
constexpr uint WORDS = HIDDEN / 4 + 8, SCALES = HIDDEN / 32 + 4;

// Where matrices of experts lie, and which pairs there are: as gantry_experts_* say.
struct bank {
    const uchar *base;
    const ulong *at;
    const uint *ids;
    const uint *tiles;
    const uint *pairs;
    ulong scales;
    ulong first_row;
    ulong row_step;
    uint all;
    uint used;
    uint experts;
};

// One matrix.
struct single {
    const uchar *bytes;
    ulong scales;
    ulong first_row;
};

// What a group multiplies: an expert's pairs, or, with `is_shared`, tokens `start` and on by the shared expert.
struct work {
    expert_pairs p;
    bool is_shared;
};

// Tile `tile` of `bound` of pairs, or one after them, of 8 tokens each.
DEVICE work work_of(const bank &b, uint tile, uint bound, uint n) {
    if (tile < bound) return {expert_pairs_of(tile, b.ids, b.tiles, b.all, b.used, b.experts), false};
    const uint start = (tile - bound) * few::TOKENS;
    return {{0, start, start < n ? min(n - start, few::TOKENS) : 0}, true};
}

// Rows of a matrix from `row` on, of an expert's that begins at `at`.
DEVICE few::matrix rows_of(const work &w, const bank &b, const single &shared, ulong at, uint row, uint rows, uint cols) {
    const uchar *bytes = w.is_shared ? shared.bytes : b.base + at;
    const ulong first = w.is_shared ? shared.first_row : b.first_row + w.p.expert * b.row_step;
    return {bytes, bytes + (w.is_shared ? shared.scales : b.scales), first + row, rows - row, cols};
}

// Writes what a group multiplied: y of token or pair `index(t)`.
template <typename INDEX>
DEVICE void store(const P &own, const P::room &room, float *y, ulong y_row, uint row, uint rows, uint cols, uint count,
                  const INDEX &index) {
    const uint each = few::rows_of(cols);
    for (uint i = LID; i < each * count; i += blockDim.x) {
        const uint tile = i / (16 * count), token = i / 16 % count, at = row + tile * 16 + i % 16;
        if (at < rows) y[index(token) * y_row + at] = own.sum(room, tile, i % 16, token);
    }
}

// Gates (`b`, `shared`) or ups of n tokens.
struct gates {
    const uchar *xq;
    const float *xs;
    float *y;
    float *shared_y;
    ulong y_row;
    ulong shared_y_row;
    ulong y_start;
    ulong more_y_start;
    ulong shared_y_start;
    ulong shared_more_y_start;
    uint bound;
    uint n;
    uint rows;
    uint cols;

    DEVICE_MEMBER void run(const bank &b, const single &shared) const {
        __shared__ P::room room;
        __shared__ uint pairs[few::TOKENS];
        __shared__ uint2 places[EXPERTS];
        // Where experts lie never changes.
        const ulong policy = read_once();
        for (uint e = LID; e < b.experts; e += blockDim.x) {
            uint2 place = make_uint2(0, 0);
            weights_8_if(place, true, (const ushort *)(b.at + e), policy);
            places[e] = place;
        }
        // In shared memory, for registers are few.
        __shared__ work w;
        BEGIN_IN_TURN();
        if (LID == 0) w = work_of(b, GROUP_Y, bound, n);
        BARRIER();
        const uint count = w.p.count, row = GROUP_X * few::rows_of(cols);
        const uint2 place = places[count > 0 ? w.p.expert : 0];
        // The whole group leaves.
        if (count == 0 || row >= rows || (!w.is_shared && (place.x & place.y) == 0xffffffffu)) return;
        P own;
        own.begin(rows_of(w, b, shared, (ulong)place.y << 32 | place.x, row, rows, cols));
        if (LID < few::TOKENS) {
            const uint one = min(LID, count - 1);
            pairs[LID] = !w.is_shared && b.tiles ? b.pairs[w.p.start + one] : w.p.start + one;
        }
        BARRIER();
        const auto token_of = [&](uint t) { return w.is_shared ? pairs[t] : pairs[t] / b.used; };
        const uint t = LID % 4, e = token_of(2 * t), blocks = cols / 32;
        own.run(room, xq + (ulong)token_of(LID % 32 / 4) * cols, xs + (ulong)e * blocks, (token_of(2 * t + 1) - e) * blocks,
                false);
        BARRIER();
        const ulong start = GROUP_Z == 1 ? (w.is_shared ? shared_more_y_start : more_y_start) : w.is_shared ? shared_y_start : y_start;
        store(own, room, (w.is_shared ? shared_y : y) + start, w.is_shared ? shared_y_row : y_row,
              GROUP_X * few::rows_of(cols), rows, cols, w.p.count, [&](uint t) { return pairs[t]; });
    }
};

// Downs of n tokens.
struct downs {
    // Gates and ups of pairs, and of the shared expert: [..][2 * cols].
    const float *gates;
    const float *shared_gates;
    float *y;
    float *shared_y;
    ulong y_row;
    ulong shared_y_row;
    uint bound;
    uint n;
    uint rows;
    uint cols;
    uint clamped;
    float limit;

    DEVICE_MEMBER void run(const bank &b, const single &shared) const {
        __shared__ P::room room;
        __shared__ uint pairs[few::TOKENS];
        __shared__ __align__(16) uint words[few::TOKENS * WORDS];
        __shared__ __align__(16) float scales[few::TOKENS * SCALES];
        // Which experts are chosen was written before the launch before, which lets this one start only then (BEGIN_IN_TURN).
        work w = {{0, GROUP_Y, 1}, false};
        if (GROUP_Y >= bound) {
            w = work_of(b, GROUP_Y, bound, n);
        } else if (b.tiles) {
            w.p = {load_relaxed(b.tiles + 3 * GROUP_Y), load_relaxed(b.tiles + 3 * GROUP_Y + 1),
                   load_relaxed(b.tiles + 3 * GROUP_Y + 2)};
        } else {
            w.p.expert = load_relaxed(b.ids + GROUP_Y);
        }
        const uint row = GROUP_X * few::rows_of(cols);
        if (w.p.expert >= b.experts || row >= rows) w.p.count = 0;
        uint2 place = make_uint2(0, 0);
        weights_8_if(place, w.p.count > 0, (const ushort *)(b.at + (w.p.count > 0 ? w.p.expert : 0)), read_once());
        if (!w.is_shared && (place.x & place.y) == 0xffffffffu) w.p.count = 0;
        const uint count = w.p.count;
        P own;
        if (count > 0) own.begin(rows_of(w, b, shared, (ulong)place.y << 32 | place.x, row, rows, cols));
        if (LID < few::TOKENS && count > 0) {
            const uint one = min(LID, count - 1);
            pairs[LID] = !w.is_shared && b.tiles ? load_relaxed(b.pairs + w.p.start + one) : w.p.start + one;
        }
        BEGIN();
        // The whole group leaves.
        if (count == 0) return;
        BARRIER();
        const uint units = cols / 4, all = count * units;
        const float *from = w.is_shared ? shared_gates : gates;
        NO_UNROLL
        for (uint start = 0; start < all; start += blockDim.x) {
            // All members take part, for those of a block ask each other.
            const uint unit = min(start + LID, all - 1), token = unit / units, at = unit % units;
            const float *own_gates = from + (ulong)pairs[token] * 2 * cols + at * 4;
            const float4 g = *(const float4 *)own_gates, u = *(const float4 *)(own_gates + cols);
            const float v[4] = {silu_mul(g.x, u.x, clamped, limit), silu_mul(g.y, u.y, clamped, limit),
                                silu_mul(g.z, u.z, clamped, limit), silu_mul(g.w, u.w, clamped, limit)};
            float scale;
            const uint word = q8_word(q8_most(words, v), v, &scale);
            if (start + LID != unit) continue;
            words[token * WORDS + at] = word;
            if (at % 8 == 0) scales[token * SCALES + at / 8] = scale;
        }
        BARRIER();
        const uint lane = LID % 32, t = lane % 4, e = min(2 * t, count - 1), more = min(2 * t + 1, count - 1);
        own.run(room, (const uchar *)(words + min(lane / 4, count - 1) * WORDS), scales + e * SCALES, (more - e) * SCALES, false);
        BARRIER();
        store(own, room, w.is_shared ? shared_y : y, w.is_shared ? shared_y_row : y_row, row, rows, cols, count,
              [&](uint t) { return pairs[t]; });
    }
};

} // namespace layer

// Groups of gates on a multiprocessor that there are registers for: the compiler lacks some on sm_100.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 1000
#define GROUPS_GATES 1
#else
#define GROUPS_GATES GROUPS_FEW
#endif

// Gates (z = 0) and ups (z = 1) of experts of n tokens, and of the shared expert, whose matrices have as many rows and columns.
//   base, at, ids, tiles, pairs, all, used, experts   as for gantry_experts_*; at most 1024 experts; ups begin at more_at
//   xq, xs       int8 and scales of n rows, of all experts
//   y            [all]: row y_row, gates from y_start on, ups from more_y_start on; shared_y [n] likewise
//   shared_*     the shared expert's matrices: bytes, the plane of scales, first rows; where there is none bytes are null
//   bound        tiles, or pairs without them
// Grid: x = rows / (16 * few::tiles_of) rounded up, y = bound + (with a shared expert) n / 8 rounded up, z = 2; groups of as many
// warps for each tile, at most 16.
extern "C" __global__ void __launch_bounds__(32 * mma::CHUNKS, GROUPS_GATES)
gantry_decode_gates_i8_block32(const uchar *RESTRICT base, const ulong *RESTRICT at, const ulong *RESTRICT more_at,
                               const uint *RESTRICT ids, const uint *RESTRICT tiles, const uint *RESTRICT pairs,
                               const uchar *RESTRICT xq, const float *RESTRICT xs, float *RESTRICT y,
                               const uchar *RESTRICT shared, const uchar *RESTRICT shared_more, float *RESTRICT shared_y,
                               ulong scales, ulong first_row, ulong row_step, ulong more_first_row, ulong more_row_step,
                               ulong y_row, ulong y_start, ulong more_y_start, ulong shared_scales, ulong shared_first_row,
                               ulong shared_more_first_row, ulong shared_y_row, ulong shared_y_start,
                               ulong shared_more_y_start, uint bound, uint all, uint used, uint experts, uint rows, uint cols,
                               uint n) {
    if (GROUP_Z == 1) {
        at = more_at, shared = shared_more, first_row = more_first_row, row_step = more_row_step;
        shared_first_row = shared_more_first_row;
    }
    const layer::gates g = {xq, xs, y, shared_y, y_row, shared_y_row, y_start, more_y_start, shared_y_start,
                            shared_more_y_start, bound, n, rows, cols};
    g.run({base, at, ids, tiles, pairs, scales, first_row, row_step, all, used, experts},
          {shared, shared_scales, shared_first_row});
}

// Downs of what gates and ups made: y of every pair = W_down silu_mul(gate, up), that quantized per 32. The launch after
// gantry_decode_gates_i8_block32, with its `ids`, `tiles`, `pairs`, `bound`.
//   gates, shared_gates   f32 [all][2 * cols], [n][2 * cols]
//   cols                  at most 2048, a multiple of 32
//   clamped, limit        as for gantry_silu_mul
// Grid: as there, z = 1.
extern "C" __global__ void __launch_bounds__(32 * mma::CHUNKS, GROUPS_FEW)
gantry_decode_downs_i8_block32(const uchar *RESTRICT base, const ulong *RESTRICT at, const uint *RESTRICT ids,
                               const uint *RESTRICT tiles, const uint *RESTRICT pairs, const float *RESTRICT gates,
                               float *RESTRICT y, const uchar *RESTRICT shared, const float *RESTRICT shared_gates,
                               float *RESTRICT shared_y, ulong scales, ulong first_row, ulong row_step, ulong y_row,
                               ulong y_start, ulong shared_scales, ulong shared_first_row, ulong shared_y_row,
                               ulong shared_y_start, uint bound, uint all, uint used, uint experts, uint rows, uint cols,
                               uint n, uint clamped, float limit) {
    const layer::downs d = {gates, shared_gates, y + y_start, shared_y + shared_y_start, y_row, shared_y_row, bound, n, rows,
                            cols, clamped, limit};
    d.run({base, at, ids, tiles, pairs, scales, first_row, row_step, all, used, experts},
          {shared, shared_scales, shared_first_row});
}
