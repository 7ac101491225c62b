//! How values are encoded where a layout leaves a choice: the E8 scheme and the importance of columns.

use crate::failure::Refusal;
use crate::imatrix::Imatrix;
use crate::plan::{SourcePlan, TensorPlan};
use clap::{Args, ValueEnum};
use gantry_formats::exit::Exit;
use gantry_formats::layout::Layout;
use gantry_packer::e8;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `--e8-scheme`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// The lower error.
    #[default]
    Default,
    /// Byte for byte what the published codec gives.
    Reference,
}

/// `--e8-effort`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Effort {
    /// One search per block.
    #[default]
    Default,
    /// Several scales and every choice of signs: some 2 % less squared error for twenty times the time.
    High,
}

/// Options of encoding.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EncodingArgs {
    /// How E8 blocks are encoded.
    #[arg(long, value_enum, default_value_t)]
    e8_scheme: Scheme,

    /// How hard the encoder of the default scheme searches.
    #[arg(long, value_enum, default_value_t)]
    e8_effort: Effort,

    /// Importance matrix (GGUF, as llama-imatrix writes it): weights the error of unrotated E8.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
}

/// What was meant by them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoding {
    pub(crate) scheme: Scheme,
    pub(crate) effort: Effort,
    pub(crate) imatrix: Option<Arc<Imatrix>>,
}

impl EncodingArgs {
    /// The file of the importance matrix.
    pub(crate) fn imatrix(&self) -> Option<&Path> {
        self.imatrix.as_deref()
    }

    /// Reads the importance matrix, where there is one.
    ///
    /// # Errors
    /// Where it cannot be read or is none.
    pub(crate) fn encoding(&self) -> anyhow::Result<Encoding> {
        let imatrix = self.imatrix().map(Imatrix::open).transpose()?;
        Ok(Encoding { scheme: self.e8_scheme, effort: self.e8_effort, imatrix: imatrix.map(Arc::new) })
    }
}

impl Encoding {
    /// Options of the packer's encoder.
    pub(crate) fn e8(&self) -> e8::Options {
        e8::Options {
            scheme: match self.scheme {
                Scheme::Default => e8::Scheme::Default,
                Scheme::Reference => e8::Scheme::Reference,
            },
            effort: match self.effort {
                Effort::Default => e8::Effort::Default,
                Effort::High => e8::Effort::High,
            },
        }
    }

    /// The recorded options of a container, with the importance matrix that it may have been made with.
    ///
    /// # Errors
    /// Where it was made in a way that this program does not know.
    pub(crate) fn recorded(
        options: &BTreeMap<String, String>,
        imatrix: Option<Arc<Imatrix>>,
    ) -> anyhow::Result<Self> {
        Ok(Self { scheme: recorded(options, SCHEME)?, effort: recorded(options, EFFORT)?, imatrix })
    }

    /// Importance of the columns of source tensor `name`, which is stored as several matrices where it holds experts:
    /// of which one, of how many. For values that are encoded as unrotated E8, under the default scheme.
    pub(crate) fn importance(
        &self,
        name: &str,
        layout: Layout,
        unit: (u64, u64),
        cols: u64,
    ) -> Option<&[f32]> {
        let imatrix = self.imatrix.as_deref().filter(|_| uses_importance(layout, self.scheme))?;
        imatrix.columns(name, unit, cols)
    }

    /// Whether the importance matrix has something to say about a planned tensor that is encoded.
    fn weighs(&self, t: &TensorPlan, sources: &[SourcePlan]) -> bool {
        let units = t.route.blobs.len() as u64;
        let cols = t.dims.first().copied().unwrap_or(0);
        let name = &sources[t.source].name;
        !t.exact && (0..units).any(|unit| self.importance(name, t.layout, (unit, units), cols).is_some())
    }

    /// Options that were given and do nothing, or less than was hoped, in words. The tensors have their routes.
    pub(crate) fn notes(&self, tensors: &[TensorPlan], sources: &[SourcePlan]) -> Vec<String> {
        let mut out = Vec::new();
        let encoded = || tensors.iter().filter(|t| t.layout.is_e8() && !t.exact);
        if self.imatrix.is_some() {
            let open = encoded().filter(|t| uses_importance(t.layout, self.scheme)).count();
            let weighed = encoded().filter(|t| self.weighs(t, sources)).count();
            out.push(match (open, weighed) {
                (0, _) => "--imatrix has no effect: it weights unrotated E8 of the default scheme, and no tensor is \
                           that; --set ROLE=e8 makes one"
                    .into(),
                (open, 0) => format!("--imatrix has no effect: it fits none of the {open} E8 tensors by name and shape"),
                (open, n) => format!("the importance matrix weights {n} of {open} E8 tensors"),
            });
        }
        if self.effort == Effort::High && (self.scheme == Scheme::Reference || encoded().next().is_none()) {
            out.push("--e8-effort has no effect: no tensor is encoded by the default scheme of E8".into());
        }
        out
    }

    /// What shapes the bytes of these tensors, by name, as the manifest records it. The tensors have their routes.
    pub(crate) fn resolved(
        &self,
        tensors: &[TensorPlan],
        sources: &[SourcePlan],
    ) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        if tensors.iter().any(|t| t.layout.is_e8() && !t.exact) {
            out.insert(SCHEME.into(), word(&self.scheme));
            if self.scheme == Scheme::Default {
                out.insert(EFFORT.into(), word(&self.effort));
            }
        }
        if let Some(imatrix) = &self.imatrix
            && tensors.iter().any(|t| self.weighs(t, sources))
        {
            out.insert("imatrix".into(), imatrix.blake3().into());
        }
        out
    }
}

const SCHEME: &str = "e8_scheme";
const EFFORT: &str = "e8_effort";

/// What the command line and the manifest call a value.
fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_string())
}

fn recorded<T: ValueEnum + Default>(options: &BTreeMap<String, String>, name: &str) -> anyhow::Result<T> {
    let Some(text) = options.get(name) else { return Ok(T::default()) };
    T::from_str(text, false).map_err(|_| {
        let text = format!("the container was made with {name} {text}, which this program does not know");
        Refusal::new(Exit::Incompatible, text)
    })
}

fn uses_importance(layout: Layout, scheme: Scheme) -> bool {
    layout.is_e8() && !layout.is_rotated() && scheme == Scheme::Default
}
