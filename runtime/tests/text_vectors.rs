//! Tokenizers against llama.cpp's own vectors: the same texts give the same ids, and the ids give the texts back.
#![cfg(feature = "text")]

mod text_fixture;

use gantry_runtime::text::{EncodeOptions, Tokenizer, pre_tokenizers};
use serde_json::Value;
use std::{collections::BTreeSet, fs};
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

/// A recorded set: its text and its vectors.
fn recorded(json: &str) -> (String, Vec<Value>) {
    let mut set: Value = serde_json::from_str(json).expect("JSON");
    let text = set["text"].as_str().expect("a text").to_owned();
    (text, serde_json::from_value(set["vectors"].take()).expect("vectors"))
}

fn ids(vector: &Value) -> Vec<u32> {
    serde_json::from_value(vector["ids"].clone()).expect("ids")
}

/// Every supported name, on one vocabulary and one text that the families split differently.
#[test]
fn every_pre_tokenizer() {
    let (text, vectors) = recorded(include_str!("text_fixture/pre.json"));
    let mut vocab = read_vocab(&vocab_folder().join("ggml-vocab-gpt-2.gguf"));
    let mut covered = BTreeSet::new();
    for vector in &vectors {
        for name in vector["pre"].as_array().expect("names") {
            let name = name.as_str().expect("a name");
            vocab.pre = Some(name.into());
            let tokenizer = Tokenizer::new(&vocab).expect("a tokenizer");
            assert_eq!(tokenizer.encode(&text, EncodeOptions::default()), ids(vector), "{name}");
            covered.insert(name.to_owned());
        }
    }
    let supported: BTreeSet<String> = pre_tokenizers().map(String::from).collect();
    assert_eq!(covered, supported, "a supported pre-tokenizer without a vector, or the other way round");
}

/// Special tokens in the text, looked for and not, with BOS and without, in every vocabulary.
#[test]
fn special_tokens() {
    let (text, vectors) = recorded(include_str!("text_fixture/special.json"));
    let folder = vocab_folder();
    for four in vectors.chunk_by(|a, b| a["vocab"] == b["vocab"]) {
        let name = four[0]["vocab"].as_str().expect("a name");
        let path = folder.join(format!("ggml-vocab-{name}.gguf"));
        let tokenizer = Tokenizer::new(&read_vocab(&path)).expect("a tokenizer");
        for vector in four {
            let options = EncodeOptions {
                add_special: vector["add_special"] == true,
                parse_special: vector["parse_special"] == true,
            };
            assert_eq!(tokenizer.encode(&text, options), ids(vector), "{name} {options:?}");
        }
    }
}
