//! A container against its source: whole files by hash, headers, and every stored value.

use super::compare::{self, Found, is_hex_of};
use crate::encoding::Encoding;
use crate::failure::Refusal;
use crate::filehash::hash_file;
use crate::imatrix::Imatrix;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::units;
use crate::unpack::Unpacker;
use crate::weights::file_name;
use gantry_formats::container::Container;
use gantry_formats::exit::Exit;
use gantry_formats::gguf::{Gguf, display_name};
use gantry_formats::hash;
use gantry_formats::message::wrap;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// One source file.
#[derive(Debug, Serialize)]
struct FileCheck {
    file: String,
    bytes: u64,
    blake3: String,
    same: bool,
}

/// One source tensor.
#[derive(Debug, Serialize)]
struct TensorCheck {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    stored: String,
    /// `identical`, `inverted`, `derived`, or `differs`.
    verdict: &'static str,
    max_error: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
}

/// Most differences of the whole source that people are shown one by one.
const LISTED: usize = 8;

/// What comparing found.
#[derive(Debug)]
pub(crate) struct Against {
    source: String,
    files: Vec<FileCheck>,
    tensors: Vec<TensorCheck>,
    problems: Vec<String>,
}

/// Compares an open container with the GGUF, or the set, at `source`.
///
/// # Errors
/// Where a file cannot be read.
pub(super) fn compare(
    container: &Container,
    source: &Path,
    imatrix: Option<&Path>,
    threads: usize,
) -> anyhow::Result<Against> {
    let gguf = Gguf::open(source)?;
    let mut out =
        Against { source: file_name(source), files: Vec::new(), tensors: Vec::new(), problems: Vec::new() };
    files(container, &gguf, threads, &mut out)?;
    let manifest = container.manifest();
    if gguf.tensor_count() != manifest.source_tensors.len() {
        let (found, want) = (gguf.tensor_count(), manifest.source_tensors.len());
        out.problems.push(format!("the source has {found} tensors, the container was made of {want}"));
    }
    let mut which = Vec::new();
    for (i, (want, found)) in manifest.source_tensors.iter().zip(gguf.tensors()).enumerate() {
        let name = display_name(found.name());
        if (&name, found.ty, found.dims()) == (&want.name, want.ty, &want.dims[..]) {
            which.push(i);
        } else {
            let (a, b) = ((found.ty, found.dims()), (want.ty, &want.dims));
            let what = format!("source tensor {i} is {name} {} {:?}", a.0, a.1);
            out.problems.push(format!("{what}, the container was made of {} {} {:?}", want.name, b.0, b.1));
        }
    }
    for (name, card, range) in compare::dirty_gaps(container)? {
        let place = format!("card {card} bytes {}..{} of its segment", range.start, range.end);
        out.problems.push(format!("{name}: bytes between its planes are not zero ({place})"));
    }
    let encoding = encoding(container, imatrix)?;
    let unpacker = Unpacker::new(container);
    let total: u64 = gguf.tensors().map(|t| t.bytes).sum();
    let progress = Progress::new("compare", total * 2);
    for (i, found) in compare::tensors(&unpacker, &gguf, &encoding, &which, threads, &progress)? {
        out.tensors.push(check(&unpacker, i, &found));
    }
    Ok(out)
}

/// How the container says that it was encoded.
fn encoding(container: &Container, imatrix: Option<&Path>) -> anyhow::Result<Encoding> {
    let options = &container.manifest().options;
    let imatrix = imatrix.map(Imatrix::open).transpose()?;
    match (options.get("imatrix"), &imatrix) {
        (Some(want), Some(given)) if want != given.blake3() => {
            let text =
                format!("--imatrix: its BLAKE3 is {}, the container was made with {want}", given.blake3());
            Err(Refusal::new(Exit::Input, text))
        }
        (Some(want), None) => {
            let text = format!(
                "the container was made with an importance matrix of BLAKE3 {want}; give it with --imatrix FILE"
            );
            Err(Refusal::new(Exit::Usage, text))
        }
        (None, Some(_)) => Encoding::recorded(options, None),
        _ => Encoding::recorded(options, imatrix.map(Arc::new)),
    }
}

fn files(container: &Container, gguf: &Gguf, threads: usize, out: &mut Against) -> anyhow::Result<()> {
    let sources = &container.manifest().sources;
    if gguf.shards().len() != sources.len() {
        let (found, want) = (gguf.shards().len(), sources.len());
        out.problems.push(format!("the source has {found} files, the container was made of {want}"));
    }
    let progress = Progress::new("hash source", gguf.shards().iter().map(|s| s.len()).sum());
    let shards = gguf.shards().iter().zip(sources).zip(&container.metadata().shards);
    for ((shard, want), kept) in shards {
        let digest = hash_file(shard.source(), threads, &progress)?;
        let same = is_hex_of(&want.blake3, &digest) && shard.len() == want.bytes;
        let blake3 = hash::hex(&digest);
        if !same {
            let text = format!("{}: BLAKE3 {blake3} and {} bytes", shard.file_name(), shard.len());
            let want = format!("the container was made of {} with {} bytes", want.blake3, want.bytes);
            out.problems.push(format!("{text}, {want}"));
        }
        if shard.header().raw() != kept.header {
            let text = "its header differs from the one that the container carries";
            out.problems.push(format!("{}: {text}", shard.file_name()));
        }
        let (file, bytes) = (shard.file_name().to_string(), shard.len());
        out.files.push(FileCheck { file, bytes, blake3, same });
    }
    Ok(())
}

