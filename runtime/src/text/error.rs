//! What can be wrong with a tokenizer, a chat template, or the metadata that they come from.

use gantry_formats::exit::{Exit, ExitCode};

/// Why a tokenizer or a chat template cannot be built or used.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum TextError {
    /// The metadata has no tokenizer at all.
    #[error(
        "container has no tokenizer: {missing} is absent; convert a GGUF that carries its vocabulary, or pass token ids"
    )]
    NoTokenizer {
        /// The key that is missing, or what it says.
        missing: String,
    },
    /// A metadata value of the wrong type.
    #[error("{key} is {found}, expected {expected}; the source GGUF's tokenizer metadata is malformed")]
    Value {
        /// The metadata key.
        key: String,
        /// The type that was found.
        found: &'static str,
        /// The type that the key has by definition.
        expected: &'static str,
    },
    /// Two lists that must be parallel are not.
    #[error("{key} has {found} entries, expected {expected}, one for each token")]
    Length {
        /// The metadata key of the shorter list.
        key: String,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// A tokenizer family that this program does not know.
    #[error("tokenizer model '{found}' is not supported, expected one of: {known}; pass token ids instead")]
    Model {
        /// `tokenizer.ggml.model`.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A pre-tokenizer that this program does not know. It is refused, not guessed: a wrong one gives
    /// plausible text and worse answers.
    #[error("pre-tokenizer '{found}' is not supported, expected one of: {known}; pass token ids instead")]
    Pre {
        /// `tokenizer.ggml.pre`.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A built-in pattern does not compile: a fault of this program.
    #[error("pre-tokenizer '{pre}': built-in pattern does not compile: {detail}; please report this")]
    Pattern {
        /// The pre-tokenizer.
        pre: String,
        /// What the regex compiler says.
        detail: String,
    },
    /// No chat template in the metadata.
    #[error(
        "the model has no chat template (tokenizer.chat_template); give one, or use plain completion (-p) instead of chat"
    )]
    NoChatTemplate,
    /// The chat template does not parse.
    #[error("chat template does not parse: {detail}; give another template")]
    ChatSyntax {
        /// What the template engine says.
        detail: String,
    },
    /// The chat template fails on these messages.
    #[error("chat template failed: {detail}")]
    ChatRender {
        /// What the template engine says.
        detail: String,
    },
    /// The chat template runs for longer, or writes more, than any conversation needs.
    #[error("chat template was stopped: {what}; give another template or a shorter conversation")]
    ChatTooLarge {
        /// What there was too much of, and the limit.
        what: String,
    },
    /// The chat template refused these messages with its own words (`raise_exception`).
    #[error("the model's chat template refuses these messages: {message}")]
    ChatRefused {
        /// The template's words.
        message: String,
    },
}

impl ExitCode for TextError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoTokenizer { .. } | Self::Model { .. } | Self::Pre { .. } | Self::NoChatTemplate => {
                Exit::Incompatible
            }
            Self::Value { .. }
            | Self::Length { .. }
            | Self::ChatSyntax { .. }
            | Self::ChatRender { .. }
            | Self::ChatTooLarge { .. }
            | Self::ChatRefused { .. } => Exit::Input,
            Self::Pattern { .. } => Exit::Other,
        }
    }
}
