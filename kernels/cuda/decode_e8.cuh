// Products of E8 weights with few tokens.
//
// A warp has one chunk of the columns, the same as long as it lives, so that its activations stay in registers. Lane 4 v + t has
// blocks 2 t and 2 t + 1 of unit v of the chunk (a unit: 256 columns, eight blocks of 32 that share a scale), row after row; with
// chunks of fewer than 8 units a warp has several rows at once. So what a warp reads lies side by side.
//
// Magnitudes and signs are looked up in shared memory, where each lane has a copy of its own, so that all lanes read at once: 256
// bytes from `256 i` on hold entry i of the codebook for each lane, and (i < 128) what signs i make of eight magnitudes: two
// selectors of bytes of a word and of its negative.
//
// Order of sums: chunks of units as `chunk_shift` cuts them. For each pair of blocks, p = f32(sum * d_w) of each, s = fma(p1, d_x1,
// p0 * d_x0), one rounding each; in a chunk four sums, of the pairs 4 u + t for t = 0 to 3, each ascending from 0; (t0 + t1) +
// (t2 + t3); then the chunks are added, ascending from 0. It depends on nothing but the columns.
#ifndef GANTRY_DECODE_E8_CUH
#define GANTRY_DECODE_E8_CUH

#include "mma.cuh"

namespace e8 {

using namespace mma;

// Rows of a tile: a warp's part of them is added at once.
constexpr uint TILE = 8;
constexpr uint TABLE_BYTES = 256 * 256;
// Between the rows of a warp's pairs.
constexpr uint STRIDE = 36;

// Units of a chunk, by their logarithm: 8, or fewer where more than an eighth of them would be none.
DEVICE uint chunk_shift(uint units) {
    uint shift = 3;
    while (shift > 0 && ((units + (1u << shift) - 1) >> shift << shift) * 8 > units * 9) shift--;
    return shift;
}

// Dynamic shared memory of a group has the tables, then what warps add. Where it is known at which address it begins, an entry's is
// bytes side by side and that number, which the instruction adds.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr uint SHARED_BASE = 1024;
#else
constexpr uint SHARED_BASE = 0;
#endif
#define E8_FIXED (SHARED_BASE != 0)

DEVICE uint2 weights_8(const uchar *at, ulong policy) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                 : "=r"(v.x), "=r"(v.y)
                 : "l"(at), "l"(policy));
    return v;
}
DEVICE uint weights_4(const void *at, ulong policy) {
    uint v;
    asm volatile("ld.global.nc.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(at), "l"(policy));
    return v;
}
// Kept in L1: what is beside it is read for the next rows.
DEVICE ushort weights_2(const uchar *at, ulong policy) {
    ushort v;
    asm volatile("ld.global.nc.L2::cache_hint.u16 %0, [%1], %2;" : "=h"(v) : "l"(at), "l"(policy));
    return v;
}

// Where a lane reads: its blocks of unit 0 of row 0.
struct planes {
    const uchar *indices;
    const uchar *words;
    const uchar *scales;
};

// A lane's part of a row: two blocks, as they are stored.
struct stored {
    uint4 indices;
    uint2 words;
    ushort scale;
};

// `at`: the unit, counted from the matrix' first.
DEVICE void load(stored &s, const planes &p, ulong matrix, uint at, ulong policy) {
    s.indices = weights_16(p.indices + matrix + (ulong)at * 64, policy);
    s.words = weights_8(p.words + matrix + (ulong)at * 32, policy);
    s.scale = weights_2(p.scales + matrix + (ulong)at * 2, policy);
}

// Fills the tables: the group has 256 threads or more, and has to meet before they are read. Neighbours write to different banks.
DEVICE void fill(uint *tables, const uint *codebook, ulong policy) {
    const uint entry = LID % 256, first = LID / 256, step = blockDim.x / 256;
    if (first >= step) return;
    const uint v = weights_4(codebook + entry, policy);
    const uint signs = entry | (POPCOUNT(entry) & 1) << 7;
    uint s = 0x32103210;
    UNROLL
    for (uint k = 0; k < 8; k++) s |= (signs >> k & 1) << (4 * k + 2);
    for (uint i = first; i < 8; i += step) {
        uint *at = tables + entry * 64 + (i + entry) % 8 * 4;
        *(uint4 *)at = make_uint4(v, v, v, v);
        if (entry < 128) *(uint4 *)(at + 32) = make_uint4(s, s, s, s);
    }
}

DEVICE uint entry_at(uint at) {
    uint v;
    asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(v) : "r"(at), "n"(SHARED_BASE));
    return v;
}
DEVICE uint signs_at(uint at) {
    uint v;
    asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(v) : "r"(at), "n"(SHARED_BASE + 128));
    return v;
}

