//! A conversation.

use super::args::Chat;
use super::files::Files;
use super::generate::{End, Writing};
use super::kept::Kept;
use super::opened::{self, Text};
use super::record::Record;
use super::signals::Signals;
use super::speed;
use super::turns::{self, Turns};
use gantry_formats::exit::Exit;
use gantry_runtime::sample::Sampler;
use gantry_runtime::{Session, Speculation};
use std::io::{BufRead, IsTerminal, Write};

/// What `/help` says.
const HELP: &str = "A line is a message to the model. /exit, an empty line or Ctrl-D ends the conversation; Ctrl-C stops \
                    an answer, and at the prompt it ends the program.";

/// `gantry-run chat FILE`: a line of input is a turn; an empty line, `/exit` or the end of input ends it.
pub(crate) fn run(args: &Chat, signals: &Signals) -> anyhow::Result<Exit> {
    let mut sampler = Sampler::new(args.sampling.options())?;
    let container = opened::container(&args.model)?;
    let text = Text::of(&container)?;
    text.template()?;
    let (file, hotness) = (args.session.as_deref(), args.extras.record_hotness.as_deref());
    let files = Files::of(&container, args.load.inputs());
    files.writes("--session", file).writes("--record-hotness", hotness).check()?;
    let kept = file.map(Kept::new).transpose()?;
    let record = Record::of(&container, hotness)?;
    let model = opened::load_with(&container, &args.load, args.extras.spec, record.is_some())?;
    let mut session = model.session()?;
    let mut drafts = args.extras.spec.map(|n| Speculation::new(&mut session, n.get())).transpose()?;
    if let Some(kept) = &kept {
        kept.resume(&mut session)?;
    }
    let end = talk(args, signals, &mut sampler, &text, (&mut session, kept.as_ref()), drafts.as_mut())?;
    if let Some(record) = record {
        record.write(&model)?;
    }
    Ok(end)
}

/// Turn after turn.
fn talk(
    args: &Chat,
    signals: &Signals,
    sampler: &mut Sampler,
    text: &Text,
    (session, kept): (&mut Session, Option<&Kept>),
    mut drafts: Option<&mut Speculation>,
) -> anyhow::Result<Exit> {
    let writing = Writing {
        tokenizer: &text.tokenizer,
        signals,
        limit: args.tokens,
        ignore_eos: false,
        on_host: args.sampling.sample_on_host,
    };
    // What was said in earlier runs.
    let before = session.tokens().to_vec();
    let mut turns = if before.is_empty() { Turns::new(args.system.as_deref()) } else { Turns::going_on() };
    if !before.is_empty() {
        turns::note_begun(args.system.as_deref());
    }
    // What the cache holds.
    let mut held = before.clone();
    let interactive = std::io::stdin().is_terminal();
    let mut stdout = std::io::stdout();
    if interactive {
        eprintln!("Ctrl-D or /exit ends; Ctrl-C stops an answer");
    }
    loop {
        if interactive {
            let _ = std::io::stderr().write_all(b"> ");
        }
        let mut line = Vec::new();
        if std::io::stdin().lock().read_until(b'\n', &mut line)? == 0 {
            return Ok(Exit::Ok);
        }
        let line = opened::utf8(line, "the line")?;
        let line = line.trim_end_matches(['\n', '\r']);
        match line.trim() {
            "" | "/exit" => return Ok(Exit::Ok),
            "/help" => {
                eprintln!("{HELP}");
                continue;
            }
            _ => {}
        }
        turns.say("user", line);
        let wanted = [before.clone(), turns.encode(text)?].concat();
        let stays = keep(session, &mut held, &wanted);
        let mut show = |piece: &str| -> anyhow::Result<()> {
            stdout.write_all(piece.as_bytes())?;
            stdout.flush()?;
            Ok(())
        };
        let written = writing.write(session, sampler, drafts.as_deref_mut(), &wanted[stays..], &mut show)?;
        writeln!(stdout)?;
        if let Some(kept) = kept {
            kept.keep(&written, session)?;
        }
        held.extend(&wanted[stays..]);
        held.extend(&written.tokens);
        // The last token may have been shown without having been taken.
        held.truncate(session.position());
        if args.stats {
            eprintln!("prompt: {} ({stays} kept)", written.prompt);
            eprintln!("decode: {}", written.decode);
            if let Some(drafts) = &drafts {
                eprintln!("drafts: {}", speed::drafts(drafts.counts()));
            }
        }
        match written.end {
            // Whoever sits before it wants another answer; a script that is interrupted wants to end.
            End::Signal(Exit::Interrupted) if interactive => {
                signals.clear();
                if written.tokens.is_empty() {
                    // It never came to answer: as if nothing had been said.
                    turns.unsay();
                } else {
                    turns.say("assistant", &written.text);
                }
            }
            End::Signal(exit) => return Ok(exit),
            End::Context => {
                eprintln!("note: {}", opened::full_context(session.model()));
                return Ok(Exit::Ok);
            }
            End::Model | End::Length => turns.say("assistant", &written.text),
        }
    }
}

/// Rewinds the session to where the cache and what is wanted part, or further back where the model's state cannot be
/// taken back just there; at least one token is left to take, since its logits are needed. How many were kept.
fn keep(session: &mut Session, held: &mut Vec<u32>, wanted: &[u32]) -> usize {
    let same = held.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let kept = same.min(wanted.len().saturating_sub(1));
    let kept = session.rewind(kept);
    held.truncate(kept);
    kept
}
