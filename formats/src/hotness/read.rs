//! Files of counts, known by their content.

use super::{Hotness, HotnessError, HotnessFault, csv, imatrix};
use crate::gguf::{Gguf, display_name};
use crate::source::{FileSource, ReadAt};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most bytes of a JSON or a CSV that are read: a thousand layers of a thousand experts need less.
pub const MAX_TEXT: u64 = 16 << 20;

/// What a file of counts is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Gantry's own: says all that there is to say.
    Json,
    /// An importance matrix of `llama-imatrix`: says how many experts there are, not how many layers.
    Imatrix,
    /// SGLang's CSV: says neither, and not how many tokens were seen.
    Csv,
}

impl Format {
    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Json => "token counts (JSON)",
            Self::Imatrix => "importance matrix (GGUF)",
            Self::Csv => "token counts (SGLang CSV)",
        }
    }

    /// For programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Imatrix => "imatrix",
            Self::Csv => "csv",
        }
    }
}

/// Counts as they were read, before they are compared with a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The counts, of several files their sum. Where the format does not say how many layers or experts the model
    /// has: as many as have counts.
    pub hotness: Hotness,
    /// What the files are.
    pub format: Format,
    /// The files as they were given, for messages.
    pub files: Vec<String>,
    /// What is odd about them.
    pub notes: Vec<String>,
}

impl Reading {
    /// The files without their folders, for what has little room.
    pub fn file_names(&self) -> Vec<String> {
        self.files.iter().map(|file| file_name(file).to_string()).collect()
    }
}

impl From<Hotness> for Reading {
    /// Counts that are no file's.
    fn from(hotness: Hotness) -> Self {
        Self { hotness, format: Format::Json, files: vec!["token counts".into()], notes: Vec::new() }
    }
}

/// Reads `paths`, all of one format, and sums them: SGLang writes a file for each rank, and what was recorded in
/// several runs counts together.
///
/// # Errors
/// Where a file cannot be read, is none of the formats, breaks its rules, or is of another model than the first.
pub fn read(paths: &[PathBuf]) -> Result<Reading, HotnessError> {
    let mut all: Option<(Reading, Vec<Hotness>)> = None;
    for path in paths {
        // Files of ranks may differ in their folder alone.
        let name = display_name(path.as_os_str().as_bytes());
        let (format, hotness, notes) = read_one(path).map_err(|fault| fault.of(&name))?;
        let Some((sum, seen)) = &mut all else {
            let files = vec![name];
            let notes = notes.into_iter().collect();
            all = Some((Reading { hotness: hotness.clone(), format, files, notes }, vec![hotness]));
            continue;
        };
        if let Some(what) = differs(sum, format, &hotness) {
            return Err(HotnessFault::Mixed { what }.of(name));
        }
        if let Some(i) = seen.iter().position(|other| other.counts == hotness.counts) {
            let what = "hold the same counts: every token is counted more than once, shares stay";
            sum.notes.push(format!("{} and {} {what}", file_name(&sum.files[i]), file_name(&name)));
        }
        sum.hotness.add(&hotness).map_err(|fault| fault.of(&name))?;
        sum.hotness.fingerprint = sum.hotness.fingerprint.take().or_else(|| hotness.fingerprint.clone());
        sum.notes.extend(notes);
        sum.files.push(name);
        seen.push(hotness);
    }
    let none = || HotnessFault::Malformed { what: "no file given".into() }.of("token counts");
    all.map(|(sum, _)| sum).ok_or_else(none)
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What another file says that does not go with those before.
fn differs(sum: &Reading, format: Format, other: &Hotness) -> Option<String> {
    let (own, first) = (&sum.hotness, sum.files.first().map_or("", String::as_str));
    let numbers = |what: &str, found: u32, before: u32| {
        (found != before).then(|| format!("{found} {what}, {first} has {before}"))
    };
    if format != sum.format {
        return Some(format!("{}, {first} is {}", format.describe(), sum.format.describe()));
    }
    if own.fingerprint.is_some() && other.fingerprint.is_some() && own.fingerprint != other.fingerprint {
        return Some(format!("another fingerprint than {first}"));
    }
    let layers = numbers("layers", other.layers, own.layers).filter(|_| format == Format::Json);
    layers.or_else(|| numbers("experts", other.experts, own.experts).filter(|_| format != Format::Csv))
}

fn read_one(path: &Path) -> Result<(Format, Hotness, Vec<String>), HotnessFault> {
    let source = FileSource::open(path).map_err(HotnessFault::Io)?;
    let mut head = vec![0; source.len().min(16) as usize];
    source.read_exact_at(0, &mut head).map_err(HotnessFault::Io)?;
    if head.starts_with(b"GGUF") {
        let gguf = Gguf::open(path).map_err(|e| HotnessFault::Gguf(e.into()))?;
        let (hotness, notes) = imatrix::parse(&gguf)?;
        return Ok((Format::Imatrix, hotness, notes));
    }
    let json = starts_as_json(&head);
    if !json && !csv::is_csv(&head) {
        let shown: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
        let found = match (head.is_empty(), head.starts_with(&crate::container::MAGIC)) {
            (true, _) => "an empty file".into(),
            (_, true) => "a Gantry container".into(),
            _ => format!("it starts with {}", shown.join(" ")),
        };
        return Err(HotnessFault::Format { found });
    }
    if source.len() > MAX_TEXT {
        return Err(HotnessFault::TooLarge { bytes: source.len(), limit: MAX_TEXT });
    }
    let mut bytes = vec![0; source.len() as usize];
    source.read_exact_at(0, &mut bytes).map_err(HotnessFault::Io)?;
    match json {
        true => Ok((Format::Json, Hotness::from_json(&bytes)?, Vec::new())),
        false => Ok((Format::Csv, csv::parse(&bytes)?, Vec::new())),
    }
}

/// Whether a file that starts so is text with token counts: JSON or CSV. A model, in whatever format, is not.
pub fn is_text(head: &[u8]) -> bool {
    starts_as_json(head) || csv::is_csv(head)
}

fn starts_as_json(head: &[u8]) -> bool {
    head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start().starts_with(b"{")
}
