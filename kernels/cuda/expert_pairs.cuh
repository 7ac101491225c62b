// The pairs of a token and an expert that a group multiplies, all of one expert.
#ifndef GANTRY_EXPERT_PAIRS_CUH
#define GANTRY_EXPERT_PAIRS_CUH

#include "../device/portable.h"

struct expert_pairs {
    uint expert;
    // The first of its pairs in the list of all, or the pair; how many: 0 for nothing to do.
    uint start;
    uint count;
};

// That of tile `tile`: of those that gantry_experts_group listed, or else pair `tile` of `all`, of a token that has `used`.
DEVICE expert_pairs expert_pairs_of(uint tile, const uint *ids, const uint *tiles, uint all, uint used, uint experts) {
    expert_pairs p = {0, tile, 1};
    if (tiles) p = {tiles[3 * tile], tiles[3 * tile + 1], tiles[3 * tile + 2]};
    else if (tile < all) p.expert = ids ? ids[tile] : tile % used;
    else p.count = 0;
    if (p.expert >= experts) p.count = 0;
    return p;
}

#endif
