//! What several cards keep of one sequence: each its share.

use super::loaded::Loaded;
use super::sequence::CardSequence;
use crate::Result;
use crate::backend::{Sequence, Settings};
use crate::model::program::CardPrograms;
use crate::session::SavedFault;
use gantry_formats::hash::hash;
use std::sync::Arc;

/// A sequence on several cards. All shares have all tokens.
pub(super) struct CardsSequence {
    /// By card.
    pub(super) shares: Vec<CardSequence>,
}

const MAGIC: &[u8; 8] = b"GANTRYSN";

impl CardsSequence {
    pub(super) fn new(cards: &[Arc<Loaded>], programs: &CardPrograms, settings: &Settings) -> Result<Self> {
        let share = |card: &Arc<Loaded>| {
            let own = |id: usize| programs.kept.get(id) == Some(&card.card);
            CardSequence::new(&card.context, &card.aside, &card.program, settings, own)
        };
        Ok(Self { shares: cards.iter().map(share).collect::<Result<_>>()? })
    }

    /// Appends tokens that a run takes.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for share in &mut self.shares {
            let start = share.tokens.len();
            share.tokens.extend_from_slice(tokens);
            share.ran(start);
        }
    }
}

impl Sequence for CardsSequence {
    fn tokens(&self) -> &[u32] {
        self.shares.first().map_or(&[], |share| share.tokens())
    }

    fn rewind(&mut self, position: usize) -> usize {
        let end = self.tokens().len();
        if position >= end {
            return end;
        }
        let position = if self.shares.iter().all(|s| s.remembers(position)) { position } else { 0 };
        self.shares.iter_mut().for_each(|share| _ = share.rewind(position));
        position
    }

    /// `GANTRYSN`, then for each share its length and what it saves, BLAKE3.
    fn save(&self, out: &mut Vec<u8>) -> Result<()> {
        let begin = out.len();
        out.extend_from_slice(MAGIC);
        for share in &self.shares {
            let length = out.len();
            out.extend_from_slice(&[0; 8]);
            share.save(out)?;
            let bytes = (out.len() - length - 8) as u64;
            out[length..length + 8].copy_from_slice(&bytes.to_le_bytes());
        }
        let hash = hash(&out[begin..]);
        out.extend_from_slice(&hash);
        Ok(())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let shorter = || SavedFault::Malformed("it ends early");
        let (content, expected) = saved.split_last_chunk::<32>().ok_or_else(shorter)?;
        if hash(content) != *expected {
            return Err(SavedFault::Damaged("its hash is another").into());
        }
        let rest = content.strip_prefix(MAGIC);
        let mut rest = rest.ok_or(SavedFault::Options("it was saved on another kind of device"))?;
        let mut parsed = Vec::with_capacity(self.shares.len());
        for share in &self.shares {
            let (length, after) = rest.split_first_chunk::<8>().ok_or_else(shorter)?;
            let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| shorter())?;
            let (own, after) = after.split_at_checked(length).ok_or_else(shorter)?;
            parsed.push(share.parse(own)?);
            rest = after;
        }
        if !rest.is_empty() || parsed.windows(2).any(|w| w[0].tokens != w[1].tokens) {
            return Err(SavedFault::Options("it was saved on other cards").into());
        }
        let done = self.shares.iter_mut().zip(parsed).try_for_each(|(share, saved)| share.take(saved));
        if done.is_err() {
            // Some of it may be there.
            self.shares.iter_mut().for_each(CardSequence::forget);
        }
        done
    }
}
