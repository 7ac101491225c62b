/* What cards give each other: messages, and rows of experts.
 *
 * Data goes in slots: a stretch of a message, or a row. Each slot is a mailbox by itself, with words at the card that
 * reads and an end at either card, so that a kernel may have any number of groups, none of which waits for another of
 * its own launch: a group serves one slot, waits for the other card alone, and counts for itself. Rules are those of
 * runtime::exchange: words, then the flag, by the same group; only the epoch that is expected will do; every wait is
 * bounded; a card that is in trouble says so with a flag that is no epoch, and nobody waits for it. Epochs are counted in
 * the ends, so that a launch may be recorded and repeated.
 *
 *   ends       an end of a way: END words for each slot. Word 0 is written by the other card: at the one that reads the
 *              epoch of the words, at the one that writes the epoch that was taken. From word COUNT on the card's own: the
 *              last epoch, then a note of what was wrong
 *   far        the other end: where word 0 is
 *   trouble    word of the card, not 0 once something was wrong: nothing is waited for or brought from then on
 *   report     word of the host: kind << 60 | tag of the first launch that found something wrong
 *   patience   how long to wait, ns
 *   tag        what the host wants to know of the launch, below 2^60 */
#include "portable.h"

#define EXCHANGE_GROUP 256
/* Bytes of a slot of a message. */
#define SLOT 16384

#define END 16
#define COUNT 8
#define NOTE 9

#define FAILED 0xffffffffu

/* Kinds of what is wrong. */
#define LATE_WORDS 1
#define LATE_TAKEN 2
#define DIFFERS 3
/* Of a group that found the card in trouble already; not reported. */
#define IN_TROUBLE 15

/* The epoch after this one: never 0, which is nothing, nor FAILED. */
DEVICE uint next_epoch(uint epoch) { return epoch >= FAILED - 1 ? 1 : epoch + 1; }

/* Says what is wrong: a note at the slot's end (kind, found, expected, where), then the report. One member alone. */
DEVICE void complain(GLOBAL uint *end, GLOBAL uint *trouble, GLOBAL ulong *report, uint kind, uint found, uint expected,
                     uint where, ulong tag) {
    end[NOTE] = kind;
    end[NOTE + 1] = found;
    end[NOTE + 2] = expected;
    end[NOTE + 3] = where;
    if (!*trouble) *report = (ulong)kind << 60 | tag;
    *trouble = 1;
}

/* Waits until word 0 of an end is `expected`; gives 0, or the kind of what is wrong. One member alone. */
DEVICE uint await(GLOBAL uint *end, uint expected, GLOBAL uint *trouble, GLOBAL ulong *report, ulong patience, uint kind,
                  ulong tag) {
    const uint troubled = *trouble;
    uint spins = 0, found = LOAD_ACQUIRE(end);
    if (troubled) return IN_TROUBLE;
    if (found == expected) return 0;
    const ulong start = NOW(0);
    while (found != expected && found != FAILED && NOW(spins) - start <= patience) {
        spins++;
        found = LOAD_ACQUIRE(end);
    }
    if (found == expected) return 0;
    complain(end, trouble, report, kind, found, expected, 0, tag);
    return kind;
}

/* Where the 16 bytes at `at` of a message of stretches are, each from a multiple of 16 on; null behind the last. */
#define STRETCHES ulong b0, ulong b1, ulong b2, ulong b3, ulong b4, ulong b5
#define FIND(at, here) \
    if (at < b0) here = p0 + at; \
    else if ((at -= b0) < b1) here = p1 + at; \
    else if ((at -= b1) < b2) here = p2 + at; \
    else if ((at -= b2) < b3) here = p3 + at; \
    else if ((at -= b3) < b4) here = p4 + at; \
    else if ((at -= b4) < b5) here = p5 + at

/* Sends a message of up to six stretches.
 *   p0 to p5   from where, aligned to 16; b0 to b5 their bytes, multiples of 16; 0 for none
 *   words      of the mailbox, at the other card
 *   ends       of this card, which waits until what it sent before was taken
 * Grid: x = bytes in all / 16384 rounded up. */
