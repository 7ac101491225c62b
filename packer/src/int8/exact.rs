//! Block types that are int8 times an f16 per 32 under another coat: Q4_0, Q5_0 and IQ4_NL, both ways.

use gantry_formats::block::GgmlType;
use gantry_formats::block::iq4::LEVELS;

/// Whether blocks of `ty` are int8 times an f16 per 32 values.
pub(super) fn is_exact(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::IQ4_NL)
}

/// The 32 weights of one block after its scale. Byte j of the nibbles holds codes j (low) and j + 16 (high).
pub(super) fn weights(ty: GgmlType, block: &[u8]) -> [i8; 32] {
    let (fifths, nibbles) = parts(ty, block);
    std::array::from_fn(|j| {
        let nibble = nibbles[j % 16] >> (j / 16 * 4) & 15;
        match ty {
            GgmlType::Q4_0 => nibble as i8 - 8,
            GgmlType::Q5_0 => (nibble | ((fifths >> j & 1) as u8) << 4) as i8 - 16,
            _ => LEVELS[usize::from(nibble)],
        }
    })
}

/// Fifth bits, if the type has them, and the nibbles.
fn parts(ty: GgmlType, block: &[u8]) -> (u32, &[u8]) {
    match (ty, block) {
        (GgmlType::Q5_0, &[_, _, a, b, c, d, ref nibbles @ ..]) => {
            (u32::from_le_bytes([a, b, c, d]), nibbles)
        }
        _ => (0, &block[2..]),
    }
}

/// Writes a block of `ty`; the error is the index of the first weight that it cannot hold.
pub(super) fn write(ty: GgmlType, scale: [u8; 2], weights: &[u8; 32], block: &mut [u8]) -> Result<(), usize> {
    block.fill(0);
    block[..2].copy_from_slice(&scale);
    let nibbles = block.len() - 16;
    let mut fifths = 0_u32;
    for (j, &weight) in weights.iter().enumerate() {
        let weight = weight as i8;
        let code = match ty {
            GgmlType::Q4_0 => (-8..8).contains(&weight).then(|| (weight + 8) as u8),
            GgmlType::Q5_0 => (-16..16).contains(&weight).then(|| (weight + 16) as u8),
            _ => LEVELS.iter().position(|level| *level == weight).map(|code| code as u8),
        };
        let code = code.ok_or(j)?;
        block[nibbles + j % 16] |= (code & 15) << (j / 16 * 4);
        fifths |= u32::from(code >> 4) << j;
    }
    if ty == GgmlType::Q5_0 {
        block[2..6].copy_from_slice(&fifths.to_le_bytes());
    }
    Ok(())
}
