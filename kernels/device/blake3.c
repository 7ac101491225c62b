/* BLAKE3 of what lies in a card's memory, as the hash table of a container has it.
 *
 * https://github.com/BLAKE3-team/BLAKE3-specs: chunks of 1024 bytes, each a chain of 16 compressions; chaining values
 * of chunks are merged in pairs, level by level, where an odd one moves up as it is. A stretch is a blob of at most 1 MiB,
 * hashed to its end, or 1 MiB of a longer one (the last may be shorter), up to its chaining value. */
#include "portable.h"

/* Intel's compiler keeps arrays in memory where it does not unroll loops over them, and these it does not by itself. */
#if defined(GANTRY_SPIRV)
#undef UNROLL
#define UNROLL _Pragma("unroll")
#endif

#define HASH_GROUP 256
#define HASH_CHUNK 1024
/* Chunks of a stretch at most. */
#define HASH_MOST 1024

#define HASH_CHUNK_START 1
#define HASH_CHUNK_END 2
#define HASH_PARENT 4
#define HASH_ROOT 8

DEVICE void hash_begin(uint *h) {
    h[0] = 0x6a09e667u, h[1] = 0xbb67ae85u, h[2] = 0x3c6ef372u, h[3] = 0xa54ff53au;
    h[4] = 0x510e527fu, h[5] = 0x9b05688cu, h[6] = 0x1f83d9abu, h[7] = 0x5be0cd19u;
}

DEVICE void hash_mix(uint *v, uint a, uint b, uint c, uint d, uint x, uint y) {
    v[a] = v[a] + v[b] + x;
    v[d] = ROTATE_RIGHT(v[d] ^ v[a], 16);
    v[c] = v[c] + v[d];
    v[b] = ROTATE_RIGHT(v[b] ^ v[c], 12);
    v[a] = v[a] + v[b] + y;
    v[d] = ROTATE_RIGHT(v[d] ^ v[a], 8);
    v[c] = v[c] + v[d];
    v[b] = ROTATE_RIGHT(v[b] ^ v[c], 7);
}

/* A round, which takes the words of the message in this order. */
DEVICE void hash_round(uint *v, uint m0, uint m1, uint m2, uint m3, uint m4, uint m5, uint m6, uint m7, uint m8, uint m9,
                       uint m10, uint m11, uint m12, uint m13, uint m14, uint m15) {
    hash_mix(v, 0, 4, 8, 12, m0, m1);
    hash_mix(v, 1, 5, 9, 13, m2, m3);
    hash_mix(v, 2, 6, 10, 14, m4, m5);
    hash_mix(v, 3, 7, 11, 15, m6, m7);
    hash_mix(v, 0, 5, 10, 15, m8, m9);
    hash_mix(v, 1, 6, 11, 12, m10, m11);
    hash_mix(v, 2, 7, 8, 13, m12, m13);
    hash_mix(v, 3, 4, 9, 14, m14, m15);
}

/* Replaces the chaining value `h`. The rounds' orders: the permutation, applied again and again. */
DEVICE void hash_compress(uint *h, const uint *m, ulong counter, uint len, uint flags) {
    uint v[16];
    UNROLL
    for (uint i = 0; i < 8; i++) v[i] = h[i];
    v[8] = 0x6a09e667u, v[9] = 0xbb67ae85u, v[10] = 0x3c6ef372u, v[11] = 0xa54ff53au;
    v[12] = (uint)counter, v[13] = (uint)(counter >> 32), v[14] = len, v[15] = flags;
    hash_round(v, m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], m[8], m[9], m[10], m[11], m[12], m[13], m[14], m[15]);
    hash_round(v, m[2], m[6], m[3], m[10], m[7], m[0], m[4], m[13], m[1], m[11], m[12], m[5], m[9], m[14], m[15], m[8]);
    hash_round(v, m[3], m[4], m[10], m[12], m[13], m[2], m[7], m[14], m[6], m[5], m[9], m[0], m[11], m[15], m[8], m[1]);
    hash_round(v, m[10], m[7], m[12], m[9], m[14], m[3], m[13], m[15], m[4], m[0], m[11], m[2], m[5], m[8], m[1], m[6]);
    hash_round(v, m[12], m[13], m[9], m[11], m[15], m[10], m[14], m[8], m[7], m[2], m[5], m[3], m[0], m[1], m[6], m[4]);
    hash_round(v, m[9], m[14], m[11], m[5], m[8], m[12], m[15], m[1], m[13], m[3], m[0], m[10], m[2], m[6], m[4], m[7]);
    hash_round(v, m[11], m[15], m[5], m[0], m[1], m[9], m[8], m[6], m[14], m[10], m[2], m[12], m[3], m[4], m[7], m[13]);
    UNROLL
    for (uint i = 0; i < 8; i++) h[i] = v[i] ^ v[i + 8];
}

