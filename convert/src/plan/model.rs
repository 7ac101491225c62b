//! The source as a model: its hyperparameters, how it compares with its architecture's table, and its tensors
//! with their roles.

use super::{SourcePlan, TensorPlan};
use crate::failure::Refusal;
use anyhow::{Result, bail};
use gantry_formats::arch::{self, Architecture, Hparams, Metadata, Presence, Problem};
use gantry_formats::container::{Alias, Model};
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{Gguf, Header, display_name};

/// Most findings that an error or the manifest lists one by one.
const LISTED: usize = 12;

/// What is known of the model as a whole.
pub(super) struct Known {
    pub(super) arch: Option<&'static Architecture>,
    pub(super) hparams: Hparams,
    pub(super) model: Model,
    pub(super) warnings: Vec<String>,
}

impl Known {
    /// Names that the architecture asks for and another tensor serves.
    pub(super) fn aliases(&self, tensors: &[TensorPlan]) -> Vec<Alias> {
        let has = |name: &str| tensors.iter().any(|t| t.name == name);
        let rules = self.arch.into_iter().flat_map(Architecture::rules).filter(|r| !r.in_blocks());
        rules
            .filter_map(|rule| match rule.presence {
                Presence::TiedTo(of) if !has(rule.name) && has(of) => {
                    Some(Alias { name: rule.name.into(), of: of.into() })
                }
                _ => None,
            })
            .collect()
    }
}

/// Compares the source with its architecture's table; refuses what does not fit, unless told to let the
/// incomplete through. Wrong shapes are never let through.
pub(super) fn examine(source: &Gguf, allow_incomplete: bool) -> Result<Known> {
    let header = source.header();
    let hparams = Hparams::read(header);
    let name = display_name(header.architecture().unwrap_or_default());
    let arch = arch::find(&name);
    let names: Vec<String> = source.tensors().map(|t| t.display_name()).collect();
    let (mut reasons, mut refused) = (Vec::new(), Vec::new());
    match arch {
        None => reasons.push(format!("architecture {name} is unknown to this program")),
        Some(arch) => {
            let tensors = names.iter().map(String::as_str).zip(source.tensors().map(|t| t.info.dims()));
            for finding in arch::check(arch, &hparams, header, tensors) {
                match finding.problem {
                    Problem::Shape => refused.push(finding.to_string()),
                    Problem::MissingKey
                    | Problem::Value
                    | Problem::MissingTensor
                    | Problem::UnknownTensor => reasons.push(finding.to_string()),
                }
            }
        }
    }
    if !refused.is_empty() {
        let list = listed(&refused).join("\n  ");
        let text =
            format!("{} tensors do not have the shape that {name} gives them:\n  {list}", refused.len());
        return Err(Refusal::new(Exit::Input, text));
    }
    if !reasons.is_empty() && !allow_incomplete {
        let known: Vec<&str> = arch::ARCHITECTURES.iter().map(|a| a.name).collect();
        let (exit, what) = match arch {
            None => (Exit::Incompatible, format!("{} (known: {})", reasons[0], known.join(", "))),
            Some(_) => {
                let list = listed(&reasons).join("\n  ");
                (Exit::Input, format!("the source is not a complete {name} model:\n  {list}"))
            }
        };
        let hint = "--allow-incomplete converts it all the same, marked as not runnable";
        return Err(Refusal::new(exit, format!("{what}\n{hint}")));
    }
    Ok(Known {
        arch,
        model: Model {
            architecture: name,
            arch_version: arch.map_or(0, |a| a.version),
            name: header.text("general.name"),
            parameters: source.tensors().map(|t| t.elements).sum(),
            complete: reasons.is_empty(),
            incomplete: listed(&reasons),
        },
        hparams,
        warnings: odd_text(header),
    })
}

fn listed(all: &[String]) -> Vec<String> {
    let mut out: Vec<String> = all.iter().take(LISTED).cloned().collect();
    if all.len() > LISTED {
        out.push(format!("and {} more", all.len() - LISTED));
    }
    out
}

/// Keys whose text is not UTF-8: legal, kept byte for byte, and worth a warning.
fn odd_text(header: &Header) -> Vec<String> {
    let odd = header.entries().filter(|e| {
        let text = e.value().and_then(|v| v.as_bytes());
        text.is_some_and(|bytes| std::str::from_utf8(bytes).is_err())
    });
    odd.map(|e| format!("metadata key {}: its text is not UTF-8; kept byte for byte", display_name(e.key)))
        .collect()
}

/// The source's tensors in file order.
pub(super) fn sources(source: &Gguf) -> Result<Vec<SourcePlan>> {
    let mut out = Vec::with_capacity(source.tensor_count());
    for t in source.tensors() {
        let name = t.display_name();
        let dims = t.info.dims().to_vec();
        if gantry_formats::size::product(dims.get(1..).unwrap_or(&[])).is_none() {
            bail!(Refusal::new(Exit::Input, format!("{name}: shape {dims:?} overflows 64 bits")));
        }
        out.push(SourcePlan {
            name,
            shard: t.shard,
            start: t.start,
            bytes: t.info.bytes,
            ty: t.info.ty,
            dims,
        });
    }
    Ok(out)
}
