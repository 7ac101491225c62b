//! The vocabulary as data: what the GGUF metadata says, checked once, before any tokenizer is built from it.

use super::TextError;

/// One metadata value, in the few shapes that tokenizer keys take.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    /// A boolean.
    Bool(bool),
    /// Any integer type.
    Int(i64),
    /// Either float type.
    Float(f64),
    /// A string; GGUF does not promise UTF-8.
    Text(Vec<u8>),
    /// An array of strings.
    Texts(Vec<Vec<u8>>),
    /// An array of any integer type.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f32>),
}

impl Meta {
    fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Text(_) => "a string",
            Self::Texts(_) => "an array of strings",
            Self::Ints(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
        }
    }
}

/// Looks up GGUF metadata by its full key, such as `tokenizer.ggml.tokens`. Closures are lookups.
pub trait Metadata {
    /// The value under `key`, or `None` when the key is absent.
    fn get(&self, key: &str) -> Option<Meta>;
}

impl<F: Fn(&str) -> Option<Meta>> Metadata for F {
    fn get(&self, key: &str) -> Option<Meta> {
        self(key)
    }
}

/// Everything that a tokenizer and a chat template are built from.
///
/// `tokens`, `scores` and `types` are parallel after [`Vocab::from_metadata`]; the special ids are in range.
/// A hand-made one need not be: [`super::Tokenizer::new`] treats what is missing as score 0, normal type, no id.
#[derive(Clone, Debug, Default)]
pub struct Vocab {
    /// `tokenizer.ggml.model`: the family, `gpt2` (byte-level BPE) or `llama` (SentencePiece).
    pub model: String,
    /// `tokenizer.ggml.pre`: how BPE splits text into words before merging.
    pub pre: Option<String>,
    /// `general.name`: llama.cpp decides some token attributes by it.
    pub name: Option<String>,
    /// Token texts by id, as stored: byte-level BPE has them in its byte alphabet.
    pub tokens: Vec<Vec<u8>>,
    /// SentencePiece scores by id, higher merges first.
    pub scores: Vec<f32>,
    /// Token types by id: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub types: Vec<i32>,
    /// BPE merges in rank order, each `left right`.
    pub merges: Vec<Vec<u8>>,
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown token.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Prefix mark of fill-in-the-middle.
    pub fim_pre: Option<u32>,
    /// Suffix mark of fill-in-the-middle.
    pub fim_suf: Option<u32>,
    /// Middle mark of fill-in-the-middle.
    pub fim_mid: Option<u32>,
    /// Padding of fill-in-the-middle; ends generation, like the next two.
    pub fim_pad: Option<u32>,
    /// Repository name of fill-in-the-middle.
    pub fim_rep: Option<u32>,
    /// File separator of fill-in-the-middle.
    pub fim_sep: Option<u32>,
    /// Put BOS first. `None`: the family's default.
    pub add_bos: Option<bool>,
    /// Put EOS last. `None`: the family's default.
    pub add_eos: Option<bool>,
    /// SentencePiece: text begins with a space. `None`: yes.
    pub add_space_prefix: Option<bool>,
    /// SentencePiece unigram only; kept for completeness, llama.cpp ignores it in the two families here.
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.chat_template`, Jinja.
    pub chat_template: Option<String>,
    /// What was odd and how it was taken, for the user.
    pub warnings: Vec<String>,
}

impl Vocab {
    /// Reads the `tokenizer.*` keys.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] without a model, tokens or (`gpt2`) merges, [`TextError::Value`] for a key of the wrong type,
    /// [`TextError::Length`] when scores or types are fewer than tokens. A special id outside the vocabulary is
    /// dropped with a warning, as llama.cpp does.
    pub fn from_metadata(meta: &impl Metadata) -> Result<Self, TextError> {
        let model = text(meta, "tokenizer.ggml.model")?
            .ok_or_else(|| TextError::NoTokenizer { missing: "tokenizer.ggml.model".into() })?;
        if model == "no_vocab" || model == "none" {
            return Err(TextError::NoTokenizer { missing: format!("a vocabulary (its model is '{model}')") });
        }
        let tokens = texts(meta, "tokenizer.ggml.tokens")?
            .filter(|tokens| !tokens.is_empty())
            .ok_or_else(|| TextError::NoTokenizer { missing: "tokenizer.ggml.tokens".into() })?;
        let count = tokens.len();
        if u32::try_from(count).is_err() {
            return Err(TextError::Length {
                key: "tokenizer.ggml.tokens".into(),
                found: count,
                expected: u32::MAX as usize,
            });
        }

        let key = "tokenizer.ggml.scores";
        let mut scores = match meta.get(key) {
            None => vec![0.0; count],
            Some(Meta::Floats(scores)) => scores,
            Some(Meta::Ints(scores)) => scores.into_iter().map(|score| score as f32).collect(),
            Some(other) => return Err(wrong(key, &other, "an array of floats")),
        };
        fit(key, &mut scores, count)?;

        let key = "tokenizer.ggml.token_type";
        let mut types = match meta.get(key) {
            None => vec![1; count],
            Some(Meta::Ints(types)) => {
                types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(0)).collect()
            }
            Some(other) => return Err(wrong(key, &other, "an array of integers")),
        };
        fit(key, &mut types, count)?;

        let merges = texts(meta, "tokenizer.ggml.merges")?;
        if model == "gpt2" && merges.is_none() {
            return Err(TextError::NoTokenizer { missing: "tokenizer.ggml.merges".into() });
        }
        let mut vocab = Self {
            model,
            pre: text(meta, "tokenizer.ggml.pre")?.filter(|pre| !pre.is_empty()),
            name: text(meta, "general.name")?,
            tokens,
            scores,
            types,
            merges: merges.unwrap_or_default(),
            add_bos: flag(meta, "tokenizer.ggml.add_bos_token")?,
            add_eos: flag(meta, "tokenizer.ggml.add_eos_token")?,
            add_space_prefix: flag(meta, "tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: flag(meta, "tokenizer.ggml.remove_extra_whitespaces")?,
            chat_template: text(meta, "tokenizer.chat_template")?,
            ..Self::default()
        };
        let mut warnings = Vec::new();
        for (key, slot) in [
            ("tokenizer.ggml.bos_token_id", &mut vocab.bos),
            ("tokenizer.ggml.eos_token_id", &mut vocab.eos),
            ("tokenizer.ggml.eot_token_id", &mut vocab.eot),
            ("tokenizer.ggml.eom_token_id", &mut vocab.eom),
            ("tokenizer.ggml.unknown_token_id", &mut vocab.unk),
            ("tokenizer.ggml.seperator_token_id", &mut vocab.sep),
            ("tokenizer.ggml.padding_token_id", &mut vocab.pad),
            ("tokenizer.ggml.fim_pre_token_id", &mut vocab.fim_pre),
            ("tokenizer.ggml.fim_suf_token_id", &mut vocab.fim_suf),
            ("tokenizer.ggml.fim_mid_token_id", &mut vocab.fim_mid),
            ("tokenizer.ggml.fim_pad_token_id", &mut vocab.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut vocab.fim_rep),
            ("tokenizer.ggml.fim_sep_token_id", &mut vocab.fim_sep),
        ] {
            *slot = match meta.get(key) {
                None => None,
                Some(Meta::Int(id)) => {
                    let known = usize::try_from(id).ok().filter(|&id| id < count);
                    if known.is_none() {
                        warnings.push(format!("{key} is {id}, outside the {count} tokens; ignored"));
                    }
                    known.map(|id| id as u32)
                }
                Some(other) => return Err(wrong(key, &other, "an integer")),
            };
        }
        vocab.warnings = warnings;
        Ok(vocab)
    }

    /// The stored text of a token, if there is one.
    pub fn text(&self, id: u32) -> Option<&[u8]> {
        self.tokens.get(id as usize).map(Vec::as_slice)
    }
}

fn wrong(key: &str, found: &Meta, expected: &'static str) -> TextError {
    TextError::Value { key: key.into(), found: found.kind(), expected }
}

fn text(meta: &impl Metadata, key: &str) -> Result<Option<String>, TextError> {
    match meta.get(key) {
        None => Ok(None),
        Some(Meta::Text(bytes)) => String::from_utf8(bytes).map(Some).map_err(|_| TextError::Value {
            key: key.into(),
            found: "not UTF-8",
            expected: "a UTF-8 string",
        }),
        Some(other) => Err(wrong(key, &other, "a string")),
    }
}

fn texts(meta: &impl Metadata, key: &str) -> Result<Option<Vec<Vec<u8>>>, TextError> {
    match meta.get(key) {
        None => Ok(None),
        Some(Meta::Texts(texts)) => Ok(Some(texts)),
        Some(other) => Err(wrong(key, &other, "an array of strings")),
    }
}

fn flag(meta: &impl Metadata, key: &str) -> Result<Option<bool>, TextError> {
    match meta.get(key) {
        None => Ok(None),
        Some(Meta::Bool(flag)) => Ok(Some(flag)),
        Some(other) => Err(wrong(key, &other, "a boolean")),
    }
}

/// Longer lists are cut, as llama.cpp ignores their tails; shorter ones are an error.
fn fit<T>(key: &str, list: &mut Vec<T>, count: usize) -> Result<(), TextError> {
    if list.len() < count {
        return Err(TextError::Length { key: key.into(), found: list.len(), expected: count });
    }
    list.truncate(count);
    Ok(())
}
