//! Options on cards and placement, which `plan`, `convert` and `replan` share.

use crate::failure::Refusal;
use crate::kv::KvType;
use crate::plan::{CardOptions, Measured};
use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gantry_formats::container::PlacementSection;
use gantry_formats::exit::Exit;
use gantry_formats::hotness::{self, HotnessError, RoutedModel};
use gantry_formats::placement::{CardSpec, Fill, Strategy, parse_cards};
use std::path::{Path, PathBuf};

/// Cards that share a model, and how.
#[derive(Args, Debug, Default)]
pub(crate) struct CardArgs {
    /// Cards that share the model: how many, or the memory of each, as in 24GiB,16GiB,cpu:64GiB (cpu: the host's)
    /// [default: 1]
    #[arg(long, value_name = "N|BYTES,…")]
    cards: Option<String>,

    /// Which card holds what: paired, balanced or replicate:N spread the experts of each layer, layers gives each
    /// card whole layers [default: paired for experts on several cards, else layers]
    #[arg(long, value_name = "RULE")]
    placement: Option<Strategy>,

    /// How many experts a card gets: share, as its memory is to the others', or first, card 0 as full as it gets
    /// [default: share]
    #[arg(long, value_name = "HOW", value_parser = PossibleValuesParser::new(["share", "first"]).try_map(|s| s.parse::<Fill>()))]
    fill: Option<Fill>,

    /// Counts of tokens by expert to place by: JSON of Gantry, an importance matrix (GGUF), or SGLang's CSV;
    /// given once for each file, as for each rank of the CSV. Placement by layers does not ask for them
    #[arg(long, value_name = "FILE")]
    hotness: Vec<PathBuf>,

    /// Bytes of each card's memory to leave free, as in 1GiB: for the driver, and for more than one session with
    /// batches of the default size [default: 0]
    #[arg(long, value_name = "BYTES", value_parser = reserve)]
    vram_reserve: Option<u64>,

    /// Context length that KV cache and working memory are estimated for [default: the model's, at most 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    context: Option<u64>,

    /// Type of the KV cache in that estimate: f32, f16 or int8 [default: f32]
    #[arg(long, value_name = "TYPE", value_parser = KvType::parse)]
    kv: Option<KvType>,
}

/// `4096`, `512MiB`.
fn reserve(text: &str) -> Result<u64, String> {
    if let Ok(bytes) = text.parse() {
        return Ok(bytes);
    }
    match parse_cards(text).as_deref() {
        Ok([CardSpec { host: false, bytes: Some(bytes) }]) => Ok(*bytes),
        _ => Err("expected a number of bytes, as in 4096, 512MiB or 1.5GiB".into()),
    }
}

impl CardArgs {
    /// Whether anything was said of cards or placement.
    pub(crate) fn any(&self) -> bool {
        self.cards.is_some()
            || self.placement.is_some()
            || self.fill.is_some()
            || !self.hotness.is_empty()
            || self.vram_reserve.is_some()
            || self.context.is_some()
            || self.kv.is_some()
    }

    /// Files of counts.
    pub(crate) fn hotness(&self) -> impl Iterator<Item = &Path> {
        self.hotness.iter().map(PathBuf::as_path)
    }

    /// Whether counts were given.
    pub(crate) fn has_hotness(&self) -> bool {
        !self.hotness.is_empty()
    }

    /// The context that was given, or that a container was placed for.
    pub(crate) fn context(&self, old: Option<&PlacementSection>) -> Option<u64> {
        self.context.or(old.and_then(|old| old.context))
    }

    /// What these options mean; what is not given is as in `old`, the placement of a container, whose cards are
    /// `cards`. A placement on one card says nothing of how others would share.
    ///
    /// # Errors
    /// Where cards cannot be read, or counts are refused or of another model.
    pub(crate) fn options(
        &self,
        (cards, old): (usize, Option<&PlacementSection>),
        model: impl FnOnce() -> Result<RoutedModel, HotnessError>,
    ) -> Result<CardOptions> {
        let cards = match (&self.cards, old) {
            (Some(text), _) => {
                let read = parse_cards(text);
                read.map_err(|e| Refusal::new(Exit::Usage, format!("--cards {text}\n  {e}")))?
            }
            (None, Some(old)) => {
                old.cards.iter().map(|c| CardSpec { host: c.host, bytes: c.bytes }).collect()
            }
            (None, None) => vec![CardSpec { host: false, bytes: None }; cards],
        };
        let several = old.filter(|old| old.cards.len() > 1);
        let hotness = match self.hotness.as_slice() {
            [] => None,
            files => {
                let (hotness, warnings) = hotness::read(files)?.fit(&model()?)?;
                Some(Measured { hotness, warnings })
            }
        };
        Ok(CardOptions {
            cards,
            strategy: self.placement.or(several.and_then(|old| old.strategy.parse().ok())),
            fill: self.fill.or(several.and_then(|old| old.fill.parse().ok())).unwrap_or_default(),
            reserve: self.vram_reserve.or(old.map(|old| old.reserve)).unwrap_or(0),
            kv: self.kv.or(old.and_then(|old| KvType::parse(&old.kv).ok())).unwrap_or(KvType::F32),
            hotness,
        })
    }
}
