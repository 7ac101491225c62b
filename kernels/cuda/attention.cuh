// How a group computes attention of a token, as attention.cu launches it.
//
// A group has up to G query heads that share a key-value head, and one of the pieces of what the token sees; each of its warps
// takes every WARPS-th step of keys, straight from the caches into registers, so that the next step is on its way while one is
// multiplied. Keys are B of S = Q K^T, values A of O^T = V^T P^T: so S is, where it is, what P^T must be, and 8 queries fill
// an instruction. Queries and weights are sums of two f16, which leaves 22 bits of each; products are exact and sums f32, but that
// subnormal keys and values (below 2^-14) are added as precisely as those of 2^-14.
//
// Which of a row's values a lane has does not matter as long as A and B agree: a lane has 16 bytes that lie together.
#ifndef GANTRY_ATTENTION_CUH
#define GANTRY_ATTENTION_CUH

#include "../device/kept.h"
#include "halves.cuh"

namespace attend {

using namespace halves;

constexpr uint WARPS = 8;
// Keys of a piece are a multiple of this.
constexpr uint LEAST = 256;

struct request {
    const float *q;
    const uchar *states;
    const ulong *offsets;
    const uint *positions;
    const uint *slots;
    const float *sinks;
    float *y;
    float *partial;
    ulong q_row;
    ulong q_start;
    ulong capacity;
    uint heads;
    uint kv_heads;
    uint window;
    uint pieces;
    uint splits;
    float scale;
};

// Keys of each piece but the last where a token sees `all`: that depends on nothing else, so that its bits do not.
DEVICE uint piece_of(uint all, uint pieces) {
    const uint each = (all + pieces - 1) / pieces;
    return (each + LEAST - 1) / LEAST * LEAST;
}

// What one piece's values are multiplied by where it is the only one: its weight, and 1 / the sum of all. As join does it.
DEVICE float2 shares(float sum, float most, float sink, float highest) {
    const float weight = power_of_two(SUB(most, highest));
    return make_float2(weight, DIV(1.0f, ADD(MUL(sum, weight), power_of_two(SUB(sink, highest)))));
}

// G: 4, 8 or 16 query heads; D: values of keys and of values, a multiple of 64.
template <bool INT8, uint D, uint G>
struct group {
    // Four queries come twice in their tile, with high parts of weights and with low ones. Tiles of 8 are multiplied twice.
    static constexpr bool PACKED = G == 4;
    static constexpr uint TILES = PACKED ? 1 : G / 8;
    static constexpr uint PARTS = PACKED ? 1 : 2;
    // Steps are of BLOCKS times 16 keys.
    static constexpr uint BLOCKS = INT8 && D < 256 && G < 16 ? 2 : 1;
    static constexpr uint KEYS = 16 * BLOCKS;
    static constexpr uint STRIDE = WARPS * KEYS;
    static_assert(LEAST % STRIDE == 0, "no warp is idle where pieces are whole");
    static constexpr uint SIZE = INT8 ? 1 : 2;
    // A lane's loads of a key, its values of a value that lie together, and how many of those.
    static constexpr uint KEY_LOADS = D * SIZE / 64;
    static constexpr uint RUN = INT8 && D >= 128 ? 16 : 8;
    static constexpr uint RUNS = D / (8 * RUN);
    static constexpr uint WIDE = D + 2;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    static constexpr bool SPARING = D == 256;  // The compiler needs more registers there.
#else
    static constexpr bool SPARING = false;
#endif

    struct shared {
        uint4 queries[D / 16][TILES][32];
        float scales[G];
        float most[WARPS][G];
        float sums[WARPS][G];
        float2 whole[G];
        // Half of the warps give theirs to the others first.
        union {
            float4 given[WARPS / 2][TILES * RUNS * (RUN / 2)][32];
            float out[WARPS / 2][G][WIDE];
        };
    };

    // A step of keys, and of values, on their way.
    struct keys {
        uint4 at[BLOCKS][2][KEY_LOADS];
        float scale[BLOCKS][4];
    };
    struct values {
        uint4 at[BLOCKS][4][RUNS];
        float scale[BLOCKS][4];
    };

