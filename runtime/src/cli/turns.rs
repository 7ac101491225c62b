//! A conversation as a chat template writes it, also where it began in an earlier run.

use super::failure::Refusal;
use super::opened::Text;
use gantry_formats::exit::Exit;
use gantry_runtime::text::{EncodeOptions, Message, chat::ChatOptions};

/// What stands for the last question and the last answer of an earlier run: words that no template changes.
const ASKED: &str = "gantry-asked-before";
const ANSWERED: &str = "gantry-answered-before";

/// Turns so far.
pub(crate) struct Turns {
    messages: Vec<Message>,
    /// Whether tokens that a session holds already come before them.
    goes_on: bool,
}

impl Turns {
    /// A new conversation.
    pub(crate) fn new(system: Option<&str>) -> Self {
        let messages = system.iter().map(|text| Message::new("system", *text)).collect();
        Self { messages, goes_on: false }
    }

    /// One whose beginning, up to an answer, a session holds.
    pub(crate) fn going_on() -> Self {
        let messages = vec![Message::new("user", ASKED), Message::new("assistant", ANSWERED)];
        Self { messages, goes_on: true }
    }

    /// Adds what `role` says.
    pub(crate) fn say(&mut self, role: &str, text: &str) {
        self.messages.push(Message::new(role, text));
    }

    /// Takes back what was said last.
    pub(crate) fn unsay(&mut self) {
        self.messages.pop();
    }

    /// What the model is to go on from: all turns, or all after the answer that the session ends with, whose end the
    /// template marks.
    ///
    /// # Errors
    /// Where there is no template, it takes no such turns, or does not show earlier answers.
    pub(crate) fn encode(&self, text: &Text) -> anyhow::Result<Vec<u32>> {
        let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
        let rendered = text.template()?.render(&self.messages, &options)?;
        if !self.goes_on {
            return Ok(text.tokenizer.encode_chat(&rendered));
        }
        let Some((_, rest)) = rendered.split_once(ANSWERED) else {
            let text = "the chat template does not show earlier answers, so that a conversation cannot go on from a \
                        session; begin anew without --session";
            return Err(Refusal::error(Exit::Incompatible, text));
        };
        Ok(text.tokenizer.encode(rest, EncodeOptions { add_special: false, parse_special: true }))
    }
}

/// Tells that a system message comes too late, where one is given for a conversation that has begun.
pub(crate) fn note_begun(system: Option<&str>) {
    if system.is_some() {
        eprintln!("note: the conversation has begun already, so that --system is not used");
    }
}
