/* Products by DPAS with sub-groups of 16, of weights in the order i8.frag.vnni16. */
#define DPAS_LANES 16
#include "vnni.h"

VNNI_BLOCK32(gantry_vnni16_i8_block32_by8, 1)
VNNI_BLOCK32(gantry_vnni16_i8_block32_by32, 4)
VNNI_CHANNEL(gantry_vnni16_i8_channel_by8, 1)
VNNI_CHANNEL(gantry_vnni16_i8_channel_by32, 4)