DEVICE void hash_load(uint *m, GLOBAL const uchar *at) {
    GLOBAL const uint4 *from = (GLOBAL const uint4 *)at;
    UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint4 w = LOAD_ONCE(from + i);
        m[4 * i] = w.x, m[4 * i + 1] = w.y, m[4 * i + 2] = w.z, m[4 * i + 3] = w.w;
    }
}

/* Zeros from byte `len` on: the last block of a blob may end anywhere. */
DEVICE void hash_end_at(uint *m, uint len) {
    UNROLL
    for (uint i = 0; i < 16; i++) {
        const uint bytes = len > 4 * i ? len - 4 * i : 0;
        if (bytes < 4) m[i] &= (1u << (8 * bytes)) - 1;
    }
}

/* The chaining value of a chunk of `len` bytes, or its hash where `last` has HASH_ROOT. */
DEVICE void hash_chunk(uint *h, GLOBAL const uchar *at, uint len, ulong counter, uint last) {
    hash_begin(h);
    uint flags = HASH_CHUNK_START, m[16];
    for (; len > 64; len -= 64, at += 64) {
        hash_load(m, at);
        hash_compress(h, m, counter, 64, flags);
        flags = 0;
    }
    hash_load(m, at);
    hash_end_at(m, len);
    hash_compress(h, m, counter, len, flags | HASH_CHUNK_END | last);
}

/* A stretch: where it begins in `memory` (a multiple of 16; 63 bytes behind it can be read), its bytes (at most 1 MiB), the
 * number of its first chunk inside its blob, and whether the blob ends with it and has no other. */
typedef struct {
    ulong start;
    ulong counter;
    uint bytes;
    uint root;
} Stretch;

/* values[stretch][8]: hash or chaining value, little-endian words. Grid: stretches. */
KERNEL(HASH_GROUP)
gantry_blake3(GLOBAL const uchar *RESTRICT memory, GLOBAL const Stretch *RESTRICT stretches, GLOBAL uint *RESTRICT values) {
    BEGIN();
    SHARED(uint, all, 8 * HASH_MOST);
    const ulong start = stretches[GROUP_X].start, counter = stretches[GROUP_X].counter;
    const uint bytes = stretches[GROUP_X].bytes, root = stretches[GROUP_X].root;
    GLOBAL const uchar *at = memory + start;
    uint n = bytes == 0 ? 1 : (bytes + HASH_CHUNK - 1) / HASH_CHUNK;
    for (uint c = LID; c < n; c += HASH_GROUP) {
        const uint left = bytes - c * HASH_CHUNK;
        uint h[8];
        hash_chunk(h, at + (ulong)c * HASH_CHUNK, left < HASH_CHUNK ? left : HASH_CHUNK, counter + c,
                   n == 1 && root ? HASH_ROOT : 0);
        UNROLL
        for (uint i = 0; i < 8; i++) all[i * HASH_MOST + c] = h[i];
    }
    BARRIER();
    while (n > 1) {
        const uint pairs = n / 2, flags = HASH_PARENT | (n == 2 && root ? HASH_ROOT : 0);
        const uint carries = LID == 0 && n % 2 == 1;
        /* At most two pairs for each member, and the odd one: read by all before any is written. */
        uint h[2][8], odd[8];
        UNROLL
        for (uint k = 0; k < 2; k++) {
            const uint p = LID + k * HASH_GROUP;
            if (p < pairs) {
                uint m[16];
                UNROLL
                for (uint i = 0; i < 8; i++) {
                    m[i] = all[i * HASH_MOST + 2 * p], m[i + 8] = all[i * HASH_MOST + 2 * p + 1];
                }
                hash_begin(h[k]);
                hash_compress(h[k], m, 0, 64, flags);
            }
        }
        if (carries) {
            UNROLL
            for (uint i = 0; i < 8; i++) odd[i] = all[i * HASH_MOST + n - 1];
        }
        BARRIER();
        UNROLL
        for (uint k = 0; k < 2; k++) {
            const uint p = LID + k * HASH_GROUP;
            if (p < pairs) {
                UNROLL
                for (uint i = 0; i < 8; i++) all[i * HASH_MOST + p] = h[k][i];
            }
        }
        if (carries) {
            UNROLL
            for (uint i = 0; i < 8; i++) all[i * HASH_MOST + pairs] = odd[i];
        }
        BARRIER();
        n = pairs + n % 2;
    }
    if (LID < 8) values[GROUP_X * (ulong)8 + LID] = all[LID * HASH_MOST];
}
