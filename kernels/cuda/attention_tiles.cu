// Attention of a prompt's tokens over f16 or int8 keys and values, by matrix instructions.
//
// A group has 64 tokens of one sequence and one query head, each of its warps 16 of them. Keys and values come through shared
// memory, a tile ahead of the one that is multiplied. Here queries are A of S = Q K^T, and weights, which S becomes where it
// is, A of O = P V. As in attention.cu queries and weights are sums of two f16, products exact and sums f32.
#include "../device/kept.h"
#include "halves.cuh"

namespace attend_tiles {

using namespace halves;

constexpr uint WARPS = 4;
constexpr uint ROWS = 16 * WARPS;

struct request {
    const float *q;
    const uchar *states;
    const ulong *offsets;
    const float *sinks;
    float *y;
    ulong q_row;
    ulong q_start;
    ulong capacity;
    uint row;
    uint tokens;
    uint start;
    uint slot;
    uint heads;
    uint kv_heads;
    uint window;
    float scale;
};

// Four 8 by 8 matrices of 16 bits, rows at the addresses of eight lanes each; `TURNED`: transposed.
template <bool TURNED>
DEVICE uint4 matrices(const void *at) {
    uint4 m;
    if (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
                     : "r"(mma::shared_address(at)));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m.x), "=r"(m.y), "=r"(m.z), "=r"(m.w)
                     : "r"(mma::shared_address(at)));
    }
    return m;
}

template <bool INT8, uint D>
struct tile {
    static constexpr uint SIZE = INT8 ? 1 : 2;
    // Values of a value that a group computes; there is a group for each part.
    static constexpr uint PART = D < 128 ? D : 128;
    static constexpr uint KEYS = D == 256 ? 16 : 32;
    static constexpr uint KEY_CHUNKS = D * SIZE / 16;
    static constexpr uint VALUE_CHUNKS = PART * SIZE / 16;
    static constexpr uint STEPS = D / 16;

    struct stage {
        uint4 keys[KEYS][KEY_CHUNKS];
        uint4 values[KEYS][VALUE_CHUNKS];
        ushort key_scales[INT8 ? KEYS : 1];
        ushort value_scales[INT8 ? KEYS : 1];
    };

    // Where a chunk of a row lies: rows that are read together do not meet in a bank.
    template <uint CHUNKS>
    DEVICE_MEMBER static uint chunk_at(uint row, uint chunk) {
        return CHUNKS >= 8 ? chunk ^ row % 8 : chunk ^ row / 2 % 4;
    }

    // One head's rows of a cache.
    struct rows {
        const uchar *keys;
        const uchar *values;
        const uchar *key_scales;
        const uchar *value_scales;
        uint capacity;
        uint heads;
        uint end;
    };

    // Keys first .. first + KEYS on their way; zeros from the end on.
    DEVICE_MEMBER static void bring(stage &s, const rows &r, uint first) {
        constexpr uint CHUNKS = KEY_CHUNKS + VALUE_CHUNKS;
        // Registers are few where heads are long.
        _Pragma("unroll (D == 256 ? 1 : 8)") for (uint i = LID; i < KEYS * CHUNKS; i += 32 * WARPS) {
            const uint key = i / CHUNKS, chunk = i % CHUNKS, position = first + key;
            const bool here = position < r.end;
            const ulong row = here ? (ulong)ring_row(position, r.capacity) * r.heads : 0;
            if (chunk < KEY_CHUNKS) {
                mma::copy_16(mma::shared_address(&s.keys[key][chunk_at<KEY_CHUNKS>(key, chunk)]),
                             r.keys + row * (D * SIZE) + 16 * chunk, here ? 16 : 0);
            } else {
                const uint c = chunk - KEY_CHUNKS;
                mma::copy_16(mma::shared_address(&s.values[key][chunk_at<VALUE_CHUNKS>(key, c)]),
                             r.values + row * (D * SIZE) + 16 * c, here ? 16 : 0);
            }
        }
        if (INT8 && LID < 2 * KEYS) {
            const uint key = LID % KEYS, position = first + key;
            const uchar *scales = LID < KEYS ? r.key_scales : r.value_scales;
            ushort scale = 0;
            if (position < r.end) scale = ushort_at(scales, (ulong)ring_row(position, r.capacity) * r.heads * 2);
            (LID < KEYS ? s.key_scales : s.value_scales)[key] = scale;
        }
        mma::copies_end();
    }

