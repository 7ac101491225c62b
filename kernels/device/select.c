/* Which entries a token attends to. */
#include "portable.h"

#define SELECT_GROUP 256
/* Keys of a group, and members that share one: each takes every eighth head. */
#define SELECT_KEYS 32
#define SELECT_LANES 8
/* Most values of a head and of a key. */
#define SELECT_LEN 256
/* Scores that a member loads together. */
#define SELECT_EACH 8
/* Heads that a member scores at once. */
#define SELECT_HEADS 4

/* score[t][b] = sum_h w_h max(0, q_h . k_b) of the entries b < (p + 1) / ratio that the token at position p sees; NaN
 * becomes -infinity and -0 becomes 0. A member adds its heads ascending (h mod 8 alike), the eight sums are added in
 * order. Others are left as they are.
 *   q           f32, rows of q_row values, head h at q_start + h * len
 *   weights     f32, rows of w_row values from w_start on, one for each head; null: 1
 *   states, offsets  what sequences keep, and [slots] the byte of each one's keys: f32 [capacity][len], entry b in row
 *               b % capacity
 *   positions, slots  [n]
 *   scores      out f32, rows of score_row values
 *   len         at most 256
 * Grid: x = most entries that a token sees / 32 rounded up, y = n. */
KERNEL(SELECT_GROUP)
gantry_select_scores(GLOBAL const float *RESTRICT q, GLOBAL const float *RESTRICT weights,
                     GLOBAL const uchar *RESTRICT states, GLOBAL const ulong *RESTRICT offsets,
                     GLOBAL const uint *RESTRICT positions, GLOBAL const uint *RESTRICT slots,
                     GLOBAL float *RESTRICT scores, ulong q_row, ulong q_start, ulong w_row, ulong w_start,
                     ulong capacity, ulong score_row, uint heads, uint len, uint ratio) {
    BEGIN();
    SHARED(float, keys, SELECT_KEYS *(SELECT_LEN + 1));
    SHARED(float, room, SELECT_GROUP);
    const uint t = GROUP_Y, first = GROUP_X * SELECT_KEYS, seen = (positions[t] + 1) / ratio;
    const uint some = seen <= first ? 0 : (seen - first < SELECT_KEYS ? seen - first : SELECT_KEYS);
    GLOBAL const float *from = (GLOBAL const float *)(states + offsets[slots[t]]);
    for (uint i = LID; i < some * len; i += SELECT_GROUP) {
        keys[i / len * (SELECT_LEN + 1) + i % len] = from[(ulong)ring_row(first + i / len, capacity) * len + i % len];
    }
    BARRIER();
    const uint key = LID % SELECT_KEYS, lane = LID / SELECT_KEYS;
    float total = 0.0f;
    if (key < some) {
        LOCAL const float *k = keys + key * (SELECT_LEN + 1);
        GLOBAL const float *queries = q + t * q_row + q_start;
        for (uint block = 0; block < heads; block += SELECT_LANES * SELECT_HEADS) {
            float dots[SELECT_HEADS];
            UNROLL
            for (uint i = 0; i < SELECT_HEADS; i++) dots[i] = 0.0f;
            for (uint d = 0; d < len; d++) {
                UNROLL
                for (uint i = 0; i < SELECT_HEADS; i++) {
                    const uint h = block + i * SELECT_LANES + lane;
                    if (h < heads) dots[i] = MAD(queries[(ulong)h * len + d], k[d], dots[i]);
                }
            }
            UNROLL
            for (uint i = 0; i < SELECT_HEADS; i++) {
                const uint h = block + i * SELECT_LANES + lane;
                if (h < heads) {
                    const float positive = 0.0f > dots[i] ? 0.0f : dots[i];
                    total += (weights ? weights[t * w_row + w_start + h] : 1.0f) * positive;
                }
            }
        }
    }
    room[LID] = total;
    BARRIER();
    if (lane == 0 && key < some) {
        for (uint i = 1; i < SELECT_LANES; i++) total += room[i * SELECT_KEYS + key];
        scores[t * score_row + first + key] = (total > FROM_BITS(0xff800000u) ? total : FROM_BITS(0xff800000u)) + 0.0f;
    }
}

