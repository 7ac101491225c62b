// y = scale * W x + bias of bf16 weights for few tokens, by matrix instructions, weights read once for every 16 of them.
//
// A warp keeps the activations of some columns, cut into parts, in registers, and tiles of 16 rows of weights go by, through a ring
// in shared memory that is its own. A group of threads has some of the rows and goes over them once for as many columns as its
// warps have, adding to what it has written. From sm_90 on the activations of the next columns come meanwhile, where it pays.
//
// Sums: of 64 columns by matrix instructions, the smallest parts first; four of these, (0 + 1) + (2 + 3); all of a row's, ascending.
// The order depends on nothing but the columns: a token has the same bits in any batch.
#include "barrier.cuh"
#include "bf16.cuh"

namespace decode_bf16 {

using namespace bf16;

// Columns of a matrix instruction's sum, 128 bytes of a row, and of four.
constexpr uint COLUMNS = 64, FOUR = 4 * COLUMNS;
// Bytes of 16 rows of them.
constexpr uint TILE = 16 * COLUMNS * 2;

// Bytes of shared memory that a group has at most, its warps, and whether copies in bulk pay.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ % 100 != 0 || __CUDA_ARCH__ > 1000)
constexpr uint MOST_SHARED = 99 << 10, WARPS = 4;
constexpr bool IN_BULK = false;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr uint MOST_SHARED = 227 << 10, WARPS = 8;
constexpr bool IN_BULK = true;
#else
constexpr uint MOST_SHARED = 163 << 10, WARPS = 8;
constexpr bool IN_BULK = false;
#endif

// Bytes that come by themselves, counted where they arrive.
DEVICE void count_from(uint counter) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    barrier::barrier_start(counter, 1);
    barrier::barriers_started();
#endif
}
DEVICE void expect(uint counter, uint bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    barrier::barrier_expect(counter, bytes);
#endif
}
DEVICE void bring(uint to, const float *from, uint bytes, uint counter) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(counter)
                 : "memory");
#endif
}
// Waits for all bytes of a phase, by whether its number is odd.
DEVICE void wait_for(uint counter, uint odd) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    barrier::barrier_wait(counter, odd);
#endif
}
// What was read in shared memory may be written by copies in bulk.
DEVICE void before_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

struct matrix {
    const uchar *bytes;
    uint rows;
    uint cols;
};
struct output {
    const float *scale;
    const float *bias;
    float *y;
    ulong y_row;
    uint n;
};

// T instructions of 8 tokens; MOST tiles of each warp in its ring; the sums of BATCH tiles are added at once. AHEAD: activations
// come before they are needed.
template <int T, int MOST, uint BATCH, bool AHEAD>
struct product {
    static constexpr uint TOKENS = 8 * T, THREADS = 32 * WARPS;
    static constexpr int DEPTH = IN_BULK || MOST <= T ? MOST : T + 1;
    // Sums of 64 columns of a warp: as many activations as there are registers for. Fours of a pass at most.
    static constexpr int EACH = 4 / T;
    static constexpr uint FOURS = WARPS / T;
    // Outputs of a batch, and of a thread.
    static constexpr uint OUTPUTS = BATCH * T * 128, MINE = (OUTPUTS + THREADS - 1) / THREADS;
    static constexpr bool BROUGHT = AHEAD && IN_BULK;
    // Between the tokens of a warp: the lanes of a read meet different banks.
    static constexpr uint STRIDE = EACH * COLUMNS + 8;

    struct room {
        float sums[2][BATCH][WARPS][T * 128];
        ulong counters[WARPS];
    };
    // What the launch gives.
    struct large_room {
        uchar ring[WARPS][DEPTH * EACH * TILE];
        float x[BROUGHT ? WARPS : 1][BROUGHT ? TOKENS * STRIDE : 4];
    };

    static_assert(sizeof(room) + sizeof(large_room) <= MOST_SHARED);

    matrix w;
    output o;
    room &r;
    large_room &more;
    uint ring;
    ulong policy;
    uint warp, lane;
    // Tiles of this group, passes over the rows, and fours of a pass.
    uint first, count, passes, fours;
    // What is fetched next, and where from and to.
    uint next_pass, next_tile, next_column, filled, taken;
    uint parts[EACH][T][4][2][PARTS];

    DEVICE_MEMBER product(const matrix &w, const output &o, room &r, large_room &more) : w(w), o(o), r(r), more(more) {
        warp = LID / 32, lane = LID % 32;
        ring = shared_address(more.ring[warp]);
        policy = read_once();
        const uint tiles = (w.rows + 15) / 16;
        first = (uint)((ulong)tiles * GROUP_X / gridDim.x);
        count = (uint)((ulong)tiles * (GROUP_X + 1) / gridDim.x) - first;
        const uint all = (w.cols + FOUR - 1) / FOUR;
        passes = (all + FOURS - 1) / FOURS;
        fours = (all + passes - 1) / passes;
        next_pass = next_tile = filled = taken = 0;
        next_column = column_of(0);
    }