    DEVICE_MEMBER static void run(const request &r) {
        BEGIN();
        __shared__ stage stages[2];
        constexpr uint SPLIT = D / PART;
        const float lowest = FROM_BITS(0xff800000u);
        const uint warp = LID / 32, lane = LID % 32, g = lane / 4, t = lane % 4;
        const uint head = GROUP_Y / SPLIT, part = GROUP_Y % SPLIT, kv = head / (r.heads / r.kv_heads);
        // The longest first.
        const uint first_token = (gridDim.x - 1 - GROUP_X) * ROWS;
        const uint last_token = first_token + ROWS < r.tokens ? first_token + ROWS : r.tokens;
        const uchar *cache = r.states + r.offsets[r.slot];
        rows from;
        from.keys = cache + kv * (D * SIZE);
        from.values = cache + (r.capacity * r.kv_heads + kv) * (D * SIZE) + part * PART * SIZE;
        from.key_scales = from.value_scales = cache;
        if (INT8) {
            const kept_planes planes = planes_of_int8(r.capacity, r.kv_heads, D, D, 0);
            from.key_scales = cache + planes.key_scales + 2 * kv;
            from.value_scales = cache + planes.value_scales + 2 * kv;
        }
        from.capacity = (uint)r.capacity;
        from.heads = r.kv_heads;
        from.end = r.start + last_token;
        const uint lowest_end = r.start + first_token + 1;
        const uint first_key = r.window && r.window < lowest_end ? lowest_end - r.window : 0;
        bring(stages[0], from, first_key);

        // Rows g and g + 8: their queries' parts, in the order of A, and positions up to which they see.
        uint4 q[2][STEPS];
        float scale[2], most[2], sums[2] = {0.0f, 0.0f};
        uint sees[2], sees_from[2];
        UNROLL for (uint half = 0; half < 2; half++) {
            const uint wanted = first_token + 16 * warp + 8 * half + g;
            const uint token = wanted < r.tokens ? wanted : r.tokens - 1;
            const float *x = r.q + (r.row + token) * r.q_row + r.q_start + (ulong)head * D;
            sees[half] = r.start + token + 1;
            sees_from[half] = r.window && r.window < sees[half] ? sees[half] - r.window : 0;
            most[half] = lowest;
            float high = 0.0f;
            UNROLL for (uint d = 0; d < D; d += 16) {
                const float4 v = *(const float4 *)(x + d + 4 * t);
                high = fmaxf(high, fmaxf(fmaxf(MAGNITUDE(v.x), MAGNITUDE(v.y)), fmaxf(MAGNITUDE(v.z), MAGNITUDE(v.w))));
            }
            high = most_of_row(high);
            const power p = power_for(high);
            scale[half] = MUL(MUL(r.scale, LOG2_E), p.down);
            UNROLL for (uint i = 0; i < STEPS; i++) {
                UNROLL for (uint two = 0; two < 2; two++) {
                    const uint d = 16 * i + (INT8 ? 4 * t + 2 * two : 8 * two + 2 * t);
                    const float2 v = *(const float2 *)(x + d);
                    const float v0 = MUL(v.x, p.up), v1 = MUL(v.y, p.up);
                    const uint high_part = pack(v0, v1);
                    const uint low_part = pack(SUB(v0, low_of(high_part)), SUB(v1, high_of(high_part)));
                    if (two == 0) {
                        (half ? q[0][i].y : q[0][i].x) = high_part;
                        (half ? q[1][i].y : q[1][i].x) = low_part;
                    } else {
                        (half ? q[0][i].w : q[0][i].z) = high_part;
                        (half ? q[1][i].w : q[1][i].z) = low_part;
                    }
                }
            }
        }
        float out[PART / 8][4];
        UNROLL for (uint j = 0; j < PART / 8; j++) {
            UNROLL for (uint e = 0; e < 4; e++) out[j][e] = 0.0f;
        }
        float top = FROM_BITS((127 - 24) << 23);
        uint turn = 0;
        NO_UNROLL for (uint key = first_key; key < from.end; key += KEYS, turn ^= 1) {
            mma::copies_wait<0>();
            __syncthreads();
            if (key + KEYS < from.end) bring(stages[turn ^ 1], from, key + KEYS);
            const stage &s = stages[turn];
            float x[KEYS / 8][4];
            score(x, q, s);
            float factor[2];
            UNROLL for (uint half = 0; half < 2; half++) {
                float high = lowest;
                UNROLL for (uint n = 0; n < KEYS / 8; n++) {
                    UNROLL for (uint i = 0; i < 2; i++) {
                        const uint at = 8 * n + 2 * t + i, position = key + at;
                        float &dot = x[n][2 * half + i];
                        if (INT8) dot = MUL(dot, from_half(s.key_scales[INT8 ? at : 0]));
                        if (position >= sees[half] || position < sees_from[half]) dot = lowest;
                        high = fmaxf(high, dot);
                    }
                }
                high = most_of_row(high);
                high = fmaxf(most[half], fmaf(high, scale[half], -RAISED));
                // So far nothing is seen: all weights are 0.
                const float base = high == lowest ? 0.0f : high;
                factor[half] = most[half] == high ? 1.0f : power_of_two(SUB(most[half], base));
                most[half] = high;
                float sum = 0.0f;
                UNROLL for (uint n = 0; n < KEYS / 8; n++) {
                    UNROLL for (uint i = 0; i < 2; i++) {
                        float &weight = x[n][2 * half + i];
                        weight = power_of_two(fmaf(weight, scale[half], -base));
                        sum += weight;
                    }
                }
                sums[half] = fmaf(sums[half], factor[half], sum);
            }
            if (INT8) {
                float high = 0.0f, own[KEYS / 8][2];
                UNROLL for (uint n = 0; n < KEYS / 8; n++) {
                    UNROLL for (uint i = 0; i < 2; i++) {
                        own[n][i] = from_half(s.value_scales[INT8 ? 8 * n + 2 * t + i : 0]);
                        high = fmaxf(high, own[n][i]);
                    }
                }
                high = most_of_row(high);
                const float above = FROM_BITS((BITS(high) & 0x7f800000u) + 0x800000u);
                if (above > top) {
                    const float less = DIV(top, above);
                    factor[0] *= less;
                    factor[1] *= less;
                    top = above;
                }
                const float unit = FROM_BITS(0x7f000000u - BITS(top));
                UNROLL for (uint n = 0; n < KEYS / 8; n++) {
                    UNROLL for (uint e = 0; e < 4; e++) x[n][e] *= MUL(own[n][e % 2], unit);
                }
            }
            if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f)) {
                UNROLL for (uint j = 0; j < PART / 8; j++) {
                    UNROLL for (uint e = 0; e < 4; e++) out[j][e] *= factor[e / 2];
                }
            }
            add(out, x, s);
        }
        UNROLL for (uint half = 0; half < 2; half++) {
            const float sum = sum_of_row(sums[half]);
            const float sink = r.sinks ? MUL(r.sinks[head], LOG2_E) : lowest, high = fmaxf(most[half], sink);
            const float weight = power_of_two(SUB(most[half], high));
            const float inverse = (INT8 ? top * weight : weight) * DIV(1.0f, sum * weight + power_of_two(SUB(sink, high)));
            const uint token = first_token + 16 * warp + 8 * half + g;
            if (token >= r.tokens) continue;
            float *to = r.y + ((ulong)(r.row + token) * r.heads + head) * D + part * PART;
            UNROLL for (uint j = 0; j < PART / 8; j++) {
                if (INT8) {
                    // Two columns of values 2 g and of values 2 g + 1 of 16.
                    if (j % 2) continue;
                    const float *even = out[j], *odd = out[j + 1 < PART / 8 ? j + 1 : j];
                    *(float4 *)(to + 8 * j + 4 * t) =
                        make_float4(MUL(even[2 * half], inverse), MUL(odd[2 * half], inverse),
                                    MUL(even[2 * half + 1], inverse), MUL(odd[2 * half + 1], inverse));
                } else {
                    *(float2 *)(to + 8 * j + 2 * t) =
                        make_float2(MUL(out[j][2 * half], inverse), MUL(out[j][2 * half + 1], inverse));
                }
            }
        }
    }

    // Products of the queries with a tile's keys.
    DEVICE_MEMBER static void score(float (&x)[KEYS / 8][4], const uint4 (&q)[2][STEPS], const stage &s) {
        const uint lane = LID % 32;
        // Values that four matrices have.
        constexpr uint FOUR = INT8 ? 64 : 32;
        UNROLL for (uint n = 0; n < KEYS / 8; n++) {
            UNROLL for (uint e = 0; e < 4; e++) x[n][e] = 0.0f;
        }
        UNROLL for (uint d = 0; d < D; d += FOUR) {
            UNROLL for (uint n = 0; n < KEYS / 8; n++) {
                const uint key = 8 * n + lane % 8, chunk = d * SIZE / 16 + lane / 8;
                const uint4 m = matrices<false>(&s.keys[key][chunk_at<KEY_CHUNKS>(key, chunk)]);
                if (INT8) {
                    UNROLL for (uint i = 0; i < 4; i++) {
                        const uint word = word_of(m, i) ^ 0x80808080u, b0 = of_bytes(word, true), b1 = of_bytes(word, false);
                        multiply(x[n], q[0][d / 16 + (INT8 ? i : 0)], b0, b1);
                        multiply(x[n], q[1][d / 16 + (INT8 ? i : 0)], b0, b1);
                    }
                } else {
                    multiply(x[n], q[0][d / 16], m.x, m.y);
                    multiply(x[n], q[1][d / 16], m.x, m.y);
                    multiply(x[n], q[0][d / 16 + 1], m.z, m.w);
                    multiply(x[n], q[1][d / 16 + 1], m.z, m.w);
                }
            }
        }
    }

    // Adds a tile's values times their weights.
    DEVICE_MEMBER static void add(float (&out)[PART / 8][4], const float (&x)[KEYS / 8][4], const stage &s) {
        const uint lane = LID % 32;
        UNROLL for (uint k = 0; k < KEYS / 16; k++) {
            uint4 high, low;
            UNROLL for (uint i = 0; i < 4; i++) {
                const float one = x[2 * k + i / 2][i % 2 * 2], two = x[2 * k + i / 2][i % 2 * 2 + 1];
                const uint h = pack(one, two), l = pack(SUB(one, low_of(h)), SUB(two, high_of(h)));
                (i == 0 ? high.x : i == 1 ? high.y : i == 2 ? high.z : high.w) = h;
                (i == 0 ? low.x : i == 1 ? low.y : i == 2 ? low.z : low.w) = l;
            }
            const uint key = 16 * k + lane % 16;
            UNROLL for (uint c = 0; c < VALUE_CHUNKS; c += 2) {
                const uint chunk = c + lane / 16;
                const uint4 m = matrices<true>(&s.values[key][chunk_at<VALUE_CHUNKS>(key, chunk)]);
                UNROLL for (uint i = 0; i < 2; i++) {
                    const uint b0 = i ? m.z : m.x, b1 = i ? m.w : m.y;
                    if (INT8) {
                        const uint w0 = b0 ^ 0x80808080u, w1 = b1 ^ 0x80808080u;
                        UNROLL for (uint odd = 0; odd < 2; odd++) {
                            const uint e0 = of_every_other(w0, odd), e1 = of_every_other(w1, odd);
                            float(&o)[4] = out[INT8 ? 2 * (c + i) + odd : 0];
                            multiply(o, high, e0, e1);
                            multiply(o, low, e0, e1);
                        }
                    } else {
                        multiply(out[INT8 ? 0 : c + i], high, b0, b1);
                        multiply(out[INT8 ? 0 : c + i], low, b0, b1);
                    }
                }
            }
        }
    }
};

} // namespace attend_tiles

