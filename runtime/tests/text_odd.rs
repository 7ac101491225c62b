//! Vocabularies that no converter should write: refused by name or read as far as they go, never a panic.
#![cfg(feature = "text")]

use gantry_formats::exit::{Exit, ExitCode};
use gantry_runtime::text::{EncodeOptions, Meta, TextError, Tokenizer, Vocab, pre_tokenizers};

const ALL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

/// A byte-level vocabulary with one token for each printable ASCII character, space (Ġ) and newline (Ċ).
fn letters(more: &[(&[u8], i32)], merges: &[&str]) -> Vocab {
    let mut tokens: Vec<Vec<u8>> = (b'!'..=b'~').map(|letter| vec![letter]).collect();
    tokens.extend(["Ġ", "Ċ"].map(|text| text.as_bytes().to_vec()));
    let mut types = vec![1; tokens.len()];
    for &(text, kind) in more {
        tokens.push(text.to_vec());
        types.push(kind);
    }
    Vocab {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        scores: vec![0.0; tokens.len()],
        tokens,
        types,
        merges: merges.iter().map(|merge| merge.as_bytes().to_vec()).collect(),
        ..Vocab::default()
    }
}

fn id(vocab: &Vocab, text: &str) -> u32 {
    vocab.tokens.iter().position(|token| token == text.as_bytes()).expect("a token") as u32
}

fn build(vocab: &Vocab) -> Tokenizer {
    Tokenizer::new(vocab).expect("a tokenizer")
}

#[test]
fn refused_by_name() {
    let none = Tokenizer::new(&Vocab::default()).unwrap_err();
    assert!(none.to_string().starts_with("container has no tokenizer"), "{none}");
    assert_eq!(none.exit(), Exit::Incompatible);

    let vocab = Vocab { pre: Some("qwen9000".into()), ..letters(&[], &[]) };
    let error = Tokenizer::new(&vocab).unwrap_err();
    assert!(error.to_string().contains("'qwen9000' is not supported"), "{error}");
    assert!(pre_tokenizers().all(|name| error.to_string().contains(name)), "{error}");

    let vocab = Vocab { model: "rwkv".into(), ..letters(&[], &[]) };
    let error = Tokenizer::new(&vocab).unwrap_err();
    assert_eq!(error, TextError::Model { found: "rwkv".into(), known: "gpt2, llama".into() });
}

#[test]
fn every_supported_name_builds() {
    for pre in pre_tokenizers() {
        let vocab = Vocab { pre: Some(pre.into()), ..letters(&[], &[]) };
        let tokenizer = build(&vocab);
        for text in ["", " ", "\n", "a", "a  b\n\n c", "\u{3000}ß 12"] {
            tokenizer.encode(text, ALL);
        }
    }
}

#[test]
fn a_missing_pre_tokenizer_is_default_with_a_warning() {
    let vocab = Vocab { pre: None, ..letters(&[], &[]) };
    let tokenizer = build(&vocab);
    assert!(tokenizer.warnings().iter().any(|warning| warning.contains("'default' is used")));
    assert_eq!(tokenizer.encode("12", ALL), [id(&vocab, "1"), id(&vocab, "2")]);
}

#[test]
fn merges_of_unknown_tokens() {
    // `ab` is no token, but leads to one; `xy` leads nowhere and is spelled out.
    let merges = ["a b", "ab c", "x y", "nospace", "", " ", "a", "  ", "a b c"];
    let vocab = letters(&[(b"abc", 1)], &merges);
    let tokenizer = build(&vocab);
    assert_eq!(tokenizer.encode("abc", ALL), [id(&vocab, "abc")]);
    assert_eq!(tokenizer.encode("ab", ALL), [id(&vocab, "a"), id(&vocab, "b")]);
    assert_eq!(tokenizer.encode("xy", ALL), [id(&vocab, "x"), id(&vocab, "y")]);
    // Bytes that no token has are dropped, as llama.cpp drops them.
    assert_eq!(tokenizer.encode("aéb", ALL), [id(&vocab, "a"), id(&vocab, "b")]);
}

