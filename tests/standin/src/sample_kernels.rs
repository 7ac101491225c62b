//! What `gantry_argmax` and `gantry_top_k` of `kernels/device/sample.c` compute.

use crate::code::{Code, ILLEGAL_ADDRESS};
use crate::driver::Driver;

/// Logits of a group of `gantry_top_k`.
const OF: usize = 1024;

/// Numbers in the card's memory.
fn read<T: Copy>(driver: &Driver, card: usize, at: usize, count: usize) -> Result<Vec<T>, Code> {
    if !driver.holds(card, at, count * size_of::<T>()) {
        return Err(ILLEGAL_ADDRESS);
    }
    let from = std::ptr::with_exposed_provenance::<T>(at);
    // SAFETY: so many lie in an allocation, as was just seen, and any bytes are a number.
    Ok((0..count).map(|i| unsafe { from.add(i).read_unaligned() }).collect())
}

fn write<T: Copy>(driver: &Driver, card: usize, at: usize, values: &[T]) -> Result<(), Code> {
    if !driver.holds(card, at, size_of_val(values)) {
        return Err(ILLEGAL_ADDRESS);
    }
    let to = std::ptr::with_exposed_provenance_mut::<T>(at);
    for (i, value) in values.iter().enumerate() {
        // SAFETY: so many lie in an allocation, as was just seen, and nobody else writes while the driver is locked.
        unsafe { to.add(i).write_unaligned(*value) };
    }
    Ok(())
}

fn wrong(x: f32) -> bool {
    x.is_nan() || x == f32::INFINITY
}

/// The token of the highest logit of each row, of equal ones the lowest.
pub(crate) fn argmax(driver: &Driver, card: usize, rows: usize, args: [u64; 5]) -> Result<(), Code> {
    let [logits, ids, row, vocab, _] = args.map(|n| n as usize);
    for r in 0..rows {
        let logits: Vec<f32> = read(driver, card, logits + r * row * 4, vocab)?;
        let mut best = (f32::NEG_INFINITY, u32::MAX);
        for (token, x) in logits.iter().enumerate() {
            best = if *x > best.0 { (*x, token as u32) } else { best };
        }
        let id = if logits.iter().any(|x| wrong(*x)) { u32::MAX } else { best.1 };
        write(driver, card, ids + r * 4, &[id])?;
    }
    Ok(())
}

fn key(x: f32, token: usize) -> u64 {
    let bits = x.to_bits();
    let order = if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 };
    match x {
        f32::NEG_INFINITY => 0,
        x if wrong(x) => u64::MAX,
        _ => u64::from(order) << 32 | u64::from(u32::MAX - token as u32),
    }
}

/// The keys of the highest logits of every 1024, in order.
pub(crate) fn top_k(driver: &Driver, card: usize, groups: usize, args: [u64; 5]) -> Result<(), Code> {
    let [logits, keys, best, count, most] = args.map(|n| n as usize);
    let keys: Vec<u64> = match logits {
        0 => read(driver, card, keys, count)?,
        logits => {
            read(driver, card, logits, count)?.into_iter().enumerate().map(|(i, x)| key(x, i)).collect()
        }
    };
    if keys.len().div_ceil(OF) != groups || most > OF {
        return Err(ILLEGAL_ADDRESS);
    }
    for (group, keys) in keys.chunks(OF).enumerate() {
        let mut sorted = keys.to_vec();
        sorted.resize(OF, 0);
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        write(driver, card, best + group * most * 8, &sorted[..most])?;
    }
    Ok(())
}
