//! Why nothing can be placed so, or why a placement is refused.

use super::spec::CardsError;
use super::strategy::ChoiceError;
use crate::container::MAX_CARDS;
use crate::exit::{Exit, ExitCode};
use crate::hotness::MAX_EXPERTS;

/// Why nothing can be placed so, or which rule a placement breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// No card, or too many.
    #[error("{found} cards: expected 1 to {MAX_CARDS}")]
    Cards {
        /// How many.
        found: usize,
    },
    /// Budgets of another number of cards.
    #[error("budgets of {found} cards, expected those of {expected}")]
    Budgets {
        /// How many there are.
        found: usize,
        /// How many cards.
        expected: usize,
    },
    /// More cards than layers, where each takes a run of them.
    #[error("{cards} cards for {layers} layers: each card takes one at least; give fewer cards")]
    FewLayers {
        /// How many cards.
        cards: usize,
        /// How many layers.
        layers: usize,
    },
    /// The budgets do not hold it all.
    #[error("{}", short_text(*.card, *.needs, *.has, *.short, .enough))]
    Short {
        /// The card that cannot hold its part; `None` where all cards together are too small.
        card: Option<usize>,
        /// Bytes that this card, or all, would have to hold.
        needs: u64,
        /// Bytes that it has, or they have.
        has: u64,
        /// Bytes of what found no place.
        short: u64,
        /// Usable bytes by card with which it would fit.
        enough: Vec<u64>,
    },
    /// More experts than a layer may have.
    #[error("layer {layer}: {found} experts, expected at most {MAX_EXPERTS}")]
    Experts {
        /// Layer.
        layer: u32,
        /// How many.
        found: u32,
    },
    /// Hotness of another number of experts.
    #[error("layer {layer}: token counts of {found} experts, expected those of {expected}")]
    Counts {
        /// Layer.
        layer: u32,
        /// How many counts.
        found: usize,
        /// How many experts.
        expected: u32,
    },
    /// A sum beyond 64 bits.
    #[error("{what}: the sum does not fit 64 bits")]
    Overflow {
        /// Of what.
        what: String,
    },
    /// A placement of other layers than the model's.
    #[error("placement {at}: {}, the model has {}; it is of another model", named(.found), named(.expected))]
    OtherLayers {
        /// Position in the placement.
        at: usize,
        /// The layer there.
        found: Option<u32>,
        /// The model's.
        expected: Option<u32>,
    },
    /// A layer placed on another number of cards.
    #[error("layer {layer}: placed on {found} cards, expected {expected}")]
    CardCount {
        /// Layer.
        layer: u32,
        /// How many.
        found: usize,
        /// How many there are.
        expected: usize,
    },
    /// An expert that the model does not have.
    #[error("layer {layer} card {card}: expert {expert}, the layer has {experts}, from 0")]
    UnknownExpert {
        /// Layer.
        layer: u32,
        /// Card.
        card: usize,
        /// Expert.
        expert: u32,
        /// How many there are.
        experts: u32,
    },
    /// An expert that a card holds more than once.
    #[error("layer {layer} card {card}: expert {expert} occurs twice")]
    Twice {
        /// Layer.
        layer: u32,
        /// Card.
        card: usize,
        /// Expert.
        expert: u32,
    },
    /// Slots out of order.
    #[error("layer {layer} card {card}: expert {expert} after a later one, expected ascending order")]
    Order {
        /// Layer.
        layer: u32,
        /// Card.
        card: usize,
        /// Expert.
        expert: u32,
    },
    /// An expert without a card.
    #[error("layer {layer}: no card holds expert {expert}")]
    Missing {
        /// Layer.
        layer: u32,
        /// The first such expert.
        expert: u32,
    },
    /// A card beyond its budget.
    #[error("card {card}: {bytes} bytes of experts, {usable} fit")]
    OverBudget {
        /// Card.
        card: usize,
        /// Bytes that it would hold.
        bytes: u64,
        /// Usable bytes.
        usable: u64,
    },
}

fn named(layer: &Option<u32>) -> String {
    layer.map_or("no layer more".into(), |n| format!("layer {n}"))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", crate::size::mib(bytes))
}

fn short_text(card: Option<usize>, needs: u64, has: u64, short: u64, enough: &[u64]) -> String {
    let who = card.map_or("all cards together".into(), |card| format!("card {card}"));
    let have = format!("{who}: {} to hold, {} usable, {} short", mib(needs), mib(has), mib(short));
    let same = enough.windows(2).all(|w| w[0] == w[1]);
    let each: Vec<String> = enough.iter().map(|bytes| mib(*bytes)).collect();
    match (same, each.first()) {
        (true, Some(bytes)) => format!("{have}; with {bytes} usable on each card it would fit"),
        _ => format!("{have}; with {} usable it would fit", each.join(", ")),
    }
}

impl ExitCode for PlacementError {
    fn exit(&self) -> Exit {
        match self {
            Self::Cards { .. } | Self::Budgets { .. } | Self::FewLayers { .. } => Exit::Usage,
            Self::Short { .. } | Self::OverBudget { .. } => Exit::Resources,
            Self::OtherLayers { .. } | Self::CardCount { .. } => Exit::Incompatible,
            _ => Exit::Input,
        }
    }
}

impl ExitCode for CardsError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}

impl ExitCode for ChoiceError {
    fn exit(&self) -> Exit {
        Exit::Usage
    }
}
