/* What measuring needs beside the kernels that are measured: the fastest way to read memory, random bytes, and a wait. */
#include "portable.h"

/* Members of a group that reads, and 16-byte loads that each has under way. */
#define READ_GROUP 512
#define READ_EACH 8
#define NOISE_GROUP 256

/* A hash of 32 bits in which every bit depends on every other (the finalizer of MurmurHash3). */
DEVICE uint mixed(uint x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

/* Reads `count` times 16 bytes and keeps nothing: the most that any kernel can read in that time. What was read goes
 * to `sink` (16 bytes) where a sum of it is one of 2^128 values, so that the loads cannot be left out.
 * Grid: `groups`, any number; a group takes every so many stretches of READ_GROUP * READ_EACH. */
KERNEL(READ_GROUP)
gantry_read(GLOBAL const uint4 *RESTRICT from, GLOBAL uint4 *RESTRICT sink, ulong count, uint groups) {
    BEGIN();
    const ulong stretch = READ_GROUP * READ_EACH;
    uint4 sum = {0, 0, 0, 0};
    ulong start = GROUP_X * stretch;
    for (; start + stretch <= count; start += groups * stretch) {
        uint4 x[READ_EACH];
        UNROLL
        for (uint i = 0; i < READ_EACH; i++) x[i] = LOAD_ONCE(from + start + i * READ_GROUP + LID);
        UNROLL
        for (uint i = 0; i < READ_EACH; i++) {
            sum.x ^= x[i].x, sum.y ^= x[i].y, sum.z ^= x[i].z, sum.w ^= x[i].w;
        }
    }
    for (ulong i = start + LID; i < count && i < start + stretch; i += READ_GROUP) {
        const uint4 x = LOAD_ONCE(from + i);
        sum.x ^= x.x, sum.y ^= x.y, sum.z ^= x.z, sum.w ^= x.w;
    }
    if (sum.x == 0x9e3779b9u && sum.y == 0x7f4a7c15u && sum.z == 0xf39cc060u && sum.w == 0x5cedc834u) *sink = sum;
}

/* to[i] = random bits & keep | set, the same for the same seed. Grid: `groups`, any number. */
KERNEL(NOISE_GROUP)
gantry_noise(GLOBAL uint *RESTRICT to, ulong words, uint seed, uint keep, uint set, uint groups) {
    BEGIN();
    const ulong all = (ulong)groups * NOISE_GROUP;
    for (ulong i = (ulong)GROUP_X * NOISE_GROUP + LID; i < words; i += all) {
        const uint low = mixed((uint)i ^ seed);
        to[i] = (mixed(low + (uint)(i >> 32) * 0x9e3779b9u) & keep) | set;
    }
}

/* Does nothing for so many nanoseconds, so that the host gets ahead of the card. Grid: 1. */
KERNEL(64)
gantry_wait(ulong time) {
    BEGIN();
    uint spins = 0;
    const ulong begin = NOW(spins);
    while (NOW(spins) - begin < time) spins++;
}
