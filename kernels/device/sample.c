/* The next token from logits, or the few that it is chosen from. */
#include "portable.h"

#define SAMPLE_GROUP 256
#define SAMPLE_EACH 16

/* ids[r] = the token with the highest logit, of equal ones the lowest; NONE where a logit is NaN or +infinity, or all
 * are -infinity: then the CPU, given the logits, says what is wrong.
 *   logits  f32, rows of `row` values, `vocab` of them logits
 *   ids     out [rows]
 * Grid: x = rows. */
KERNEL(SAMPLE_GROUP)
gantry_argmax(GLOBAL const float *RESTRICT logits, GLOBAL uint *RESTRICT ids, ulong row, uint vocab) {
    BEGIN();
    SHARED(float, values, SAMPLE_GROUP);
    SHARED(uint, tokens, SAMPLE_GROUP);
    SHARED(uint, broken, SAMPLE_GROUP);
    logits += GROUP_X * row;
    float most = FROM_BITS(0xff800000u);
    uint token = NONE, wrong = 0;
    for (uint start = LID; start < vocab; start += SAMPLE_GROUP * SAMPLE_EACH) {
        /* Loads first, so that they are under way together. */
        float x[SAMPLE_EACH];
        UNROLL
        for (uint j = 0; j < SAMPLE_EACH; j++) {
            const uint i = start + j * SAMPLE_GROUP;
            x[j] = i < vocab ? logits[i] : FROM_BITS(0xff800000u);
        }
        UNROLL
        for (uint j = 0; j < SAMPLE_EACH; j++) {
            wrong |= (x[j] != x[j]) | (x[j] == FROM_BITS(0x7f800000u));
            token = x[j] > most ? start + j * SAMPLE_GROUP : token;
            most = x[j] > most ? x[j] : most;
        }
    }
    values[LID] = most;
    tokens[LID] = token;
    broken[LID] = wrong;
    BARRIER();
    for (uint half_of = SAMPLE_GROUP / 2; half_of > 0; half_of /= 2) {
        if (LID < half_of) {
            const uint other = LID + half_of;
            const uint same = values[other] == values[LID] && tokens[other] < tokens[LID];
            if (values[other] > values[LID] || same) {
                values[LID] = values[other];
                tokens[LID] = tokens[other];
            }
            broken[LID] |= broken[other];
        }
        BARRIER();
    }
    if (LID == 0) ids[GROUP_X] = broken[0] ? NONE : tokens[0];
}

/* Logits of a group of gantry_top_k, and the most that are kept of them. */
#define TOP_GROUP 256
#define TOP_OF 1024

/* A logit and its token as a number: larger ones come first, of equal ones the lowest token; 0 for -infinity, all bits
 * for a NaN or +infinity, which no other is. */
DEVICE ulong top_key(float x, uint token) {
    const uint bits = BITS(x);
    const uint order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    const ulong key = ((ulong)order << 32) | (NONE - token);
    if (bits == 0xff800000u) return 0;
    return x != x || bits == 0x7f800000u ? ~(ulong)0 : key;
}

/* best[group][i] = the keys of the `most` highest logits of 1024, highest first, 0 after the last; then again of the
 * keys that came of it, until one group is left.
 *   logits  f32 [count], or null
 *   keys    [count] where there are no logits
 *   best    out [groups][most]; most is at most 256
 * Grid: x = count / 1024 rounded up. */
KERNEL(TOP_GROUP)
gantry_top_k(GLOBAL const float *RESTRICT logits, GLOBAL const ulong *RESTRICT keys, GLOBAL ulong *RESTRICT best,
             uint count, uint most) {
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
