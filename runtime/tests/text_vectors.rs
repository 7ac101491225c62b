//! Tokenizers against llama.cpp's own vectors: the same texts give the same ids, and the ids give the texts back.
#![cfg(feature = "text")]

mod text_fixture;

use gantry_runtime::text::{EncodeOptions, Tokenizer};
use std::fs;
use text_fixture::{read_vocab, vocab_folder};

fn check(name: &str) {
    let folder = vocab_folder();
    let path = folder.join(format!("ggml-vocab-{name}.gguf"));
    let tokenizer = Tokenizer::new(&read_vocab(&path)).expect("a tokenizer");
    let read = |suffix: &str| {
        fs::read_to_string(folder.join(format!("ggml-vocab-{name}.gguf.{suffix}"))).expect("vectors")
    };
    let (texts, expected) = (read("inp"), read("out"));
    // Every text ends with a newline before the separator; so does the last.
    let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
    let expected: Vec<&str> = expected.lines().collect();
    assert!(expected.len() >= 40, "{name}: only {} vectors", expected.len());
    assert!(texts.len() >= expected.len(), "{name}: {} texts, {} id lists", texts.len(), expected.len());
    let mut wrong = Vec::new();
    for (text, ids) in texts.iter().zip(&expected) {
        let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        let got = tokenizer.encode(text, EncodeOptions::default());
        if got != ids {
            wrong.push(format!("{text:?}\n  expected {ids:?}\n  got      {got:?}"));
        }
        let back = tokenizer.decode(&got, true);
        if back != text.as_bytes() {
            wrong.push(format!("{text:?}\n  came back as {:?}", String::from_utf8_lossy(&back)));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

macro_rules! vectors {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check($name);
        })*
    };
}

vectors! {
    command_r: "command-r",
    deepseek_coder: "deepseek-coder",
    deepseek_llm: "deepseek-llm",
    falcon: "falcon",
    gpt_2: "gpt-2",
    llama_bpe: "llama-bpe",
    llama_spm: "llama-spm",
    mpt: "mpt",
    phi_3: "phi-3",
    qwen2: "qwen2",
    qwen35: "qwen35",
    refact: "refact",
    starcoder: "starcoder",
}
