// What products by groups that stay on their multiprocessors share, on Hopper. Such a group takes one tile after the other: 128 rows by
// some tokens. One thread has the card copy stages of 128 columns as soon as there is room, also for the next tile while this one
// is stored; barriers in shared memory count what has come. Eight warps multiply.
#ifndef GANTRY_RESIDENT_CUH
#define GANTRY_RESIDENT_CUH

#include "barrier.cuh"
#include "mma.cuh"

// Only code for sm_90a has all of these instructions.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GANTRY_RESIDENT 1
#endif

// What a copy of a tile of a matrix is told by, made by the driver (cuTensorMapEncodeTiled).
struct __align__(64) tensor_map {
    ulong words[16];
};

namespace resident {

using mma::shared_address;

constexpr uint ROWS = 128;
// Two times four warps that multiply, and four that bring what they need.
constexpr uint GROUP = 384, CONSUMERS = 256;
// Registers of their threads.
constexpr int MANY = 216, FEW = 72;
// Groups side by side take tiles of at most so many tokens, whose activations stay in the L2 cache meanwhile.
constexpr uint PANEL = 2048;

// The arguments of gantry_gemm_i8_*, activations by their map.
struct gemm_input {
    const uchar *bytes;
    const float *xs;
    const float *scale;
    const float *bias;
    float *y;
    ulong scales;
    ulong first_row;
    ulong y_row;
    ulong y_start;
    uint n;
    uint rows;
    uint cols;
};

#ifdef GANTRY_RESIDENT

using namespace barrier;

// Columns of a stage.
constexpr uint SPAN = 128;

// Copies the tile of a map that begins at (column, row).
DEVICE void copy_tile(uint to, const tensor_map &map, uint column, uint row, uint barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// A barrier of the warps that multiply, without the others.
DEVICE void consumers_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Registers from the four warps that need few to those that need many.
template <int COUNT>
DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

struct spot {
    uint row;
    uint token;
};

// All tiles in an order: those of the same rows side by side, in panels of tokens. A group takes every so many of them.
template <uint TOKENS>
struct walk {
    uint rows, tokens, tiles;

    DEVICE_MEMBER walk(const gemm_input &o) {
        rows = (o.rows + ROWS - 1) / ROWS, tokens = (o.n + TOKENS - 1) / TOKENS, tiles = rows * tokens;
    }
    DEVICE_MEMBER spot at(uint i) const {
        const uint panel = PANEL / TOKENS, before = i / (panel * rows), width = min(panel, tokens - before * panel);
        const uint in = i - before * panel * rows;
        return {in / width * ROWS, (before * panel + in % width) * TOKENS};
    }
};

// A place in a ring of stages, and which time round it is.
template <uint STAGES>
struct place {
    uint slot = 0, parity = 0;

    DEVICE_MEMBER void next() {
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
};

// What is stored: rows `row` and 8 more.
struct output {
    const gemm_input &o;
    uint row;
    // What changes nothing, where there is none: -0 keeps a zero's sign.
    float scale, bias[2];
    bool is[2];

    DEVICE_MEMBER output(const gemm_input &o, uint row) : o(o), row(row) {
        scale = o.scale ? o.scale[0] : 1.0f;
        UNROLL
        for (uint r = 0; r < 2; r++) {
            is[r] = row + 8 * r < o.rows;
            bias[r] = o.bias && is[r] ? o.bias[row + 8 * r] : -0.0f;
        }
    }
    // value_of(j, k, r) is of row + 8 r and token + 8 j + k; TOKENS of a tile.
    template <uint TOKENS, typename ValueOf>
    DEVICE_MEMBER void store(uint token, ValueOf value_of) const {
        float *y = o.y + token * o.y_row + o.y_start + row;
        UNROLL
        for (uint j = 0; j < TOKENS / 8; j++) {
            UNROLL
            for (uint k = 0; k < 2; k++) {
                const bool there = token + 8 * j + k < o.n;
                UNROLL
                for (uint r = 0; r < 2; r++) {
                    const float value = ADD(MUL(value_of(j, k, r), scale), bias[r]);
                    if (there && is[r]) y[k * o.y_row + 8 * r] = value;
                }
            }
            y += 8 * o.y_row;
        }
    }
};

// What is copied: weights, rows of 16 rows side by side, and activations.
struct maps {
    const tensor_map &weights;
    const tensor_map &tokens;
};

// Has the stages of all tiles copied, weights and after them activations; what lies past the last row, token and column is zeros.
template <typename P>
DEVICE void copy_all(const maps &m, const gemm_input &o, const typename P::tiles &w, uint base, uint full, uint empty) {
    place<P::STAGES> p;
    for (uint i = GROUP_X; i < w.tiles; i += gridDim.x) {
        const spot t = w.at(i);
        NO_UNROLL
        for (uint column = 0; column < o.cols; column += SPAN) {
            const uint to = base + p.slot * P::STAGE;
            barrier_wait(empty + 8 * p.slot, p.parity ^ 1);
            barrier_expect(full + 8 * p.slot, P::A_BYTES + P::B_BYTES);
            copy_tile(to, m.weights, 2 * column, t.row / 16, full + 8 * p.slot);
            copy_tile(to + P::A_BYTES, m.tokens, column, t.token, full + 8 * p.slot);
            p.next();
        }
    }
}

// A warp needs a stage no more, all of its lanes.
DEVICE void release(uint empty) {
    __syncwarp();
    if (LID % 32 == 0) barrier_arrive(empty);
}

#endif

} // namespace resident

// A kernel of such groups: the arguments are those of gantry_gemm_i8_*, before them what is copied by tiles, weights (from the first row
// on, 16 rows side by side are one of the map) and activations. `bytes`: what it takes of shared memory, which kernels are
// launched with. Grid: any, at best as many groups as there are multiprocessors.
#ifdef GANTRY_RESIDENT
#define RESIDENT_RUN(room_bytes, ...) \
    using Product = __VA_ARGS__; \
    static_assert(Product::ROOM == room_bytes, "what it is launched with"); \
    extern __shared__ __align__(1024) uchar resident_room[]; \
    Product::run({weights, tokens}, {bytes, xs, scale, bias, y, scales, first_row, y_row, y_start, n, rows, cols}, resident_room)
#else
// Never chosen there.
#define RESIDENT_RUN(room_bytes, ...) asm volatile("trap;")
#endif
#define RESIDENT(name, room_bytes, ...) \
    extern "C" __global__ void __launch_bounds__(resident::GROUP, 1) \
    name(const __grid_constant__ tensor_map weights, const __grid_constant__ tensor_map tokens, const uchar *bytes, \
         const float *xs, const float *scale, const float *bias, float *y, ulong scales, ulong first_row, ulong, ulong y_row, \
         ulong y_start, uint n, uint rows, uint cols, uint) { \
        BEGIN(); \
        RESIDENT_RUN(room_bytes, __VA_ARGS__); \
    }

#endif