// Bytes of two words; not as the compiler has it, which makes shifts and masks of some selectors.
DEVICE uint bytes_of(uint a, uint b, uint selector) {
    uint v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(selector));
    return v;
}

// What a lane needs to look up: where the tables are, its own bytes of an entry, and -1 (which the compiler shall not know).
struct looked_up {
    uint tables;
    uint own;
    uint minus_one;
};

// Four weights of eight: the entry whose index is byte `k` of `indices`, with signs.
DEVICE uint four(const looked_up &table, uint indices, uint k, uint selector) {
    const uint at = bytes_of(indices, table.own, 0x5504 | k << 4);
    const uint g = entry_at(E8_FIXED ? at : at + table.tables);
    // The negative of each byte: none is 0, so that nothing is borrowed. (By a product, for there are units to spare that multiply.)
    return bytes_of(g, g * table.minus_one + 0x01010100u, selector);
}

// A block: eight words of four weights.
DEVICE void decode(uint (&q)[8], uint low, uint high, uint word, const looked_up &table) {
    UNROLL
    for (uint l = 0; l < 4; l++) {
        // Seven signs to bits 8 to 14.
        const uint seven = (l == 0 ? word << 8 : l == 1 ? word << 1 : l == 2 ? word >> 6 : word >> 13) & 0x7f00u;
        const uint at = seven | table.own, selectors = signs_at(E8_FIXED ? at : at + table.tables);
        const uint indices = l < 2 ? low : high, k = l % 2 * 2;
        q[2 * l] = four(table, indices, k, selectors);
        q[2 * l + 1] = four(table, indices, k + 1, selectors >> 16);
    }
}

// A job multiplies matrices of one shape, `rows` by `units`: at(m) tells where matrix m begins, after the job's bytes, and its first
// row (MISSING: it is not here, and nothing is stored); row(token) is where activations are, store(row, token, value) takes what came of
// it. begin(m) is called before those of another matrix. ALONE: there is one, which does not depend on the kernel before.
//
// The chunks of a row are the warps of a slot, which goes through rows in tiles.
constexpr ulong MISSING = ~(ulong)0;
struct matrix {
    ulong at;
    uint first;
};
// Matrices that a warp looks up at once.
constexpr uint LOOKED_UP = 32;

// DEPTH: rows that are under way.
template <uint TOKENS, uint DEPTH>
struct product {
    // Bytes of shared memory for a warp: pairs of a tile, the chunk's sums of two tiles, matrices.
    static constexpr uint PAIRS = TOKENS * TILE * STRIDE, SUMS = TOKENS * TILE;
    static constexpr uint MATRICES = (PAIRS + 2 * SUMS) * 4, ROOM = MATRICES + LOOKED_UP * sizeof(matrix);

    // A lane's activations: two blocks of each token.
    struct input {
        uint q[TOKENS][16];
        float2 scales[TOKENS];
    };

    template <typename Job>
    DEVICE_MEMBER static void read_input(input &x, const Job &job, uint unit, uint t) {
        UNROLL
        for (uint i = 0; i < TOKENS; i++) {
            const uint from = job.row(i);
            const uint4 *q = (const uint4 *)(job.xq + (ulong)(from * job.units + unit) * 256 + t * 64);
            UNROLL
            for (uint k = 0; k < 4; k++) {
                const uint4 v = q[k];
                x.q[i][4 * k] = v.x, x.q[i][4 * k + 1] = v.y, x.q[i][4 * k + 2] = v.z, x.q[i][4 * k + 3] = v.w;
            }
            x.scales[i] = *(const float2 *)(job.xs + (ulong)(from * job.units + unit) * 8 + t * 2);
        }
    }

