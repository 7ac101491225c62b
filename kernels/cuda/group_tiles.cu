// Sorts pairs by expert into tiles for gantry_tiles_experts_*.
#include "../device/portable.h"

namespace group_tiles {

constexpr uint THREADS = 256;
constexpr uint WARPS = THREADS / 32;
// Experts of a thread.
constexpr uint EACH = 4;

struct tables {
    const uint *ids;
    const uint *positions;
    const ulong *at;
    const uint *turns;
    uint used;
    uint experts;
    uint all;
};

// The expert of a pair, NONE where it has none on this card.
DEVICE uint expert_of(const tables &t, uint pair) {
    if (pair >= t.all) return NONE;
    const uint id = t.ids ? t.ids[pair] : pair % t.used;
    if (id >= t.experts || t.at[id] == ~(ulong)0) return NONE;
    if (t.turns && t.positions[pair / t.used] % t.turns[2 * id] != t.turns[2 * id + 1]) return NONE;
    return id;
}

// The sum of `value` over the threads up to this one, and `all` over all. Everybody comes here.
DEVICE uint sum_up_to(uint value, uint *room, uint &all) {
    const uint lane = LID % 32, warp = LID / 32;
    for (uint step = 1; step < 32; step *= 2) {
        const uint more = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += more;
    }
    BARRIER();
    if (lane == 31) room[warp] = value;
    BARRIER();
    uint before = 0;
    all = 0;
    for (uint w = 0; w < WARPS; w++) {
        if (w < warp) before += room[w];
        all += room[w];
    }
    return value + before;
}

} // namespace group_tiles

// As gantry_experts_group, with tiles of up to `most` pairs: `bound` is at least min(n * used, n * used / most + experts).
// Grid: 1.
KERNEL(group_tiles::THREADS)
gantry_experts_group_tiles(const uint *RESTRICT ids, const uint *RESTRICT positions, const ulong *RESTRICT at,
                           const uint *RESTRICT turns, uint *RESTRICT ranks, uint *RESTRICT pairs,
                           uint *RESTRICT tiles, uint n, uint used, uint experts, uint bound, uint most) {
    BEGIN();
    using namespace group_tiles;
    SHARED(uint, counts, THREADS *EACH);
    SHARED(uint, room, WARPS);
    const tables t = {ids, positions, at, turns, used, experts, n * used};
    const uint warp = LID / 32, lane = LID % 32;
    for (uint e = LID; e < THREADS * EACH; e += THREADS) counts[e] = 0;
    BARRIER();
    // The rank of each pair among those of its expert: a warp at a time, for they are in order.
    for (uint start = 0; start < t.all; start += THREADS) {
        const uint id = expert_of(t, start + LID);
        const uint same = __match_any_sync(~0u, id);
        for (uint w = 0; w < WARPS; w++) {
            if (w == warp) {
                const uint before = __popc(same & ((1u << lane) - 1)), first = id != NONE ? counts[id] : 0;
                __syncwarp();
                if (id != NONE) ranks[start + LID] = first + before;
                if (id != NONE && before == 0) counts[id] = first + __popc(same);
            }
            BARRIER();
        }
    }
    // Where the experts' pairs and tiles start.
    const uint first = LID * EACH;
    uint own_pairs = 0, own_tiles = 0;
    for (uint e = first; e < first + EACH; e++) {
        own_pairs += counts[e];
        own_tiles += (counts[e] + most - 1) / most;
    }
    uint all_pairs, all_tiles;
    uint pair = sum_up_to(own_pairs, room, all_pairs) - own_pairs;
    uint tile = sum_up_to(own_tiles, room, all_tiles) - own_tiles;
    for (uint e = first; e < first + EACH; e++) {
        const uint count = counts[e];
        counts[e] = pair;
        for (uint i = 0; i < count; i += most, tile++) {
            tiles[3 * tile] = e;
            tiles[3 * tile + 1] = pair + i;
            tiles[3 * tile + 2] = min(count - i, most);
        }
        pair += count;
    }
    for (uint i = all_tiles + LID; i < bound; i += THREADS) tiles[3 * i + 2] = 0;
    BARRIER();
    // A thread reads the ranks that it wrote.
    for (uint i = LID; i < t.all; i += THREADS) {
        const uint id = expert_of(t, i);
        if (id != NONE) pairs[counts[id] + ranks[i]] = i;
    }
}
