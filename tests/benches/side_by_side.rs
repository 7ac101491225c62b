//! Gantry beside what else people would use, interleaved in one run: `cargo bench -p gantry-tests`.
//!
//! Peers: `cp`, `sync`, `cat`; `b3sum` where it is on the PATH; llama.cpp's programs in the folder that `LLAMA_CPP`
//! names. A peer that is not there is said to be not measured. Each pair runs A B A B …; the ratio is that of the
//! medians. `-- NAME` runs only the pairs whose name contains NAME: convert-lossless, verify, convert-q8, speed,
//! synthetic (models of experts and of hyper-connections, about 1 GB each), and recipes, which needs a model whose rows tile by 256: `PADDED` names its BF16 file, and `IMATRIX` its importance
//! matrix, without which `llama-quantize` makes no IQ3_XXS.

use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{GgufWriter, Value};
use gantry_tests::{binary, fixtures, run_ok};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const PASSES: usize = 7;

fn main() {
    let only: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| name.contains(o.as_str()));
    let scratch = tempfile::tempdir_in(target()).expect("a scratch folder");
    println!(
        "| what | Gantry | baseline | median A | median B | ratio | goal |\n|---|---|---|---|---|---|---|"
    );
    if wanted("convert-lossless") || wanted("verify") {
        let large = large_q8_0();
        if wanted("convert-lossless") {
            convert_lossless(&large, scratch.path());
        }
        if wanted("verify") {
            verify(&large, scratch.path());
        }
    }
    if wanted("convert-q8") {
        convert_q8(scratch.path());
    }
    if wanted("speed") {
        speed(scratch.path());
    }
    if wanted("synthetic") {
        synthetic(scratch.path());
    }
    if wanted("recipes") {
        recipes(scratch.path());
    }
}

fn target() -> PathBuf {
    binary("gantry").ancestors().nth(2).expect("target/PROFILE").to_path_buf()
}

fn peer(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("LLAMA_CPP")?).join(name);
    path.exists().then_some(path)
}

fn command(program: impl AsRef<std::ffi::OsStr>, args: &[&std::ffi::OsStr]) -> Command {
    let mut c = Command::new(program);
    c.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    c
}