    // Puts a pair of blocks times each of the first SOME tokens into `to`. `reload` brings what is decoded next, once this has been.
    template <uint SOME, typename Reload>
    DEVICE_MEMBER static void multiply(float *to, const input &x, const stored &s, const looked_up &table, Reload reload) {
        const float quarter = MUL(from_half(s.scale), 0.25f), eighth = MUL(quarter, 0.5f);
        float sums[SOME];
        UNROLL
        for (uint j = 0; j < 2; j++) {
            uint q[8];
            const uint word = j == 0 ? s.words.x : s.words.y;
            decode(q, j == 0 ? s.indices.x : s.indices.z, j == 0 ? s.indices.y : s.indices.w, word, table);
            // d (0.5 + c) / 4, exact; and what takes MAGIC out again.
            const float d = fmaf((float)(word >> 28), quarter, eighth), take = MUL(d, -MAGIC);
            if (j == 1) reload();
            UNROLL
            for (uint i = 0; i < SOME; i++) {
                int sum = MAGIC_BITS;
                UNROLL
                for (uint k = 0; k < 8; k++) sum = DOT4(q[k], x.q[i][8 * j + k], sum);
                const float p = fmaf(__int_as_float(sum), d, take);
                sums[i] = j == 0 ? MUL(p, x.scales[i].x) : fmaf(p, x.scales[i].y, sums[i]);
            }
        }
        UNROLL
        for (uint i = 0; i < SOME; i++) to[i * (TILE * STRIDE)] = sums[i];
    }

