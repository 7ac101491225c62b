//! Importance matrices: how much each column of a matrix matters, measured by running a model over text.
//!
//! `llama-imatrix` writes a GGUF with `general.type = imatrix` and for each matrix two tensors: `NAME.in_sum2`, sums
//! of squared activations by column (by column and expert), and `NAME.counts`, one count (one per expert).

use crate::failure::Refusal;
use crate::filehash::hash_file;
use crate::progress::Progress;
use anyhow::{Context, Result};
use gantry_formats::block::GgmlType;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{Gguf, Tensor};
use gantry_formats::hash;
use std::collections::HashMap;
use std::path::Path;

/// Largest tensor of an importance matrix that is read, in values: 512 experts of 2^17 columns.
const MAX_VALUES: u64 = 1 << 26;

/// An importance matrix.
#[derive(Debug)]
pub(crate) struct Imatrix {
    blake3: String,
    /// By tensor: columns, and mean squares of every expert one after another; a column of an expert that no token
    /// chose is 0.
    tensors: HashMap<String, (usize, Vec<f32>)>,
}

impl Imatrix {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// Where it cannot be read, is no importance matrix, or holds numbers that cannot be.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = Gguf::open(path).with_context(|| format!("--imatrix {}", path.display()))?;
        let refuse =
            |what: String| Refusal::new(Exit::Input, format!("--imatrix {}: {what}", path.display()));
        if !file.is_imatrix() {
            return Err(refuse("it is a GGUF and no importance matrix (general.type is not imatrix)".into()));
        }
        let by_name: HashMap<String, Tensor<'_>> = file.tensors().map(|t| (t.display_name(), t)).collect();
        let mut names: Vec<&String> = by_name.keys().collect();
        names.sort_unstable();
        let mut tensors = HashMap::new();
        for name in names {
            let Some(matrix) = name.strip_suffix(".in_sum2") else { continue };
            let counts = by_name.get(&format!("{matrix}.counts"));
            let counts = counts.ok_or_else(|| refuse(format!("{matrix} has no counts")))?;
            let sums = read(&file, &by_name[name]).map_err(|e| refuse(format!("{name}: {e}")))?;
            let counts = read(&file, counts).map_err(|e| refuse(format!("{matrix}.counts: {e}")))?;
            let cols = sums.len().checked_div(counts.len()).unwrap_or(0);
            if cols == 0 || cols * counts.len() != sums.len() {
                let (n, m) = (sums.len(), counts.len());
                return Err(refuse(format!("{matrix}: {n} sums and {m} counts do not fit")));
            }
            if let Some(at) = counts.iter().position(|c| !c.is_finite() || *c < 0.0) {
                return Err(refuse(format!("{matrix}: count {at} is {}", counts[at])));
            }
            let means = sums.chunks(cols).zip(&counts).flat_map(|(sums, &count)| {
                sums.iter().map(move |&sum| if count > 0.0 { sum / count } else { 0.0 })
            });
            let means: Vec<f32> = means.collect();
            if let Some(at) = means.iter().position(|m| !m.is_finite() || *m < 0.0) {
                return Err(refuse(format!(
                    "{matrix}: column {}: {} is no mean square",
                    at % cols,
                    means[at]
                )));
            }
            tensors.insert(matrix.to_string(), (cols, means));
        }
        if tensors.is_empty() {
            return Err(refuse("it holds no sums".into()));
        }
        Ok(Self { blake3: blake3_of(&file)?, tensors })
    }

    /// BLAKE3 of the file, hex.
    pub(crate) fn blake3(&self) -> &str {
        &self.blake3
    }

    /// Mean squares by column of tensor `name`, which is stored as `units` matrices of `cols` columns, one for each
    /// expert or one: of matrix `unit`. `None` where it has no such tensor, of another width or number of experts, or
    /// where no token came by.
    pub(crate) fn columns(&self, name: &str, (unit, units): (u64, u64), cols: u64) -> Option<&[f32]> {
        let (own, means) = self.tensors.get(name)?;
        if *own as u64 != cols {
            return None;
        }
        let mut experts = means.chunks_exact(*own);
        let columns = match experts.len() as u64 {
            1 => experts.next(),
            n if n == units => experts.nth(usize::try_from(unit).ok()?),
            _ => None,
        }?;
        columns.iter().any(|m| *m > 0.0).then_some(columns)
    }
}

fn read(file: &Gguf, tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    if tensor.ty != GgmlType::F32 || tensor.elements > MAX_VALUES {
        anyhow::bail!("{} of {} values, expected F32", tensor.ty, tensor.elements);
    }
    let mut bytes = vec![0; tensor.bytes as usize];
    file.read_tensor(tensor, 0, &mut bytes)?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// BLAKE3 of the file, hex; of a set, of its files' BLAKE3s in order.
fn blake3_of(file: &Gguf) -> Result<String> {
    let progress = Progress::new("hash imatrix", 0);
    let mut digests = blake3::Hasher::new();
    for shard in file.shards() {
        let digest = hash_file(shard.source(), 1, &progress)?;
        if file.shards().len() == 1 {
            return Ok(hash::hex(&digest));
        }
        digests.update(&digest);
    }
    Ok(hash::hex(digests.finalize().as_bytes()))
}
