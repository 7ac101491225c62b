/* The next token from logits, or the few that it is chosen from. */
#include "portable.h"

/* A logit and its token as a number: larger ones come first, of equal ones the lowest token; 0 for -infinity, all bits
 * for a NaN or +infinity, which no other is. The order of floats is the total one, with +0 before -0. */
DEVICE ulong top_key(float x, uint token) {
    const uint bits = BITS(x);
    const uint order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    const ulong key = ((ulong)order << 32) | (NONE - token);
    if (bits == 0xff800000u) return 0;
    return x != x || bits == 0x7f800000u ? ~(ulong)0 : key;
}

#define SAMPLE_GROUP 256
#define SAMPLE_EACH 16

/* best[group] = the key of the highest logit of 4096, where both zeros are equal; then again of the keys that came of it,
 * until one group is left. The last is 0 where all are -infinity, and all bits where one is a NaN or +infinity: then the
 * CPU, given the logits, says what is wrong.
 *   logits  f32 [count], or null
 *   keys    [count] where there are no logits
 *   best    out [groups]
 * Grid: x = count / 4096 rounded up. */
KERNEL(SAMPLE_GROUP)
gantry_argmax(GLOBAL const float *RESTRICT logits, GLOBAL const ulong *RESTRICT keys, GLOBAL ulong *RESTRICT best,
              uint count) {
    BEGIN();
    SHARED(ulong, room, SAMPLE_GROUP);
    const uint start = GROUP_X * SAMPLE_GROUP * SAMPLE_EACH + LID;
    ulong most = 0;
    if (logits) {
        /* Loads first, so that they are under way together. */
        float x[SAMPLE_EACH];
        UNROLL
        for (uint j = 0; j < SAMPLE_EACH; j++) {
            const uint i = start + j * SAMPLE_GROUP;
            x[j] = i < count ? logits[i] : FROM_BITS(0xff800000u);
        }
        UNROLL
        for (uint j = 0; j < SAMPLE_EACH; j++) {
            const ulong key = top_key(x[j] == 0.0f ? 0.0f : x[j], start + j * SAMPLE_GROUP);
            most = key > most ? key : most;
        }
    } else {
        for (uint j = 0; j < SAMPLE_EACH; j++) {
            const uint i = start + j * SAMPLE_GROUP;
            const ulong key = i < count ? keys[i] : 0;
            most = key > most ? key : most;
        }
    }
    room[LID] = most;
    BARRIER();
    for (uint half_of = SAMPLE_GROUP / 2; half_of > 0; half_of /= 2) {
        if (LID < half_of && room[LID + half_of] > room[LID]) room[LID] = room[LID + half_of];
        BARRIER();
    }
    if (LID == 0) best[GROUP_X] = room[0];
}

/* Logits of a group of gantry_top_k, and the most that are kept of them. */
#define TOP_GROUP 256
#define TOP_OF 1024

/* best[group][i] = the keys of the `most` highest logits of 1024, highest first, 0 after the last; then again of the
 * keys that came of it, until one group is left.
 *   logits  f32 [count], or null
 *   keys    [count] where there are no logits
 *   best    out [groups][most]; most is at most 256
 * Grid: x = count / 1024 rounded up. */
KERNEL(TOP_GROUP)
gantry_top_k(GLOBAL const float *RESTRICT logits, GLOBAL const ulong *RESTRICT keys, GLOBAL ulong *RESTRICT best,
             uint count, uint most) {
    BEGIN();
    SHARED(ulong, sorted, TOP_OF);
    const uint start = GROUP_X * TOP_OF;
    for (uint j = LID; j < TOP_OF; j += TOP_GROUP) {
        const uint i = start + j;
        ulong key = 0;
        if (i < count) key = logits ? top_key(logits[i], i) : keys[i];
        sorted[j] = key;
    }
    BARRIER();
    /* Bitonic: runs of `size` that descend and ascend in turn become runs of twice that. */
    for (uint size = 2; size <= TOP_OF; size *= 2) {
        for (uint step = size / 2; step > 0; step /= 2) {
            for (uint j = LID; j < TOP_OF / 2; j += TOP_GROUP) {
                const uint low = 2 * j - (j & (step - 1)), high = low + step;
                const ulong a = sorted[low], b = sorted[high];
                const uint ascends = (low & size) != 0;
                if (ascends ? a > b : a < b) {
                    sorted[low] = b;
                    sorted[high] = a;
                }
            }
            BARRIER();
        }
    }
    for (uint j = LID; j < most; j += TOP_GROUP) best[(ulong)GROUP_X * most + j] = sorted[j];
}