    // Rows of one head in a cache, from some position on, at what a lane has of them.
    struct rows {
        const uchar *keys;
        const uchar *values;
        const uchar *key_scales;
        const uchar *value_scales;
        uint stride;
        uint scale_stride;
        uint base;
        uint capacity;
        uint last;
        // The row of a key; of the last one for those after it, whose weight is 0.
        DEVICE_MEMBER uint row(uint key) const {
            const uint at = base + (key < last ? key : last);
            return at < capacity ? at : at - capacity;
        }
    };

    // Results and what they are relative to: weights are 2^(score - most), scores in base 2.
    struct sums_of {
        float scale[TILES];
        float most[TILES];
        float sum[TILES];
        float out[TILES][RUNS][RUN / 2][4];
        // Scales of values stay below it: a power of two, so that weights times scales are halves.
        float top;
    };

    // Of the keys that a lane has in S and in V, the i-th of 4.
    DEVICE_MEMBER static uint key_of(uint i) { return 2 * (LID % 4) + i % 2 + 8 * (i / 2); }

    DEVICE_MEMBER static void load(keys &k, const rows &r, uint first) {
        const uint g = LID % 32 / 4;
        UNROLL for (uint b = 0; b < BLOCKS; b++) {
            UNROLL for (uint half = 0; half < 2; half++) {
                const uchar *at = r.keys + (ulong)r.row(first + 16 * b + 8 * half + g) * r.stride;
                UNROLL for (uint j = 0; j < KEY_LOADS; j++) k.at[b][half][j] = load_16(at + 64 * j);
            }
            if (INT8) {
                UNROLL for (uint i = 0; i < 4; i++) {
                    const uint row = r.row(first + 16 * b + key_of(i));
                    k.scale[b][i] = load_half(r.key_scales + (ulong)row * r.scale_stride);
                }
            }
        }
    }
    DEVICE_MEMBER static void load(values &v, const rows &r, uint first) {
        UNROLL for (uint b = 0; b < BLOCKS; b++) {
            UNROLL for (uint i = 0; i < 4; i++) {
                const uint row = r.row(first + 16 * b + key_of(i));
                if (INT8) v.scale[b][i] = load_half(r.value_scales + (ulong)row * r.scale_stride);
                const uchar *at = r.values + (ulong)row * r.stride;
                UNROLL for (uint j = 0; j < RUNS; j++) {
                    v.at[b][i][j] = RUN * SIZE == 16 ? load_16(at + 128 * j) : load_8(at + 64 * j);
                }
            }
        }
    }

    // Queries of `count` heads, high parts in rows g of A and low ones in rows g + 8, zeros for the other heads.
    DEVICE_MEMBER static void bring_queries(shared &s, const float *q, uint count, float scale) {
        const uint warp = LID / 32, lane = LID % 32;
        UNROLL for (uint c = warp; c < G; c += WARPS) {
            float x[D / 32], most = 0.0f;
            UNROLL for (uint i = 0; i < D / 32; i++) {
                x[i] = c < count ? q[c * D + 32 * i + lane] : 0.0f;
                most = fmaxf(most, MAGNITUDE(x[i]));
            }
            UNROLL for (uint step = 1; step < 32; step *= 2) {
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
            }
            const power p = power_for(most);
            if (lane == 0) s.scales[c] = MUL(MUL(scale, LOG2_E), p.down);
            UNROLL for (uint i = 0; i < D / 32; i++) {
                const uint d = 32 * i + lane;
                // The instruction that takes it, and the lane and pair of values there.
                const uint step = INT8 ? d / 64 * 4 + d % 16 / 4 : d / 32 * 2 + d % 8 / 4;
                const uint t = INT8 ? d % 64 / 16 : d % 32 / 8, two = d % 4 / 2;
                const float up = MUL(x[i], p.up);
                const ushort high = to_half(up), low = to_half(SUB(up, from_half(high)));
                UNROLL for (uint copy = 0; copy < (PACKED ? 2 : 1); copy++) {
                    ushort *at = (ushort *)&s.queries[step][c / 8][4 * (c % 8 + 4 * copy) + t];
                    at[4 * two + d % 2] = high;
                    at[4 * two + 2 + d % 2] = low;
                }
            }
        }
    }