KERNEL(EXCHANGE_GROUP)
gantry_exchange_send(GLOBAL const uchar *p0, GLOBAL const uchar *p1, GLOBAL const uchar *p2, GLOBAL const uchar *p3,
                     GLOBAL const uchar *p4, GLOBAL const uchar *p5, GLOBAL uchar *words, GLOBAL uint *ends,
                     GLOBAL uint *far, GLOBAL uint *trouble, GLOBAL ulong *report, STRETCHES, ulong patience, ulong tag) {
    BEGIN_ALONE();
    SHARED(uint, wrong, 1);
    GLOBAL uint *end = ends + GROUP_X * END;
    if (LID == 0) wrong[0] = await(end, end[COUNT], trouble, report, patience, LATE_TAKEN, tag);
    BARRIER();
    if (!wrong[0]) {
        for (uint i = LID; i < SLOT / 16; i += EXCHANGE_GROUP) {
            const ulong to = (ulong)GROUP_X * SLOT + i * 16;
            ulong at = to;
            GLOBAL const uchar *here = 0;
            FIND(at, here);
            if (here) *(GLOBAL uint4 *)(words + to) = *(GLOBAL const uint4 *)here;
        }
    }
    GLOBAL_BARRIER();
    if (LID == 0) {
        const uint epoch = next_epoch(end[COUNT]);
        end[COUNT] = epoch;
        STORE_RELEASE(far + GROUP_X * END, wrong[0] ? FAILED : epoch);
    }
}

/* Takes a message, sent with the same stretches, and says so. `words` are this card's. Grid: as there. */
KERNEL(EXCHANGE_GROUP)
gantry_exchange_receive(GLOBAL uchar *p0, GLOBAL uchar *p1, GLOBAL uchar *p2, GLOBAL uchar *p3, GLOBAL uchar *p4,
                        GLOBAL uchar *p5, GLOBAL uchar *words, GLOBAL uint *ends, GLOBAL uint *far,
                        GLOBAL uint *trouble, GLOBAL ulong *report, STRETCHES, ulong patience, ulong tag) {
    BEGIN_ALONE();
    SHARED(uint, wrong, 1);
    GLOBAL uint *end = ends + GROUP_X * END;
    if (LID == 0) wrong[0] = await(end, next_epoch(end[COUNT]), trouble, report, patience, LATE_WORDS, tag);
    GLOBAL_BARRIER();
    if (!wrong[0]) {
        for (uint i = LID; i < SLOT / 16; i += EXCHANGE_GROUP) {
            const ulong from = (ulong)GROUP_X * SLOT + i * 16;
            ulong at = from;
            GLOBAL uchar *here = 0;
            FIND(at, here);
            if (here) *(GLOBAL uint4 *)here = *(GLOBAL uint4 *)(words + from);
        }
    }
    GLOBAL_BARRIER();
    if (LID == 0) {
        const uint epoch = next_epoch(end[COUNT]);
        end[COUNT] = epoch;
        STORE_RELEASE(far + GROUP_X * END, wrong[0] ? FAILED : epoch);
    }
}

/* Whether a card computes a pair. */
DEVICE uint computes(GLOBAL const uint *ids, GLOBAL const uint *positions, GLOBAL const uint *turns, uint pair,
                     uint used, uint experts) {
    const uint id = ids[pair];
    return id < experts && positions[pair / used] % turns[2 * id] == turns[2 * id + 1];
}

/* Copies row `at` of rows of `row` floats: `width` of them, by fours where all rows begin at multiples of 16 bytes. */
DEVICE void copy_row(GLOBAL const float *from, GLOBAL float *to, ulong at, ulong row, uint width) {
    const uint by_four = row % 4 ? 0 : width / 4;
    from += at * row;
    to += at * row;
    for (uint i = LID; i < by_four; i += EXCHANGE_GROUP) {
        *(GLOBAL float4 *)(to + 4 * i) = *(GLOBAL const float4 *)(from + 4 * i);
    }
    for (uint i = 4 * by_four + LID; i < width; i += EXCHANGE_GROUP) to[i] = from[i];
}

/* Puts the rows of the pairs that this card computes on the board of the card that routes. A row is free to be written: that
 * card has asked anew only after it had read the last ones.
 *   y          [pairs][row], of which `width` floats are the row
 *   ids, positions, used, experts  as for gantry_experts_group
 *   turns      [experts][2] of this card as there; {1, 1} for an expert that it has not
 *   words      of the board, at the other card: [pairs][row]
 *   ends       of this card
 * Grid: x = pairs. */
