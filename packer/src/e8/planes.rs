//! Blocks to planes and back, IQ3_XXS in and out, and planes to values. Only bytes move, except in scales.

use super::{BYTES, LEN, Planes};
use crate::PackError;
use gantry_formats::block::e8::{self as truth, E8Error};

/// Whole blocks in `bytes`.
fn blocks_of(bytes: &[u8]) -> Result<usize, PackError> {
    PackError::expect_len("blocks", bytes.len(), bytes.len().next_multiple_of(BYTES))?;
    Ok(bytes.len() / BYTES)
}

/// Moves the bytes of 98-byte blocks into planes.
pub fn split(src: &[u8], planes: Planes<&mut [u8]>) -> Result<(), PackError> {
    each_in(src, planes, |block| Ok(*block))
}

/// The 98-byte blocks of planes: the inverse of [`split`] for any bytes.
pub fn join(planes: Planes<&[u8]>, out: &mut [u8]) -> Result<(), PackError> {
    each_out(planes, out, Ok)
}

/// IQ3_XXS blocks as planes, with the same values. Refuses, by block, scales of magnitude 32768 and more and scales
/// that are no number.
pub fn import_iq3_xxs(src: &[u8], planes: Planes<&mut [u8]>) -> Result<(), PackError> {
    each_in(src, planes, truth::from_iq3_xxs)
}

/// The inverse of [`import_iq3_xxs`]. Refuses, by block, scales below 2⁻¹³ with an odd mantissa, half of which is
/// no f16, and scales that are no number.
pub fn export_iq3_xxs(planes: Planes<&[u8]>, out: &mut [u8]) -> Result<(), PackError> {
    each_out(planes, out, |block| truth::to_iq3_xxs(&block))
}

/// The values of planes, `out.len()` of them, bit for bit as [`truth::decode`] gives them.
pub fn decode(planes: Planes<&[u8]>, out: &mut [f32]) -> Result<(), PackError> {
    PackError::expect_len("values", out.len(), out.len().next_multiple_of(LEN))?;
    planes.expect(out.len() / LEN)?;
    for (i, out) in out.as_chunks_mut::<LEN>().0.iter_mut().enumerate() {
        *out = truth::decode(&block(planes, i));
    }
    Ok(())
}

fn each_in(
    src: &[u8],
    planes: Planes<&mut [u8]>,
    map: impl Fn(&[u8; BYTES]) -> Result<[u8; BYTES], E8Error>,
) -> Result<(), PackError> {
    let Planes { indices, words, scales } = planes;
    Planes { indices: &*indices, words: &*words, scales: &*scales }.expect(blocks_of(src)?)?;
    let outs = indices
        .as_chunks_mut::<{ truth::INDICES }>()
        .0
        .iter_mut()
        .zip(words.as_chunks_mut::<{ truth::WORDS }>().0)
        .zip(scales.as_chunks_mut::<{ truth::SCALE }>().0);
    for (i, (block, ((indices, words), scale))) in src.as_chunks::<BYTES>().0.iter().zip(outs).enumerate() {
        let block = map(block).map_err(|error| PackError::E8 { block: i as u64, error })?;
        let (index_bytes, rest) = block.split_at(truth::INDICES);
        let (word_bytes, scale_bytes) = rest.split_at(truth::WORDS);
        indices.copy_from_slice(index_bytes);
        words.copy_from_slice(word_bytes);
        scale.copy_from_slice(scale_bytes);
    }
    Ok(())
}

fn each_out(
    planes: Planes<&[u8]>,
    out: &mut [u8],
    map: impl Fn([u8; BYTES]) -> Result<[u8; BYTES], E8Error>,
) -> Result<(), PackError> {
    planes.expect(blocks_of(out)?)?;
    for (i, out) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
        *out = map(block(planes, i)).map_err(|error| PackError::E8 { block: i as u64, error })?;
    }
    Ok(())
}

/// Block `i` of planes that have it.
fn block(planes: Planes<&[u8]>, i: usize) -> [u8; BYTES] {
    let mut block = [0; BYTES];
    let (indices, rest) = block.split_at_mut(truth::INDICES);
    let (words, scale) = rest.split_at_mut(truth::WORDS);
    indices.copy_from_slice(&planes.indices[i * truth::INDICES..][..truth::INDICES]);
    words.copy_from_slice(&planes.words[i * truth::WORDS..][..truth::WORDS]);
    scale.copy_from_slice(&planes.scales[i * truth::SCALE..][..truth::SCALE]);
    block
}
