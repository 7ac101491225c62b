//! A table with the numbers of one model put in: which tensors it has, and their shapes.

use super::hparams::{Keys, MAX_BLOCKS};
use super::subject::Subjects;
use super::{Architecture, Dim, Hparams, HparamsError, Metadata, Presence, TensorRule, Where};

/// An architecture's table for one model.
pub struct Resolved {
    /// The architecture.
    pub arch: &'static Architecture,
    /// The hyperparameters, without MTP blocks that are announced and absent.
    pub hparams: Hparams,
    /// What is wrong with them, in order of the table.
    pub errors: Vec<HparamsError>,
    pub(super) subjects: Subjects,
}

/// A tensor that a model may have.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Full name.
    pub name: String,
    /// Its row in the table.
    pub rule: &'static TensorRule,
    /// Its block.
    pub block: Option<u64>,
    /// Whether the hyperparameters are known well enough to say that it has a place in this block.
    pub certain: bool,
}

/// What every architecture computes with, where it is there at all: sizes that are some, and floats that are numbers.
fn basics(h: &Hparams, meta: &dyn Metadata) -> Result<(), HparamsError> {
    let keys = Keys::new(h, meta);
    for (size, name) in
        [(h.embd, "embedding_length"), (h.vocab, "vocab_size"), (h.context_length, "context_length")]
    {
        // An array may stand for one number where all its values are the same.
        if size.is_some() || name == "embedding_length" {
            keys.given(size, name)?;
        }
    }
    h.at_least(h.rms_eps.unwrap_or(0.0), 0.0, "attention.layer_norm_rms_epsilon")?;
    h.at_least(h.freq_base, f64::from(f32::MIN_POSITIVE), "rope.freq_base")?;
    h.rope_scaling(meta).map(|_| ())
}

impl Resolved {
    /// Reads every subject of the architecture. `has` says whether the model has a tensor.
    pub fn read(
        arch: &'static Architecture,
        hparams: &Hparams,
        meta: &dyn Metadata,
        has: impl Fn(&str) -> bool,
    ) -> Self {
        let mut hparams = hparams.clone();
        hparams.drop_absent_nextn(has);
        let (mut errors, mut subjects) = (Vec::new(), Subjects::default());
        for key in arch.required_keys {
            let full = format!("{}.{key}", arch.name);
            let float = ["epsilon", "scale", "freq_base"].iter().any(|end| key.ends_with(end));
            let single = if float { meta.f64(&full).is_some() } else { meta.u64(&full).is_some() };
            let list = !float && meta.array_len(&full).is_some_and(|n| n > 0);
            let there = single || list || meta.bool(&full).is_some() && key.ends_with("norm");
            if !there {
                errors.push(HparamsError::Missing { key: full });
            }
        }
        let value = |name: &str, found: String, expected: String| HparamsError::Value {
            key: format!("{}.{name}", arch.name),
            found,
            expected,
        };
        if let Some(blocks) = hparams.blocks.filter(|&n| n == 0 || n > MAX_BLOCKS as u64) {
            let expected = format!("between 1 and {MAX_BLOCKS}");
            errors.push(value("block_count", blocks.to_string(), expected));
        }
        if hparams.nextn > 0 && !arch.mtp() {
            let found = hparams.nextn.to_string();
            errors.push(value("nextn_predict_layers", found, "0: this architecture has none".into()));
        }
        let mut tell = |result: Result<(), HparamsError>| {
            // A key is told of once.
            if let Err(error) = result
                && !errors.iter().any(|e| e.key() == error.key())
            {
                errors.push(error);
            }
        };
        tell(basics(&hparams, meta));
        for &subject in arch.subjects {
            tell(subjects.read(subject, &hparams, meta));
        }
        Self { arch, hparams, errors, subjects }
    }

    /// Every tensor that the model may have, by row and then by block.
    pub fn expected(&self) -> impl Iterator<Item = Expected> {
        // A block count no file could back with tensors must not cost memory.
        let blocks = self.hparams.blocks.unwrap_or(0).min(MAX_BLOCKS as u64);
        self.arch.rules().flat_map(move |rule| {
            let count = if rule.in_blocks() { blocks } else { 1 };
            (0..count).filter_map(move |n| {
                let block = rule.in_blocks().then_some(n);
                let place = self.applies(rule.at, n);
                let expected =
                    Expected { name: rule.full_name(n), rule, block, certain: place == Some(true) };
                (place != Some(false)).then_some(expected)
            })
        })
    }

    /// Whether a tensor of this place is in `block`; `None` where the hyperparameters do not say.
    pub fn applies(&self, at: Where, block: u64) -> Option<bool> {
        let (h, s) = (&self.hparams, &self.subjects);
        let n = block as usize;
        let of = |list: &[bool]| list.get(n).copied();
        Some(match at {
            Where::Model | Where::Blocks => true,
            Where::ModelWithPle => s.ple.as_ref()?.is_some(),
            Where::Ple => s.ple.as_ref()?.as_ref().is_some_and(|ple| ple.layer == n),
            Where::Full => !of(&s.ssm.as_ref()?.recurrent)?,
            Where::Linear => of(&s.ssm.as_ref()?.recurrent)?,
            Where::Dense => h.experts == 0 || block < h.leading_dense,
            Where::Routed => h.experts > 0 && block >= h.leading_dense,
            Where::Hash => n < s.deepseek4.as_ref()?.hash_layers,
            Where::Scored => n >= s.deepseek4.as_ref()?.hash_layers,
            Where::Compressed => *s.compression.as_ref()?.ratios.get(n)? != 0,
            Where::Indexed => *s.compression.as_ref()?.ratios.get(n)? == 4,
            Where::Mtp => block >= h.layers?,
        })
    }