#[test]
fn merge_order_is_rank_then_place() {
    let vocab = letters(&[(b"aa", 1), (b"ab", 1), (b"aab", 1)], &["a a", "a b", "aa b"]);
    let tokenizer = build(&vocab);
    assert_eq!(tokenizer.encode("aaab", ALL), [id(&vocab, "aa"), id(&vocab, "ab")]);
    assert_eq!(tokenizer.encode("aab", ALL), [id(&vocab, "aab")]);
    // The first of two equal merges counts.
    let vocab = letters(&[(b"ab", 1), (b"bc", 1)], &["a b", "b c", "a b"]);
    assert_eq!(build(&vocab).encode("abc", ALL), [id(&vocab, "ab"), id(&vocab, "c")]);
}

#[test]
fn odd_tokens() {
    let more: [(&[u8], i32); 8] = [
        (b"", 1),
        (b"", 3),
        (b"\xff\xfe", 1),
        (b"\xff", 4),
        (b"a", 1),
        (b"<0xZZ>", 6),
        (b"<0x41>", 6),
        (b"weird", 99),
    ];
    let vocab = letters(&more, &[]);
    let tokenizer = build(&vocab);
    let last = vocab.tokens.len() as u32 - 1;
    assert!(tokenizer.warnings().iter().any(|warning| warning.starts_with("1 tokens repeat")));
    assert_eq!(tokenizer.encode("a", ALL), [last - 3]);
    assert_eq!(tokenizer.piece(last - 7, true), b"[EMPTY_96]");
    assert_eq!(tokenizer.piece(last - 5, true), b"\xff\xfe");
    assert_eq!(tokenizer.piece(last - 2, true), b"");
    assert_eq!(tokenizer.piece(last - 1, true), b"A");
    assert_eq!(tokenizer.piece(last, true), b"");
    for outside in [last + 1, u32::MAX] {
        assert_eq!(tokenizer.piece(outside, true), b"");
        assert!(!tokenizer.is_eog(outside) && !tokenizer.is_control(outside));
    }
    assert_eq!(tokenizer.decode(&[0, u32::MAX, 1], true), b"!\"");
    // A user-defined token that is not UTF-8 must not cut a character.
    assert_eq!(tokenizer.encode("aÿ", ALL)[0], last - 3);
}

#[test]
fn ids_out_of_range() {
    let far = Some(1_000_000);
    let vocab = Vocab {
        bos: far,
        eos: far,
        eot: far,
        eom: far,
        unk: far,
        pad: far,
        fim_pad: far,
        fim_rep: far,
        fim_sep: far,
        add_bos: Some(true),
        add_eos: Some(true),
        ..letters(&[], &[])
    };
    let tokenizer = build(&vocab);
    assert_eq!(tokenizer.encode("ab", ALL), [id(&vocab, "a"), id(&vocab, "b")]);
    assert_eq!(tokenizer.eog().count(), 0);
    assert_eq!(tokenizer.warnings().len(), 2, "{:?}", tokenizer.warnings());
    // Lists of the wrong length in a vocabulary made by hand.
    let short = Vocab { types: vec![], scores: vec![], ..letters(&[], &[]) };
    assert_eq!(build(&short).encode("a", ALL), [id(&short, "a")]);
    let short = Vocab { model: "llama".into(), ..short };
    build(&short).encode("a b", ALL);
}

#[test]
fn special_tokens_and_the_end_of_generation() {
    let more: [(&[u8], i32); 6] = [
        (b"<|im_start|>", 3),
        (b"<|im_end|>", 3),
        (b"<|im", 3),
        (b"<tool>", 4),
        (b"<|endoftext|>", 1),
        (b"<|fim_pad|>", 1),
    ];
    let mut vocab = letters(&more, &[]);
    vocab.bos = Some(id(&vocab, "<|im_start|>"));
    vocab.add_bos = Some(true);
    let tokenizer = build(&vocab);
    let plain = EncodeOptions::default();
    let special = EncodeOptions { parse_special: true, ..plain };
    // The longest first; user-defined ones always.
    assert_eq!(
        tokenizer.encode("<|im_start|><|im<tool>", special),
        ["<|im_start|>", "<|im", "<tool>"].map(|text| id(&vocab, text))
    );
    let spelled = tokenizer.encode("<|im_end|><tool>", plain);
    assert_eq!((spelled.len(), spelled[10]), (11, id(&vocab, "<tool>")));
    // Known texts end generation and become control tokens, whatever their type.
    let eog: Vec<u32> = tokenizer.eog().collect();
    assert_eq!(eog, ["<|im_end|>", "<|endoftext|>", "<|fim_pad|>"].map(|text| id(&vocab, text)));
    assert_eq!(tokenizer.eot(), Some(id(&vocab, "<|im_end|>")));
    assert_eq!(tokenizer.piece(id(&vocab, "<|endoftext|>"), false), b"");
    assert_eq!(tokenizer.piece(id(&vocab, "<|endoftext|>"), true), b"<|endoftext|>");
    assert_eq!(tokenizer.piece(id(&vocab, "<tool>"), false), b"<tool>");
    // BOS once, whether the template writes it or not.
    assert_eq!(tokenizer.encode_chat("<|im_start|>a"), tokenizer.encode_chat("a"));
    assert_eq!(tokenizer.encode("<|im_start|>a", ALL).len(), 3);
}

