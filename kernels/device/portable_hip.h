/* The names of portable.h for AMD's and Hygon's cards: HIP as clang compiles it by itself, without the headers and the device
 * libraries of ROCm. Waves have 64 members (gfx9) or 32 (gfx11, gfx12); nothing here depends on it: sums over groups go
 * through local memory, as in OpenCL.
 *
 * Compiled with -ffp-contract=off, so that each operation rounds by itself; f32 division and square root are correctly
 * rounded by default, and subnormal f32 and f16 are kept. */
#ifndef GANTRY_PORTABLE_HIP_H
#define GANTRY_PORTABLE_HIP_H

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
static_assert(sizeof(ulong) == 8, "offsets have 64 bits");

typedef uint uint2 __attribute__((ext_vector_type(2)));
typedef uint uint4 __attribute__((ext_vector_type(4)));
typedef ulong ulong2 __attribute__((ext_vector_type(2)));
typedef float float2 __attribute__((ext_vector_type(2)));
typedef float float4 __attribute__((ext_vector_type(4)));

#define GLOBAL
#define LOCAL
#define RESTRICT __restrict__
#define SHARED(type, name, count) __attribute__((shared)) __attribute__((aligned(16))) type name[count]
#define CONSTANT static __attribute__((constant)) const
#define KERNEL(size) \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(size, size))) void
/* Registers are handed out by the compiler's own rule, which gives all of these kernels few enough. */
#define KERNEL_OF_TWO(size) KERNEL(size)
#define KERNEL_LARGE(size) KERNEL(size)
#define DEVICE static __attribute__((device)) __attribute__((always_inline)) inline

/* A barrier orders local and global memory within a group. On gfx11 and gfx12 groups stay in one compute unit (-mcumode), so
 * that this waits for no write to global memory. */
DEVICE void barrier_of_group(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#define BARRIER() barrier_of_group()
/* Kernels of a stream, and of a graph, run one after another. */
#define BEGIN() ((void)0)
#define BEGIN_ALONE() ((void)0)
#define PREFETCH(from, bytes) ((void)(from), (void)(bytes))
/* No load behind it is brought before it: where so many would be under way together that registers do not last. */
#define LOADS_APART() __builtin_amdgcn_sched_barrier(0)
#define UNROLL _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#define NO_UNROLL _Pragma("unroll 1")
#define GROUP_X ((uint)__builtin_amdgcn_workgroup_id_x())
#define GROUP_Y ((uint)__builtin_amdgcn_workgroup_id_y())
#define GROUP_Z ((uint)__builtin_amdgcn_workgroup_id_z())
#define LID ((uint)__builtin_amdgcn_workitem_id_x())

#define ADD(a, b) ((a) + (b))
#define SUB(a, b) ((a) - (b))
#define MUL(a, b) ((a) * (b))
#define DIV(a, b) ((a) / (b))
#define SQRT(a) __builtin_sqrtf(a)
#define MAD(a, b, c) __builtin_fmaf(a, b, c)
#define NEAREST(x) __builtin_rintf(x)
#define NEAREST_AWAY(x) __builtin_roundf(x)
#define MAGNITUDE(x) __builtin_fabsf(x)
#define BITS(x) __builtin_bit_cast(uint, (float)(x))
#define FROM_BITS(x) __builtin_bit_cast(float, (uint)(x))
#define DOT4(a, b, c) dot_of_4((int)(a), (int)(b), c)
#define POPCOUNT(x) ((uint)__builtin_popcount(x))
#define ROTATE_RIGHT(x, n) __builtin_rotateright32(x, n)
#define LOAD_ONCE(p) __builtin_nontemporal_load(p)

DEVICE int dot_of_4(int a, int b, int c) {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_sudot4(true, a, true, b, c, false);
#else
    return __builtin_amdgcn_sdot4(a, b, c, false);
#endif
}

/* What another card did before it wrote a word is seen by who has read the word, and by the rest of its group after
 * GLOBAL_BARRIER, before which in turn each member's writes have left its caches. */
DEVICE uint load_acquire(const uint *p) {
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE void store_release(uint *p, uint v) {
    __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
DEVICE void barrier_of_agent(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}
#define LOAD_ACQUIRE(p) load_acquire(p)
#define STORE_RELEASE(p, v) store_release(p, v)
#define GLOBAL_BARRIER() barrier_of_agent()
/* The time in ns: the constant counter of these cards goes at 100 MHz. */
#define NOW(spins) ((void)(spins), 10 * (ulong)__builtin_readsteadycounter())

DEVICE float from_half(ushort bits) { return (float)__builtin_bit_cast(_Float16, bits); }
DEVICE ushort to_half(float x) { return __builtin_bit_cast(ushort, (_Float16)x); }

#endif
