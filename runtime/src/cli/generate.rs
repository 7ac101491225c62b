//! Writes on from a prompt.

use super::args::Generate;
use super::failure::Refusal;
use super::files::Files;
use super::kept::Kept;
use super::opened::{self, Text};
use super::record::Record;
use super::signals::Signals;
use super::speed::{self, Speed, load_json};
use super::turns::{self, Turns};
use anyhow::Context;
use gantry_formats::exit::Exit;
use gantry_runtime::sample::{Deciding, SampleError, Sampler};
use gantry_runtime::text::{EncodeOptions, TextStream, Tokenizer};
use gantry_runtime::{Session, Speculation};
use serde_json::json;
use std::io::Write;
use std::time::Instant;

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The model said so.
    Model,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// A signal came.
    Signal(Exit),
}

impl End {
    fn name(self) -> &'static str {
        match self {
            Self::Model => "eog",
            Self::Length => "length",
            Self::Context => "context",
            Self::Signal(_) => "interrupted",
        }
    }
}

/// What came of it.
pub(crate) struct Written {
    pub(crate) end: End,
    pub(crate) tokens: Vec<u32>,
    pub(crate) text: String,
    pub(crate) prompt: Speed,
    pub(crate) decode: Speed,
}

impl Written {
    /// Whether a signal came before the whole prompt was taken, or before anything was written.
    pub(crate) fn unanswered(&self) -> bool {
        matches!(self.end, End::Signal(_)) && self.tokens.is_empty()
    }

    /// Lets `session` take the last token, where a text that is long enough has shown it and it was not taken yet.
    pub(crate) fn take_last(&self, session: &mut Session) -> anyhow::Result<()> {
        if let (End::Length, Some(&last)) = (self.end, self.tokens.last())
            && session.left() > 0
        {
            session.decode(last)?;
        }
        Ok(())
    }
}

/// How to write.
pub(crate) struct Writing<'a> {
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) signals: &'a Signals,
    pub(crate) limit: Option<usize>,
    pub(crate) ignore_eos: bool,
    /// Whether devices bring all logits here, even where they could choose by themselves.
    pub(crate) on_host: bool,
}

impl Writing<'_> {
    /// Which logits a device has to bring.
    fn deciding(&self, sampler: &Sampler) -> Deciding {
        if self.on_host { Deciding::All } else { sampler.deciding() }
    }

    /// Takes `prompt`, then writes until something ends it; `out` gets the text as it comes.
    pub(crate) fn write(
        &self,
        session: &mut Session,
        sampler: &mut Sampler,
        drafts: Option<&mut Speculation>,
        prompt: &[u32],
        out: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Written> {
        self.signals.set_busy(true);
        let result = self.write_busy(session, sampler, drafts, prompt, out);
        self.signals.set_busy(false);
        result
    }

    fn write_busy(
        &self,
        session: &mut Session,
        sampler: &mut Sampler,
        drafts: Option<&mut Speculation>,
        prompt: &[u32],
        out: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Written> {
        let mut written = Written {
            end: End::Length,
            tokens: Vec::new(),
            text: String::new(),
            prompt: Speed::default(),
            decode: Speed::default(),
        };
        let start = Instant::now();
        prompt.iter().for_each(|&t| sampler.accept(t));
        let deciding = if drafts.is_some() { Deciding::All } else { self.deciding(sampler) };
        if let Some(exit) = prefill(session, prompt, deciding, self.signals)? {
            written.end = End::Signal(exit);
            return Ok(written);
        }
        written.prompt = Speed { tokens: prompt.len(), time: start.elapsed() };
        let mut pen =
            Pen { by: self, sampler, out, stream: TextStream::new(std::iter::empty::<String>()), written };
        let start = Instant::now();
        let begin = session.position();
        let end = match drafts {
            None => pen.plainly(session)?,
            Some(drafts) => pen.drafting(session, drafts)?,
        };
        let mut written = pen.finish(end)?;
        written.decode = Speed { tokens: session.position() - begin, time: start.elapsed() };
        Ok(written)
    }
}

/// Chooses a token.
type Sample<'a> = &'a mut dyn FnMut(&mut Sampler) -> Result<u32, SampleError>;

/// Writes token after token.
struct Pen<'a> {
    by: &'a Writing<'a>,
    sampler: &'a mut Sampler,
    out: &'a mut dyn FnMut(&str) -> anyhow::Result<()>,
    stream: TextStream,
    written: Written,
}