    // Products of the queries with a step's keys.
    DEVICE_MEMBER static void score(float (&dots)[BLOCKS][TILES][4], const shared &s, const keys &k) {
        const uint lane = LID % 32;
        float sums[BLOCKS][2][TILES][4];
        UNROLL for (uint step = 0; step < D / 16; step++) {
            uint4 q[TILES];
            UNROLL for (uint n = 0; n < TILES; n++) q[n] = s.queries[step][n][lane];
            UNROLL for (uint b = 0; b < BLOCKS; b++) {
                UNROLL for (uint half = 0; half < 2; half++) {
                    uint b0, b1;
                    if (INT8) {
                        const uint word = word_of(k.at[b][half][step / 4], step % 4) ^ 0x80808080u;
                        b0 = of_bytes(word, true);
                        b1 = of_bytes(word, false);
                    } else {
                        const uint4 &eight = k.at[b][half][INT8 ? 0 : step / 2];
                        b0 = step % 2 ? eight.z : eight.x;
                        b1 = step % 2 ? eight.w : eight.y;
                    }
                    UNROLL for (uint n = 0; n < TILES; n++) {
                        if (step == 0) first(sums[b][half][n], q[n], b0, b1);
                        else multiply(sums[b][half][n], q[n], b0, b1);
                    }
                }
            }
        }
        UNROLL for (uint b = 0; b < BLOCKS; b++) {
            UNROLL for (uint n = 0; n < TILES; n++) {
                UNROLL for (uint i = 0; i < 4; i++) {
                    const float dot = sums[b][i / 2][n][i % 2] + sums[b][i / 2][n][2 + i % 2];
                    dots[b][n][i] = INT8 ? MUL(dot, k.scale[b][i]) : dot;
                }
            }
        }
    }

    // Weights of a step's keys in place of their products, `here` of which there are, and all sums relative to the new most.
    template <bool LAST>
    DEVICE_MEMBER static void weigh(sums_of &o, float (&x)[BLOCKS][TILES][4], const values &v, uint here) {
        float factor[TILES];
        bool changed = false;
        if (LAST) {
            UNROLL for (uint b = 0; b < BLOCKS; b++) {
                UNROLL for (uint i = 0; i < 4; i++) {
                    const bool some = 16 * b + key_of(i) < here;
                    UNROLL for (uint n = 0; n < TILES; n++) {
                        if (!some) x[b][n][i] = FROM_BITS(0xff800000u);
                    }
                }
            }
        }
        UNROLL for (uint n = 0; n < TILES; n++) {
            float high = x[0][n][0];
            UNROLL for (uint i = 1; i < 4 * BLOCKS; i++) high = fmaxf(high, x[i / 4][n][i % 4]);
            high = most_of_row(fmaf(high, o.scale[n], -RAISED));
            high = fmaxf(high, o.most[n]);
            factor[n] = power_of_two(SUB(o.most[n], high));
            changed = changed || o.most[n] != high;
            o.most[n] = high;
            float sum = 0.0f;
            UNROLL for (uint i = 0; i < 4 * BLOCKS; i++) {
                float &weight = x[i / 4][n][i % 4];
                weight = power_of_two(fmaf(weight, o.scale[n], -high));
                sum += weight;
            }
            o.sum[n] = fmaf(o.sum[n], factor[n], sum);
        }
        if (INT8) {
            float high = v.scale[0][0];
            UNROLL for (uint i = 1; i < 4 * BLOCKS; i++) high = fmaxf(high, v.scale[i / 4][i % 4]);
            high = most_of_row(high);
            const float above = FROM_BITS((BITS(high) & 0x7f800000u) + 0x800000u);
            if (above > o.top) {
                UNROLL for (uint n = 0; n < TILES; n++) factor[n] *= DIV(o.top, above);
                changed = true;
                o.top = above;
            }
            // A power of two's inverse.
            const float unit = FROM_BITS(0x7f000000u - BITS(o.top));
            UNROLL for (uint i = 0; i < 4 * BLOCKS; i++) {
                const float scale = MUL(v.scale[i / 4][i % 4], unit);
                UNROLL for (uint n = 0; n < TILES; n++) x[i / 4][n][i % 4] *= scale;
            }
        }
        if (__any_sync(0xffffffffu, changed)) {
            UNROLL for (uint n = 0; n < TILES; n++) {
                // Queries are columns there.
                float of_column[2];
                UNROLL for (uint i = 0; i < 2; i++) {
                    of_column[i] = __shfl_sync(0xffffffffu, factor[n], 4 * (2 * (LID % 4) + i));
                }
                UNROLL for (uint i = 0; i < RUNS * (RUN / 2); i++) {
                    UNROLL for (uint e = 0; e < 4; e++) o.out[n][i / (RUN / 2)][i % (RUN / 2)][e] *= of_column[e % 2];
                }
            }
        }
    }

