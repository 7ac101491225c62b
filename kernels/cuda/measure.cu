// What measuring needs beside the kernels that are measured: the fastest way to read memory, random bytes, and a wait.

#include "../device/portable.h"

#include <stdint.h>

namespace measure {

constexpr uint32_t READ_GROUP = 512, READ_EACH = 8, NOISE_GROUP = 256;

// A hash of 32 bits in which every bit depends on every other (the finalizer of MurmurHash3).
__device__ __forceinline__ uint32_t mixed(uint32_t x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

}  // namespace measure

// Reads `count` times 16 bytes and keeps nothing: the most that any kernel can read in that time. What was read goes
// to `sink` (16 bytes) where a sum of it is one of 2^128 values, so that the loads cannot be left out.
// Grid: any; a group takes every so many stretches of READ_GROUP * READ_EACH.
extern "C" __global__ void __launch_bounds__(measure::READ_GROUP)
    gantry_read(const uint4 *RESTRICT from, uint4 *RESTRICT sink, uint64_t count) {
    BEGIN();
    using namespace measure;
    constexpr uint64_t STRETCH = READ_GROUP * READ_EACH;
    uint4 sum = {0, 0, 0, 0};
    uint64_t start = blockIdx.x * STRETCH;
    for (; start + STRETCH <= count; start += gridDim.x * STRETCH) {
        uint4 x[READ_EACH];
#pragma unroll
        for (uint32_t i = 0; i < READ_EACH; i++) x[i] = __ldcs(from + start + i * READ_GROUP + threadIdx.x);
#pragma unroll
        for (uint32_t i = 0; i < READ_EACH; i++) sum.x ^= x[i].x, sum.y ^= x[i].y, sum.z ^= x[i].z, sum.w ^= x[i].w;
    }
    for (uint64_t i = start + threadIdx.x; i < count && i < start + STRETCH; i += READ_GROUP) {
        const uint4 x = __ldcs(from + i);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
    if (sum.x == 0x9e3779b9u && sum.y == 0x7f4a7c15u && sum.z == 0xf39cc060u && sum.w == 0x5cedc834u) *sink = sum;
}

// to[i] = random bits & keep | set, the same for the same seed. Grid: any.
extern "C" __global__ void __launch_bounds__(measure::NOISE_GROUP)
    gantry_noise(uint32_t *RESTRICT to, uint64_t words, uint32_t seed, uint32_t keep, uint32_t set) {
    BEGIN();
    using namespace measure;
    const uint64_t all = static_cast<uint64_t>(gridDim.x) * NOISE_GROUP;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * NOISE_GROUP + threadIdx.x; i < words; i += all) {
        const uint32_t low = mixed(static_cast<uint32_t>(i) ^ seed);
        to[i] = (mixed(low + static_cast<uint32_t>(i >> 32) * 0x9e3779b9u) & keep) | set;
    }
}

// Does nothing for so many nanoseconds, so that the host gets ahead of the card. Grid: 1.
extern "C" __global__ void __launch_bounds__(32) gantry_wait(uint64_t nanoseconds) {
    BEGIN();
    uint64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < nanoseconds);
}
