/* Which experts a token goes to, and with which weights. */
#include "portable.h"

#define ROUTE_GROUP 256
/* Most experts of a layer. */
#define ROUTE_EXPERTS 1024

/* How many of n scores come before score i in descending order, the lowest index first among equals. None is a NaN, and
 * up to a multiple of 4 of them are -infinity. */
DEVICE uint route_rank(LOCAL const float *scores, uint n, uint i) {
    const float own = scores[i];
    uint rank = 0;
    for (uint j = 0; j < n; j += 4) {
        const float4 v = *(LOCAL const float4 *)(scores + j);
        rank += (v.x > own) | ((v.x == own) & (j < i));
        rank += (v.y > own) | ((v.y == own) & (j + 1 < i));
        rank += (v.z > own) | ((v.z == own) & (j + 2 < i));
        rank += (v.w > own) | ((v.w == own) & (j + 3 < i));
    }
    return rank;
}

/* p = probabilities of the logits, by gating; score = p + bias; with several groups only the experts of the groups_used
 * groups whose two highest scores have the largest sums; the `used` experts with the highest scores, descending, of
 * equal ones the lowest first. w = p of each, for gating 3 a softmax over them; `normalize`: w / max(sum w, 2^-14);
 * times scale, unless that is 0 or 1. Sums in f32.
 *   logits     f32 [n][experts]
 *   bias       f32 [experts], or null
 *   given      [vocabulary][used] experts by token, or null: then these are used, as they are; an id that is no expert
 *              gets the weight NaN
 *   tokens     [n] ids; only read with `given`
 *   ids        out [n][used]; weights  out f32 [n][used]
 *   given_row  first row of `given`
 *   experts    at most 1024; used  at most 256
 *   gating     0 softmax, 1 sigmoid, 2 sqrt(ln(1 + e^x)), 3 none before the choice
 *   groups     1: none; they divide the experts, and are at most 256
 * Grid: x = n. */
KERNEL(ROUTE_GROUP)
gantry_route(GLOBAL const float *RESTRICT logits, GLOBAL const float *RESTRICT bias,
             GLOBAL const uint *RESTRICT given, GLOBAL const uint *RESTRICT tokens, GLOBAL uint *RESTRICT ids,
             GLOBAL float *RESTRICT weights, ulong given_row, uint experts, uint used, uint gating, uint groups,
             uint groups_used, uint normalize, float scale) {
    SHARED(float, p, ROUTE_EXPERTS);
    SHARED(float, scores, ROUTE_EXPERTS);
    SHARED(float, room, ROUTE_GROUP);
    SHARED(uint, chosen, ROUTE_GROUP);
    SHARED(uint, winners, ROUTE_GROUP);
    const float least = FROM_BITS(0xff800000u);
    logits += (ulong)GROUP_X * experts;
    float most = least;
    for (uint i = LID; i < experts; i += ROUTE_GROUP) {
        const float x = logits[i];
        p[i] = gating == 1 ? sigmoid(x) : gating == 2 ? SQRT(softplus(x)) : x;
        most = x > most ? x : most;
    }
    most = max_of_256(room, most);
    float sum = 0.0f;
    if (gating == 0) {
        for (uint i = LID; i < experts; i += ROUTE_GROUP) {
            p[i] = exp_of(SUB(p[i], most));
            sum += p[i];
        }
    }
    sum = sum_of_256(room, sum);
    const float inverse = DIV(1.0f, sum);
    for (uint i = LID; i < experts; i += ROUTE_GROUP) {
        if (gating == 0) p[i] = MUL(p[i], inverse);
        /* A NaN counts as -infinity. */
        const float score = bias ? ADD(p[i], bias[i]) : p[i];
        scores[i] = score == score ? score : least;
    }
    BARRIER();
    const uint size = experts / groups;
    room[LID] = least;
    if (groups > 1 && LID < groups) {
        float first = least, second = least;
        for (uint i = 0; i < size; i++) {
            const float s = scores[LID * size + i];
            second = s > first ? first : (s > second ? s : second);
            first = s > first ? s : first;
        }
        /* A group of one expert has no second. */
        const float sum_of_two = size > 1 ? ADD(first, second) : first;
        room[LID] = sum_of_two == sum_of_two ? sum_of_two : least;
    }
    BARRIER();
    if (groups > 1 && LID < groups && route_rank(room, groups, LID) >= groups_used) {
        for (uint i = 0; i < size; i++) scores[LID * size + i] = least;
    }
    BARRIER();
    if (given) {
        if (LID < used) chosen[LID] = given[(given_row + tokens[GROUP_X]) * used + LID];
    } else {
        chosen[LID] = 0;
    }
    BARRIER();
    /* One after another the best of those that are left. A member has every 256th expert. */
    const uint rounds = given ? 0 : used;
    uint taken = 0;
    for (uint slot = 0; slot < rounds; slot++) {
        float best = least;
        uint which = NONE;
        UNROLL
        for (uint k = 0; k < ROUTE_EXPERTS / ROUTE_GROUP; k++) {
            const uint i = LID + k * ROUTE_GROUP;
            const float s = i < experts && !(taken >> k & 1u) ? scores[i] : least;
            const uint there = i < experts && !(taken >> k & 1u);
            which = there && (which == NONE || s > best) ? i : which;
            best = which == i ? s : best;
        }
        room[LID] = best;
        winners[LID] = which;
        BARRIER();
        for (uint step = ROUTE_GROUP / 2; step > 0; step /= 2) {
            if (LID < step) {
                const float a = room[LID], b = room[LID + step];
                const uint x = winners[LID], z = winners[LID + step];
                const uint other = b > a || (b == a && z < x);
                room[LID] = other ? b : a;
                winners[LID] = other ? z : x;
            }
            BARRIER();
        }
        const uint winner = winners[0];
        if (LID == 0) chosen[slot] = winner;
        if (winner % ROUTE_GROUP == LID) taken |= 1u << winner / ROUTE_GROUP;
        BARRIER();
    }
    const uint id = LID < used ? chosen[LID] : 0;
    float w = id < experts ? p[id] : FROM_BITS(0x7fc00000u);
    const float top = max_of_256(room, LID < used ? w : least);
    if (gating == 3) w = exp_of(SUB(w, top));
    room[LID] = w;
    BARRIER();
    /* In order of the slots. */
    sum = 0.0f;
    for (uint i = 0; i < used; i++) sum += room[i];
    BARRIER();
    if (gating == 3) w = MUL(w, DIV(1.0f, sum));
    room[LID] = w;
    BARRIER();
    sum = 0.0f;
    for (uint i = 0; i < used; i++) sum += room[i];
    if (normalize) w = DIV(w, sum < 6.103515625e-5f ? 6.103515625e-5f : sum);
    if (scale != 0.0f && scale != 1.0f) w = MUL(w, scale);
    if (LID < used) {
        ids[(ulong)GROUP_X * used + LID] = id;
        weights[(ulong)GROUP_X * used + LID] = w;
    }
}