impl Pen<'_> {
    /// The token that `sample` chooses, written down, or what ends the text.
    fn next(&mut self, sample: Sample<'_>) -> anyhow::Result<Result<u32, End>> {
        if let Some(exit) = self.by.signals.stopped() {
            return Ok(Err(End::Signal(exit)));
        }
        if self.by.limit == Some(self.written.tokens.len()) {
            return Ok(Err(End::Length));
        }
        let token = sample(self.sampler)?;
        if self.by.tokenizer.is_eog(token) && !self.by.ignore_eos {
            return Ok(Err(End::Model));
        }
        self.sampler.accept(token);
        self.written.tokens.push(token);
        let step = self.stream.push(self.by.tokenizer.piece(token, false));
        (self.out)(&step.text)?;
        self.written.text.push_str(&step.text);
        // The last token's own logits are wanted by nobody.
        Ok(if self.by.limit == Some(self.written.tokens.len()) { Err(End::Length) } else { Ok(token) })
    }

    fn plainly(&mut self, session: &mut Session) -> anyhow::Result<End> {
        loop {
            match self.next(&mut |sampler| sampler.choose(session.following()))? {
                Err(end) => return Ok(end),
                Ok(_) if session.left() == 0 => return Ok(End::Context),
                Ok(token) => session.prefill_deciding(&[token], self.by.deciding(self.sampler))?,
            };
        }
    }

    /// The same text, several tokens in a step where drafts are right.
    fn drafting(&mut self, session: &mut Session, drafts: &mut Speculation) -> anyhow::Result<End> {
        let mut token = match self.next(&mut |sampler| sampler.choose(session.following()))? {
            Err(end) => return Ok(end),
            Ok(token) => token,
        };
        loop {
            if session.left() == 0 {
                return Ok(End::Context);
            }
            let mut end = None;
            let next = drafts.step(session, token, &mut |logits| {
                let next = self.next(&mut |sampler| sampler.sample(logits))?;
                Ok::<_, anyhow::Error>(next.map_err(|e| end = Some(e)).ok())
            })?;
            match (end, next) {
                (Some(end), _) => return Ok(end),
                (None, Some(next)) => token = next,
                (None, None) => return Ok(End::Context),
            }
        }
    }

    fn finish(mut self, end: End) -> anyhow::Result<Written> {
        let rest = self.stream.finish();
        (self.out)(&rest.text)?;
        self.written.text.push_str(&rest.text);
        self.written.end = end;
        Ok(self.written)
    }
}

/// Tokens of a prompt after which signals are looked at.
const BETWEEN_SIGNALS: usize = 512;

/// Takes the prompt in batches and looks for signals in between.
fn prefill(
    session: &mut Session,
    prompt: &[u32],
    deciding: Deciding,
    signals: &Signals,
) -> anyhow::Result<Option<Exit>> {
    let left = session.left();
    if prompt.len() > left {
        // Refused as a whole, before its first batch.
        session.prefill(prompt)?;
    }
    for part in prompt.chunks(BETWEEN_SIGNALS) {
        if let Some(exit) = signals.stopped() {
            return Ok(Some(exit));
        }
        session.prefill_deciding(part, deciding)?;
    }
    Ok(None)
}

