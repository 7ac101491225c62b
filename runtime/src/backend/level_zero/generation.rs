//! Which target's containers a card takes, by its device id.
//!
//! Ids are those that Linux has for its drivers: `INTEL_DG2_IDS` and `INTEL_ATS_M_IDS` (data center cards of the same
//! processors), `INTEL_BMG_IDS`, `INTEL_PVC_IDS` of `include/drm/intel/pciids.h`.

use crate::backend::device::driver::Generation;

const INTEL: u32 = 0x8086;

/// `ZE_DEVICE_MODULE_FLAG_DP4A` of `ze_api.h`.
const DOTS: u32 = 1 << 3;

const DG2: [u32; 28] = [
    0x5690, 0x5691, 0x5692, 0x5693, 0x5694, 0x5695, 0x5696, 0x5697, 0x56a0, 0x56a1, 0x56a2, 0x56a3, 0x56a4,
    0x56a5, 0x56a6, 0x56b0, 0x56b1, 0x56b2, 0x56b3, 0x56ba, 0x56bb, 0x56bc, 0x56bd, 0x56be, 0x56bf, 0x56c0,
    0x56c1, 0x56c2,
];

const BMG: [u32; 14] = [
    0xe202, 0xe209, 0xe20b, 0xe20c, 0xe20d, 0xe210, 0xe211, 0xe212, 0xe215, 0xe216, 0xe220, 0xe221, 0xe222,
    0xe223,
];

const PVC: [u32; 13] =
    [0x0b69, 0x0b6e, 0x0bd4, 0x0bd5, 0x0bd6, 0x0bd7, 0x0bd8, 0x0bd9, 0x0bda, 0x0bdb, 0x0be0, 0x0be1, 0x0be5];

/// As targets name it; the ids themselves where none has them.
pub(super) fn of(vendor: u32, device: u32) -> Generation {
    let known = [("dg2", &DG2[..]), ("bmg", &BMG), ("pvc", &PVC)];
    let found = known.into_iter().find(|(_, ids)| vendor == INTEL && ids.contains(&device));
    Generation::Named(found.map_or_else(|| format!("{vendor:04x}:{device:04x}"), |(name, _)| name.into()))
}

/// Members of a sub-group that a card's matrix instructions are for; 0 where its driver tells of no dot products of int8, without
/// which there are no such instructions either.
pub(super) fn lanes(generation: &Generation, flags: u32) -> u32 {
    match generation.to_string().as_str() {
        _ if flags & DOTS == 0 => 0,
        "dg2" => 8,
        "bmg" | "pvc" => 16,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_known_by_their_ids() {
        for (device, name, sub_group) in
            [(0x56a0, "dg2", 8), (0x56c1, "dg2", 8), (0xe20b, "bmg", 16), (0x0bd5, "pvc", 16)]
        {
            let generation = of(INTEL, device);
            assert_eq!([lanes(&generation, DOTS), lanes(&generation, 0)], [sub_group, 0]);
            assert_eq!(generation, Generation::Named(name.into()));
        }
        // Another's card of the same number, and a processor's own graphics.
        for (vendor, device, name) in [(0x10de, 0x56a0, "10de:56a0"), (INTEL, 0x64a0, "8086:64a0")] {
            let generation = of(vendor, device);
            assert_eq!(generation, Generation::Named(name.into()));
        }
        let all = [&DG2[..], &BMG, &PVC].concat();
        let mut once = all.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), all.len());
    }
}
