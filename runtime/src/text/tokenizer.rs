//! Text to token ids and back.

use super::{
    TextError, Vocab,
    bpe::{Bpe, ByteDecoder},
    hash::FastMap,
    special::{Attributes, BYTE, CONTROL, Fragment, NORMAL, Specials, UNKNOWN, USER_DEFINED},
    spm::{SPACE, Spm},
};
use std::borrow::Cow;

/// Supported values of `tokenizer.ggml.model`.
const MODELS: &str = "gpt2, llama";

/// How to read a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put BOS first and EOS last where the model wants them.
    pub add_special: bool,
    /// Control tokens written in the text, such as `<|im_start|>`, are those tokens. Only for trusted text: a
    /// prompt from elsewhere could otherwise end its own turn.
    pub parse_special: bool,
}

#[derive(Debug)]
enum Family {
    Bpe(Box<Bpe>),
    Spm(Box<Spm>),
}

/// A tokenizer, equal to llama.cpp's for the same vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    family: Family,
    attributes: Attributes,
    specials: Specials,
    pieces: Vec<u8>,
    piece_ends: Vec<usize>,
    bos: Option<u32>,
    eos: Option<u32>,
    unk: Option<u32>,
    pad: Option<u32>,
    add_bos: bool,
    add_eos: bool,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// Builds a tokenizer.
    ///
    /// A missing pre-tokenizer is taken as `default`, as llama.cpp does, with a warning. BOS and EOS are never
    /// guessed for `gpt2` (llama.cpp takes token 11 for both); for `llama` they default to 1 and 2.
    ///
    /// # Errors
    /// [`TextError::NoTokenizer`] for an empty vocabulary, [`TextError::Model`] and [`TextError::Pre`] for what
    /// is not supported.
    pub fn new(vocab: &Vocab) -> Result<Self, TextError> {
        if vocab.tokens.is_empty() {
            return Err(TextError::NoTokenizer { missing: "tokenizer.ggml.tokens".into() });
        }
        let mut warnings = vocab.warnings.clone();
        let texts: Vec<Cow<'_, [u8]>> = vocab.tokens.iter().enumerate().map(named).collect();
        let mut ids: FastMap<&[u8], u32> = FastMap::with_capacity_and_hasher(texts.len(), Default::default());
        for (id, text) in texts.iter().enumerate() {
            ids.insert(text, id as u32);
        }
        let repeats = texts.len() - ids.len();
        if repeats > 0 {
            warnings.push(format!("{repeats} tokens repeat the text of another; the last of each is used"));
        }

        let in_range = |id: Option<u32>| id.filter(|&id| (id as usize) < texts.len());
        let (mut bos, mut eos, mut unk) = (in_range(vocab.bos), in_range(vocab.eos), in_range(vocab.unk));
        let (family, default_bos) = match vocab.model.as_str() {
            "gpt2" => {
                let pre = vocab.pre.as_deref().unwrap_or_else(|| {
                    warnings.push(
                        "tokenizer.ggml.pre is missing, 'default' is used; answers may be worse than they \
                         should be, consider converting from a newer GGUF"
                            .into(),
                    );
                    "default"
                });
                let bpe = Bpe::new(vocab, &ids, pre)?;
                let add_bos = bpe.splitter.add_bos;
                (Family::Bpe(Box::new(bpe)), add_bos)
            }
            "llama" => {
                bos = bos.or(in_range(Some(1)));
                eos = eos.or(in_range(Some(2)));
                unk = unk.or(in_range(Some(0)));
                (Family::Spm(Box::new(Spm::new(vocab, &ids, unk))), true)
            }
            "" | "none" | "no_vocab" => {
                return Err(TextError::NoTokenizer { missing: "tokenizer.ggml.model".into() });
            }
            other => return Err(TextError::Model { found: other.into(), known: MODELS.into() }),
        };

        let attributes = Attributes::new(&clipped(vocab, texts.len()), &ids, eos);
        let specials =
            Specials::new(texts.iter().enumerate().map(|(id, text)| (id as u32, &**text)), &attributes);
        let mut wanted = |name: &str, given: Option<u32>, add: bool| {
            if add && given.is_none() {
                warnings
                    .push(format!("the model wants {name} added and names no {name} token; none is added"));
            }
            add && given.is_some()
        };
        let add_bos = wanted("BOS", bos, vocab.add_bos.unwrap_or(default_bos));
        let add_eos = wanted("EOS", eos, vocab.add_eos.unwrap_or(false));

        let decoder = ByteDecoder::new();
        let mut pieces = Vec::new();
        let mut piece_ends = Vec::with_capacity(texts.len());
        for (id, text) in texts.iter().enumerate() {
            let flags = attributes.of(id as u32);
            if flags & (UNKNOWN | CONTROL | USER_DEFINED) != 0 {
                pieces.extend_from_slice(text);
            } else if flags & NORMAL != 0 {
                match family {
                    Family::Bpe(_) => pieces.extend(decoder.decode(text)),
                    Family::Spm(_) => unescape(text, &mut pieces),
                }
            } else if flags & BYTE != 0 {
                pieces.extend(byte_token(text));
            }
            piece_ends.push(pieces.len());
        }
        Ok(Self {
            family,
            attributes,
            specials,
            pieces,
            piece_ends,
            bos,
            eos,
            unk,
            pad: in_range(vocab.pad),
            add_bos,
            add_eos,
            warnings,
        })
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if let (true, Some(bos)) = (options.add_special && self.add_bos, self.bos) {
            out.push(bos);
        }
        let mut after_special = true;
        for fragment in self.specials.partition(text, options.parse_special) {
            match fragment {
                Fragment::Text(range) => {
                    match &self.family {
                        Family::Bpe(bpe) => bpe.encode(&text[range], &mut out),
                        Family::Spm(spm) => spm.encode(&text[range], after_special, &mut out),
                    }
                    after_special = false;
                }
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
            }
        }
        if let (true, Some(eos)) = (options.add_special && self.add_eos, self.eos) {
            out.push(eos);
        }
        out
    }

    /// The ids of what a chat template rendered: special tokens are parsed, and BOS is added only where the
    /// template did not write it, so that there are never two. EOS is not added: the turn is still open.
    pub fn encode_chat(&self, rendered: &str) -> Vec<u32> {
        let mut out = self.encode(rendered, EncodeOptions { add_special: false, parse_special: true });
        if let (true, Some(bos)) = (self.add_bos, self.bos)
            && out.first() != Some(&bos)
        {
            out.insert(0, bos);
        }
        out
    }

    /// The bytes that a token stands for; they may be part of a character. Control and unknown tokens are empty
    /// unless `render_special`; so are ids outside the vocabulary.
    pub fn piece(&self, id: u32, render_special: bool) -> &[u8] {
        let id_index = id as usize;
        let Some(&end) = self.piece_ends.get(id_index) else { return &[] };
        if !render_special && self.is_control(id) {
            return &[];
        }
        let start = id_index.checked_sub(1).map_or(0, |before| self.piece_ends[before]);
        &self.pieces[start..end]
    }

    /// The bytes of several tokens. A SentencePiece text loses the space that encoding put before it.
    pub fn decode(&self, ids: &[u32], render_special: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for (at, &id) in ids.iter().enumerate() {
            let piece = self.piece(id, render_special);
            let prefixed = at == 0 && matches!(&self.family, Family::Spm(spm) if spm.space_prefix);
            out.extend_from_slice(match piece.strip_prefix(b" ") {
                Some(rest) if prefixed => rest,
                _ => piece,
            });
        }
        out
    }

    /// Whether generation ends with this token: EOS, EOT, EOM, the fill-in-the-middle separators, and the
    /// texts that llama.cpp knows as ends.
    pub fn is_eog(&self, id: u32) -> bool {
        self.attributes.eog.contains(&id)
    }

    /// Every token that ends generation, in ascending order.
    pub fn eog(&self) -> impl Iterator<Item = u32> + '_ {
        self.attributes.eog.iter().copied()
    }

    /// Whether this is a control or unknown token, which is no text for people.
    pub fn is_control(&self, id: u32) -> bool {
        self.attributes.of(id) & (CONTROL | UNKNOWN) != 0
    }

    /// Beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// End of sequence.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// End of turn: the metadata's, or the first well-known one in the vocabulary.
    pub fn eot(&self) -> Option<u32> {
        self.attributes.eot
    }

    /// End of message: the metadata's, or `<|eom_id|>`.
    pub fn eom(&self) -> Option<u32> {
        self.attributes.eom
    }

    /// Unknown token.
    pub fn unk(&self) -> Option<u32> {
        self.unk
    }

    /// Padding.
    pub fn pad(&self) -> Option<u32> {
        self.pad
    }

    /// Whether `add_special` puts BOS first.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether `add_special` puts EOS last.
    pub fn adds_eos(&self) -> bool {
        self.add_eos
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.piece_ends.len()
    }

    /// Whether there are no tokens: never, [`Self::new`] refuses that.
    pub fn is_empty(&self) -> bool {
        self.piece_ends.is_empty()
    }

    /// What was odd in the vocabulary and how it was taken.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// A token without text gets a name that no text has by chance, as in llama.cpp.