    // Adds a step's values times their weights.
    DEVICE_MEMBER static void add(sums_of &o, const values &v, const float (&weights)[BLOCKS][TILES][4]) {
        UNROLL for (uint b = 0; b < BLOCKS; b++) {
            uint p[PARTS * TILES][2];
            UNROLL for (uint n = 0; n < TILES; n++) {
                UNROLL for (uint i = 0; i < 2; i++) {
                    const float one = weights[b][n][2 * i], two = weights[b][n][2 * i + 1];
                    const uint high = pack(one, two);
                    const uint low = pack(SUB(one, low_of(high)), SUB(two, high_of(high)));
                    p[n][i] = PACKED && LID % 32 >= 16 ? low : high;
                    if (!PACKED) p[n + (PARTS - 1) * TILES][i] = low;
                }
            }
            UNROLL for (uint j = 0; j < RUNS; j++) {
                const uint4(&x)[4][RUNS] = v.at[b];
                UNROLL for (uint i = 0; i < RUN / 2; i++) {
                    uint4 a;
                    if (INT8) {
                        const uint w0 = word_of(x[0][j], i / 2), w1 = word_of(x[1][j], i / 2);
                        const uint w2 = word_of(x[2][j], i / 2), w3 = word_of(x[3][j], i / 2);
                        const uint order = i % 2 ? 0x7362 : 0x5140;
                        const uint one = __byte_perm(w0, w1, order) ^ 0x80808080u;
                        const uint two = __byte_perm(w2, w3, order) ^ 0x80808080u;
                        a = make_uint4(of_bytes(one, true), of_bytes(one, false), of_bytes(two, true),
                                       of_bytes(two, false));
                    } else {
                        const uint w0 = word_of(x[0][j], i), w1 = word_of(x[1][j], i);
                        const uint w2 = word_of(x[2][j], i), w3 = word_of(x[3][j], i);
                        a = make_uint4(__byte_perm(w0, w1, 0x5410), __byte_perm(w0, w1, 0x7632),
                                       __byte_perm(w2, w3, 0x5410), __byte_perm(w2, w3, 0x7632));
                    }
                    UNROLL for (uint n = 0; n < PARTS * TILES; n++) {
                        multiply(o.out[n % TILES][j][i], a, p[n][0], p[n][1]);
                    }
                }
            }
        }
    }