    // This warp's first column in a pass; all columns where it has none.
    DEVICE_MEMBER uint column_of(uint pass) const {
        const uint column = (pass * fours + warp / T) * FOUR + warp % T * EACH * COLUMNS;
        return warp / T < fours ? min(column, w.cols) : w.cols;
    }

    // Begins to copy a tile.
    DEVICE_MEMBER void fetch() {
        if (next_pass < passes) {
            if (next_column < w.cols) {
                const uint eight = lane % 8;
                UNROLL
                for (uint i = 0; i < 4; i++) {
                    const uint own = lane / 8 + 4 * i, row = min((first + next_tile) * 16 + own, w.rows - 1);
                    const uint to = ring + filled * EACH * TILE + own * 128 + (eight ^ (own & 7)) * 16;
                    const uchar *from = w.bytes + ((ulong)row * w.cols + next_column + 8 * eight) * 2;
                    UNROLL
                    for (uint e = 0; e < EACH; e++) {
                        const bool some = next_column + 8 * eight + e * COLUMNS < w.cols;
                        copy_once(to + e * TILE, some ? from + e * 128 : w.bytes, some ? 16 : 0, policy);
                    }
                }
            }
            if (++next_tile == count) {
                next_tile = 0, next_pass++;
                next_column = column_of(next_pass);
            }
        }
        copies_end();
        if (++filled == DEPTH) filled = 0;
    }

    // Brings the activations of this warp's columns.
    DEVICE_MEMBER void bring_tokens(const float *x, uint column) const {
        if (!BROUGHT || column >= w.cols) return;
        const uint bytes = min(EACH * COLUMNS, w.cols - column) * 4, counter = shared_address(&r.counters[warp]);
        if (lane == 0) expect(counter, bytes * min(o.n, TOKENS));
        __syncwarp();
        if (lane < o.n && lane < TOKENS) {
            bring(shared_address(&more.x[warp][lane * STRIDE]), x + (lane * w.cols + column), bytes, counter);
        }
    }

    // Reads them.
    DEVICE_MEMBER void load_tokens(const float *x, uint column, uint pass) {
        const uint g = lane / 4, t = lane % 4;
        if (BROUGHT && column < w.cols) wait_for(shared_address(&r.counters[warp]), pass % 2);
        float2 v[EACH][T][8];
        UNROLL
        for (int e = 0; e < EACH; e++) {
            UNROLL
            for (int j = 0; j < T; j++) {
                const uint token = 8 * j + g;
                UNROLL
                for (uint k = 0; k < 8; k++) {
                    const uint own = e * COLUMNS + 8 * k + 2 * t;
                    const float *at = BROUGHT ? &more.x[warp][token * STRIDE + own] : x + (token * w.cols + column + own);
                    v[e][j][k] = make_float2(0.0f, 0.0f);
                    if (token < o.n && column + own < w.cols) v[e][j][k] = *(const float2 *)at;
                }
            }
        }
        UNROLL
        for (int e = 0; e < EACH; e++) {
            UNROLL
            for (int j = 0; j < T; j++) {
                UNROLL
                for (uint k = 0; k < 8; k++) split(v[e][j][k].x, v[e][j][k].y, parts[e][j][k / 2][k % 2]);
            }
        }
        if (BROUGHT) before_bulk();
        __syncwarp();
    }

    // Multiplies the next tile.
    DEVICE_MEMBER void multiply_tile(float (&sums)[T][4]) const {
        const uint row = lane % 16;
        uint4 a[EACH][4];
        UNROLL
        for (uint e = 0; e < EACH; e++) {
            UNROLL
            for (uint k = 0; k < 4; k++) {
                const uint from = ring + (taken * EACH + e) * TILE + row * 128;
                a[e][k] = load_rows(from + ((2 * k + lane / 16) ^ (row & 7)) * 16);
            }
        }
        float all[EACH][T][4] = {};
        UNROLL
        for (int p = 0; p < PARTS; p++) {
            UNROLL
            for (int k = 0; k < 4; k++) {
                UNROLL
                for (int e = 0; e < EACH; e++) {
                    UNROLL
                    for (int j = 0; j < T; j++) multiply(all[e][j], a[e][k], parts[e][j][k][0][p], parts[e][j][k][1][p]);
                }
            }
        }
        UNROLL
        for (int j = 0; j < T; j++) {
            UNROLL
            for (int c = 0; c < 4; c++) {
                sums[j][c] = all[0][j][c];
                if constexpr (EACH > 1) sums[j][c] = ADD(sums[j][c], all[1][j][c]);
                if constexpr (EACH > 2) sums[j][c] = ADD(sums[j][c], ADD(all[2][j][c], all[3][j][c]));
            }
        }
    }

    // Gives the sums of tile `b` of a batch to the group.
    DEVICE_MEMBER void put(const float (&sums)[T][4], uint turn, uint b) const {
        const uint g = lane / 4, t = lane % 4;
        UNROLL
        for (int j = 0; j < T; j++) {
            float *to = &r.sums[turn][b][warp][j * 128 + g * 8 + 2 * t];
            *(float2 *)to = make_float2(sums[j][0], sums[j][1]);
            *(float2 *)(to + 64) = make_float2(sums[j][2], sums[j][3]);
        }
    }

