/* The names in which CUDA C++, HIP and OpenCL C 1.2 differ, so that each kernel is written once.
 *
 * Rules of the kernels: local memory and barriers only, no operation of a sub-group (in OpenCL), no atomics (but for the flags of
 * exchange.c: loads that acquire, stores that release), no pointers in buffers, 64-bit offsets. Every sum has one order,
 * so that a launch repeats bit for bit. Indices of a grid are x, y, z; a group has one dimension and the size that its
 * kernel names.
 *
 * A kernel with barriers takes exactly the grid that it names; nobody returns from it before the last of them, and none
 * stands in a branch (loops that all members run alike are fine): some OpenCL compilers for processors make wrong code
 * of either, even where the whole group goes one way.
 *
 * Where a kernel promises the bits of the CPU it uses ADD, SUB, MUL, DIV and SQRT: one IEEE operation each, never
 * contracted. Elsewhere MAD may be fused. Arguments come in this order: pointers, ulong, uint and int, float. A pointer
 * that may be absent is null then. */
#ifndef GANTRY_PORTABLE_H
#define GANTRY_PORTABLE_H

#if defined(__CUDACC__)

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
static_assert(sizeof(ulong) == 8, "offsets have 64 bits");

#define GLOBAL
#define LOCAL
/* Empty: what is const and restrict is read by loads of what never changes, and those may be moved before BEGIN. */
#define RESTRICT
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define CONSTANT static __constant__ const
#define KERNEL(size) extern "C" __global__ void __launch_bounds__(size)
/* The same with registers for two groups on a multiprocessor; and that before sm_100, where the compiler does not need
 * more to do without spills. */
#define KERNEL_OF_TWO(size) extern "C" __global__ void __launch_bounds__(size, 2)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
#define KERNEL_LARGE(size) KERNEL_OF_TWO(size)
#else
#define KERNEL_LARGE(size) KERNEL(size)
#endif
#define DEVICE static __device__ __forceinline__
#define BARRIER() __syncthreads()
/* First in every kernel: lets the next one in the stream start where there is room, and waits for the one before, all of
 * whose writes are seen then. Before it a kernel reads nothing that another one writes. */
