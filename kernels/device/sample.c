/* The next token from logits. */
#include "portable.h"

#define SAMPLE_GROUP 256

/* ids[r] = the token with the highest logit, of equal ones the lowest; NONE where a logit is NaN or +infinity, or all
 * are -infinity: then the CPU, given the logits, says what is wrong.
 *   logits  f32, rows of `row` values, `vocab` of them logits
 *   ids     out [rows]
 * Grid: x = rows. */
KERNEL(SAMPLE_GROUP)
gantry_argmax(GLOBAL const float *RESTRICT logits, GLOBAL uint *RESTRICT ids, ulong row, uint vocab) {
    SHARED(float, values, SAMPLE_GROUP);
    SHARED(uint, tokens, SAMPLE_GROUP);
    SHARED(uint, broken, SAMPLE_GROUP);
    logits += GROUP_X * row;
    float most = FROM_BITS(0xff800000u);
    uint token = NONE, wrong = 0;
    for (uint i = LID; i < vocab; i += SAMPLE_GROUP) {
        const float x = logits[i];
        wrong = wrong || x != x || x == FROM_BITS(0x7f800000u);
        if (x > most) {
            most = x;
            token = i;
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
