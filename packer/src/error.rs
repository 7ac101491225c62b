//! Why bytes cannot be packed. Indices count from the start of the slice that was given: a caller that cuts a
//! tensor into pieces moves them with [`PackError::moved`].

use crate::simd::LevelError;
use gantry_formats::block::e8::E8Error;
use gantry_formats::block::finite::{Fault, NonFinite};
use gantry_formats::block::{BlockError, GgmlType};
use gantry_formats::layout::{Order, Scales};
use gantry_formats::rotation::WidthError;

/// Why bytes cannot be packed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PackError {
    /// A source value is NaN or infinite.
    #[error("element {element} {kind}")]
    NonFinite {
        /// Its index in the source.
        element: u64,
        /// Which kind.
        kind: NonFinite,
    },
    /// A scale or minimum of a source block is NaN or infinite.
    #[error("block {block} {field} {kind}")]
    NonFiniteScale {
        /// Index of the block in the source.
        block: u64,
        /// `scale` or `minimum`.
        field: &'static str,
        /// Which kind.
        kind: NonFinite,
    },
    /// A block is so large that its Q8_0 scale would be infinite.
    #[error("element {element}: {amax}/127 does not fit fp16")]
    ScaleOverflow {
        /// Index in the source of the first value of the block's largest magnitude.
        element: u64,
        /// That magnitude.
        amax: f32,
    },
    /// A block is so large that its E8 super-scale would be infinite.
    #[error("element {element}: the E8 scale of a block that reaches {amax} does not fit fp16")]
    SuperScaleOverflow {
        /// Index of the first value of the block's largest magnitude.
        element: u64,
        /// That magnitude.
        amax: f32,
    },
    /// A block has no counterpart in or from IQ3_XXS.
    #[error("block {block} {error}")]
    E8 {
        /// Index of the block.
        block: u64,
        /// Why.
        error: E8Error,
    },
    /// An importance is negative, infinite or NaN.
    #[error("importance of element {element} is {value}, expected a finite number of 0 or more")]
    Importance {
        /// Index of the value.
        element: u64,
        /// Its importance.
        value: f32,
    },
    /// The reference scheme of E8 knows no importance.
    #[error("the E8 reference scheme takes no importance; leave it out or take the default scheme")]
    ReferenceImportance,
    /// The width of a row is no multiple of 256.
    #[error(transparent)]
    Rotation(#[from] WidthError),
    /// The source is no whole number of blocks.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The source is no whole number of 32-value blocks.
    #[error("{values} values of {ty} are no whole number of blocks of 32")]
    Ragged {
        /// The source type.
        ty: GgmlType,
        /// Values given.
        values: u64,
    },
    /// A plane or an output has not the length that the source asks for.
    #[error("{plane}: {got} where {expected} are needed")]
    Length {
        /// Which slice.
        plane: &'static str,
        /// Its length.
        got: usize,
        /// What its length has to be.
        expected: usize,
    },
    /// A matrix is larger than this machine can address.
    #[error("a matrix of {rows} rows and {cols} columns is larger than this machine can address")]
    TooLarge {
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// Int8 weights in this order cannot have these scales.
    #[error("{order} does not take scales per {scales}: one instruction sums over two blocks of 32")]
    ScalesOfOrder {
        /// The order.
        order: Order,
        /// The scales.
        scales: Scales,
    },
    /// Rows are no whole number of blocks.
    #[error("rows of {cols} columns are no whole number of blocks of {len}")]
    RaggedRows {
        /// Columns.
        cols: usize,
        /// Values of a block.
        len: u64,
    },
    /// Rows are so long that a sum of their int8 products need not fit an int32.
    #[error(
        "rows of {cols} columns: above {} an int32 no longer holds every sum of int8 products; pack them as \
         q8_0.split",
        crate::int8::MAX_CHANNEL_COLS
    )]
    LongRows {
        /// Columns.
        cols: usize,
    },
    /// Int8 weights with these scales do not go back to blocks of this type.
    #[error(
        "int8 with scales per {scales} does not go back to {ty}: only block32 does, to Q8_0, Q4_0, Q5_0 and IQ4_NL"
    )]
    NoBlocks {
        /// The scales.
        scales: Scales,
        /// The type.
        ty: GgmlType,
    },
    /// An int8 weight that blocks of the type cannot hold.
    #[error("element {element} is {quant}, which no {ty} block holds: the matrix was not packed from {ty}")]
    NotOfType {
        /// Its index in the matrix, row-major.
        element: u64,
        /// The weight.
        quant: i8,
        /// The type.
        ty: GgmlType,
    },
    /// `GANTRY_SIMD` asks for what is not there.
    #[error(transparent)]
    Level(#[from] LevelError),
}

impl PackError {
    /// The same fault, seen from a tensor in which the slice starts at element `elements`, which is block
    /// `blocks` of the source type.
    pub fn moved(mut self, elements: u64, blocks: u64) -> Self {
        match &mut self {
            Self::NonFinite { element, .. }
            | Self::ScaleOverflow { element, .. }
            | Self::NotOfType { element, .. }
            | Self::SuperScaleOverflow { element, .. }
            | Self::Importance { element, .. } => *element += elements,
            Self::NonFiniteScale { block, .. } | Self::E8 { block, .. } => *block += blocks,
            Self::Block(_) | Self::Ragged { .. } | Self::Length { .. } | Self::Level(_) => {}
            Self::TooLarge { .. } | Self::ScalesOfOrder { .. } | Self::RaggedRows { .. } => {}
            Self::LongRows { .. } | Self::NoBlocks { .. } => {}
            Self::ReferenceImportance | Self::Rotation(_) => {}
        }
        self
    }

    pub(crate) fn expect_len(plane: &'static str, got: usize, expected: usize) -> Result<(), Self> {
        if got == expected { Ok(()) } else { Err(Self::Length { plane, got, expected }) }
    }
}

impl From<Fault> for PackError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Element { index, kind } => Self::NonFinite { element: index, kind },
            Fault::Scale { block, field, kind } => Self::NonFiniteScale { block, field, kind },
        }
    }
}
