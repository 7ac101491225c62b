//! Chat templates: the Jinja program in the model's metadata that lays messages out as one text.
//!
//! The environment is that of Hugging Face's `apply_chat_template`: `trim_blocks`, `lstrip_blocks`, Python's
//! string methods, `raise_exception`, `strftime_now`, loop controls, and a `tojson` that writes as Python does.

use super::{TextError, Vocab, strftime::strftime};
use minijinja::{
    Environment, Error, ErrorKind, State, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, ValueKind},
};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, sync::Mutex, time::SystemTime};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or what the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// What a rendering depends on besides the messages.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// End with the beginning of the assistant's answer.
    pub add_generation_prompt: bool,
    /// The time that `strftime_now` tells, in UTC. Without one the function is undefined, and templates that
    /// know how fall back to a fixed date: the same messages give the same text on any day.
    pub now: Option<SystemTime>,
    /// Further variables, such as `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

/// A parsed chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The words of the last `raise_exception`, to tell a refusal from a fault.
    refusal: Arc<Mutex<Option<String>>>,
    bos: String,
    eos: String,
}

const NAME: &str = "chat";

/// What one rendering may cost, in MiniJinja's units: about an instruction, 64 bytes, or an item that is looked
/// at. The largest templates known take some hundred for each message.
const FUEL: u64 = 10_000_000;

/// Longest text of one rendering: more tokens than any context holds.
const MAX_TEXT: usize = 64 << 20;

/// Deepest nesting that `tojson` follows.
const MAX_DEPTH: usize = 128;

/// Widest `tojson(indent=…)`; templates write 2 or 4.
const MAX_INDENT: usize = 16;

impl ChatTemplate {
    /// Parses a template. `bos` and `eos` are the texts of those tokens, empty where the model has none.
    ///
    /// # Errors
    /// [`TextError::ChatSyntax`] with the line.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| TextError::ChatSyntax { detail: told(&error) })?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        // MiniJinja iterates over none as over nothing; Python does not, and templates ask before `tools | length`.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        let refusal = Arc::new(Mutex::new(None));
        let words = Arc::clone(&refusal);
        environment.add_function("raise_exception", move |message: String| -> Result<String, Error> {
            if let Ok(mut slot) = words.lock() {
                *slot = Some(message.clone());
            }
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| TextError::ChatSyntax { detail: told(&error) })?;
        Ok(Self { environment, refusal, bos: bos.into(), eos: eos.into() })
    }

    /// The template of a vocabulary, with its BOS and EOS texts.
    ///
    /// # Errors
    /// [`TextError::NoChatTemplate`] without one, [`TextError::ChatSyntax`].
    pub fn from_vocab(vocab: &Vocab) -> Result<Self, TextError> {
        let source = vocab.chat_template.as_deref().ok_or(TextError::NoChatTemplate)?;
        let text = |id: Option<u32>| id.and_then(|id| vocab.text(id)).unwrap_or_default();
        Self::new(
            source,
            &String::from_utf8_lossy(text(vocab.bos)),
            &String::from_utf8_lossy(text(vocab.eos)),
        )
    }

    /// The conversation as one text, for [`super::Tokenizer::encode_chat`].
    ///
    /// # Errors
    /// [`TextError::ChatRefused`] with the template's words, [`TextError::ChatRender`] for anything else.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String, TextError> {
        let template = self
            .environment
            .get_template(NAME)
            .map_err(|error| TextError::ChatSyntax { detail: told(&error) })?;
        let now = options.now.map(|now| {
            Value::from_function(move |format: String| {
                strftime(&format, now).map_err(|directive| {
                    Error::new(
                        ErrorKind::InvalidOperation,
                        format!("strftime_now: no directive %{directive}"),
                    )
                })
            })
        });
        // Hugging Face passes these two as None, and templates test for that.
        let standard = context! {
            messages => Serde(messages),
            add_generation_prompt => options.add_generation_prompt,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
            tools => (),
            documents => (),
            ..now.map_or_else(|| context! {}, |strftime_now| context! { strftime_now })
        };
        // The first that names a variable wins.
        let all = context! { ..standard, ..Value::from(Serde(&options.variables)) };
        let mut text = Bounded::default();
        if let Err(error) = template.render_captured_to(all, &mut text) {
            let refused = self.refusal.lock().ok().and_then(|mut slot| slot.take());
            return Err(match refused {
                Some(message) => TextError::ChatRefused { message },
                None if text.full => {
                    TextError::ChatTooLarge { what: format!("its text is longer than {MAX_TEXT} bytes") }
                }
                None if out_of_fuel(&error) => TextError::ChatTooLarge {
                    what: format!("it takes more than {FUEL} steps; a loop in it may have no end"),
                },
                None => TextError::ChatRender { detail: told(&error) },
            });
        }
        String::from_utf8(text.bytes).map_err(|error| TextError::ChatRender { detail: error.to_string() })
    }
}

/// The text of a rendering, up to [`MAX_TEXT`].
#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > MAX_TEXT - self.bytes.len() {
            self.full = true;
            return Err(std::io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether an error, or one that caused it, is that a rendering took too long.
fn out_of_fuel(error: &Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An error with its causes, on one line.
fn told(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`, which is what templates are written for: a space
/// after `:` and `,`, nothing escaped for HTML.
fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if let Some(indent) = indent.filter(|&indent| indent > MAX_INDENT) {
        let message = format!("tojson: an indent of {indent}, expected at most {MAX_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = String::new();
    write_json(state, value, indent, 0, &mut out)?;
    Ok(out)
}

fn write_json(
    state: &State<'_, '_>,
    value: &Value,
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let message = format!("tojson: nested more than {MAX_DEPTH} deep");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    // A value may hold another many times over: what is written costs, not what it is written from.
    state.consume_fuel(1)?;
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent * depth));
        }
    };
    let (open, close) = match value.kind() {
        ValueKind::Map => ('{', '}'),
        ValueKind::Seq | ValueKind::Iterable => ('[', ']'),
        _ => {
            let scalar = serde_json::to_string(value)
                .map_err(|error| Error::new(ErrorKind::BadSerialization, format!("tojson: {error}")))?;
            state.consume_fuel(scalar.len() as u64 / 64)?;
            out.push_str(&scalar);
            return Ok(());
        }
    };
    out.push(open);
    let mut empty = true;
    for item in value.try_iter()? {
        if !empty {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        empty = false;
        state.consume_fuel((indent.unwrap_or(0) * (depth + 1)) as u64 / 64)?;
        line(depth + 1, out);
        if open == '{' {
            out.push_str(&serde_json::Value::from(item.to_string()).to_string());
            out.push_str(": ");
            write_json(state, &value.get_item(&item)?, indent, depth + 1, out)?;
        } else {
            write_json(state, &item, indent, depth + 1, out)?;
        }
    }
    if !empty {
        line(depth, out);
    }
    out.push(close);
    Ok(())
}
