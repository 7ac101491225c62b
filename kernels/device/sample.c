/* The next token from logits. */
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
