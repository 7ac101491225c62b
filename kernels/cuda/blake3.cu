// BLAKE3 of what lies in a card's memory, as the hash table of a container has it.
//
// https://github.com/BLAKE3-team/BLAKE3-specs: chunks of 1024 bytes, each a chain of 16 compressions; chaining values
// of chunks are merged in pairs, level by level, where an odd one moves up as it is. A stretch is a blob of at most 1 MiB,
// hashed to its end, or 1 MiB of a longer one (the last may be shorter), up to its chaining value.

#include "../device/portable.h"

#include <stdint.h>

namespace {

constexpr uint32_t CHUNK = 1024, MOST = 1024;
constexpr uint32_t CHUNK_START = 1, CHUNK_END = 2, PARENT = 4, ROOT = 8;
constexpr uint32_t GROUP = 256;

__device__ constexpr uint32_t IV[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// Where each round finds the words of the message: the permutation, applied again and again.
__device__ constexpr uint8_t SCHEDULE[7][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
    {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1}, {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
    {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4}, {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
    {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};

__device__ __forceinline__ void mix(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t x, uint32_t y) {
    a = a + b + x;
    d = __byte_perm(d ^ a, 0, 0x1032);
    c = c + d;
    b = __funnelshift_r(b ^ c, b ^ c, 12);
    a = a + b + y;
    d = __byte_perm(d ^ a, 0, 0x0321);
    c = c + d;
    b = __funnelshift_r(b ^ c, b ^ c, 7);
}

// Replaces the chaining value `h`.
__device__ __forceinline__ void compress(uint32_t (&h)[8], const uint32_t (&m)[16], uint64_t counter, uint32_t len,
                                         uint32_t flags) {
    uint32_t v[16] = {h[0],  h[1],  h[2],  h[3],  h[4],         h[5],
                      h[6],  h[7],  IV[0], IV[1], IV[2],        IV[3],
                      static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), len, flags};
#pragma unroll
    for (int r = 0; r < 7; r++) {
        const uint8_t(&s)[16] = SCHEDULE[r];
        mix(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]);
        mix(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        mix(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]);
        mix(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        mix(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]);
        mix(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        mix(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]);
        mix(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = v[i] ^ v[i + 8];
}

__device__ __forceinline__ void load(uint32_t (&m)[16], const uint8_t *at) {
    const uint4 *from = reinterpret_cast<const uint4 *>(at);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 w = __ldcs(from + i);
        m[4 * i] = w.x, m[4 * i + 1] = w.y, m[4 * i + 2] = w.z, m[4 * i + 3] = w.w;
    }
}

// Zeros from byte `len` on: the last block of a blob may end anywhere.
__device__ __forceinline__ void end_at(uint32_t (&m)[16], uint32_t len) {
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t bytes = len > 4 * i ? len - 4 * i : 0;
        if (bytes < 4) m[i] &= (1u << (8 * bytes)) - 1;
    }
}

// The chaining value of a chunk of `len` bytes, or its hash where `last` has ROOT.
__device__ __forceinline__ void chunk(uint32_t (&h)[8], const uint8_t *at, uint32_t len, uint64_t counter, uint32_t last) {
#pragma unroll
    for (int i = 0; i < 8; i++) h[i] = IV[i];
    uint32_t flags = CHUNK_START, m[16];
    for (; len > 64; len -= 64, at += 64) {
        load(m, at);
        compress(h, m, counter, 64, flags);
        flags = 0;
    }
    load(m, at);
    end_at(m, len);
    compress(h, m, counter, len, flags | CHUNK_END | last);
}

}  // namespace

// A stretch: where it begins in `memory` (a multiple of 16; 63 bytes behind it can be read), its bytes (at most 1 MiB), the number of its first chunk
// inside its blob, and whether the blob ends with it and has no other.
struct Stretch {
    uint64_t start;
    uint64_t counter;
    uint32_t bytes;
    uint32_t root;
};

// values[stretch][8]: hash or chaining value, little-endian words. One group of GROUP threads for each stretch.
KERNEL(GROUP)
gantry_blake3(const uint8_t *RESTRICT memory, const Stretch *RESTRICT stretches, uint32_t *RESTRICT values) {
    BEGIN();
    __shared__ uint32_t all[8][MOST];
    const Stretch s = stretches[blockIdx.x];
    const uint8_t *at = memory + s.start;
    uint32_t n = s.bytes == 0 ? 1 : (s.bytes + CHUNK - 1) / CHUNK;
    for (uint32_t c = threadIdx.x; c < n; c += GROUP) {
        const uint32_t len = min(CHUNK, s.bytes - c * CHUNK);
        uint32_t h[8];
        chunk(h, at + static_cast<uint64_t>(c) * CHUNK, len, s.counter + c, n == 1 && s.root ? ROOT : 0);
#pragma unroll
        for (int i = 0; i < 8; i++) all[i][c] = h[i];
    }
    __syncthreads();
    while (n > 1) {
        const uint32_t pairs = n / 2, flags = PARENT | (n == 2 && s.root ? ROOT : 0);
        // At most two pairs for each thread, and the odd one: read by all before any is written.
        uint32_t h[2][8], odd[8];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t p = threadIdx.x + k * GROUP;
            if (p >= pairs) continue;
            uint32_t m[16];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                m[i] = all[i][2 * p], m[i + 8] = all[i][2 * p + 1];
                h[k][i] = IV[i];
            }
            compress(h[k], m, 0, 64, flags);
        }
        const bool carries = threadIdx.x == 0 && n % 2 == 1;
        if (carries) {
#pragma unroll
            for (int i = 0; i < 8; i++) odd[i] = all[i][n - 1];
        }
        __syncthreads();
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t p = threadIdx.x + k * GROUP;
            if (p >= pairs) continue;
#pragma unroll
            for (int i = 0; i < 8; i++) all[i][p] = h[k][i];
        }
        if (carries) {
#pragma unroll
            for (int i = 0; i < 8; i++) all[i][pairs] = odd[i];
        }
        __syncthreads();
        n = pairs + n % 2;
    }
    if (threadIdx.x < 8) values[blockIdx.x * 8ull + threadIdx.x] = all[threadIdx.x][0];
}