/// `gantry-run FILE -p TEXT`.
pub(crate) fn run(args: &Generate, signals: &Signals) -> anyhow::Result<Exit> {
    let path = args.model.as_deref().context("no FILE")?;
    let prompt = opened::text_or_stdin(args.prompt.as_deref().context("no prompt")?)?;
    if prompt.is_empty() {
        return Err(Refusal::error(
            Exit::Usage,
            "the prompt is empty; give some text with -p, or to -p - as input",
        ));
    }
    let mut sampler = Sampler::new(args.sampling.options())?;
    let container = opened::container(path)?;
    let text = Text::of(&container)?;
    // A text begins once: what goes on from a session gets no other BOS.
    let encode = |begins: bool| -> anyhow::Result<Vec<u32>> {
        let ids = if args.chat {
            let mut turns = if begins { Turns::new(args.system.as_deref()) } else { Turns::going_on() };
            turns.say("user", &prompt);
            turns.encode(&text)?
        } else {
            text.tokenizer.encode(&prompt, EncodeOptions { add_special: begins, parse_special: true })
        };
        if ids.is_empty() {
            return Err(Refusal::error(Exit::Usage, "the prompt has no tokens; give some text"));
        }
        Ok(ids)
    };
    let mut ids = encode(true)?;
    let (session, hotness) = (args.session.as_deref(), args.extras.record_hotness.as_deref());
    let files = Files::of(&container, args.load.inputs());
    files.writes("--session", session).writes("--record-hotness", hotness).check()?;
    let kept = session.map(Kept::new).transpose()?;
    let record = Record::of(&container, hotness)?;
    let model = opened::load_with(&container, &args.load, args.extras.spec, record.is_some())?;
    // The index is not needed any more; a small model's is a noticeable part of it.
    drop(container);
    let mut session = model.session()?;
    let mut drafts = args.extras.spec.map(|n| Speculation::new(&mut session, n.get())).transpose()?;
    if let Some(kept) = &kept {
        kept.resume(&mut session)?;
        if session.position() > 0 {
            turns::note_begun(args.system.as_deref());
            ids = encode(false)?;
        }
    }
    let writing = Writing {
        tokenizer: &text.tokenizer,
        signals,
        limit: args.tokens,
        ignore_eos: args.ignore_eos,
        on_host: args.sampling.sample_on_host,
    };
    let mut stdout = std::io::stdout().lock();
    let mut show = |piece: &str| -> anyhow::Result<()> {
        if !args.json && !piece.is_empty() {
            stdout.write_all(piece.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    };
    let written = writing.write(&mut session, &mut sampler, drafts.as_mut(), &ids, &mut show)?;
    if let Some(kept) = &kept {
        kept.keep(&written, &mut session)?;
    }
    let counts = drafts.map(|d| d.counts());
    if args.json {
        let document = json!({
            "schema": super::SCHEMA,
            "command": "text",
            "text": written.text,
            "tokens": written.tokens,
            "prompt_tokens": ids,
            "end": written.end.name(),
            "seed": sampler.options().seed,
            "device": model.device().describe(),
            "load": load_json(&model),
            "prompt": written.prompt.json(),
            "decode": written.decode.json(),
            "drafts": counts.map(speed::drafts_json),
        });
        writeln!(stdout, "{document}")?;
    } else {
        writeln!(stdout)?;
    }
    stdout.flush()?;
    eprintln!("prompt: {}", written.prompt);
    eprintln!("decode: {}", written.decode);
    if let Some(counts) = counts {
        eprintln!("drafts: {}", speed::drafts(counts));
    }
    if let Some(record) = record {
        record.write(&model)?;
    }
    if written.end == End::Context {
        eprintln!("note: {}", opened::full_context(&model));
    }
    drop(session);
    opened::unload(model, args.load.verbose)?;
    match written.end {
        End::Signal(exit) => Ok(exit),
        End::Model | End::Length | End::Context => Ok(Exit::Ok),
    }
}
