//! A row of keys or values as int8.

use half::f16;

/// Quantizes a row of a head and gives its scale: value i stands for `to[i]` · scale.
///
/// The scale is max |x| / 127, rounded to f16 and at most its largest number; `to[i]` is x / scale rounded to the nearest of
/// −127 ..= 127, ties to even. Where a value is infinite or NaN the scale is too, and the whole row stands for NaN. A row whose
/// largest value is below some 4e-6 stands for 0.
pub fn kv_int8_row(from: &[f32], to: &mut [i8]) -> f16 {
    // As integers NaN is above all.
    let most = from.iter().map(|x| x.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
    let most = f32::from_bits(most);
    let scale = f16::from_f32(most / 127.0);
    let scale = if scale.is_infinite() && most.is_finite() { f16::MAX } else { scale };
    let by = scale.to_f32();
    // The cast makes 0 of NaN: of 0 / 0, and of what is not finite.
    let quantize = |x: f32| (x / by).round_ties_even().clamp(-127.0, 127.0) as i8;
    to.iter_mut().zip(from).for_each(|(to, x)| *to = quantize(*x));
    scale
}