    // What a warp has of a group's keys. One step is multiplied while another becomes weights, where registers suffice.
    DEVICE_MEMBER static void go_through(sums_of &o, const shared &s, const rows &from, keys &k, values &v, uint all) {
        uint step = LID / 32 * KEYS;
        if (step >= all) return;
        float x[BLOCKS][TILES][4];
        if (SPARING) {
            NO_UNROLL for (; step < all; step += STRIDE) {
                load(v, from, step);
                score(x, s, k);
                load(k, from, step + STRIDE);
                weigh<true>(o, x, v, all - step);
                add(o, v, x);
            }
            return;
        }
        score(x, s, k);
        load(k, from, step + STRIDE);
        NO_UNROLL for (; step + STRIDE < all; step += STRIDE) {
            float later[BLOCKS][TILES][4];
            score(later, s, k);
            load(k, from, step + 2 * STRIDE);
            weigh<false>(o, x, v, KEYS);
            add(o, v, x);
            load(v, from, step + STRIDE);
            UNROLL for (uint i = 0; i < BLOCKS * TILES * 4; i++) {
                x[i / (4 * TILES)][i / 4 % TILES][i % 4] = later[i / (4 * TILES)][i / 4 % TILES][i % 4];
            }
        }
        weigh<true>(o, x, v, all - step);
        add(o, v, x);
    }

