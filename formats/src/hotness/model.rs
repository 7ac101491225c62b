//! What a model says of its experts.

use super::{HotnessError, HotnessFault, MAX_COUNTS, MAX_EXPERTS, MAX_LAYERS};
use crate::arch::Hparams;
use crate::container::Container;
use crate::gguf::{Gguf, Header};
use crate::hash::{self, Digest};
use crate::role::{Kind, Role};
use crate::source::ReadAt;
use std::collections::BTreeMap;

/// Key derivation context of the fingerprint.
const CONTEXT: &str = "gantry 1 routers";

/// Most bytes of one router that are read: no router has more, and a header may claim anything.
const MAX_ROUTER: u64 = 1 << 28;

/// The experts of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedModel {
    /// Hex of `derive("gantry 1 routers", …)` over `u64 length ‖ architecture` and the tensors that route:
    /// `ffn_gate_inp`, `exp_probs_b`, `ffn_gate_tid2eid`, of all layers, by name; of each `u64 length ‖ name ‖ u64 number
    /// of dims ‖ u64 dims ‖ BLAKE3 of its bytes in the source`.
    ///
    /// Routers decide what the counts are, and nothing else is taken in: cards, targets, layouts, recipes, shards and
    /// metadata may change, and quantizers leave routers alone, so that counts of one precision serve another.
    /// `None` where no such tensor is there.
    pub fingerprint: Option<String>,
    /// Blocks: `block_count`.
    pub layers: u32,
    /// Experts of each layer that has some.
    pub experts: u32,
    /// Experts that each token is given to, 0 where the model does not say.
    pub used: u32,
    /// Layers with experts, ascending.
    pub routed: Vec<u32>,
}

impl RoutedModel {
    /// That of a container; needs its index only.
    ///
    /// # Errors
    /// Where it has no experts, or layers with different numbers of them.
    pub fn of_container(container: &Container) -> Result<Self, HotnessError> {
        let file = container.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut facts = Facts::default();
        let build = move || {
            for tensor in &container.manifest().source_tensors {
                let digest = || {
                    hash::from_hex(&tensor.blake3).ok_or_else(|| {
                        let what = format!("{}: {:?} is no BLAKE3 in hex", tensor.name, tensor.blake3);
                        HotnessFault::Malformed { what }
                    })
                };
                facts.tensor(&tensor.name, &tensor.dims, digest)?;
            }
            facts.finish(container.gguf_headers().first())
        };
        build().map_err(|fault| fault.of(file))
    }

    /// That of a GGUF; reads its routers.
    ///
    /// # Errors
    /// As [`of_container`](Self::of_container), and where a router cannot be read.
    pub fn of_gguf<S: ReadAt>(gguf: &Gguf<S>) -> Result<Self, HotnessError> {
        let file = gguf.shards().first().map_or_else(String::new, |s| s.file_name().to_string());
        let mut facts = Facts::default();
        let build = move || {
            for tensor in gguf.tensors() {
                let hash = || {
                    if tensor.bytes > MAX_ROUTER {
                        let what = format!("router {} of {} bytes", tensor.display_name(), tensor.bytes);
                        return Err(HotnessFault::Malformed { what });
                    }
                    let mut bytes = vec![0; tensor.bytes as usize];
                    let read = gguf.read_tensor(&tensor, 0, &mut bytes);
                    read.map_err(|e| HotnessFault::Gguf(e.into()))?;
                    Ok(hash::hash(&bytes))
                };
                facts.tensor(&tensor.display_name(), tensor.dims(), hash)?;
            }
            facts.finish(Some(gguf.header()))
        };
        build().map_err(|fault| fault.of(file))
    }
}

/// What the tensors say.
#[derive(Default)]
struct Facts {
    /// By layer, its experts.
    experts: BTreeMap<u32, u64>,
    routers: BTreeMap<String, (Vec<u64>, Digest)>,
}

impl Facts {
    fn tensor(
        &mut self,
        name: &str,
        dims: &[u64],
        hash: impl FnOnce() -> Result<Digest, HotnessFault>,
    ) -> Result<(), HotnessFault> {
        let role = Role::of(name, dims.iter().filter(|d| **d > 1).count());
        let Some(layer) = role.layer else { return Ok(()) };
        if is_router(role.base) {
            self.routers.insert(name.into(), (dims.to_vec(), hash()?));
        }
        if role.kind == Kind::Experts {
            // A matrix of a single expert may have lost its last dim.
            let experts = dims.get(2).copied().unwrap_or(1);
            let before = *self.experts.entry(layer).or_insert(experts);
            if before != experts {
                let what =
                    format!("{name}: {experts} experts, other matrices of layer {layer} have {before}");
                return Err(HotnessFault::Malformed { what });
            }
        }
        Ok(())
    }

    fn finish(self, header: Option<&Header>) -> Result<RoutedModel, HotnessFault> {
        let hparams = header.map(|h| Hparams::read(h)).unwrap_or_default();
        let (Some((&first, &experts)), Some((&last, _))) =
            (self.experts.first_key_value(), self.experts.last_key_value())
        else {
            return Err(HotnessFault::NoExperts);
        };
        if let Some((layer, other)) = self.experts.iter().find(|(_, n)| **n != experts) {
            let what = format!("layer {layer} has {other} experts, layer {first} has {experts}");
            return Err(HotnessFault::Malformed { what });
        }
        let layers = hparams.blocks.unwrap_or(0).max(u64::from(last) + 1);
        let within = |n: u64, most: u32| u32::try_from(n).ok().filter(|n| *n <= most);
        let (Some(layers), Some(experts)) = (within(layers, MAX_LAYERS), within(experts, MAX_EXPERTS)) else {
            let most = format!("at most {MAX_LAYERS} of {MAX_EXPERTS}");
            let what = format!("{layers} layers of {experts} experts, expected {most}");
            return Err(HotnessFault::Malformed { what });
        };
        if self.experts.len() as u64 * u64::from(experts) > MAX_COUNTS {
            let what =
                format!("{} layers of {experts} experts: more than {MAX_COUNTS} counts", self.experts.len());
            return Err(HotnessFault::Malformed { what });
        }
        Ok(RoutedModel {
            fingerprint: self.fingerprint(&hparams.architecture),
            layers,
            experts,
            used: u32::try_from(hparams.experts_used).unwrap_or(u32::MAX).min(experts),
            routed: self.experts.into_keys().collect(),
        })
    }

    fn fingerprint(&self, architecture: &str) -> Option<String> {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        let text = |hasher: &mut blake3::Hasher, text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        text(&mut hasher, architecture);
        for (name, (dims, digest)) in &self.routers {
            text(&mut hasher, name);
            hasher.update(&(dims.len() as u64).to_le_bytes());
            dims.iter().for_each(|d| {
                hasher.update(&d.to_le_bytes());
            });
            hasher.update(digest);
        }
        (!self.routers.is_empty()).then(|| hash::hex(hasher.finalize().as_bytes()))
    }
}

/// Whether a tensor decides where tokens go: the router, its bias, the bias that only chooses, the table by token.
fn is_router(base: &str) -> bool {
    let stem = base.split_once('.').map_or(base, |(stem, _)| stem);
    matches!(stem, "ffn_gate_inp" | "exp_probs_b" | "ffn_gate_tid2eid")
}