KERNEL(EXCHANGE_GROUP)
gantry_exchange_return(GLOBAL const float *y, GLOBAL const uint *RESTRICT ids, GLOBAL const uint *RESTRICT positions,
                       GLOBAL const uint *RESTRICT turns, GLOBAL float *words, GLOBAL uint *ends, GLOBAL uint *far,
                       GLOBAL uint *trouble, ulong row, uint width, uint used, uint experts) {
    BEGIN_ALONE();
    SHARED(uint, wrong, 1);
    const uint own = computes(ids, positions, turns, GROUP_X, used, experts);
    if (LID == 0) wrong[0] = *trouble;
    BARRIER();
    if (own && !wrong[0]) copy_row(y, words, GROUP_X, row, width);
    GLOBAL_BARRIER();
    if (LID == 0 && own) {
        GLOBAL uint *end = ends + GROUP_X * END;
        const uint epoch = next_epoch(end[COUNT]);
        end[COUNT] = epoch;
        STORE_RELEASE(far + GROUP_X * END, wrong[0] ? FAILED : epoch);
    }
}

/* Brings the rows of pairs that another card computes from the board to y. Arguments as for gantry_exchange_return, but
 * `turns` of that card; ends and words are this card's. Grid: x = pairs. */
KERNEL(EXCHANGE_GROUP)
gantry_exchange_collect(GLOBAL float *y, GLOBAL const uint *RESTRICT ids, GLOBAL const uint *RESTRICT positions,
                        GLOBAL const uint *RESTRICT turns, GLOBAL float *words, GLOBAL uint *ends,
                        GLOBAL uint *trouble, GLOBAL ulong *report, ulong row, ulong patience, ulong tag, uint width,
                        uint used, uint experts) {
    BEGIN_ALONE();
    SHARED(uint, wrong, 1);
    GLOBAL uint *end = ends + GROUP_X * END;
    const uint theirs = computes(ids, positions, turns, GROUP_X, used, experts);
    if (LID == 0) {
        wrong[0] = !theirs;
        if (theirs) {
            const uint epoch = next_epoch(end[COUNT]);
            end[COUNT] = epoch;
            wrong[0] = await(end, epoch, trouble, report, patience, LATE_WORDS, tag);
        }
    }
    GLOBAL_BARRIER();
    if (!wrong[0]) copy_row(words, y, GROUP_X, row, width);
}

/* Compares them word by word with the rows of y, which this card computed too. The first that differs is noted: its
 * bits, those of y, its place in the row, the expert, the token. */
KERNEL(EXCHANGE_GROUP)
gantry_exchange_compare(GLOBAL const float *y, GLOBAL const uint *RESTRICT ids, GLOBAL const uint *RESTRICT positions,
                        GLOBAL const uint *RESTRICT turns, GLOBAL float *words, GLOBAL uint *ends,
                        GLOBAL uint *trouble, GLOBAL ulong *report, ulong row, ulong patience, ulong tag, uint width,
                        uint used, uint experts) {
    BEGIN_ALONE();
    SHARED(uint, wrong, 1);
    SHARED(uint, places, EXCHANGE_GROUP);
    GLOBAL uint *end = ends + GROUP_X * END;
    const uint theirs = computes(ids, positions, turns, GROUP_X, used, experts);
    if (LID == 0) {
        wrong[0] = !theirs;
        if (theirs) {
            const uint epoch = next_epoch(end[COUNT]);
            end[COUNT] = epoch;
            wrong[0] = await(end, epoch, trouble, report, patience, LATE_WORDS, tag);
        }
    }
    GLOBAL_BARRIER();
    y += GROUP_X * row;
    words += GROUP_X * row;
    uint place = NONE;
    const uint some = wrong[0] ? 0 : width;
    for (uint i = LID; i < some; i += EXCHANGE_GROUP) {
        if (place == NONE && BITS(y[i]) != BITS(words[i])) place = i;
    }
    places[LID] = place;
    BARRIER();
    for (uint step = EXCHANGE_GROUP / 2; step > 0; step /= 2) {
        if (LID < step && places[LID + step] < places[LID]) places[LID] = places[LID + step];
        BARRIER();
    }
    if (LID == 0 && places[0] != NONE) {
        const uint at = places[0];
        end[NOTE + 4] = ids[GROUP_X];
        end[NOTE + 5] = GROUP_X / used;
        complain(end, trouble, report, DIFFERS, BITS(words[at]), BITS(y[at]), at, tag);
    }
}