DEVICE void begin_kernel(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}
#define BEGIN() begin_kernel()
/* The same for a kernel that waits for another card: the next one must not take the room of what would end the wait. */
DEVICE void begin_alone(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#define BEGIN_ALONE() begin_alone()
/* The same for a kernel after which one comes that reads, before its own wait, what the kernel before this one wrote: that one
 * starts only when all groups of this one are past their wait. */
DEVICE void begin_in_turn(void) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#define BEGIN_IN_TURN() begin_in_turn()
/* Brings what lies from a multiple of 16 on into the L2 cache, a multiple of 16 bytes: for weights, before BEGIN. */
DEVICE void prefetch(const void *from, uint bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
#else
    (void)from, (void)bytes;
#endif
}
#define PREFETCH(from, bytes) prefetch(from, bytes)
#define LOADS_APART() ((void)0)
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define NO_UNROLL _Pragma("unroll 1")
#define GROUP_X blockIdx.x
#define GROUP_Y blockIdx.y
#define GROUP_Z blockIdx.z
#define LID threadIdx.x

#define ADD(a, b) __fadd_rn(a, b)
#define SUB(a, b) __fsub_rn(a, b)
#define MUL(a, b) __fmul_rn(a, b)
#define DIV(a, b) __fdiv_rn(a, b)
#define SQRT(a) __fsqrt_rn(a)
#define MAD(a, b, c) fmaf(a, b, c)
#define NEAREST(x) rintf(x)
#define NEAREST_AWAY(x) roundf(x)
#define MAGNITUDE(x) fabsf(x)
#define BITS(x) __float_as_uint(x)
#define FROM_BITS(x) __uint_as_float(x)
#define DOT4(a, b, c) __dp4a((int)(a), (int)(b), c)
#define POPCOUNT(x) ((uint)__popc(x))
#define ROTATE_RIGHT(x, n) rotate_right(x, n)
#define LOAD_ONCE(p) __ldcs(p)
/* Whole bytes are swapped, which is quicker; `n` is known when this is compiled. */
DEVICE uint rotate_right(uint x, uint n) {
    return n == 8 ? __byte_perm(x, 0, 0x0321) : n == 16 ? __byte_perm(x, 0, 0x1032) : __funnelshift_r(x, x, n);
}

/* A word that another card writes, or reads: what that card did before it wrote the word is seen by who has read it, by the
 * rest of its group after GLOBAL_BARRIER too. */
DEVICE uint load_acquire(const uint *p) {
    uint v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
/* A word that an earlier kernel wrote, not as an older one left it in a cache of this multiprocessor. */
DEVICE uint load_relaxed(const uint *p) {
    uint v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
DEVICE void store_release(uint *p, uint v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}
DEVICE ulong nanoseconds() {
    ulong t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
#define LOAD_ACQUIRE(p) load_acquire(p)
#define STORE_RELEASE(p, v) store_release(p, v)
/* The time in ns, for who has looked `spins` times. */
#define NOW(spins) nanoseconds()
#define GLOBAL_BARRIER() __syncthreads()

/* An fp16 as f32, and the fp16 nearest to an f32 (ties to even). */
DEVICE float from_half(ushort bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
DEVICE ushort to_half(float x) {
    ushort bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

#elif defined(__HIP__)

#include "portable_hip.h"

#else /* OpenCL C */

#pragma OPENCL FP_CONTRACT OFF

#define GLOBAL __global
#define LOCAL __local
#define RESTRICT restrict
#define SHARED(type, name, count) __local type name[count] __attribute__((aligned(16)))
#define CONSTANT __constant
#define KERNEL(size) __kernel __attribute__((reqd_work_group_size(size, 1, 1))) void
#define KERNEL_OF_TWO(size) KERNEL(size)
#define KERNEL_LARGE(size) KERNEL(size)
#if defined(GANTRY_SPIRV)
/* Without it, what is compiled without optimising forbids it. */
#define DEVICE static inline __attribute__((always_inline))
#else
#define DEVICE static inline
#endif
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define BEGIN() ((void)0)
#define BEGIN_ALONE() ((void)0)
#define PREFETCH(from, bytes) ((void)(from), (void)(bytes))
#define LOADS_APART() ((void)0)
#define UNROLL
#define UNROLL_4
#define NO_UNROLL
#define GROUP_X ((uint)get_group_id(0))
#define GROUP_Y ((uint)get_group_id(1))
#define GROUP_Z ((uint)get_group_id(2))
#define LID ((uint)get_local_id(0))

#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
/* Compilers of sources are told to round them correctly; what is compiled to SPIR-V ahead of time cannot tell a driver. */
#if defined(GANTRY_SPIRV)
#define DIV(a, b) exact_div(a, b)
#define SQRT(a) exact_sqrt(a)
#else
#define DIV(a, b) ((a) / (b))
#define SQRT(a) sqrt(a)
#endif
#define MAD(a, b, c) mad(a, b, c)
#define NEAREST(x) rint(x)
#define NEAREST_AWAY(x) round(x)
#define MAGNITUDE(x) fabs(x)
#define BITS(x) as_uint(x)
#define FROM_BITS(x) as_float(x)
#define DOT4(a, b, c) dot_of_4(as_char4(a), as_char4(b), c)
#define POPCOUNT(x) popcount(x)

/* OpenCL has no clock: a look counts a microsecond, or as many nanoseconds as who builds this says. */
#ifndef LOOK
#define LOOK 1000
#endif
#define LOAD_ACQUIRE(p) load_acquire(p)
#define STORE_RELEASE(p, v) store_release(p, v)
#define NOW(spins) ((ulong)(spins) * LOOK)
#define GLOBAL_BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

#if defined(GANTRY_SPIRV)
/* By SPIR-V's own name: OpenCL C has fences for all devices from 2.0 on, where pointers without a space have all of them, which is
 * slower. Scope 0: all devices; 2 acquires, 4 releases, 0x200 means global memory. The words are read and written as
 * they are, not by atomics: drivers make those of operations that change memory, which not every bus between cards can do. */
void __attribute__((overloadable)) __spirv_MemoryBarrier(int scope, int order);
DEVICE uint load_acquire(GLOBAL const uint *p) {
    const uint v = *(volatile GLOBAL const uint *)p;
    __spirv_MemoryBarrier(0, 0x202);
    return v;
}
DEVICE void store_release(GLOBAL uint *p, uint v) {
    __spirv_MemoryBarrier(0, 0x204);
    *(volatile GLOBAL uint *)p = v;
}
#include "exact.h"
#else
DEVICE uint load_acquire(GLOBAL const uint *p) {
    const uint v = *(volatile GLOBAL const uint *)p;
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    return v;
}
DEVICE void store_release(GLOBAL uint *p, uint v) {
    mem_fence(CLK_GLOBAL_MEM_FENCE);
    *(volatile GLOBAL uint *)p = v;
}
#endif
DEVICE int dot_of_4(char4 a, char4 b, int c) {
    return c + (int)a.x * b.x + (int)a.y * b.y + (int)a.z * b.z + (int)a.w * b.w;
}
DEVICE float from_half(ushort bits) { return vload_half(0, (const half *)&bits); }
DEVICE ushort to_half(float x) {
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return bits;
}

#endif

/* Bits moved down by 1 to 31 of them and in again from above; and what is read this once alone, which no cache need keep. */
#ifndef ROTATE_RIGHT
#define ROTATE_RIGHT(x, n) ((x) >> (n) | (x) << (32 - (n)))
#define LOAD_ONCE(p) (*(p))
#endif

/* The row of a position in a ring of fewer than 2^32 rows: a 64-bit remainder takes a hundred instructions. */
DEVICE uint ring_row(uint position, ulong capacity) { return position % (uint)capacity; }

/* No id: of a row that has none. */
#define NONE 0xffffffffu

DEVICE float from_bf16(ushort bits) { return FROM_BITS((uint)bits << 16); }

/* What stands at a byte offset of a plane; aligned for its type. */
DEVICE ushort ushort_at(GLOBAL const uchar *p, ulong byte) { return *(GLOBAL const ushort *)(p + byte); }
DEVICE uint uint_at(GLOBAL const uchar *p, ulong byte) { return *(GLOBAL const uint *)(p + byte); }
DEVICE float float_at(GLOBAL const uchar *p, ulong byte) { return *(GLOBAL const float *)(p + byte); }
DEVICE float half_at(GLOBAL const uchar *p, ulong byte) { return from_half(ushort_at(p, byte)); }
DEVICE float bf16_at(GLOBAL const uchar *p, ulong byte) { return from_bf16(ushort_at(p, byte)); }

DEVICE uint is_finite(float x) { return (BITS(x) & 0x7f800000u) != 0x7f800000u; }

/* e^x with the bits of the CPU's: x = n ln 2 + r, Cephes' polynomial of r, 2^n in two halves. */
DEVICE float exp_of(float x) {
    const float ROUND = 12582912.0f;
    x = 89.0f < x ? 89.0f : x;
    x = -104.0f > x ? -104.0f : x;
    float n = SUB(ADD(MUL(x, 1.44269504088896340736f), ROUND), ROUND);
    float r = SUB(SUB(x, MUL(n, 0.693359375f)), MUL(n, -2.1219444e-4f));
    float p = 1.9875692e-4f;
    p = ADD(MUL(p, r), 1.3981999e-3f);
    p = ADD(MUL(p, r), 8.333452e-3f);
    p = ADD(MUL(p, r), 4.1665796e-2f);
    p = ADD(MUL(p, r), 1.6666665e-1f);
    p = ADD(MUL(p, r), 0.5f);
    p = ADD(ADD(MUL(p, MUL(r, r)), r), 1.0f);
    float half_n = SUB(ADD(MUL(n, 0.5f), ROUND), ROUND);
    float low = FROM_BITS(BITS(ADD(half_n, ROUND + 127.0f)) << 23);
    float high = FROM_BITS(BITS(ADD(SUB(n, half_n), ROUND + 127.0f)) << 23);
    return MUL(MUL(p, low), high);
}

/* x / (1 + e^-x) and 1 / (1 + e^-x), the CPU's bits. */
DEVICE float silu(float x) { return DIV(x, ADD(1.0f, exp_of(SUB(0.0f, x)))); }
/* silu(g) * u; where `clamped`, g is at most `limit` and u within +-limit. */
DEVICE float silu_mul(float g, float u, uint clamped, float limit) {
    if (clamped) {
        g = limit < g ? limit : g;
        u = limit < u ? limit : u;
        u = -limit > u ? -limit : u;
    }
    return MUL(silu(g), u);
}
DEVICE float sigmoid(float x) { return DIV(1.0f, ADD(1.0f, exp_of(SUB(0.0f, x)))); }

/* ln(1 + e^x) to 3e-7 of itself: max(x, 0) + ln(1 + t), t = e^-|x|, by 2 artanh(t / (2 + t)). NaN stays. */
DEVICE float softplus(float x) {
    float t = exp_of(-MAGNITUDE(x));
    float s = DIV(t, ADD(2.0f, t));
    float q = s * s;
    float series = 1.0f / 13.0f;
    series = MAD(series, q, 1.0f / 11.0f);
    series = MAD(series, q, 1.0f / 9.0f);
    series = MAD(series, q, 1.0f / 7.0f);
    series = MAD(series, q, 0.2f);
    series = MAD(series, q, 1.0f / 3.0f);
    series = MAD(series, q, 1.0f);
    return (x > 0.0f ? x : 0.0f) + 2.0f * s * series;
}

/* Values i .. i + 4 of a row of len values, those past its end 0. Where len is a multiple of 4, x and i are aligned. */
DEVICE void load_4(GLOBAL const float *x, uint i, uint len, float *v) {
    float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
    if (len % 4 != 0) {
        four.x = i < len ? x[i] : 0.0f;
        four.y = i + 1 < len ? x[i + 1] : 0.0f;
        four.z = i + 2 < len ? x[i + 2] : 0.0f;
        four.w = i + 3 < len ? x[i + 3] : 0.0f;
    } else if (i < len) {
        four = *(GLOBAL const float4 *)(x + i);
    }
    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
}
/* The other way; what lies past the end stays. */
DEVICE void store_4(GLOBAL float *x, uint i, uint len, const float *v) {
    if (len % 4 != 0) {
        UNROLL
        for (uint j = 0; j < 4; j++) {
            if (i + j < len) x[i + j] = v[j];
        }
    } else if (i < len) {
        const float4 four = {v[0], v[1], v[2], v[3]};
        *(GLOBAL float4 *)(x + i) = four;
    }
}

/* Members of a group: of one that is launched with fewer than its kernel names (CUDA alone does so), those. `all`: what the
 * kernel names. */
#if defined(__CUDACC__)
#define MEMBERS(all) blockDim.x
#else
#define MEMBERS(all) (all)
#endif

/* The sum over a group of up to 1024 members, a multiple of 32, for every member; those of a warp add i and i + 16, i + 8, ..
 * i + 1, so do the warps then, and those that there are not count 0. `room` holds a word for each member and is free again
 * afterwards. */
DEVICE float sum_of_group(LOCAL float *room, uint members, float x) {
#if defined(__CUDACC__)
    UNROLL
    for (uint step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (LID % 32 == 0) room[LID / 32] = x;
    BARRIER();
    float sum = LID % 32 < members / 32 ? room[LID % 32] : 0.0f;
    UNROLL
    for (uint step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
#else
    room[LID] = x;
    BARRIER();
    for (uint step = 16; step > 0; step /= 2) {
        if (LID % 32 < step) room[LID] += room[LID + step];
        BARRIER();
    }
    for (uint step = 16; step > 0; step /= 2) {
        if (LID % 32 == 0 && LID / 32 < step && LID + 32 * step < members) room[LID] += room[LID + 32 * step];
        BARRIER();
    }
    const float sum = room[0];
#endif
    BARRIER();
    return sum;
}

/* Sums over a group of 256 add indices i and i + 128, then i and i + 64, .. i + 1. CUDA takes the last five steps inside of
 * a warp, with the same bits. */
#if defined(__CUDACC__)
/* For every lane of a warp. */
DEVICE float warp_tree(const float *x) {
    const uint i = LID % 32;
    float sum = ((x[i] + x[i + 128]) + (x[i + 64] + x[i + 192])) + ((x[i + 32] + x[i + 160]) + (x[i + 96] + x[i + 224]));
    UNROLL
    for (uint step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}
#endif

/* The sum, and the largest, over a group of 256, for every member. `room` holds 256 and is free again afterwards. (With 16
 * members that take 16 values each there would be fewer barriers in OpenCL too, but PoCL 3.1 makes code of that which now
 * and then is wrong.) */
DEVICE float sum_of_256(LOCAL float *room, float x) {
    room[LID] = x;
    BARRIER();
#if defined(__CUDACC__)
    const float sum = warp_tree(room);
#else
    for (uint step = 128; step > 0; step /= 2) {
        if (LID < step) room[LID] += room[LID + step];
        BARRIER();
    }
    const float sum = room[0];
#endif
    BARRIER();
    return sum;
}
/* A NaN counts as -infinity. */
DEVICE float max_of_256(LOCAL float *room, float x) {
    room[LID] = x == x ? x : FROM_BITS(0xff800000u);
    BARRIER();
#if defined(__CUDACC__)
    float most = room[LID % 32];
    UNROLL
    for (uint i = 32; i < 256; i += 32) most = room[LID % 32 + i] > most ? room[LID % 32 + i] : most;
    UNROLL
    for (uint step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, step);
        most = other > most ? other : most;
    }
#else
    for (uint step = 128; step > 0; step /= 2) {
        if (LID < step && room[LID + step] > room[LID]) room[LID] = room[LID + step];
        BARRIER();
    }
    const float most = room[0];
#endif
    BARRIER();
    return most;
}
/* The largest magnitude of x[0 .. len], as bits, for every member of a group of `members`, a power of two: NaN, as an integer,
 * is above all. `room` holds a word for each of them. */
DEVICE uint most_of_row(LOCAL uint *room, uint members, GLOBAL const float *x, uint len) {
    uint most = 0;
    for (uint i = LID; i < len; i += members) {
        const uint size = BITS(x[i]) & 0x7fffffffu;
        most = size > most ? size : most;
    }
    room[LID] = most;
    BARRIER();
    for (uint step = members / 2; step > 0; step /= 2) {
        if (LID < step && room[LID + step] > room[LID]) room[LID] = room[LID + step];
        BARRIER();
    }
    return room[0];
}
/* room[256 * o] = the sum of room[256 * o ..][256], for `outputs` of them, written by members before. */
DEVICE void sums_of_256(LOCAL float *room, uint outputs) {
    BARRIER();
#if defined(__CUDACC__)
    for (uint o = LID / 32; o < outputs; o += 8) {
        const float sum = warp_tree(room + 256 * o);
        __syncwarp();
        if (LID % 32 == 0) room[256 * o] = sum;
    }
    BARRIER();
#else
    for (uint step = 128; step > 0; step /= 2) {
        for (uint at = LID; at < outputs * step; at += 256) {
            LOCAL float *sum = room + at / step * 256 + at % step;
            sum[0] += sum[step];
        }
        BARRIER();
    }
#endif
}

#endif
