/* Which experts a token goes to, and with which weights. */
#include "portable.h"

/* Hardly a loop is unrolled: one group runs, once for a token, and fetching instructions takes its time. */
#define ROUTE_GROUP 256
/* Most experts of a layer. */
#define ROUTE_EXPERTS 1024

/* How many of n scores come before score i in descending order, the lowest index first among equals. None is a NaN; those
 * from n on, up to a multiple of 4, are -infinity. */
DEVICE uint route_rank(LOCAL const float *scores, uint n, uint i) {
    const float own = scores[i];
    uint rank = 0, j = 0;
#if defined(__CUDACC__)
    /* Members side by side agree about what comes before and what after their 32. (PoCL 3.1 makes wrong code of loops that
     * differ between members.) */
    const uint before = (i & ~31u) < n ? i & ~31u : n, after = before + 32 < n ? before + 32 : n;
    UNROLL_4
    for (; j < before; j += 4) {
        const float4 v = *(LOCAL const float4 *)(scores + j);
        rank += (v.x >= own) + (v.y >= own) + (v.z >= own) + (v.w >= own);
    }
#else
    const uint after = n;
#endif
    NO_UNROLL
    for (; j < after; j += 4) {
        const float4 v = *(LOCAL const float4 *)(scores + j);
        rank += (v.x > own) | ((v.x == own) & (j < i));
        rank += (v.y > own) | ((v.y == own) & (j + 1 < i));
        rank += (v.z > own) | ((v.z == own) & (j + 2 < i));
        rank += (v.w > own) | ((v.w == own) & (j + 3 < i));
    }
    UNROLL_4
    for (; j < n; j += 4) {
        const float4 v = *(LOCAL const float4 *)(scores + j);
        rank += (v.x > own) + (v.y > own) + (v.z > own) + (v.w > own);
    }
    return rank;
}

/* The same of scores that belong to ids: of equal ones the lowest id comes first. */
DEVICE uint route_place(LOCAL const float *scores, LOCAL const uint *ids, uint n, uint i) {
    const float own = scores[i];
    const uint id = ids[i];
    uint rank = 0;
    UNROLL_4
    for (uint j = 0; j < n; j++) rank += (scores[j] > own) | ((scores[j] == own) & (ids[j] < id));
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
    BEGIN();
    SHARED(float, p, ROUTE_EXPERTS);
    SHARED(float, scores, ROUTE_EXPERTS);
    SHARED(float, room, ROUTE_GROUP);
    SHARED(uint, chosen, ROUTE_GROUP);
    SHARED(uint, ranks, ROUTE_GROUP);
    SHARED(float, candidate_scores, ROUTE_EXPERTS);
    SHARED(uint, candidate_ids, ROUTE_EXPERTS);
    const float least = FROM_BITS(0xff800000u);
    logits += (ulong)GROUP_X * experts;
    float most = least;
    NO_UNROLL
    for (uint i = LID; i < experts; i += ROUTE_GROUP) {
        const float x = logits[i];
        p[i] = gating == 1 ? sigmoid(x) : gating == 2 ? SQRT(softplus(x)) : x;
        most = x > most ? x : most;
    }
    most = max_of_256(room, most);
    float sum = 0.0f;
    if (gating == 0) {
        NO_UNROLL
        for (uint i = LID; i < experts; i += ROUTE_GROUP) {
            p[i] = exp_of(SUB(p[i], most));
            sum += p[i];
        }
    }
    sum = sum_of_256(room, sum);
    const float inverse = DIV(1.0f, sum);
    NO_UNROLL
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
        NO_UNROLL
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
        NO_UNROLL
        for (uint i = 0; i < size; i++) scores[LID * size + i] = least;
    }
    BARRIER();
    if (given) {
        if (LID < used) chosen[LID] = given[(given_row + tokens[GROUP_X]) * used + LID];
    } else {
        chosen[LID] = 0;
    }
    BARRIER();
    /* A member has `each` experts side by side. Whoever is among the best `used` is a member's whose own best is among the
     * best `used` of the members' bests: those alone are ranked. */
    const uint each = (experts + ROUTE_GROUP - 1) / ROUTE_GROUP, first = LID * each;
    float best = least;
    NO_UNROLL
    for (uint i = first; i < first + each && i < experts; i++) best = scores[i] > best ? scores[i] : best;
    room[LID] = best;
    BARRIER();
    ranks[LID] = route_rank(room, ROUTE_GROUP, LID);
    BARRIER();
    /* The candidates of a member stand at its rank. */
    const uint most_kept = used < ROUTE_GROUP ? used : ROUTE_GROUP, candidates = most_kept * each;
    NO_UNROLL
    for (uint i = LID; i < candidates; i += ROUTE_GROUP) {
        candidate_scores[i] = least;
        candidate_ids[i] = NONE;
    }
    BARRIER();
    const uint place = ranks[LID], kept = place < used && first < experts ? each : 0;
    NO_UNROLL
    for (uint k = 0; k < kept; k++) {
        const uint i = first + k;
        candidate_scores[place * each + k] = i < experts ? scores[i] : least;
        candidate_ids[place * each + k] = i < experts ? i : NONE;
    }
    BARRIER();
    NO_UNROLL
    for (uint i = LID; i < candidates && !given; i += ROUTE_GROUP) {
        const uint rank = route_place(candidate_scores, candidate_ids, candidates, i);
        if (candidate_ids[i] != NONE && rank < used) chosen[rank] = candidate_ids[i];
    }
    BARRIER();
    const uint id = LID < used ? chosen[LID] : 0;
    float w = id < experts ? p[id] : FROM_BITS(0x7fc00000u);
    const float top = max_of_256(room, LID < used ? w : least);
    if (gating == 3) w = exp_of(SUB(w, top));
    room[LID] = w;
    BARRIER();
    /* In order of the slots. */
    sum = 0.0f;
    UNROLL_4
    for (uint i = 0; i < used; i++) sum += room[i];
    BARRIER();
    if (gating == 3) w = MUL(w, DIV(1.0f, sum));
    room[LID] = w;
    BARRIER();
    sum = 0.0f;
    UNROLL_4
    for (uint i = 0; i < used; i++) sum += room[i];
    if (normalize) w = DIV(w, sum < 6.103515625e-5f ? 6.103515625e-5f : sum);
    if (scale != 0.0f && scale != 1.0f) w = MUL(w, scale);
    if (LID < used) {
        ids[(ulong)GROUP_X * used + LID] = id;
        weights[(ulong)GROUP_X * used + LID] = w;
    }
}