fn named((id, text): (usize, &Vec<u8>)) -> Cow<'_, [u8]> {
    if text.is_empty() { Cow::Owned(format!("[EMPTY_{id}]").into_bytes()) } else { Cow::Borrowed(text) }
}

/// The special ids of a vocabulary that was made by hand, without those out of range.
fn clipped(vocab: &Vocab, count: usize) -> Cow<'_, Vocab> {
    let ids = |vocab: &Vocab| {
        [vocab.eot, vocab.eom, vocab.fim_pad, vocab.fim_rep, vocab.fim_sep]
            .into_iter()
            .flatten()
            .all(|id| (id as usize) < count)
    };
    if ids(vocab) {
        return Cow::Borrowed(vocab);
    }
    let mut vocab = vocab.clone();
    for slot in [&mut vocab.eot, &mut vocab.eom, &mut vocab.fim_pad, &mut vocab.fim_rep, &mut vocab.fim_sep] {
        *slot = slot.filter(|&id| (id as usize) < count);
    }
    Cow::Owned(vocab)
}

fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = memchr::memmem::find(rest, SPACE.as_bytes()) {
        out.extend_from_slice(&rest[..at]);
        out.push(b' ');
        rest = &rest[at + SPACE.len()..];
    }
    out.extend_from_slice(rest);
}

/// The byte of `<0xXX>`; none for a byte token of another form.
fn byte_token(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
