//! What `gantry_argmax` and `gantry_top_k` of `kernels/device/sample.c` compute.

use crate::code::{Code, ILLEGAL_ADDRESS};
use crate::driver::Driver;

/// Logits of a group of `gantry_top_k`, and of `gantry_argmax`.
const OF: usize = 1024;
const HIGHEST_OF: usize = 4096;

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
    // What was found may go straight to the host.
    let bytes = size_of_val(values);
    if !driver.holds(card, at, bytes) && !driver.holds_pinned(at, bytes) {
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

/// Logits or keys, as keys.
fn keys_of(
    driver: &Driver,
    card: usize,
    [logits, keys, count]: [usize; 3],
    zeros: bool,
) -> Result<Vec<u64>, Code> {
    if logits == 0 {
        return read(driver, card, keys, count);
    }
    let logits: Vec<f32> = read(driver, card, logits, count)?;
    // Where zeros of both signs are equal, -0 is taken for +0.
    let each = |(i, x): (usize, &f32)| key(if zeros && *x == 0.0 { 0.0 } else { *x }, i);
    Ok(logits.iter().enumerate().map(each).collect())
}

/// The key of the highest logit of every 4096, of equal ones that of the lowest token.
pub(crate) fn argmax(driver: &Driver, card: usize, groups: usize, args: [u64; 5]) -> Result<(), Code> {
    let [logits, keys, best, count, _] = args.map(|n| n as usize);
    let keys = keys_of(driver, card, [logits, keys, count], true)?;
    if keys.len().div_ceil(HIGHEST_OF) != groups {
        return Err(ILLEGAL_ADDRESS);
    }
    let each: Vec<u64> = keys.chunks(HIGHEST_OF).filter_map(|keys| keys.iter().max().copied()).collect();
    write(driver, card, best, &each)
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
    let keys = keys_of(driver, card, [logits, keys, count], false)?;
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