    // Where output `i` of the batch that begins with tile `start` goes, and its row; null: nowhere.
    DEVICE_MEMBER float *place(uint start, uint i, uint &row) const {
        const uint tile = start + i / 128 / T, token = i / 128 % T * 8 + i % 8;
        row = (first + tile) * 16 + i % 128 / 8;
        return i < OUTPUTS && tile < count && row < w.rows && token < o.n ? o.y + token * o.y_row + row : nullptr;
    }

    // Adds the sums of an output to what passes before gave.
    DEVICE_MEMBER void add_up(uint pass, uint turn, uint i, uint row, float *to, float before) const {
        const float *own = &r.sums[turn][i / 128 / T][0][i % (128 * T)];
        const uint here = min(fours, (w.cols + FOUR - 1) / FOUR - pass * fours);
        float sum = before;
        UNROLL
        for (uint f = 0; f < FOURS; f++) {
            if (f >= here) break;
            float part[T];
            UNROLL
            for (uint k = 0; k < T; k++) part[k] = own[(f * T + k) * T * 128];
            if constexpr (T > 1) part[0] = ADD(part[0], part[1]);
            sum = f == 0 && pass == 0 ? part[0] : ADD(sum, part[0]);
        }
        if (pass + 1 == passes) {
            if (o.scale) sum = MUL(sum, o.scale[0]);
            if (o.bias) sum = ADD(sum, o.bias[row]);
        }
        *to = sum;
    }

    DEVICE_MEMBER void run(const float *x) {
        if (count == 0) return;
        UNROLL
        for (int i = 0; i < DEPTH - 1; i++) fetch();
        if (BROUGHT && lane == 0) count_from(shared_address(&r.counters[warp]));
        __syncwarp();
        BEGIN();
        bring_tokens(x, column_of(0));
        uint turn = 0;
        NO_UNROLL
        for (uint pass = 0; pass < passes; pass++) {
            const uint column = column_of(pass);
            load_tokens(x, column, pass);
            if (pass + 1 < passes) bring_tokens(x, column_of(pass + 1));
            NO_UNROLL
            for (uint start = 0; start < count; start += BATCH) {
                float *to[MINE], before[MINE] = {};
                uint rows[MINE];
                UNROLL
                for (uint m = 0; m < MINE; m++) {
                    to[m] = place(start, LID + m * THREADS, rows[m]);
                    if (pass > 0 && to[m]) before[m] = *to[m];
                }
                NO_UNROLL
                for (uint b = 0; b < min(BATCH, count - start); b++) {
                    fetch();
                    copies_wait<DEPTH - 1>();
                    __syncwarp();
                    float sums[T][4] = {};
                    if (column < w.cols) multiply_tile(sums);
                    __syncwarp();
                    if (++taken == DEPTH) taken = 0;
                    put(sums, turn, b);
                }
                BARRIER();
                UNROLL
                for (uint m = 0; m < MINE; m++) {
                    if (to[m]) add_up(pass, turn, LID + m * THREADS, rows[m], to[m], before[m]);
                }
                turn ^= 1;
            }
        }
        copies_wait<0>();
    }
};

} // namespace decode_bf16

// Arguments as for gantry_gemm_bf16, columns a multiple of 8. Launched with ROOM bytes of shared memory, or as many as there are.
// Grid: x = any, best one for each multiprocessor, y = n / (8 * T) rounded up.
#define DECODE_BF16(name, ROOM, T, ...) \
    extern "C" __global__ void __launch_bounds__(32 * decode_bf16::WARPS, 1) \
    name(const uchar *RESTRICT bytes, const float *RESTRICT x, const float *RESTRICT scale, const float *RESTRICT bias, \
         float *RESTRICT y, ulong first_row, ulong y_row, ulong y_start, uint n, uint rows, uint cols) { \
        using P = decode_bf16::product<T, __VA_ARGS__>; \
        static_assert(sizeof(P::large_room) <= ROOM); \
        __shared__ P::room room; \
        extern __shared__ __align__(16) uchar more[]; \
        const uint token = GROUP_Y * P::TOKENS; \
        const decode_bf16::matrix w = {bytes + first_row * cols * 2, rows, cols}; \
        const decode_bf16::output o = {scale, bias, y + token * y_row + y_start, y_row, min(n - token, P::TOKENS)}; \
        P p(w, o, room, *(P::large_room *)more); \
        p.run(x + (ulong)token * cols); \
    }

// For up to 4 tokens, 8, and 16 at a time: with more of them to read, they shall not be waited for, but take the ring's room.
DECODE_BF16(gantry_decode_bf16_4, 196624, 1, 3, 4, false)
DECODE_BF16(gantry_decode_bf16_8, 198656, 1, 2, 2, true)
DECODE_BF16(gantry_decode_bf16_16, 167936, 2, 3, 2, true)