fn check(unpacker: &Unpacker<'_>, i: usize, found: &Found) -> TensorCheck {
    let tensor = &unpacker.container().manifest().source_tensors[i];
    let mut stored: Vec<String> = unpacker.pieces(i).iter().map(|p| p.layout.to_string()).collect();
    stored.dedup();
    let mut problems = Vec::new();
    if let Err(error) = unpacker.cover(i) {
        problems.push(error.to_string());
    }
    problems.extend(found.refused.clone());
    if let Some(first) = found.first {
        let cols = tensor.dims.first().copied().unwrap_or(1).max(1);
        let (row, col) = (first / cols, first % cols);
        let blocks = units::plural(found.differing, "block");
        problems.push(format!("{blocks} differ from what the source gives, first at row {row} column {col}"));
    }
    if !found.hash.is_some_and(|digest| is_hex_of(&tensor.blake3, &digest)) {
        problems.push(format!("the source's bytes do not have the recorded BLAKE3 {}", tensor.blake3));
    }
    let recorded = tensor.max_error.unwrap_or(0.0);
    if tensor.exact && unpacker.cover(i).is_ok_and(|mut cover| !cover.all(|p| p.layout.keeps(tensor.ty))) {
        problems.push("the manifest records exact, and no copy of all its values is".into());
    }
    if (tensor.exact || found.derived) && recorded != found.max_error {
        let said = match tensor.max_error {
            None if tensor.exact => "exact".to_string(),
            _ => format!("an error of {recorded:e}"),
        };
        problems.push(format!("the manifest records {said}, measured {:e}", found.max_error));
    }
    let verdict = match (
        problems.is_empty(),
        found.derived,
        stored.iter().any(|s| !s.starts_with("raw.") && !s.starts_with("gguf.")),
    ) {
        (false, ..) => "differs",
        (true, true, _) => "derived",
        (true, false, true) => "inverted",
        (true, false, false) => "identical",
    };
    TensorCheck {
        name: tensor.name.clone(),
        ty: tensor.ty.to_string(),
        stored: stored.join("+"),
        verdict,
        max_error: found.max_error,
        what: (!problems.is_empty()).then(|| problems.join("; ")),
    }
}

impl Against {
    /// Whether everything is what the source gives.
    pub(super) fn is_exact(&self) -> bool {
        self.problems.is_empty() && self.tensors.iter().all(|t| t.what.is_none())
    }

    /// One line.
    pub(super) fn summary(&self) -> String {
        let bad = self.tensors.iter().filter(|t| t.what.is_some()).count() as u64;
        let first = self.problems.first().cloned();
        let named = || self.tensors.iter().find_map(|t| t.what.as_ref().map(|w| format!("{}: {w}", t.name)));
        if let Some(problem) = first {
            return format!("{} is not what the container was made of: {problem}", self.source);
        }
        let detail = named().unwrap_or_default();
        format!("not what {} gives: {} differ; {detail}", self.source, units::plural(bad, "tensor"))
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        for file in self.files.iter().filter(|f| f.same) {
            out += &format!("source {}: BLAKE3 of the whole file matches\n", file.file);
        }
        for problem in self.problems.iter().take(LISTED) {
            out += &wrap(&format!("FAILED {problem}"), 7);
            out.push('\n');
        }
        if let Some(more) = self.problems.len().checked_sub(LISTED).filter(|n| *n > 0) {
            out += &format!("FAILED in {more} more ways; --check lists them\n");
        }
        for (t, what) in self.tensors.iter().filter_map(|t| Some((t, t.what.as_ref()?))) {
            out += &wrap(&format!("FAILED {}: {what}", t.name), 7);
            out.push('\n');
        }
        let columns = [
            ("source", Align::Left),
            ("stored as", Align::Left),
            ("tensors", Align::Right),
            ("verdict", Align::Left),
            ("worst error", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for (key, count, worst) in self.groups() {
            let worst = if worst == 0.0 { "0".into() } else { format!("{worst:.3e}") };
            table.row([key.0, key.1, units::count(count), verdict_text(key.2).into(), worst]);
        }
        out + &table.render()
    }

    /// Tensors by type, layout and verdict, with their number and worst error.
    fn groups(&self) -> Vec<((String, String, &'static str), u64, f32)> {
        let mut groups = std::collections::BTreeMap::new();
        for t in &self.tensors {
            let entry = groups.entry((t.ty.clone(), t.stored.clone(), t.verdict)).or_insert((0u64, 0.0f32));
            *entry = (entry.0 + 1, entry.1.max(t.max_error));
        }
        groups.into_iter().map(|(key, (count, worst))| (key, count, worst)).collect()
    }

    /// A line per part, for scripts.
    pub(super) fn check_lines(&self) -> String {
        let mut out = String::new();
        for file in self.files.iter().filter(|f| f.same) {
            out += &format!("OK source {}\n", file.file);
        }
        for problem in &self.problems {
            out += &format!("FAILED source: {problem}\n");
        }
        for t in &self.tensors {
            out += &match &t.what {
                None => format!("OK against {} {}\n", t.name, t.verdict),
                Some(what) => format!("FAILED against {}: {what}\n", t.name),
            };
        }
        out
    }

    /// For programs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "source": self.source, "exact": self.is_exact(), "files": self.files, "problems": self.problems,
            "tensors": self.tensors,
        })
    }
}

fn verdict_text(verdict: &str) -> &'static str {
    match verdict {
        "identical" => "same bytes",
        "inverted" => "inverts to the same bytes",
        "derived" => "derived again, same bytes",
        _ => "DIFFERS",
    }
}
