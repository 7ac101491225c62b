//! Bringing a tensor or an expert once more, to a card that has its model already.

use super::damage::{Damage, Place};
use super::{Hashed, shortened};
use crate::{Container, Result, RuntimeError};
use gantry_formats::container::Stretch;
use gantry_formats::message::did_you_mean;
use gantry_formats::source::ReadAt;

/// Writes bytes to a place in a card's arena: card, first byte, the bytes, and what is hashed then; gives the hashes that
/// the card finds there.
pub(crate) type Replace<'a> = dyn Fn(usize, u64, &[u8], &[Hashed]) -> Result<Vec<[u8; 32]>> + 'a;

/// Reads the blob called `name` from its file, brings it to every card that it was packed for, and compares what these hash
/// there with the table; gives its bytes, of all copies.
pub(crate) fn again(container: &Container, name: &str, replace: &Replace<'_>) -> Result<u64> {
    let named = |s: &Stretch| container.blob_name(s.blob) == name;
    let (mut total, mut wrong) = (0, Vec::new());
    for card in 0..container.header().cards.len() {
        let stretches: Vec<Stretch> = container.stretches(card).filter(named).collect();
        let Some(first) = stretches.first() else { continue };
        let blob = &container.table().blobs()[first.blob];
        let len = usize::try_from(blob.bytes);
        let mut bytes =
            vec![0; len.map_err(|_| RuntimeError::Setting(format!("{name} does not fit in memory")))?];
        let source = container.card(card)?;
        let read = source.file.read_exact_at(source.offset + blob.offset, &mut bytes);
        read.map_err(|e| shortened(container, e))?;
        let of = |s: &Stretch| Hashed::of(container, s, blob.offset + s.offset);
        let hashed: Vec<Hashed> = stretches.iter().map(of).collect();
        let values = replace(card, blob.offset, &bytes, &hashed)?;
        let differs =
            stretches.iter().zip(&values).filter(|(s, value)| !container.stretch_hashes_to(s, value));
        wrong.extend(differs.map(|(s, _)| {
            let part = &bytes[s.offset as usize..(s.offset + s.bytes) as usize];
            Place::stretch(container, (card, card), s, part)
        }));
        total += blob.bytes;
    }
    if total == 0 {
        let hint = did_you_mean(name, container.manifest().tensors.iter().map(|t| t.name.as_str()));
        let what = format!("{name:?} is no tensor or expert of this container{hint}");
        return Err(RuntimeError::Setting(what));
    }
    match Damage::new(wrong) {
        Some(damage) => Err(RuntimeError::Damage(Box::new(damage))),
        None => Ok(total),
    }
}