#[test]
fn harmony_ends_with_return_and_call() {
    let more: [(&[u8], i32); 4] =
        [(b"<|end|>", 3), (b"<|return|>", 3), (b"<|call|>", 3), (b"<|message|>", 3)];
    let vocab = letters(&more, &[]);
    let tokenizer = build(&vocab);
    let eog: Vec<u32> = tokenizer.eog().collect();
    assert_eq!(eog, ["<|return|>", "<|call|>"].map(|text| id(&vocab, text)));
    assert_eq!(tokenizer.piece(id(&vocab, "<|message|>"), false), b"<|message|>");
}

#[test]
fn sentencepiece_without_byte_tokens() {
    let texts = ["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "ab", "\u{2581}ab", "b\u{2581}"];
    let mut vocab = Vocab {
        model: "llama".into(),
        tokens: texts.map(|text| text.as_bytes().to_vec()).to_vec(),
        scores: vec![0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, f32::NAN],
        types: vec![2, 3, 3, 1, 1, 1, 1, 1, 1],
        ..Vocab::default()
    };
    let tokenizer = build(&vocab);
    // No token for é: the unknown one, for each byte.
    assert_eq!(tokenizer.encode("abé", ALL), [1, 7, 0, 0]);
    assert_eq!(tokenizer.decode(&[1, 7, 4], false), b" aba");
    assert_eq!(tokenizer.decode(&[7, 4], false), b"aba");
    vocab.add_space_prefix = Some(false);
    assert_eq!(build(&vocab).encode("ab", ALL), [1, 6]);
    vocab.tokens.truncate(1);
    assert_eq!(build(&vocab).encode("é", ALL), [0; 5][..2]);
}

#[test]
fn metadata_is_checked() {
    let base = |key: &str| match key {
        "tokenizer.ggml.model" => Some(Meta::Text(b"llama".to_vec())),
        "tokenizer.ggml.tokens" => Some(Meta::Texts(vec![b"a".to_vec(), b"b".to_vec()])),
        _ => None,
    };
    let with = |name: &'static str, value: Meta| {
        Vocab::from_metadata(&move |key: &str| if key == name { Some(value.clone()) } else { base(key) })
    };
    let vocab = Vocab::from_metadata(&base).unwrap();
    assert_eq!((vocab.scores, vocab.types), (vec![0.0; 2], vec![1; 2]));

    let error = Vocab::from_metadata(&|_: &str| None).unwrap_err().to_string();
    assert!(error.starts_with("container has no tokenizer: tokenizer.ggml.model is absent"), "{error}");
    let error = with("tokenizer.ggml.model", Meta::Text(b"none".to_vec())).unwrap_err();
    assert!(matches!(error, TextError::NoTokenizer { .. }));
    let error = with("tokenizer.ggml.model", Meta::Text(b"gpt2".to_vec())).unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.merges is absent"), "{error}");
    let error = with("tokenizer.ggml.tokens", Meta::Int(3)).unwrap_err();
    assert_eq!(
        error.to_string().split(';').next(),
        Some("tokenizer.ggml.tokens is an integer, expected an array of strings")
    );
    assert_eq!(error.exit(), Exit::Input);
    let error = with("tokenizer.ggml.scores", Meta::Floats(vec![0.5])).unwrap_err();
    assert_eq!(error, TextError::Length { key: "tokenizer.ggml.scores".into(), found: 1, expected: 2 });
    let error = with("tokenizer.chat_template", Meta::Text(vec![0xFF])).unwrap_err().to_string();
    assert!(error.contains("not UTF-8"), "{error}");
    for far in [2, -1, i64::MAX] {
        let vocab = with("tokenizer.ggml.eos_token_id", Meta::Int(far)).unwrap();
        assert_eq!((vocab.eos, vocab.warnings.len()), (None, 1));
    }
}