/* In the order of the scores, as integers. */
DEVICE uint select_rank(float score) {
    const uint bits = BITS(score);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* The sum over the group, for every member. */
DEVICE uint select_count(LOCAL uint *room, uint x) {
    room[LID] = x;
    BARRIER();
    for (uint half_of = SELECT_GROUP / 2; half_of > 0; half_of /= 2) {
        if (LID < half_of) room[LID] += room[LID + half_of];
        BARRIER();
    }
    const uint sum = room[0];
    BARRIER();
    return sum;
}

/* The sum of those before this member. */
DEVICE uint select_before(LOCAL uint *room, uint x) {
    room[LID] = x;
    BARRIER();
    for (uint step = 1; step < SELECT_GROUP; step *= 2) {
        const uint more = LID >= step ? room[LID - step] : 0;
        BARRIER();
        room[LID] += more;
        BARRIER();
    }
    const uint sum = room[LID] - x;
    BARRIER();
    return sum;
}

/* ids[t] = the `top` visible entries with the highest scores, ascending, of equal ones the lowest first (all, where a
 * token sees no more; their scores are not read); with `expand` the positions of each, then those after the last
 * complete entry up to the token's own. NONE after the last.
 *   scores  as gantry_select_scores gives them
 *   ids     out [n][per_token], per_token = top, or with `expand` top * ratio + ratio - 1
 * Grid: x = n. */
KERNEL(SELECT_GROUP)
gantry_select(GLOBAL const float *RESTRICT scores, GLOBAL const uint *RESTRICT positions, GLOBAL uint *RESTRICT ids,
              ulong score_row, uint top, uint ratio, uint expand) {
    BEGIN();
    SHARED(uint, room, SELECT_GROUP);
    const uint t = GROUP_X, position = positions[t], seen = (position + 1) / ratio;
    const uint per_token = expand ? top * ratio + ratio - 1 : top, each = expand ? ratio : 1;
    const uint all = seen <= top;
    scores += t * score_row;
    ids += (ulong)t * per_token;
    /* The largest rank that at least `top` entries have, bit by bit. */
    uint least = 0;
    for (uint bit = 0x80000000u; bit > 0; bit >>= 1) {
        uint count = 0;
        if (!all) {
            for (uint start = LID; start < seen; start += SELECT_GROUP * SELECT_EACH) {
                float x[SELECT_EACH];
                UNROLL
                for (uint j = 0; j < SELECT_EACH; j++) {
                    const uint b = start + j * SELECT_GROUP;
                    x[j] = scores[b < seen ? b : start];
                }
                UNROLL
                for (uint j = 0; j < SELECT_EACH; j++) {
                    count += (start + j * SELECT_GROUP < seen) & (select_rank(x[j]) >= (least | bit));
                }
            }
        }
        count = select_count(room, count);
        if (count >= top) least |= bit;
    }
    /* A member's entries are consecutive. */
    const uint own = (seen + SELECT_GROUP - 1) / SELECT_GROUP, first = LID * own;
    const uint end = first + own < seen ? first + own : seen;
    uint above = 0, equal = 0;
    for (uint b = first; b < end; b++) {
        const uint rank = all ? 0 : select_rank(scores[b]);
        above += all || rank > least;
        equal += !all && rank == least;
    }
    const uint total = select_count(room, above);
    const uint above_before = select_before(room, above);
    uint equal_before = select_before(room, equal);
    const uint ties = all ? 0 : top - total;
    uint at = above_before + (equal_before < ties ? equal_before : ties);
    for (uint b = first; b < end; b++) {
        const uint rank = all ? 0 : select_rank(scores[b]);
        uint chosen = all || rank > least;
        if (!all && rank == least) chosen = equal_before++ < ties;
        if (chosen) {
            for (uint i = 0; i < each; i++) ids[(ulong)at * each + i] = b * each + i;
            at++;
        }
    }
    uint filled = (all ? seen : top) * each;
    if (expand) {
        const uint tail = seen * ratio;
        for (uint i = LID; tail + i <= position; i += SELECT_GROUP) ids[filled + i] = tail + i;
        filled += position + 1 - tail;
    }
    for (uint i = filled + LID; i < per_token; i += SELECT_GROUP) ids[i] = NONE;
}
