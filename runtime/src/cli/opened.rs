//! A model that is loaded for a command, with its text side.

use super::args::Load;
use super::device_name::DeviceName;
use super::failure::Refusal;
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_formats::hotness;
use gantry_formats::placement::{CardSpec, Fill};
use gantry_runtime::backend::device;
use gantry_runtime::model::program::ExpertCheck;
use gantry_runtime::text::{ChatTemplate, TextError, Tokenizer};
use gantry_runtime::{Container, Device, Model, ModelOptions, Speculation, model, vocab};
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::Path;

/// Opens a container and tells what is odd about it.
pub(crate) fn container(path: &Path) -> anyhow::Result<Container> {
    let container = Container::open(path)?;
    for note in container.notes() {
        eprintln!("note: {note}");
    }
    Ok(container)
}

/// Loads the model and reports it.
pub(crate) fn load(container: &Container, load: &Load) -> anyhow::Result<Model> {
    load_with(container, load, None, false)
}

/// [`load`] for drafts of `spec` tokens, and with its use of experts recorded.
pub(crate) fn load_with(
    container: &Container,
    load: &Load,
    spec: Option<NonZeroUsize>,
    record_routing: bool,
) -> anyhow::Result<Model> {
    if let Some(most) = spec {
        Speculation::check(most.get(), model::plan(container, 1)?.draft.is_some())?;
    }
    check_usage(load, spec)?;
    let device = match &load.device {
        DeviceName::Cpu => Device::cpu(load.threads)?,
        DeviceName::Cards(cards) => Device::cards(cards, load.threads)?,
        DeviceName::Beside(cards, _) => Device::cards_and_host(cards, load.threads)?,
    };
    let window = spec.map_or(0, |n| Speculation::window(n.get()));
    let hotness = match load.hotness.as_slice() {
        [] => None,
        files => Some(hotness::read(files)?),
    };
    let mut options = ModelOptions { window, record_routing, hotness, ..load.options() };
    if let DeviceName::Cards(cards) = &load.device
        && options.cards.is_none()
        && cards.len() != container.manifest().cards.len()
    {
        // As many as were named, whatever it was packed for.
        options.cards = Some(vec![CardSpec { host: false, bytes: None }; cards.len()]);
    }
    if let DeviceName::Beside(_, budget) = &load.device
        && options.cards.is_none()
    {
        options.cards = Some(beside(&device, *budget)?);
        // What does not fit the cards goes to the host.
        options.fill = options.fill.or(options.placement.is_none().then_some(Fill::First));
    }
    note_host(container, &load.device, options.cards.is_some());
    let model = Model::load(container, &device, &options)?;
    eprintln!("load:   {}", model.load_report());
    for line in model.load_report().by_card() {
        eprintln!("  {line}");
    }
    for name in &load.reload {
        let bytes = model.reload(container, name)?;
        eprintln!("reload: {bytes} bytes of {name}, verified on the card");
    }
    if load.verbose {
        tell_held(container, &model)?;
    }
    for note in model.notes() {
        eprintln!("note: {note}");
    }
    if let Some(trained) = model.trained_context().filter(|&t| model.context() > t) {
        eprintln!(
            "note: a context of {} is longer than the {trained} the model was made for",
            model.context()
        );
    }
    Ok(model)
}

/// Refuses what no device does, before any is looked for.
fn check_usage(load: &Load, spec: Option<NonZeroUsize>) -> anyhow::Result<()> {
    let (cards, host) = match &load.device {
        DeviceName::Cpu => {
            if let Some(name) = load.reload.first() {
                let what = format!("--reload {name} brings it to a card once more; give --device cuda:0");
                return Err(Refusal::error(Exit::Usage, what));
            }
            return Ok(());
        }
        DeviceName::Cards(cards) => (cards, false),
        DeviceName::Beside(cards, _) => (cards, true),
    };
    device::check_family(cards)?;
    let cards = cards.len();
    if host && load.options().check != ExpertCheck::Off {
        return Err(Refusal::error(
            Exit::Usage,
            "--ep-verify and --ep-self compare bits, and the host's card (cpu) computes in another order; leave them out",
        ));
    }
    if let Some(most) = spec {
        device::check_window(Speculation::window(most.get()), cards + usize::from(host))?;
    }
    if let Some(given) = &load.cards {
        device::check_cards(&given.0, cards, host)?;
    }
    Ok(())
}

