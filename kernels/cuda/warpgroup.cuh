// Hopper's matrix instructions of four warps (wgmma) on int8.
//
// m64nNk32: A is 64 rows of weights in registers, warp w of the four has rows 16 w .. 16 w + 16 as m16n8k32 has them (mma.cuh); B
// is N tokens in shared memory, rows of 128 columns whose pieces of 16 bytes are swapped by the copy (a piece's number is xored
// with the row's, modulo 8). Columns have their natural order in B, so that lanes give each other columns of A first: in the
// orders nv_a32 and nv_a64 each has columns side by side, of which an instruction wants four of every sixteen.
#ifndef GANTRY_WARPGROUP_CUH
#define GANTRY_WARPGROUP_CUH

#include "resident.cuh"

#ifdef GANTRY_RESIDENT

namespace warpgroup {

using namespace resident;

// The registers of a result as instructions name them, and as the compiler is told of them.
#define RESULTS_16(i) \
    "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), "+r"(d[i + 7]), \
        "+r"(d[i + 8]), "+r"(d[i + 9]), "+r"(d[i + 10]), "+r"(d[i + 11]), "+r"(d[i + 12]), "+r"(d[i + 13]), "+r"(d[i + 14]), \
        "+r"(d[i + 15])
#define RESULTS_32(i) RESULTS_16(i), RESULTS_16(i + 16)
#define RESULTS_64(i) RESULTS_32(i), RESULTS_32(i + 32)
#define RESULTS_128(i) RESULTS_64(i), RESULTS_64(i + 64)
#define NAMES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_128 NAMES_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d = a b, or with `add` d + a b; later. `tokens`: of B, twice the registers of a result, after which come those of a, b and add.
#define MULTIPLY(tokens, results, a0, a1, a2, a3, at, plus) \
    DEVICE void multiply(int (&d)[results], uint4 a, ulong b, int add) { \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %" #plus ", 0;\n\t" \
                     "wgmma.mma_async.sync.aligned.m64n" #tokens "k32.s32.s8.s8 {" NAMES_##results "}, " \
                     "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #at ", p;}" \
                     : RESULTS_##results(0) \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add)); \
    }
MULTIPLY(64, 32, 32, 33, 34, 35, 36, 37)
MULTIPLY(128, 64, 64, 65, 66, 67, 68, 69)
MULTIPLY(256, 128, 128, 129, 130, 131, 132, 133)

// Before the first instruction that takes registers which others wrote; ends a group of instructions; waits for all but the last
// LEFT groups.
DEVICE void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEVICE void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Where B lies: rows of SPAN bytes from a multiple of 1024 on, and 32 columns more for each `step`.
DEVICE ulong tokens_at(uint address, uint step) {
    // Swaps over 128 bytes; 1024 bytes from 8 rows to the next 8.
    return (ulong)1 << 62 | (ulong)(1024 >> 4) << 32 | (ulong)1 << 16 | ((address + 32 * step) >> 4 & 0x3fff);
}

// What lanes have of 16 rows by 64 columns, two steps of nv_a64, as two instructions take it: of every 16 columns each lane of
// four has 4. Lane t gives lane u word u and takes its word t.
DEVICE void in_order_64(uint4 &a, uint4 &b) {
    const bool odd = LID & 1, high = LID & 2;
    uint w[2][4] = {{a.x, a.z, b.x, b.z}, {a.y, a.w, b.y, b.w}};
    UNROLL
    for (int k = 0; k < 2; k++) {
        UNROLL
        for (int j = 0; j < 4; j += 2) {
            const uint other = __shfl_xor_sync(~0u, odd ? w[k][j] : w[k][j + 1], 1);
            if (odd) w[k][j] = other;
            else w[k][j + 1] = other;
        }
        UNROLL
        for (int j = 0; j < 2; j++) {
            const uint other = __shfl_xor_sync(~0u, high ? w[k][j] : w[k][j + 2], 2);
            if (high) w[k][j] = other;
            else w[k][j + 2] = other;
        }
    }
    a = make_uint4(w[0][0], w[1][0], w[0][1], w[1][1]);
    b = make_uint4(w[0][2], w[1][2], w[0][3], w[1][3]);
}

// The same of 16 rows by 32 columns of nv_a32.
DEVICE void in_order_32(uint4 &a) {
    const uint t = LID % 4, from = (LID % 32 & ~3u) | t >> 1 | (t & 1) << 1;
    const bool high = t >= 2, odd = t & 1;
    const uint x = __shfl_sync(~0u, high ? a.z : a.x, from), y = __shfl_sync(~0u, high ? a.w : a.y, from);
    const uint z = __shfl_sync(~0u, high ? a.x : a.z, from ^ 2), w = __shfl_sync(~0u, high ? a.y : a.w, from ^ 2);
    a = odd ? make_uint4(z, w, x, y) : make_uint4(x, y, z, w);
}

} // namespace warpgroup

#endif

#endif
