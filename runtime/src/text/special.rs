//! Tokens that are not ordinary text: their attributes, the end-of-generation list, and finding them in a text.
//! The rules and the well-known names are llama.cpp's (`llama_vocab::impl::load`).

use super::{Vocab, hash::FastMap};
use memchr::memmem::Finder;
use std::{collections::BTreeSet, ops::Range};

pub(super) const NORMAL: u8 = 1;
pub(super) const UNKNOWN: u8 = 1 << 1;
pub(super) const CONTROL: u8 = 1 << 2;
pub(super) const USER_DEFINED: u8 = 1 << 3;
pub(super) const BYTE: u8 = 1 << 4;
/// White space before the token belongs to it.
const LSTRIP: u8 = 1 << 5;
/// White space after the token belongs to it.
const RSTRIP: u8 = 1 << 6;

const EOT: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: &[&str] = &["<|eom_id|>"];
const FIM_PRE: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: &[&str] = &["<|file_sep|>"];
/// Texts that end generation, whatever the metadata says of them.
const EOG: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Channel marks of the harmony format, shown as text.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// What each token is.
#[derive(Debug)]
pub(super) struct Attributes {
    flags: Vec<u8>,
    pub(super) eot: Option<u32>,
    pub(super) eom: Option<u32>,
    pub(super) eog: BTreeSet<u32>,
}

impl Attributes {
    /// `ids` maps token texts to ids; `eos` is the vocabulary's or its family's.
    pub(super) fn new(vocab: &Vocab, ids: &FastMap<&[u8], u32>, eos: Option<u32>) -> Self {
        let kind = |id: usize| match vocab.types.get(id) {
            None | Some(1) => NORMAL,
            Some(2) => UNKNOWN,
            Some(3) => CONTROL,
            Some(4) => USER_DEFINED,
            Some(6) => BYTE,
            Some(_) => 0,
        };
        let mut flags: Vec<u8> = (0..vocab.tokens.len()).map(kind).collect();
        let id = |text: &str| ids.get(text.as_bytes()).copied();

        // A token known by its text alone is made a control token, as one that the metadata names should be.
        let mut known = |given: Option<u32>, names: &[&str]| {
            given.or_else(|| {
                let found = names.iter().find_map(|name| id(name))?;
                flags[found as usize] |= CONTROL;
                Some(found)
            })
        };
        let eot = known(vocab.eot, EOT);
        let eom = known(vocab.eom, EOM);
        known(vocab.fim_pre, FIM_PRE);
        known(vocab.fim_suf, FIM_SUF);
        known(vocab.fim_mid, FIM_MID);
        let fim =
            [known(vocab.fim_pad, FIM_PAD), known(vocab.fim_rep, FIM_REP), known(vocab.fim_sep, FIM_SEP)];

        let mut eog: BTreeSet<u32> = fim.into_iter().flatten().collect();
        for found in EOG.iter().filter_map(|name| id(name)) {
            flags[found as usize] |= CONTROL;
            eog.insert(found);
        }
        for found in SHOWN.iter().filter_map(|name| id(name)) {
            flags[found as usize] = USER_DEFINED;
        }
        eog.extend([eos, eot, eom].into_iter().flatten());

        let ends = |eog: &BTreeSet<u32>, text: &str| id(text).filter(|found| eog.contains(found));
        // Two formats use <|end|> between messages.
        let call = ends(&eog, "<|call|>").or(ends(&eog, "<|calls|>")).is_some();
        let harmony = ends(&eog, "<|return|>").is_some() || ends(&eog, "<|flush|>").is_some();
        if let Some(end) = ends(&eog, "<|end|>").filter(|_| call && harmony) {
            eog.remove(&end);
            flags[end as usize] = USER_DEFINED;
        }
        // In two others </s> is ordinary text.
        let plain = ends(&eog, "<|tool_response>").or(ends(&eog, "<|plamo:eos|>")).is_some();
        if let Some(end) = ends(&eog, "</s>").filter(|_| plain) {
            eog.remove(&end);
            flags[end as usize] = NORMAL;
        }

        // Phi-3 swallows white space after its special tokens; GGUF has no key for that, so the name decides.
        let name = vocab.name.as_deref().unwrap_or_default().to_ascii_lowercase();
        if name.contains("phi-3") || name.contains("phi3") {
            for flag in flags.iter_mut().filter(|flag| **flag & (CONTROL | USER_DEFINED | UNKNOWN) != 0) {
                *flag |= RSTRIP;
            }
            if let Some(end) = id("</s>") {
                flags[end as usize] |= RSTRIP;
            }
            for keeps in ["<unk>", "<s>", "<|endoftext|>"].into_iter().filter_map(id) {
                flags[keeps as usize] &= !RSTRIP;
            }
        } else if name.contains("modern-bert")
            && let Some(mask) = id("[MASK]")
        {
            flags[mask as usize] |= LSTRIP;
        }
        Self { flags, eot, eom, eog }
    }