    DEVICE_MEMBER static void run(const request &r) {
        BEGIN();
        __shared__ shared s;
        const float lowest = FROM_BITS(0xff800000u);
        const uint warp = LID / 32, g = LID % 32 / 4, t = LID % 4;
        const uint end = r.positions[GROUP_X] + 1, slot = r.slots[GROUP_X];
        const uint grouped = r.heads / r.kv_heads, blocks = (grouped + G - 1) / G;
        const uint kv = GROUP_Y / blocks, head = kv * grouped + GROUP_Y % blocks * G;
        const uint rest = (kv + 1) * grouped - head, count = rest < G ? rest : G;
        const uint begin = r.window && r.window < end ? end - r.window : 0, seen = end - begin;
        const uint piece = piece_of(seen, r.pieces), start = GROUP_Z * piece;
        const ulong at = (ulong)GROUP_X * r.heads + head;
        float *to = r.splits == 1 ? r.y + at * D : r.partial + (at * r.splits + GROUP_Z) * (2 + D);
        const ulong next_to = r.splits == 1 ? D : (ulong)r.splits * (2 + D);
        if (start >= seen) {
            // Its sum is 0: nobody looks at the rest.
            if (LID < count) {
                to[LID * next_to] = lowest;
                to[LID * next_to + 1] = 0.0f;
            }
            return;
        }
        const uint all = seen - start < piece ? seen - start : piece;
        const uchar *cache = r.states + r.offsets[slot];
        rows from;
        from.stride = r.kv_heads * (D * SIZE);
        from.scale_stride = 2 * r.kv_heads;
        from.keys = cache + (kv * (D * SIZE) + 16 * t);
        from.values = cache + r.capacity * from.stride + (kv * (D * SIZE) + g * (RUN * SIZE));
        from.key_scales = from.value_scales = cache;
        if (INT8) {
            const kept_planes planes = planes_of_int8(r.capacity, r.kv_heads, D, D, 0);
            from.key_scales = cache + planes.key_scales + 2 * kv;
            from.value_scales = cache + planes.value_scales + 2 * kv;
        }
        from.base = ring_row(begin + start, r.capacity);
        from.capacity = (uint)r.capacity;
        from.last = all - 1;
        keys k;
        values v;
        load(k, from, warp * KEYS);
        if (!SPARING) load(v, from, warp * KEYS);
        bring_queries(s, r.q + GROUP_X * r.q_row + r.q_start + (ulong)head * D, count, r.scale);
        __syncthreads();
        sums_of o;
        o.top = FROM_BITS((127 - 24) << 23);
        UNROLL for (uint n = 0; n < TILES; n++) {
            o.scale[n] = s.scales[PACKED ? g % 4 : 8 * n + g];
            o.most[n] = lowest;
            o.sum[n] = 0.0f;
            UNROLL for (uint i = 0; i < RUNS * (RUN / 2) * 4; i++) o.out[n][i / (2 * RUN)][i / 4 % (RUN / 2)][i % 4] = 0.0f;
        }
        go_through(o, s, from, k, v, all);
        // The warps' maxima, then what they have, brought to the same one.
        UNROLL for (uint n = 0; n < TILES; n++) {
            const float sum = sum_of_row(o.sum[n]);
            if (t == 0 && (!PACKED || g < 4)) {
                s.most[warp][8 * n + g] = o.most[n];
                s.sums[warp][8 * n + g] = sum;
            }
        }
        __syncthreads();
        UNROLL for (uint n = 0; n < TILES; n++) {
            float factor[2];
            UNROLL for (uint i = 0; i < 2; i++) {
                const uint column = PACKED ? t % 2 * 2 + i : 8 * n + 2 * t + i;
                float high = s.most[0][column];
                UNROLL for (uint w = 1; w < WARPS; w++) high = fmaxf(high, s.most[w][column]);
                factor[i] = power_of_two(SUB(s.most[warp][column], high));
                if (INT8) factor[i] *= o.top;
            }
            UNROLL for (uint i = 0; i < RUNS * (RUN / 2); i++) {
                float(&out)[4] = o.out[n][i / (RUN / 2)][i % (RUN / 2)];
                UNROLL for (uint e = 0; e < 4; e++) {
                    out[e] *= factor[e % 2];
                    if (PACKED) out[e] += __shfl_xor_sync(0xffffffffu, out[e], 2);
                }
                if (warp >= WARPS / 2) {
                    s.given[warp - WARPS / 2][n * RUNS * (RUN / 2) + i][LID % 32] =
                        make_float4(out[0], out[1], out[2], out[3]);
                }
            }
        }
        __syncthreads();
        if (warp < WARPS / 2) {
            UNROLL for (uint i = 0; i < TILES * RUNS * (RUN / 2); i++) {
                const float4 given = s.given[warp][i][LID % 32];
                float(&out)[4] = o.out[i / (RUNS * (RUN / 2))][i / (RUN / 2) % RUNS][i % (RUN / 2)];
                out[0] += given.x;
                out[1] += given.y;
                out[2] += given.z;
                out[3] += given.w;
            }
        }
        __syncthreads();
        if (warp < WARPS / 2 && (!PACKED || t < 2)) {
            UNROLL for (uint i = 0; i < TILES * RUNS * (RUN / 2); i++) {
                const uint n = i / (RUNS * (RUN / 2)), j = i / (RUN / 2) % RUNS, k = i % (RUN / 2);
                const float(&out)[4] = o.out[n][j][k];
                const uint column = 8 * n + 2 * t, d = 8 * RUN * j + RUN * g + 2 * k;
                *(float2 *)&s.out[warp][column][d] = make_float2(out[0], out[2]);
                *(float2 *)&s.out[warp][column + 1][d] = make_float2(out[1], out[3]);
            }
        } else if (warp >= WARPS / 2 && LID - 16 * WARPS < count) {
            const uint c = LID - 16 * WARPS;
            float sum = 0.0f, high = s.most[0][c];
            UNROLL for (uint w = 1; w < WARPS; w++) high = fmaxf(high, s.most[w][c]);
            UNROLL for (uint w = 0; w < WARPS; w++) sum += s.sums[w][c] * power_of_two(SUB(s.most[w][c], high));
            if (r.splits == 1) {
                const float sink = r.sinks ? MUL(r.sinks[head + c], LOG2_E) : lowest;
                s.whole[c] = shares(sum, high, sink, fmaxf(high, sink));
            } else {
                to[c * next_to] = high;
                to[c * next_to + 1] = sum;
            }
        }
        __syncthreads();
        for (uint i = LID; i < count * (D / 2); i += 32 * WARPS) {
            const uint c = i / (D / 2), d = i % (D / 2) * 2;
            float2 value = make_float2(0.0f, 0.0f);
            UNROLL for (uint w = 0; w < WARPS / 2; w++) {
                const float2 part = *(const float2 *)&s.out[w][c][d];
                value.x += part.x;
                value.y += part.y;
            }
            if (r.splits == 1) {
                const float2 share = s.whole[c];
                *(float2 *)(to + c * next_to + d) = make_float2(MUL(fmaf(value.x, share.x, 0.0f), share.y),
                                                                MUL(fmaf(value.y, share.x, 0.0f), share.y));
            } else {
                *(float2 *)(to + c * next_to + 2 + d) = value;
            }
        }
    }
};

} // namespace attend

#endif
