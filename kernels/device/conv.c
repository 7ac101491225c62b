/* Causal convolution of each channel over time; the CPU's bits. */
#include "portable.h"

#define CONV_GROUP 256

/* y[t][c] = sum_i weight[i][c] * x of c at position(t) - (taps - 1 - i) * dilation, ascending i, through silu if `silu`.
 * Positions of the batch are read from x, earlier ones from the ring of the sequence, those before 0 are 0.
 *   x           f32, rows of x_row values, channel c at x_start + c
 *   weight      f32 [taps][channels], the last tap for the token itself
 *   states, offsets  what sequences keep, and the byte of each one's ring: f32 [capacity][channels], position p in row
 *               p % capacity; capacity at least (taps - 1) * dilation
 *   positions, slots  [n]
 *   span_row    [slots] row of the sequence's first token in this batch
 *   y           f32 [n][channels]
 *   keep        1: each sequence has one token here, which goes into its ring as by gantry_conv_keep; 0: that comes
 *               afterwards
 * Grid: x = channels / 256 rounded up, y = n. */
KERNEL(CONV_GROUP)
gantry_conv(GLOBAL const float *RESTRICT x, GLOBAL const float *RESTRICT weight, GLOBAL uchar *RESTRICT states,
            GLOBAL const ulong *RESTRICT offsets, GLOBAL const uint *RESTRICT positions,
            GLOBAL const uint *RESTRICT slots, GLOBAL const uint *RESTRICT span_row, GLOBAL float *RESTRICT y,
            ulong x_row, ulong x_start, ulong capacity, uint n, uint channels, uint taps, uint dilation, uint silu_y,
            uint keep) {
    if (LID < taps && (GROUP_X + 1) * CONV_GROUP <= channels && channels % 4 == 0) {
        PREFETCH(weight + (ulong)LID * channels + GROUP_X * CONV_GROUP, CONV_GROUP * 4);
    }
    BEGIN();
    const uint c = GROUP_X * CONV_GROUP + LID, t = GROUP_Y;
    if (c >= channels || t >= n) return;
    const uint slot = slots[t], position = positions[t], inside = t - span_row[slot];
    GLOBAL float *ring = (GLOBAL float *)(states + offsets[slot]);
    float sum = 0.0f;
    UNROLL_4
    for (uint i = 0; i < taps; i++) {
        const uint back = (taps - 1 - i) * dilation;
        /* One load of either, so that those of several taps are under way together. */
        GLOBAL const float *from = back <= inside ? x + (ulong)(t - back) * x_row + x_start + c
                                                  : ring + (ulong)ring_row(position - back, capacity) * channels + c;
        const float v = back <= position ? *from : 0.0f;
        const float term = MUL(weight[(ulong)i * channels + c], v);
        sum = i == 0 ? term : ADD(sum, term);
    }
    y[(ulong)t * channels + c] = silu_y ? silu(sum) : sum;
    /* Where the ring has just as many rows as are read, this is the one that was read first. */
    if (keep) ring[(ulong)ring_row(position, capacity) * channels + c] = x[(ulong)t * x_row + x_start + c];
}

/* Puts the rows of x into the rings, as many of a sequence's last ones as those hold.
 *   span_tokens  [slots] tokens of the sequence in this batch; the others as for gantry_conv
 * Grid: x = channels / 256 rounded up, y = n. */
KERNEL(CONV_GROUP)
gantry_conv_keep(GLOBAL const float *RESTRICT x, GLOBAL uchar *RESTRICT states, GLOBAL const ulong *RESTRICT offsets,
                 GLOBAL const uint *RESTRICT positions, GLOBAL const uint *RESTRICT slots,
                 GLOBAL const uint *RESTRICT span_row, GLOBAL const uint *RESTRICT span_tokens, ulong x_row,
                 ulong x_start, ulong capacity, uint n, uint channels) {
    BEGIN();
    const uint c = GROUP_X * CONV_GROUP + LID, t = GROUP_Y;
    if (c >= channels || t >= n) return;
    const uint slot = slots[t];
    if (span_row[slot] + span_tokens[slot] - t > capacity) return;
    GLOBAL float *ring = (GLOBAL float *)(states + offsets[slot]);
    ring[(ulong)ring_row(positions[t], capacity) * channels + c] = x[(ulong)t * x_row + x_start + c];
}
