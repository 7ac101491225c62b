//! The journal beside a partial output: which blobs are on disk, so that an interrupted conversion goes on.
//!
//! Text, one line per finished blob, each with a check sum of its own, so that a torn last line is no blob. The
//! first line carries fingerprints of program, source and plan: a journal of anything else is refused. What it
//! says of a blob is believed only after the partial file's bytes have been hashed again.

use crate::failure::Refusal;
use crate::pack::output::Stamp;
use crate::partial;
use crate::plan::{Plan, json};
use anyhow::{Context, Result};
use gantry_formats::exit::Exit;
use gantry_formats::gguf::Gguf;
use gantry_formats::hash::{self, Digest};
use gantry_packer::q8_0::Stats;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

/// Version of the journal's format.
const VERSION: u32 = 1;
/// Largest journal that is read: some millions of blobs.
const LIMIT: u64 = 1 << 30;

/// A finished blob.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Index in the plan.
    pub(crate) blob: u64,
    /// BLAKE3 of its bytes.
    pub(crate) hash: Digest,
    /// Sum over the source chunks that it was made of, see [`crate::pack`].
    pub(crate) source: [u64; 4],
    /// What packing did to each source tensor's share.
    pub(crate) stats: Vec<(u32, Stats)>,
}

/// What must be the same for a conversion to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    tool: Digest,
    source: Digest,
    plan: Digest,
}

impl Fingerprint {
    /// Of this program, converting this source by this plan.
    pub(crate) fn new(plan: &Plan, source: &Gguf, stamp: &Stamp) -> Result<Self> {
        let mut files = blake3::Hasher::new();
        for shard in source.shards() {
            let header = hash::hash(shard.header().raw());
            files.update(shard.file_name().as_bytes()).update(&[0]).update(&header);
        }
        files.update(stamp.text().as_bytes());
        let mut plan_json = json(plan, 0, None);
        // What only informs may differ.
        for key in ["context", "cards", "notes", "warnings"] {
            plan_json[key] = serde_json::Value::Null;
        }
        let layout = format!("{:?} {plan_json}", plan.skeleton);
        Ok(Self {
            tool: hash::hash(format!("gantry {} journal {VERSION}", env!("CARGO_PKG_VERSION")).as_bytes()),
            source: *files.finalize().as_bytes(),
            plan: hash::hash(layout.as_bytes()),
        })
    }

    fn line(&self) -> String {
        let [tool, source, plan] = [&self.tool, &self.source, &self.plan].map(hash::hex);
        format!("gantry-journal {VERSION} {tool} {source} {plan}")
    }

    /// What differs, in words; `None` where nothing does.
    fn difference(&self, line: &str) -> Option<&'static str> {
        if line == self.line() {
            return None;
        }
        let fields: Vec<&str> = line.split(' ').collect();
        let is = |i: usize, want: &Digest| fields.get(i).is_some_and(|f| *f == hash::hex(want));
        Some(if !is(2, &self.tool) {
            "by another version of gantry"
        } else if !is(3, &self.source) {
            "from a source that has changed since"
        } else {
            "with other options"
        })
    }
}

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    key: String,
    /// Whether the last line lacks its end.
    torn: bool,
}

impl Journal {
    /// Starts an empty journal.
    pub(crate) fn create(path: &Path, fingerprint: &Fingerprint) -> Result<Self> {
        let mut file = partial::open(path)?;
        file.set_len(0)?;
        let key = fingerprint.line();
        writeln!(file, "{key}")?;
        file.sync_data()?;
        Ok(Self { file, key, torn: false })
    }

    /// Opens an earlier run's journal; `None` where there is none.
    ///
    /// # Errors
    /// Where it was written for another source, plan or program.
    pub(crate) fn resume(path: &Path, fingerprint: &Fingerprint) -> Result<Option<(Self, Vec<Entry>)>> {
        let file = match File::options().read(true).append(true).open(path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.with_context(|| path.display().to_string())?,
        };
        let mut text = Vec::new();
        (&file).take(LIMIT).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines();
        let Some(first) = lines.next().filter(|l| !l.is_empty()) else { return Ok(None) };
        if let Some(difference) = fingerprint.difference(first) {
            let path = path.display();
            let text = format!(
                "{path}: an interrupted conversion was begun {difference}; --no-resume throws it away and starts over"
            );
            return Err(Refusal::new(Exit::Input, text));
        }
        let journal = Self { file, key: first.to_string(), torn: !text.ends_with('\n') };
        let entries = lines.filter_map(|line| parse(&journal.key, line)).collect();
        Ok(Some((journal, entries)))
    }

    /// Records blobs whose bytes are on disk.
    pub(crate) fn append<'a>(&mut self, entries: impl Iterator<Item = &'a Entry>) -> std::io::Result<()> {
        // A torn line must not swallow the next one.
        let mut text = if std::mem::take(&mut self.torn) { "\n".to_string() } else { String::new() };
        for entry in entries {
            let line = line(entry);
            text.push_str(&format!("{line} {}\n", check(&self.key, &line)));
        }
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()
    }
}

fn check(key: &str, line: &str) -> String {
    let digest = hash::hex(&hash::hash(format!("{key}\n{line}").as_bytes()));
    digest[..16].to_string()
}

fn line(e: &Entry) -> String {
    let mut line = format!("blob {} {}", e.blob, hash::hex(&e.hash));
    for word in e.source {
        line.push_str(&format!(" {word:016x}"));
    }
    for (tensor, s) in &e.stats {
        let (abs, rel) = (s.max_abs_error.to_bits(), s.max_rel_error.to_bits());
        line.push_str(&format!(" {tensor}:{}:{}:{}:{abs:08x}:{rel:08x}", s.blocks, s.lost, s.subnormal));
    }
    line
}

/// One line; `None` where it is torn or damaged.
fn parse(key: &str, text: &str) -> Option<Entry> {
    let (body, sum) = text.rsplit_once(' ')?;
    if check(key, body) != sum {
        return None;
    }
    let mut words = body.split(' ').skip(1);
    let blob = words.next()?.parse().ok()?;
    let hash = hash::from_hex(words.next()?)?;
    let mut source = [0; 4];
    for word in &mut source {
        *word = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    let stats = words.map(|word| {
        let mut fields = word.split(':');
        let mut next = || fields.next();
        let tensor = next()?.parse().ok()?;
        let [blocks, lost, subnormal] = [next()?, next()?, next()?].map(|f| f.parse().ok());
        let [abs, rel] = [next()?, next()?].map(|f| u32::from_str_radix(f, 16).ok().map(f32::from_bits));
        let (max_abs_error, max_rel_error) = (abs?, rel?);
        Some((
            tensor,
            Stats { blocks: blocks?, lost: lost?, subnormal: subnormal?, max_abs_error, max_rel_error },
        ))
    });
    Some(Entry { blob, hash, source, stats: stats.collect::<Option<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let stats =
            Stats { blocks: 5, lost: 1, subnormal: 2, max_abs_error: 0.1, max_rel_error: f32::MIN_POSITIVE };
        Entry {
            blob: 7,
            hash: [9; 32],
            source: [1, u64::MAX, 3, 4],
            stats: vec![(3, stats), (4, Stats::default())],
        }
    }

    #[test]
    fn lines_round_trip_and_every_damaged_one_is_refused() {
        let text = format!("{} {}", line(&entry()), check("key", &line(&entry())));
        assert_eq!(parse("key", &text), Some(entry()));
        assert_eq!(parse("other", &text), None);
        for cut in 0..text.len() {
            assert_eq!(parse("key", &text[..cut]), None);
        }
    }
}
