//! The Gantry container, `MODEL.gantry`: a header page, one segment per card, and three sections that say what
//! the segments hold. `docs/FORMAT.md` is the byte-exact description.
//!
//! ```text
//! 0        header page (4096 bytes): versions, features, sections, card table, root hash
//! ...      segment of card 0, segment of card 1, ...   (each aligned; or one file each, `--split-cards`)
//! ...      metadata section: the source's GGUF headers, byte for byte
//! ...      hash table section: one entry per blob, then chaining values
//! ...      manifest section: JSON
//! ```

mod build;
mod error;
mod header;
mod manifest;
mod metadata;
mod open;
mod placement;
mod table;
mod validate;

pub use build::{Finished, Placer, Skeleton, card_file_header, card_file_name, finish};
pub use error::ContainerError;
pub use header::{
    Alignment, CARD_HEADER_BYTES, CardEntry, HEADER_BYTES, Header, MAGIC, MAX_CARDS, OPTIONAL_KNOWN,
    REQUIRED_KNOWN, REQUIRED_SPLIT_CARDS, Section,
};
pub use manifest::{
    Alias, Bank, BankMatrix, CardInfo, Manifest, Model, Part, SCHEMA, Source, SourceTensor, StoredTensor,
    Tool,
};
pub use metadata::{Metadata, ShardHeader};
pub use open::{CardSource, Container, Stretch};
pub use placement::{HotnessSummary, LayerShares, PlacedCard, PlacementSection};
pub use table::{Blob, Table};