// The same for `tokens` tokens of one sequence: rows from `row` on of q and y, at positions from `start` on, `slot` in `offsets`.
// Bits of a token depend on its place among the 64 of its group and on the first of them.
// Grid: x = tokens / 64 rounded up, y = heads; twice as many for heads of 256.
#define ATTEND_TILES(name, int8, len) \
    extern "C" __global__ void __launch_bounds__(128, 2) \
        name(const float *q, const uchar *states, const ulong *offsets, const float *sinks, float *y, ulong q_row, \
             ulong q_start, ulong capacity, uint row, uint tokens, uint start, uint slot, uint heads, uint kv_heads, \
             uint window, float scale) { \
        attend_tiles::tile<int8, len>::run({q, states, offsets, sinks, y, q_row, q_start, capacity, row, tokens, start, slot, \
                                            heads, kv_heads, window, scale}); \
    }

ATTEND_TILES(gantry_attend_tiles_f16_64, false, 64)
ATTEND_TILES(gantry_attend_tiles_f16_128, false, 128)
ATTEND_TILES(gantry_attend_tiles_f16_256, false, 256)
ATTEND_TILES(gantry_attend_tiles_i8_64, true, 64)
ATTEND_TILES(gantry_attend_tiles_i8_128, true, 128)
ATTEND_TILES(gantry_attend_tiles_i8_256, true, 256)