/// Tells where what was packed for the host's memory is on another card instead.
fn note_host(container: &Container, device: &DeviceName, placed: bool) {
    let packed = container.manifest().placement.iter().flat_map(|p| p.cards.iter().enumerate());
    if let (DeviceName::Cards(cards), false) = (device, placed) {
        for (card, _) in packed.filter(|(_, card)| card.host) {
            let here = cards.get(card).map_or(format!("card {card}"), ToString::to_string);
            eprintln!("note: card {card} was packed for the host's memory (cpu), here it is {here}");
        }
    }
}

/// Cards with what is free on them, and the host's with its budget, or what is free here.
fn beside(device: &Device, budget: Option<u64>) -> anyhow::Result<Vec<CardSpec>> {
    let free = device.free()?.unwrap_or_default();
    let last = free.len().saturating_sub(1);
    let card = |(i, bytes): (usize, u64)| match i == last {
        true => CardSpec { host: true, bytes: Some(budget.unwrap_or(bytes)) },
        false => CardSpec { host: false, bytes: Some(bytes) },
    };
    Ok(free.into_iter().enumerate().map(card).collect())
}

/// Gives the device's memory back and tells what of it was not; `model` is its last user.
pub(crate) fn unload(model: Model, verbose: bool) -> anyhow::Result<()> {
    let device = model.device().clone();
    drop(model);
    for card in device.held()? {
        for leak in card.leaks() {
            eprintln!("warning: {leak}");
        }
        if verbose {
            let less = card.before.saturating_sub(card.free);
            eprintln!("{}: {less} bytes less are free than before it was opened", card.card);
        }
    }
    Ok(())
}

/// Tells what a card's memory is taken for, and which tensors are in it.
pub(crate) fn tell_held(container: &Container, model: &Model) -> anyhow::Result<()> {
    let held = model.device().held()?;
    // Placed anew, a card has other tensors than the container says.
    let as_packed = model.need().len() == container.header().cards.len();
    for (i, card) in held.iter().enumerate() {
        eprintln!("{}: {} of {} bytes are free", card.card, card.free, card.before);
        for (what, count, bytes) in &card.held {
            eprintln!(
                "  {bytes:>15}  {what}{}",
                if *count > 1 { format!(", {count} pieces") } else { String::new() }
            );
        }
        let named: u64 = card.held.iter().map(|(_, _, bytes)| bytes).sum();
        eprintln!(
            "  {:>15}  the driver's own: code, and whole pages",
            card.before.saturating_sub(card.free + named)
        );
        let mut blobs: Vec<usize> = match as_packed {
            true => container.stretches(i).map(|stretch| stretch.blob).collect(),
            false => Vec::new(),
        };
        blobs.dedup();
        for blob in blobs {
            let bytes = container.table().blobs()[blob].bytes;
            eprintln!("  {bytes:>15}    {}", container.blob_name(blob));
        }
    }
    Ok(())
}

/// What to say where the context is full.
pub(crate) fn full_context(model: &Model) -> String {
    let context = model.context();
    match model.trained_context() {
        Some(trained) if context >= trained => {
            format!(
                "the context of {context} is full, and the model was made for {trained}; --beyond-context allows more"
            )
        }
        _ => format!("the context of {context} is full; --context gives more"),
    }
}

/// The text side of a container.
pub(crate) struct Text {
    pub(crate) tokenizer: Tokenizer,
    /// The chat template, or why there is none: only some commands need it.
    chat: Result<ChatTemplate, TextError>,
}

impl Text {
    /// Reads the tokenizer and tells what is odd about it.
    pub(crate) fn of(container: &Container) -> anyhow::Result<Self> {
        let vocab = vocab(model::header(container))?;
        let tokenizer = Tokenizer::new(&vocab)?;
        for warning in tokenizer.warnings() {
            eprintln!("note: {warning}");
        }
        Ok(Self { tokenizer, chat: ChatTemplate::from_vocab(&vocab) })
    }

    /// The chat template.
    pub(crate) fn template(&self) -> Result<&ChatTemplate, TextError> {
        self.chat.as_ref().map_err(Clone::clone)
    }
}

/// The text that was given, or standard input for `-`.
pub(crate) fn text_or_stdin(text: &str) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    utf8(bytes, "standard input")
}

/// A text must be UTF-8: a tokenizer would make something else of anything else.
pub(crate) fn utf8(bytes: Vec<u8>, what: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Refusal::error(Exit::Input, format!("{what} is not UTF-8 from byte {at} on; convert it"))
    })
}
