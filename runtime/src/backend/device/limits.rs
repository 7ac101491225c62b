//! What kernels have room for: their local memory is fixed when they are compiled. Refused before weights are read.

use super::attend::CONTEXT;
use super::driver::{CardName, Family};
use super::plan::FEW;
use super::workspace::most_tokens;
use crate::backend::Settings;
use crate::load::Places;
use crate::model::program::{Program, Step};
use crate::{Result, RuntimeError};
use gantry_formats::layout::Layout;
use gantry_formats::placement::CardSpec;

/// Groups of a grid in y, in which rows of tokens are counted.
const ROWS: usize = 65_535;

/// Refuses a program that a kernel has no room for, or settings for which there is none, on so many cards.
pub(super) fn check(program: &Program, settings: &Settings, cards: usize) -> Result<()> {
    let most = |what: &str, found: usize, most: usize| match found <= most {
        true => Ok(()),
        false => Err(RuntimeError::Incompatible(format!(
            "{what}: {found}, cards have kernels for up to {most}; give --device cpu"
        ))),
    };
    check_window(settings.window, cards)?;
    check_drafts(program, settings)?;
    most("positions of a context", settings.context, CONTEXT)?;
    let rows = program.buffers.iter().map(|b| b.rows).max().unwrap_or(1);
    most("rows of a batch", rows.saturating_mul(most_tokens(settings)), ROWS)?;
    let draft = program.draft.iter().filter(|_| settings.window > 0);
    let draft = draft.flat_map(|d| d.body.iter().chain(&d.head));
    for step in program.body.iter().chain(&program.head).chain(draft) {
        match step {
            Step::Route { routing, .. } => {
                most("experts of a layer", routing.experts, 1024)?;
                most("experts of a token", routing.used, 256)?;
                most("groups of experts", routing.groups, 256)?;
            }
            Step::Experts { products, .. } => {
                let experts = products.iter().map(|p| p.weights.experts());
                most("experts of a layer", experts.max().unwrap_or(0), 1024)?;
            }
            Step::Attention { heads, .. } => {
                most("values of a head", heads.key_len.max(heads.value_len), 576)?;
            }
            Step::DeltaNet { shape, .. } => most("values of a delta net's head", shape.dim, 256)?,
            Step::Select { selection, .. } => most("values of an indexer's head", selection.len, 256)?,
            Step::SinkhornRead { x, .. } => most("streams", program.buffers[x.0].rows, 8)?,
            Step::Compress { entries, .. } => {
                if let Some(crate::model::program::Kept::Cache(shape)) = program.kept.get(entries.0) {
                    most("values of an entry", shape.key_len, 1024)?;
                }
            }
            _ => {}
        }
    }
    for (_, matrix) in program.tensors() {
        // Kernels of int8 orders take 16 rows at a time.
        let whole = |row: usize| row.is_multiple_of(16) || row == matrix.stored_rows;
        if matches!(matrix.layout, Layout::I8 { .. }) && !(whole(matrix.rows.start) && whole(matrix.rows.end))
        {
            return Err(RuntimeError::Incompatible(format!(
                "{}: rows {} to {} of what is stored, cards have kernels for multiples of 16; give --device cpu",
                matrix.name, matrix.rows.start, matrix.rows.end
            )));
        }
    }
    Ok(())
}

/// Refuses a [window](crate::ModelOptions::window) that so many cards, the host's among them, do not verify with the bits of
/// single tokens: what can be known without a driver.
///
/// # Errors
/// [`RuntimeError::Incompatible`] with what they do.
pub fn check_window(window: usize, cards: usize) -> Result<()> {
    if window == 0 {
        return Ok(());
    }
    if cards > 1 {
        return Err(no_drafts());
    }
    if window > FEW {
        return Err(RuntimeError::Incompatible(format!(
            "drafts of {} tokens: a card verifies up to {} at once; give --spec {} or less, or --device cpu",
            window - 1,
            FEW - 1,
            FEW - 1
        )));
    }
    Ok(())
}

/// Refuses blocks whose states cannot be taken back.
fn check_drafts(program: &Program, settings: &Settings) -> Result<()> {
    if settings.window == 0 {
        return Ok(());
    }
    let mut body = program.draft.iter().flat_map(|draft| &draft.body);
    match body.find(|step| matches!(step, Step::DeltaNet { .. } | Step::Conv { .. } | Step::Ngram { .. })) {
        None => Ok(()),
        Some(step) => Err(RuntimeError::Incompatible(format!(
            "the block that drafts has the step {}, which cards do not take back; leave --spec out, or give --device cpu",
            step.name()
        ))),
    }
}

pub(super) fn no_drafts() -> RuntimeError {
    RuntimeError::Incompatible(
        "several cards do not draft tokens; leave --spec out, or give one card or --device cpu".into(),
    )
}

/// The family of some cards, of which none reaches another family's memory.
///
/// # Errors
/// [`RuntimeError::Incompatible`] with two that are not of one; [`RuntimeError::Setting`] where there is no card.
pub fn check_family(cards: &[CardName]) -> Result<Family> {
    let first = cards.first().ok_or_else(|| RuntimeError::Setting("a device without cards".into()))?;
    match cards.iter().find(|card| card.family != first.family) {
        None => Ok(first.family),
        Some(other) => Err(RuntimeError::Incompatible(format!(
            "{first} and {other} do not reach each other's memory; give cards of one family, with cpu beside them for \
             what they have no room for"
        ))),
    }
}

/// Refuses places on other cards than there are.
pub(super) fn check_places(places: &Places, cards: usize, host: bool) -> Result<()> {
    let specs: Vec<CardSpec> = places.cards.iter().map(|card| card.spec).collect();
    check_cards(&specs, cards, host)
}

/// Refuses other cards than there are: `cards`, and one of the host after them where it has one. No driver is needed.
///
/// # Errors
/// [`RuntimeError::Incompatible`] with what differs.
pub fn check_cards(specs: &[CardSpec], cards: usize, host: bool) -> Result<()> {
    let wanted = specs.len();
    let misplaced = |(i, card): (usize, &CardSpec)| card.host != (host && i == cards);
    if let Some(card) = specs.iter().enumerate().position(misplaced)
        && host
        && specs.len() == cards + 1
    {
        let (is, wanted) = if specs[card].host {
            ("the host's (cpu:)", "one of its own")
        } else {
            ("no card of the host", "cpu")
        };
        return Err(RuntimeError::Incompatible(format!(
            "card {card} is {is}, --device names {wanted} there; give the same cards to --cards and --device, the host's last"
        )));
    }
    if let Some(card) = specs.iter().position(|card| card.host).filter(|_| !host) {
        return Err(RuntimeError::Incompatible(format!(
            "card {card} is the host's (cpu:), which --device does not name; leave it out of --cards, or give --device \
             cuda:0,cpu"
        )));
    }
    let cards = cards + usize::from(host);
    if wanted != cards {
        return Err(RuntimeError::Incompatible(format!(
            "the model is placed on {}, --device names {cards}; give --cards {cards}, or as many cards as \
             there are places",
            count_text(wanted)
        )));
    }
    Ok(())
}

/// So many cards, in words.
pub(super) fn count_text(cards: usize) -> String {
    if cards == 1 { "1 card".into() } else { format!("{cards} cards") }
}

/// Kernels are measured on one card.
pub(super) fn one_card() -> RuntimeError {
    RuntimeError::Incompatible(
        "kernels are measured on one card: give a container for one (gantry replan --cards 1)".into(),
    )
}