fn timed(mut c: Command) -> f64 {
    let begun = Instant::now();
    let status = c.status().expect("a program that starts");
    assert!(status.success(), "{c:?} ended with {status}");
    begun.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Times A and B in turn, after one warm-up of each, and prints a row: ratio = rate of A / rate of B.
fn pair(what: &str, names: [&str; 2], goal: f64, mut a: impl FnMut() -> f64, mut b: impl FnMut() -> f64) {
    a();
    b();
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for _ in 0..PASSES {
        left.push(a());
        right.push(b());
    }
    let (a, b) = (median(left), median(right));
    println!("| {what} | {} | {} | {a:.3} s | {b:.3} s | {:.2} | ≥ {goal} |", names[0], names[1], b / a);
}

/// A GGUF of 1.1 GB of random Q8_0 blocks, kept between runs.
fn large_q8_0() -> PathBuf {
    let path = target().join("fixtures").join("large-Q8_0.gguf");
    if path.exists() {
        return path;
    }
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    let mut writer = GgufWriter::new(3);
    writer.set("general.architecture", Value::Str(b"llama"));
    let names: Vec<String> = (0..8).map(|i| format!("blk.{i}.ffn_down.weight")).collect();
    for name in &names {
        writer.tensor(name, &[8192, 16384], GgmlType::Q8_0).expect("a tensor");
    }
    let header = writer.finish().expect("a header");
    let partial = path.with_extension("partial");
    let mut out = std::io::BufWriter::new(std::fs::File::create(&partial).expect("a file"));
    out.write_all(header.raw()).expect("space");
    let mut at = header.raw().len() as u64;
    let mut state = 1u64;
    for tensor in header.tensors() {
        let range = header.range_of(tensor);
        out.write_all(&vec![0; (range.start - at) as usize]).expect("space");
        for _ in 0..tensor.elements / 32 {
            let mut block = [0u8; 34];
            for byte in &mut block {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = (state >> 56) as u8;
            }
            block[1] = 0x20 | block[1] & 0x0f; // a normal, finite scale
            out.write_all(&block).expect("space");
        }
        at = range.end;
    }
    out.flush().expect("space");
    std::fs::rename(partial, &path).expect("a rename");
    path
}

fn convert(input: &Path, output: &Path, recipe: &str) -> Command {
    let args = [
        "convert",
        "--allow-incomplete",
        "--force",
        "--no-resume",
        "--threads",
        "2",
        "--recipe",
        recipe,
        "-o",
    ];
    let mut c = command(binary("gantry"), &args.map(std::ffi::OsStr::new));
    c.arg(output).arg(input);
    c
}

fn convert_lossless(large: &Path, scratch: &Path) {
    let (ours, theirs) = (scratch.join("large.gantry"), scratch.join("large.copy"));
    let copy = || {
        // A new file each time, as the conversion writes one.
        let _ = std::fs::remove_file(&theirs);
        let begun = Instant::now();
        timed(command("cp", &[large.as_os_str(), theirs.as_os_str()]));
        timed(command("sync", &[theirs.as_os_str()]));
        begun.elapsed().as_secs_f64()
    };
    let ours = || {
        let _ = std::fs::remove_file(&ours);
        timed(convert(large, &ours, "lossless"))
    };
    pair(
        "convert 1.1 GB Q8_0, hashing included",
        ["convert --recipe lossless", "cp + sync"],
        0.7,
        ours,
        copy,
    );
    let _ = std::fs::remove_file(&theirs);
}

fn verify(large: &Path, scratch: &Path) {
    let container = scratch.join("verify.gantry");
    timed(convert(large, &container, "lossless"));
    let ours = || {
        timed(command(
            binary("gantry"),
            &["verify".as_ref(), "--threads".as_ref(), "2".as_ref(), container.as_os_str()],
        ))
    };
    let cat =
        || timed(command("sh", &["-c".as_ref(), "cat \"$0\" > /dev/null".as_ref(), container.as_os_str()]));
    pair(
        "verify 1.1 GB (goal: against the slower of the two)",
        ["verify", "cat > /dev/null"],
        0.8,
        ours,
        cat,
    );
    if Command::new("b3sum").arg("--version").output().is_err() {
        println!("| verify 1.1 GB | verify | b3sum | not measured: b3sum is not on the PATH | | | |");
        return;
    }
    let b3sum = || timed(command("b3sum", &["--num-threads".as_ref(), "2".as_ref(), container.as_os_str()]));
    pair("verify 1.1 GB", ["verify", "b3sum"], 0.8, ours, b3sum);
}

fn convert_q8(scratch: &Path) {
    let Some(quantize) = peer("llama-quantize") else {
        println!("| BF16 → Q8_0 | convert | llama-quantize | not measured: LLAMA_CPP is not set | | | |");
        return;
    };
    let source = fixtures("smollm2").join("smollm2-BF16.gguf");
    let (ours, theirs) = (scratch.join("q8.gantry"), scratch.join("q8.gguf"));
    let llama = || {
        let _ = std::fs::remove_file(&theirs);
        timed(command(&quantize, &[source.as_os_str(), theirs.as_os_str(), "Q8_0".as_ref(), "2".as_ref()]))
    };
    let ours = || {
        let _ = std::fs::remove_file(&ours);
        timed(convert(&source, &ours, "q8"))
    };
    pair(
        "SmolLM2 BF16 → Q8_0, hashing included",
        ["convert --recipe q8", "llama-quantize"],
        2.0,
        ours,
        llama,
    );
}

fn speed(scratch: &Path) {
    let source = fixtures("smollm2").join("smollm2-Q8_0.gguf");
    let container = scratch.join("speed.gantry");
    timed(convert(&source, &container, "lossless"));
    let Some(bench) = peer("llama-bench") else {
        println!(
            "| SmolLM2 Q8_0, 2 threads | gantry-run bench | llama-bench | not measured: LLAMA_CPP is not set | | | |"
        );
        return;
    };
    tokens("SmolLM2 Q8_0", (&container, &source), &bench, PASSES, [1.0, 1.0]);
}

/// Random models of 1 GB and more, at the precision of their files.
fn synthetic(scratch: &Path) {
    let Some(bench) = peer("llama-bench") else {
        println!(
            "| synthetic models | gantry-run bench | llama-bench | not measured: LLAMA_CPP is not set | | | |"
        );
        return;
    };
    for preset in ["qwen4exp-1gb", "qwen3moe-1b"] {
        // Both recipes keep every value.
        for (ty, recipe) in [("Q8_0", "balanced"), ("BF16", "lossless")] {
            let (source, container) = (scratch.join("synthetic.gguf"), scratch.join("synthetic.gantry"));
            let args = ["synth", preset, "--type", ty, "--force", "-o"].map(std::ffi::OsStr::new);
            let mut c = command(binary("gantry"), &args);
            c.arg(&source);
            timed(c);
            timed(convert(&source, &container, recipe));
            tokens(&format!("{preset} {ty}"), (&container, &source), &bench, 3, [1.0, 1.0]);
        }
    }
}

/// `balanced` beside llama.cpp's Q8_0, and `compact` beside its IQ3_XXS of the same tensors and more.
fn recipes(scratch: &Path) {
    let peers = peer("llama-quantize").zip(peer("llama-bench"));
    let Some(((quantize, bench), source)) = peers.zip(std::env::var_os("PADDED").map(PathBuf::from)) else {
        println!("| recipes | | | not measured: LLAMA_CPP or PADDED is not set | | | |");
        return;
    };
    for (recipe, ty, goal) in [("balanced", "Q8_0", 1.1), ("compact", "IQ3_XXS", 1.0)] {
        let (ours, theirs) = (scratch.join("recipe.gantry"), scratch.join("recipe.gguf"));
        timed(convert(&source, &ours, recipe));
        let mut c = Command::new(&quantize);
        if let Some(imatrix) = std::env::var_os("IMATRIX") {
            c.arg("--imatrix").arg(imatrix);
        }
        c.arg("--pure").arg(&source).arg(&theirs).args([ty, "2"]).stdout(Stdio::null()).stderr(Stdio::null());
        timed(c);
        tokens(&format!("{recipe} beside {ty}"), (&ours, &theirs), &bench, PASSES, [0.0, goal]);
    }
}

/// Prompt and decode speed of a container beside a GGUF, in turns.
fn tokens(what: &str, (container, source): (&Path, &Path), bench: &Path, passes: usize, goals: [f64; 2]) {
    let (mut ours, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..passes {
        let out = run_ok(
            "gantry-run",
            &[
                "bench".as_ref(),
                container.as_os_str(),
                "--threads".as_ref(),
                "2".as_ref(),
                "-p".as_ref(),
                "128".as_ref(),
                "-n".as_ref(),
                "64".as_ref(),
                "-r".as_ref(),
                "3".as_ref(),
                "--json".as_ref(),
            ],
        );
        let json: serde_json::Value = serde_json::from_slice(&out).expect("JSON");
        ours[0].push(json["prompt"]["tokens_per_second"].as_f64().expect("a rate"));
        ours[1].push(json["decode"]["tokens_per_second"].as_f64().expect("a rate"));
        let mut c = Command::new(bench);
        c.arg("-m").arg(source).args(["-t", "2", "-p", "128", "-n", "64", "-r", "3", "-o", "json"]);
        let out = c.stderr(Stdio::null()).output().expect("llama-bench starts");
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        for (i, row) in json.as_array().expect("rows").iter().enumerate().take(2) {
            theirs[i].push(row["avg_ts"].as_f64().expect("a rate"));
        }
    }
    for (i, part) in ["prompt, 128 tokens", "decode, 64 tokens"].iter().enumerate() {
        let (a, b) = (median(ours[i].clone()), median(theirs[i].clone()));
        println!(
            "| {what}, 2 threads, {part} | gantry-run bench | llama-bench | {a:.1} tok/s | {b:.1} tok/s | {:.2} | ≥ {} |",
            a / b,
            goals[i]
        );
    }
}