    /// The flags of a token; none outside the vocabulary.
    pub(super) fn of(&self, id: u32) -> u8 {
        self.flags.get(id as usize).copied().unwrap_or(0)
    }
}

/// A stretch of ordinary text, or a token that was found in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fragment {
    Text(Range<usize>),
    Token(u32),
}

#[derive(Debug)]
struct Special {
    id: u32,
    finder: Finder<'static>,
    flags: u8,
}

/// The tokens that are looked for in text before anything else, the longest first.
#[derive(Debug)]
pub(super) struct Specials(Vec<Special>);

impl Specials {
    pub(super) fn new<'v>(tokens: impl Iterator<Item = (u32, &'v [u8])>, attributes: &Attributes) -> Self {
        let mut found: Vec<(u32, &[u8])> = tokens
            .filter(|&(id, text)| {
                !text.is_empty() && attributes.of(id) & (CONTROL | USER_DEFINED | UNKNOWN) != 0
            })
            .collect();
        found.sort_by_key(|&(id, text)| (std::cmp::Reverse(text.len()), id));
        Self(
            found
                .into_iter()
                .map(|(id, text)| Special {
                    id,
                    finder: Finder::new(text).into_owned(),
                    flags: attributes.of(id),
                })
                .collect(),
        )
    }

    /// Cuts `text` at special tokens: user-defined ones always, control and unknown ones with `parse_special`.
    ///
    /// A token that is not UTF-8 could cut a character in two; it is never found.
    pub(super) fn partition(&self, text: &str, parse_special: bool) -> Vec<Fragment> {
        let bytes = text.as_bytes();
        let mut fragments = Vec::new();
        if !text.is_empty() {
            fragments.push(Fragment::Text(0..text.len()));
        }
        for special in &self.0 {
            if !parse_special && special.flags & (CONTROL | UNKNOWN) != 0 {
                continue;
            }
            // Most special tokens are nowhere in the text: one look at all of it settles those.
            if special.finder.find(bytes).is_none() || std::str::from_utf8(special.finder.needle()).is_err() {
                continue;
            }
            let mut next = Vec::with_capacity(fragments.len() + 2);
            for fragment in fragments {
                match fragment {
                    Fragment::Text(range) => cut(special, bytes, range, &mut next),
                    token @ Fragment::Token(_) => next.push(token),
                }
            }
            fragments = next;
        }
        fragments
    }
}

fn cut(special: &Special, bytes: &[u8], mut range: Range<usize>, out: &mut Vec<Fragment>) {
    // What the C locale calls space.
    let space = |byte: u8| matches!(byte, b' ' | 9..=13);
    while let Some(offset) = special.finder.find(&bytes[range.clone()]) {
        let found = range.start + offset;
        let mut left = range.start..found;
        if special.flags & LSTRIP != 0 {
            while !left.is_empty() && space(bytes[left.end - 1]) {
                left.end -= 1;
            }
        }
        if !left.is_empty() {
            out.push(Fragment::Text(left));
        }
        out.push(Fragment::Token(special.id));
        range.start = found + special.finder.needle().len();
        if special.flags & RSTRIP != 0 {
            while !range.is_empty() && space(bytes[range.start]) {
                range.start += 1;
            }
        }
    }
    if !range.is_empty() {
        out.push(Fragment::Text(range));
    }
}