    // Adds the pairs of a tile, of `count` units: a lane has one of the four sums of a row, or of several tokens all of a row.
    DEVICE_MEMBER static void add_pairs(float *to, const float *pairs, uint count) {
        const uint lane = LID % 32;
        if constexpr (TOKENS < 4) {
            UNROLL
            for (uint i = 0; i < TOKENS; i++) {
                const float *own = pairs + (i * TILE + lane / 4) * STRIDE + lane % 4;
                float sum = 0.0f;
                if (count == 8) {
                    UNROLL
                    for (uint c = 0; c < 8; c++) sum = ADD(sum, own[c * 4]);
                } else {
                    NO_UNROLL
                    for (uint c = 0; c < count; c++) sum = ADD(sum, own[c * 4]);
                }
                sum = ADD(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
                sum = ADD(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
                if (lane % 4 == 0) to[i * TILE + lane / 4] = sum;
            }
        } else {
            NO_UNROLL
            for (uint i = lane; i < SUMS; i += 32) {
                float sums[4] = {};
                NO_UNROLL
                for (uint c = 0; c < count; c++) {
                    const float4 v = *(const float4 *)(pairs + i * STRIDE + c * 4);
                    sums[0] = ADD(sums[0], v.x), sums[1] = ADD(sums[1], v.y);
                    sums[2] = ADD(sums[2], v.z), sums[3] = ADD(sums[3], v.w);
                }
                to[i] = ADD(ADD(sums[0], sums[1]), ADD(sums[2], sums[3]));
            }
        }
    }

    template <typename Job>
    DEVICE_MEMBER static void run(Job job, const uint *codebook, uchar *shared) {
        const ulong policy = read_once();
        const uint warp = LID / 32, lane = LID % 32, warps = blockDim.x / 32, units = job.units, rows = job.rows;
        const uint shift = chunk_shift(units), chunk = 1u << shift, chunks = (units + chunk - 1) >> shift;
        const uint slots = warps / chunks, slot = warp / chunks, mine = warp - slot * chunks;
        looked_up table = {shared_address(shared), lane * 4, ~(gridDim.x >> 31)};
        if (E8_FIXED && table.tables != SHARED_BASE) __trap();
        // Rows that a warp has at once, the lane's among them, its unit and pair of blocks.
        const uint at_once = 8u >> shift, within = lane / 4 >> shift, v = lane / 4 & (chunk - 1), t = lane % 4;
        const uint unit = min(mine * chunk + v, units - 1), count = min(chunk, units - mine * chunk);
        planes p = {job.bytes + t * 16, job.bytes + job.words + t * 8, job.bytes + job.scales};
        // Computed once.
        asm volatile("" : "+l"(p.indices), "+l"(p.words), "+l"(p.scales), "+r"(table.minus_one), "+r"(table.own));
        if (!Job::ALONE) {
            fill((uint *)shared, codebook, policy);
            BEGIN();
        }
        // All rows, by those at once, are dealt out: each slot has as many side by side.
        const uint groups = (rows + at_once - 1) >> (3 - shift), all = groups * job.matrices();
        const uint dealt = slots * gridDim.x, turn_of = GROUP_X * slots + slot, each = all / dealt, more = all - each * dealt;
        uint left = slot < slots ? each + (turn_of < more) : 0;
        const uint start = turn_of * each + min(turn_of, more);
        uint m = Job::ALONE ? 0 : start / groups, row = (start - m * groups) * at_once;
        uchar *room = shared + TABLE_BYTES;
        matrix *known = (matrix *)(room + warps * MATRICES) + warp * LOOKED_UP;
        uint known_from = m;
        const auto look_up = [&] {
            __syncwarp();
            known[lane] = known_from + lane < job.matrices_known() ? job.at(known_from + lane) : matrix{MISSING, 0};
            __syncwarp();
        };
        if (!Job::ALONE && left > 0) look_up();
        // What is loaded next.
        uint to_load = left, load_m = m, load_row = row;
        matrix from = Job::ALONE ? job.at(0) : left > 0 ? known[0] : matrix{MISSING, 0};
        const auto load_next = [&](stored &to) {
            if (to_load == 0) return;
            const uint unit_at = (from.first + min(load_row + within, rows - 1)) * units + unit;
            if (Job::ALONE || from.at != MISSING) load(to, p, Job::ALONE ? 0 : from.at, unit_at, policy);
            to_load--;
            load_row += at_once;
            if (!Job::ALONE && load_row >= rows && to_load > 0) {
                load_row = 0;
                load_m++;
                from = known[load_m - known_from];
            }
        };
        const uint tile_groups = TILE >> (3 - shift);
        stored s[DEPTH] = {};
        UNROLL
        for (uint i = 0; i < DEPTH; i++) load_next(s[i]);
        if (Job::ALONE) {
            fill((uint *)shared, codebook, policy);
            BEGIN();
        }
        BARRIER();
        float *pairs = (float *)room + warp * PAIRS, *sums = (float *)room + warps * PAIRS, *to = pairs + within * STRIDE + v * 4 + t;
        input x;
        bool other = true;
        uint adds = 0;
        for (uint turn = 0; left > 0; turn ^= 1) {
            if (other) {
                if (!Job::ALONE && m - known_from >= LOOKED_UP / 2) {
                    known_from = m;
                    look_up();
                }
                job.begin(m);
                read_input(x, job, unit, t);
            }
            const uint here = min(min(left, tile_groups), groups - (row >> (3 - shift)));
            left -= here;
            float *at = to;
            const auto rows_of_tile = [&](auto some) {
                NO_UNROLL
                for (uint i = 0; i < here; i += DEPTH) {
                    UNROLL
                    for (uint j = 0; j < DEPTH; j++) {
                        if (j > 0 && i + j >= here) break;
                        multiply<decltype(some)::value>(at, x, s[j], table, [&] { load_next(s[j]); });
                        at += at_once * STRIDE;
                    }
                }
                // The next tile begins with the first again.
                for (uint i = here % DEPTH; i > 0; i--) {
                    const stored first = s[0];
                    UNROLL
                    for (uint j = 0; j + 1 < DEPTH; j++) s[j] = s[j + 1];
                    s[DEPTH - 1] = first;
                }
            };
            if (!Job::ALONE && TOKENS > 1 && job.tokens <= 1) rows_of_tile(std::integral_constant<uint, 1>());
            else rows_of_tile(std::integral_constant<uint, TOKENS>());
            __syncwarp();
            // While a tile is added the next one's sums go elsewhere.
            float *both = sums + turn * (warps * SUMS);
            add_pairs(both + warp * SUMS, pairs, count);
            if (chunks > 1) asm volatile("bar.sync %0, %1;" ::"r"(slot + 1), "r"(32 * chunks) : "memory");
            else __syncwarp();
            if (adds == mine) {
                const float *chunk_sums = both + (warp - mine) * SUMS;
                const uint r = lane % TILE;
                UNROLL
                for (uint i = lane; i < SUMS; i += 32) {
                    if (r >= here * at_once || row + r >= rows || i / TILE >= job.tokens) continue;
                    float sum = 0.0f;
                    NO_UNROLL
                    for (uint c = 0; c < chunks; c++) sum = ADD(sum, chunk_sums[c * SUMS + i]);
                    job.store(row + r, i / TILE, sum);
                }
            }
            if (chunks == 1) __syncwarp();
            adds = adds + 1 == chunks ? 0 : adds + 1;
            row += here * at_once;
            other = !Job::ALONE && row >= rows;
            if (other) row = 0, m++;
        }
    }
};

} // namespace e8

#endif
