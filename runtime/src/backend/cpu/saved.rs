//! A sequence as bytes: its tokens, and all that is kept of them.
//!
//! ```text
//! 8 bytes "GANTRYSQ", u32 version 1, u32 count of states
//! u64 n, n × u32 tokens;  u64 n, n × f32 streams that are carried
//! for each state: u32 kind, u64 position, u64 bytes of it, then those
//! 32 bytes BLAKE3 of all before
//! ```
//!
//! The kinds and their positions: 0 a cache, the first position that it has of those below the number of tokens (of
//! entries, for a cache of blocks), zeros where nothing was written; 1 a convolution, the position after its last row; 2 a delta net, that of its
//! state, followed by what later tokens gave.

use super::sequence::{CpuSequence, State};
use crate::{Result, SavedFault};

const MAGIC: &[u8; 8] = b"GANTRYSQ";
const VERSION: u32 = 1;

pub(super) fn save(sequence: &CpuSequence, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(sequence.states.len() as u32).to_le_bytes());
    number(sequence.tokens.len(), out);
    out.extend(sequence.tokens.iter().flat_map(|t| t.to_le_bytes()));
    number(sequence.carry.len(), out);
    floats(&sequence.carry, out);
    for state in &sequence.states {
        out.extend_from_slice(&kind(state).to_le_bytes());
        let head = out.len();
        out.extend_from_slice(&[0; 16]);
        let position = match state {
            State::Cache(cache, shape) => cache.save(sequence.tokens.len() / shape.ratio, out),
            State::Conv(state) => state.save(out),
            State::Delta(state) => state.save(out),
        };
        let bytes = (out.len() - head - 16) as u64;
        out[head..head + 8].copy_from_slice(&(position as u64).to_le_bytes());
        out[head + 8..head + 16].copy_from_slice(&bytes.to_le_bytes());
    }
    let hash = hash(&out[begin..]);
    out.extend_from_slice(&hash);
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    gantry_formats::hash::hash(bytes)
}

fn kind(state: &State) -> u32 {
    match state {
        State::Cache(..) => 0,
        State::Conv(_) => 1,
        State::Delta(_) => 2,
    }
}

/// Takes what [`save`] wrote into a sequence of the same shape. All is checked before anything changes.
pub(super) fn restore(sequence: &mut CpuSequence, saved: &[u8]) -> Result<()> {
    let Some((content, hash)) = saved.split_last_chunk::<32>() else { return damaged("it is too short") };
    if !content.starts_with(MAGIC) {
        return damaged("it does not begin as one");
    }
    if self::hash(content) != *hash {
        return damaged("its hash is another");
    }
    let mut rest = &content[MAGIC.len()..];
    match (word(&mut rest), word(&mut rest)) {
        (Some(VERSION), Some(n)) if n as usize == sequence.states.len() => {}
        // What a layer selects from is kept only where the context is longer than what it selects.
        (Some(VERSION), Some(_)) => return options("it keeps other things, as for another context"),
        (Some(found), _) if found != VERSION => {
            return Err(SavedFault::Version { found, known: VERSION }.into());
        }
        _ => return malformed("it ends early"),
    }
    let Some(tokens) = block(&mut rest, 4) else { return malformed("it ends early") };
    let tokens: Vec<u32> = tokens.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    let Some(carry) = block(&mut rest, 4) else { return malformed("it ends early") };
    if tokens.len() > sequence.context() {
        return options("it is longer than the context");
    }
    let mut fresh = CpuSequence::like(sequence)?;
    for state in &mut fresh.states {
        let (Some(kind), Some(position)) = (word(&mut rest), long(&mut rest)) else {
            return malformed("it ends early");
        };
        let Some(bytes) = block(&mut rest, 1) else { return malformed("it ends early") };
        let fits = kind == self::kind(state)
            && match state {
                State::Cache(cache, shape) => {
                    let end = tokens.len() / shape.ratio;
                    position <= end && cache.restore(position..end, bytes)
                }
                State::Conv(state) => state.restore(position, bytes),
                State::Delta(state) => state.restore(position, bytes),
            };
        if !fits {
            return options(
                "what it keeps is of another shape, as with another --kv, or drafts (--spec) where there were none",
            );
        }
    }
    if !rest.is_empty() || !fresh.goes_on(tokens.len()) {
        return malformed("what it keeps is not that of its tokens");
    }
    fresh.tokens = tokens;
    fresh.carry = read_floats(carry);
    *sequence = fresh;
    Ok(())
}

fn damaged(why: &'static str) -> Result<()> {
    Err(SavedFault::Damaged(why).into())
}

fn malformed(why: &'static str) -> Result<()> {
    Err(SavedFault::Malformed(why).into())
}

fn options(why: &'static str) -> Result<()> {
    Err(SavedFault::Options(why).into())
}

fn number(n: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

pub(super) fn floats(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

pub(super) fn read_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (first, later) = rest.split_first_chunk::<4>()?;
    *rest = later;
    Some(u32::from_le_bytes(*first))
}

fn long(rest: &mut &[u8]) -> Option<usize> {
    let (first, later) = rest.split_first_chunk::<8>()?;
    *rest = later;
    usize::try_from(u64::from_le_bytes(*first)).ok()
}

/// A count and that many elements of `size` bytes.
fn block<'a>(rest: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let bytes = long(rest)?.checked_mul(size)?;
    let (own, later) = rest.split_at_checked(bytes)?;
    *rest = later;
    Some(own)
}