    /// Whether the tensor must be there, when the model has the tensors that `has` says.
    pub fn is_required(&self, tensor: &Expected, has: impl Fn(&str) -> bool) -> bool {
        tensor.certain
            && match tensor.rule.presence {
                Presence::Required => true,
                Presence::Optional | Presence::TiedTo(_) => false,
                Presence::Unless(other) => {
                    let other = TensorRule { name: other, ..*tensor.rule };
                    !has(&other.full_name(tensor.block.unwrap_or(0)))
                }
                Presence::OwnIndexer => {
                    let full = self.subjects.indexer.as_ref().map(|i| &i.full);
                    full.and_then(|f| f.get(tensor.block.unwrap_or(0) as usize)).copied().unwrap_or(false)
                }
            }
    }

    /// A tensor's shape in `block`, `ne0` first, as far as the hyperparameters are known.
    pub fn shape(&self, rule: &TensorRule, block: u64) -> Vec<Option<u64>> {
        rule.shape.iter().map(|&dim| self.value(dim, block)).collect()
    }

    /// A dimension in `block`; of [`Dim::PleRows`] the least, of [`Dim::Any`] nothing.
    pub fn value(&self, dim: Dim, block: u64) -> Option<u64> {
        let (h, s) = (&self.hparams, &self.subjects);
        let times = |a: Option<u64>, b: Option<u64>| a?.checked_mul(b?);
        let twice = |a: Option<u64>| times(a, Some(2));
        let some = |n: usize| Some(n as u64);
        let (ssm, hyper, indexer) = (s.ssm.as_ref(), s.hyper.as_ref(), s.indexer.as_ref());
        let (mla, deepseek4) = (s.mla.as_ref(), s.deepseek4.as_ref());
        let ple = s.ple.as_ref().and_then(Option::as_ref);
        let ratio = || s.compression.as_ref()?.ratios.get(block as usize).copied();
        match dim {
            Dim::One => Some(1),
            Dim::Three => Some(3),
            Dim::Any => None,
            Dim::Embd => h.embd,
            Dim::TwoEmbd => twice(h.embd),
            Dim::Vocab => h.vocab,
            Dim::Heads => h.heads,
            Dim::KeyLen => h.key_length,
            Dim::HeadsQ => times(h.heads, h.key_length),
            Dim::TwoHeadsQ => twice(times(h.heads, h.key_length)),
            Dim::HeadsK => times(h.heads_kv, h.key_length),
            Dim::HeadsV => times(h.heads_kv, h.value_length),
            Dim::HeadsOut => times(h.heads, h.value_length),
            Dim::HalfRot => h.rot.map(|n| n / 2),
            Dim::Ff => h.ff,
            Dim::ExpertFf => h.expert_ff,
            Dim::TwoExpertFf => twice(h.expert_ff),
            Dim::SharedFf => h.expert_shared_ff,
            Dim::Experts => Some(h.experts).filter(|&n| n > 0),
            Dim::ExpertsUsed => Some(h.experts_used).filter(|&n| n > 0),
            Dim::Streams => some(hyper?.streams),
            Dim::Wide => times(some(hyper?.streams), h.embd),
            Dim::Rank => some(hyper?.rank?),
            Dim::RankAndStreams => some(hyper?.rank? + hyper?.streams),
            Dim::Mix => some((2 + hyper?.streams) * hyper?.streams),
            Dim::SsmTaps => some(ssm?.conv),
            Dim::SsmDim => some(ssm?.dim),
            Dim::SsmHeads => some(ssm?.value_heads),
            Dim::TwoSsmHeads => some(2 * ssm?.value_heads),
            Dim::SsmValues => some(ssm?.dim * ssm?.value_heads),
            Dim::SsmQkv => some(ssm?.dim * (2 * ssm?.key_heads + ssm?.value_heads)),
            Dim::SsmQkvz => some(2 * ssm?.dim * (ssm?.key_heads + ssm?.value_heads)),
            Dim::PleDim => some(ple?.dim),
            Dim::PleRows => Some(ple?.rows()),
            Dim::PleTaps => some(ple?.conv),
            Dim::IndexHeads => some(indexer?.heads),
            Dim::IndexKey => some(indexer?.key_len),
            Dim::TwoIndexKey => some(2 * indexer?.key_len),
            Dim::IndexQ => some(indexer?.heads * indexer?.key_len),
            Dim::QRank => mla.map(|m| m.q_rank).or(deepseek4.map(|d| d.q_rank)).and_then(some),
            Dim::KvRank => some(mla?.kv_rank),
            Dim::KvRankRot => some(mla?.kv_rank + mla?.rot),
            Dim::MlaNope => some(mla?.key_len - mla?.rot),
            Dim::MlaValue => some(mla?.value_len),
            Dim::MlaHeadsQ => times(h.heads, some(mla?.key_len)),
            Dim::MlaHeadsOut => times(h.heads, some(mla?.value_len)),
            Dim::Ratio => some(ratio()?),
            Dim::CompressedKeys => {
                if ratio()? == 4 {
                    twice(h.key_length)
                } else {
                    h.key_length
                }
            }
            Dim::GroupIn => times(h.heads, h.key_length)?.checked_div(some(deepseek4?.out_groups)?),
            Dim::GroupsOut => some(deepseek4?.out_groups * deepseek4?.out_rank),
        }
    }
}
