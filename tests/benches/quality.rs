//! What each recipe costs in perplexity: `cargo bench -p gantry-tests --bench quality -- MODEL.gguf TEXT [IMATRIX]`.
//!
//! Prints a table in Markdown. The importance matrix, a GGUF of `llama-imatrix`, must come from another text than the
//! one that is scored. Where `LLAMA_CPP` names llama.cpp's folder, its IQ3_XXS of the tensors that `compact` puts into
//! E8, all else Q8_0, is measured beside, by `llama-perplexity` on the same text.

use gantry_tests::run_ok;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of a row, and the options of `gantry convert` behind it.
type Row = (&'static str, &'static [&'static str]);

/// The recipe `compact` without rotations.
fn unrotated(scratch: &Path) -> PathBuf {
    let path = scratch.join("unrotated.toml");
    let compact = include_str!("../../convert/src/recipe/compact.toml");
    std::fs::write(&path, compact.replace("e8:rotated", "e8")).expect("space");
    path
}

const ROWS: [Row; 10] = [
    ("as it is", &["--recipe", "lossless"]),
    ("q8", &["--recipe", "q8"]),
    ("balanced", &["--recipe", "balanced"]),
    ("w8a8", &["--recipe", "w8a8"]),
    ("compact, reference scheme", &["--recipe", "compact", "--e8-scheme", "reference"]),
    ("compact", &["--recipe", "compact"]),
    ("compact, high effort", &["--recipe", "compact", "--e8-effort", "high"]),
    ("E8 not rotated, reference scheme", &["UNROTATED", "--e8-scheme", "reference"]),
    ("E8 not rotated", &["UNROTATED"]),
    ("E8 not rotated, high effort, imatrix", &["UNROTATED", "--e8-effort", "high", "IMATRIX"]),
];

fn main() {
    let args: Vec<PathBuf> =
        std::env::args_os().skip(1).filter(|a| a != "--bench").map(PathBuf::from).collect();
    let [model, text, imatrix @ ..] = args.as_slice() else {
        println!("quality: not measured; give a GGUF and a text after --");
        return;
    };
    let scratch = tempfile::tempdir().expect("a scratch folder");
    println!("| {} | bytes | bits per weight | perplexity | ± | against the first |", name(model));
    println!("|---|---|---|---|---|---|");
    let unrotated = unrotated(scratch.path());
    let mut first = None;
    for (what, options) in ROWS {
        let mut more: Vec<&std::ffi::OsStr> = Vec::new();
        let mut possible = true;
        for option in options {
            match (*option, imatrix.first()) {
                ("UNROTATED", _) => more.extend(["--recipe".as_ref(), unrotated.as_os_str()]),
                ("IMATRIX", Some(file)) => more.extend(["--imatrix".as_ref(), file.as_os_str()]),
                ("IMATRIX", None) => possible = false,
                (other, _) => more.push(other.as_ref()),
            }
        }
        if possible {
            row(what, model, text, &more, scratch.path(), &mut first);
        }
    }
    peer(model, text, imatrix.first().map(PathBuf::as_path), scratch.path(), first);
}

fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

fn row(
    what: &str,
    model: &Path,
    text: &Path,
    options: &[&std::ffi::OsStr],
    scratch: &Path,
    first: &mut Option<f64>,
) {
    let container = scratch.join("m.gantry");
    let mut args = vec!["convert".as_ref(), model.as_os_str(), "-o".as_ref(), container.as_os_str()];
    args.extend(["--force", "--json"].map(std::ffi::OsStr::new));
    args.extend(options);
    let plan: serde_json::Value = serde_json::from_slice(&run_ok("gantry", &args)).expect("JSON");
    let args = [
        "perplexity".as_ref(),
        container.as_os_str(),
        "--text".as_ref(),
        text.as_os_str(),
        "--json".as_ref(),
    ];
    let found: serde_json::Value = serde_json::from_slice(&run_ok("gantry-run", &args)).expect("JSON");
    let bytes: u64 =
        plan["cards"].as_array().expect("cards").iter().filter_map(|c| c["weight_bytes"].as_u64()).sum();
    let weights = plan["model"]["parameters"].as_u64().expect("a number");
    let (ppl, error) =
        (found["perplexity"].as_f64().expect("a number"), found["error"].as_f64().unwrap_or(0.0));
    let base = *first.get_or_insert(ppl);
    print(what, bytes, weights, (ppl, error), base);
}

fn print(what: &str, bytes: u64, weights: u64, (ppl, error): (f64, f64), base: f64) {
    let (mb, bits) = (bytes as f64 / 1e6, bytes as f64 * 8.0 / weights as f64);
    let more = (ppl / base - 1.0) * 100.0;
    println!("| {what} | {mb:.1} MB | {bits:.2} | {ppl:.4} | {error:.4} | {more:+.2} % |");
}

/// llama.cpp's file with the same tensors in IQ3_XXS.
fn peer(model: &Path, text: &Path, imatrix: Option<&Path>, scratch: &Path, first: Option<f64>) {
    let Some(folder) = std::env::var_os("LLAMA_CPP").map(PathBuf::from) else {
        println!("| llama.cpp IQ3_XXS | not measured: LLAMA_CPP is not set | | | | |");
        return;
    };
    let file = scratch.join("peer.gguf");
    let mut quantize = Command::new(folder.join("llama-quantize"));
    if let Some(imatrix) = imatrix {
        quantize.arg("--imatrix").arg(imatrix);
    }
    quantize.args(["--token-embedding-type", "q8_0", "--tensor-type", "ffn_(up|gate|down)=iq3_xxs"]);
    quantize.arg(model).arg(&file).args(["Q8_0", "2"]);
    let done = quantize.output().expect("llama-quantize starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut perplexity = Command::new(folder.join("llama-perplexity"));
    perplexity
        .arg("-m")
        .arg(&file)
        .arg("-f")
        .arg(text)
        .args(["-c", "512", "-t", "2", "-ctk", "f32", "-ctv", "f32"]);
    let done = perplexity.output().expect("llama-perplexity starts");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    let estimate = said.split("Final estimate: PPL = ").nth(1).expect("a final estimate");
    let mut numbers = estimate.split([' ', '\n']).filter_map(|w| w.parse::<f64>().ok());
    let (ppl, error) = (numbers.next().expect("a number"), numbers.next().unwrap_or(0.0));
    let bytes = std::fs::metadata(&file).expect("written").len();
    let plan = ["plan".as_ref(), model.as_os_str(), "--json".as_ref()];
    let plan: serde_json::Value = serde_json::from_slice(&run_ok("gantry", &plan)).expect("JSON");
    let weights = plan["model"]["parameters"].as_u64().expect("a number");
    let what = if imatrix.is_some() { "llama.cpp IQ3_XXS, imatrix" } else { "llama.cpp IQ3_XXS" };
    print(what, bytes, weights, (ppl, error), first.unwrap_or(ppl));
}
