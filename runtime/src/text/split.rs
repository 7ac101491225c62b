//! Pre-tokenizers: how byte-level BPE cuts text into words before it merges inside each.
//!
//! A pre-tokenizer is a list of stages; each stage cuts every piece of the one before into its matches and what
//! lies between them. The patterns are those of the models' own `tokenizer.json`, in the form in which llama.cpp
//! applies them (`src/llama-vocab.cpp`, `src/unicode.cpp`); `tests/text_vectors.rs` holds them to its vectors.
//!
//! What a letter is comes from the Unicode tables of `regex-syntax`, which are newer than llama.cpp's: text with
//! characters that its tables do not know yet may be cut elsewhere. On all others 200 kB of random text, weighted
//! towards the borders of the classes, gave the same ids in every family.

use super::TextError;
use regex_automata::{Input, meta::Regex};

/// One stage. With `spaces`, the pattern ends in `|\s+(?!\S)|\s+`, which a finite automaton cannot say: such a
/// run of white space is matched whole and gives its last character back when text follows.
#[derive(Clone, Copy)]
struct Stage {
    pattern: &'static str,
    spaces: bool,
}

const fn plain(pattern: &'static str) -> Stage {
    Stage { pattern, spaces: false }
}

const fn spaced(pattern: &'static str) -> Stage {
    Stage { pattern, spaces: true }
}

const GPT2: Stage = spaced(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const DIGIT: Stage = plain(r"\p{N}");
const DIGITS_3: Stage = plain(r"\p{N}{1,3}");
const ASCII_3: Stage = plain("[0-9][0-9][0-9]");
const NEWLINE: Stage = plain(r"[\r\n]");

/// llama.cpp hides white space from the ranges of this class, which is why it is taken out again.
const CJK_HANGUL: Stage = plain(r"[[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]--\s]+");
const CJK_KANA: Stage = plain(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+");

macro_rules! contraction {
    () => {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}

/// Words in mixed case, as the o200k family splits them: capitals* small+ or capitals+ small*, where llama.cpp
/// takes every letter outside ASCII for both.
macro_rules! cased {
    ($suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]*[\p{L}--[A-Z]]+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?[\p{L}--[a-z]]+[\p{L}--[A-Z]]*",
            $suffix,
        )
    };
}

const LLAMA3: Stage = spaced(concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
));
const QWEN2: Stage =
    spaced(concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"));
const QWEN35: Stage = spaced(concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
));
const SEED: Stage =
    spaced(concat!(contraction!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"));
const TEKKEN: Stage = spaced(concat!(cased!(""), r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"));
const GPT4O: Stage = spaced(concat!(
    cased!(concat!(contraction!(), "?")),
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
));
const DEEPSEEK3: Stage = spaced(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
));
/// Letters of the cased scripts, listed as the model lists them.
const DEEPSEEK_LETTERS: Stage = plain(concat!(
    r"\s?[",
    r"A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}",
    r"\u{295}-\u{2AF}\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}",
    r"\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}",
    r"\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}",
    r"\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}",
    r"\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}",
    r"\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}\u{1FD0}-\u{1FD3}",
    r"\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}",
    r"\u{212F}-\u{2134}\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}",
    r"\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}",
    r"\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}\u{A78B}-\u{A78E}",
    r"\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}",
    r"\u{FF41}-\u{FF5A}\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}",
    r"\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}",
    r"]+",
));
/// The model's class begins at U+3000, which llama.cpp has already hidden as white space.
const DEEPSEEK_PUNCTUATION: Stage =
    plain(r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3001}-\u{3002}]+");

/// How one family of models splits, and the defaults that llama.cpp ties to the name.
struct Family {
    names: &'static [&'static str],
    stages: &'static [Stage],
    /// A word that is a token as a whole skips the merges.
    ignore_merges: bool,
    /// BOS first unless the metadata says otherwise.
    add_bos: bool,
}

const fn family(names: &'static [&'static str], stages: &'static [Stage]) -> Family {
    Family { names, stages, ignore_merges: false, add_bos: false }
}

/// Every supported `tokenizer.ggml.pre`.
const FAMILIES: &[Family] = &[
    family(&["default"], &[plain(r"[\p{P}$+<=>^~|]+"), GPT2, plain(r"\p{N}+"), ASCII_3]),
    family(
        &[
            "gpt-2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[GPT2],
    ),
    Family {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        stages: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    family(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Family { names: &["glm4", "glm5"], stages: &[LLAMA3], ignore_merges: true, add_bos: false },
    family(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    family(&["qwen35"], &[QWEN35]),
    family(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    family(
        &["deepseek-llm"],
        &[NEWLINE, DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, plain(r"\s+\z"), CJK_HANGUL, plain(r"\p{N}+")],
    ),
    family(&["deepseek-coder"], &[NEWLINE, plain(r"\s?\p{L}+"), plain(r"\s?\p{P}+"), CJK_HANGUL, DIGIT]),
    family(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[DIGITS_3, CJK_KANA, DEEPSEEK3]),
    family(&["falcon"], &[plain(r"[\p{P}$+<=>^~|`]+"), GPT2, ASCII_3]),
    Family { names: &["tekken"], stages: &[TEKKEN], ignore_merges: true, add_bos: true },
    family(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    family(&["seed-coder"], &[SEED]),
];

/// A compiled pre-tokenizer.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Regex>,
    /// A word that is a token as a whole skips the merges.
    pub(super) ignore_merges: bool,
    /// BOS first unless the metadata says otherwise.
    pub(super) add_bos: bool,
}

impl Splitter {
    /// The pre-tokenizer of that name.
    pub(super) fn new(pre: &str) -> Result<Self, TextError> {
        let family = FAMILIES.iter().find(|family| family.names.contains(&pre)).ok_or_else(|| {
            TextError::Pre { found: pre.into(), known: names().collect::<Vec<_>>().join(", ") }
        })?;
        let stages = family
            .stages
            .iter()
            .map(|stage| {
                // Pattern 0 wins over pattern 1 at the same place: alternation, with a number to tell which.
                let patterns = [stage.pattern, r"\s+"];
                Regex::new_many(&patterns[..1 + usize::from(stage.spaces)])
                    .map_err(|error| TextError::Pattern { pre: pre.into(), detail: error.to_string() })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { stages, ignore_merges: family.ignore_merges, add_bos: family.add_bos })
    }

    /// The words of `text`, in order; together they are `text`.
    pub(super) fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for stage in &self.stages {
            let mut next = Vec::with_capacity(pieces.len() * 2);
            for piece in pieces {
                cut(stage, piece, &mut next);
            }
            pieces = next;
        }
        pieces
    }
}

/// Cuts one piece into matches and gaps. The piece is a text of its own: nothing looks beyond its ends.
fn cut<'t>(stage: &Regex, piece: &'t str, out: &mut Vec<&'t str>) {
    let mut at = 0;
    while at < piece.len() {
        let Some(found) = stage.find(Input::new(piece).range(at..)) else { break };
        let mut end = found.end();
        if found.pattern().as_usize() == 1 && end < piece.len() {
            let run = &piece[found.range()];
            let last = run.chars().next_back().map_or(0, char::len_utf8);
            if last < run.len() {
                end -= last;
            }
        }
        if found.start() > at {
            out.push(&piece[at..found.start()]);
        }
        out.push(&piece[found.start()..end]);
        at = end;
    }
    if at < piece.len() {
        out.push(&piece[at..]);
    }
}

/// Every supported `tokenizer.ggml.pre`.
pub fn names() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|family| family.names).copied()
}
