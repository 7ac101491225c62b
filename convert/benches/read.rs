//! Speed of reading: `verify` beside a plain read and `b3sum` of the same file, and opening 30,000 tensors.
//!
//! `cargo bench -p gantry-convert --bench read [-- FILE.gantry]`. Without a file it makes one of 1 GiB of noise in
//! the temporary folder. The programs take turns, the page cache is warm, the median counts; `b3sum` has to be in
//! the PATH (`cargo install b3sum`), else only the read is compared. Targets: verify at 0.8 × the slower of the two,
//! and 100 ms for the 30,000 tensors.

use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{DataWriter, GgufWriter, Value};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const GANTRY: &str = env!("CARGO_BIN_EXE_gantry");
const TURNS: usize = 15;

fn main() {
    let given = std::env::args().skip(1).find(|a| !a.starts_with("--")).map(PathBuf::from);
    let folder = std::env::temp_dir().join(format!("gantry-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = given.unwrap_or_else(|| container(&folder, "noise", 64, &[4096, 2048]));
    verify(&file);
    let many = container(&folder, "many", 30_000, &[32, 2]);
    let inspect = median(TURNS, &mut || time(GANTRY, &["inspect".into(), many.display().to_string()]));
    println!("inspect, 30,000 tensors     {:8.1} ms   (target 100)", inspect * 1e3);
    let _ = std::fs::remove_dir_all(folder);
}

fn verify(file: &Path) {
    let bytes = std::fs::metadata(file).expect("there").len() as f64;
    let path = file.display().to_string();
    for threads in ["1", "2"] {
        let verify = || ["verify", &path, "--threads", threads].map(String::from).to_vec();
        let b3sum = || ["--num-threads", threads, &path].map(String::from).to_vec();
        let has_b3sum = Command::new("b3sum").arg("--version").stdout(Stdio::null()).status().is_ok();
        let mut all: [Vec<f64>; 3] = Default::default();
        for _ in 0..TURNS {
            all[0].push(time("cat", std::slice::from_ref(&path)));
            all[1].push(if has_b3sum { time("b3sum", &b3sum()) } else { 0.0 });
            all[2].push(time(GANTRY, &verify()));
        }
        let [cat, b3sum, verify] = all.map(middle);
        for (name, seconds) in [("cat", cat), ("b3sum", b3sum), ("gantry verify", verify)] {
            let rate = bytes / seconds / 1e9;
            println!("{name:14} {threads} threads    {:8.1} ms   {rate:.2} GB/s", seconds * 1e3);
        }
        println!("verify / slower of both     {:8.2} x    (target 0.80)", cat.max(b3sum) / verify);
    }
}

fn time(program: &str, args: &[String]) -> f64 {
    let start = Instant::now();
    let status = Command::new(program).args(args).stdout(Stdio::null()).status().expect("starts");
    assert!(status.success(), "{program} {args:?}");
    start.elapsed().as_secs_f64()
}

fn median(turns: usize, run: &mut dyn FnMut() -> f64) -> f64 {
    middle((0..turns).map(|_| run()).collect())
}

fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// A container of `count` tensors of noise.
fn container(folder: &Path, name: &str, count: usize, dims: &[u64]) -> PathBuf {
    let (gguf, out) = (folder.join(format!("{name}.gguf")), folder.join(format!("{name}.gantry")));
    let mut writer = GgufWriter::new(3);
    writer.set("general.architecture", Value::Str(b"noise"));
    for i in 0..count {
        writer.tensor(format!("blk.{}.t{}.weight", i / 10, i % 10), dims, GgmlType::BF16).expect("legal");
    }
    let header = writer.finish().expect("legal");
    let mut data =
        DataWriter::new(BufWriter::new(File::create(&gguf).expect("create")), &header).expect("write");
    let mut state = 1u64;
    let mut values = vec![0u8; dims.iter().product::<u64>() as usize * 2];
    for _ in 0..count {
        for pair in values.as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Any sign and mantissa, an exponent around 1.
            *pair = (((state >> 40) as u16 & 0x80ff) | 0x3f00).to_le_bytes();
        }
        data.write(&values).expect("write");
    }
    data.finish().expect("write");
    let paths = [gguf.display().to_string(), out.display().to_string()];
    let more = ["--recipe", "lossless", "--allow-incomplete", "--no-fuse"].map(String::from);
    time(
        GANTRY,
        &[vec!["convert".into(), paths[0].clone(), "-o".into(), paths[1].clone()], more.to_vec()].concat(),
    );
    std::fs::remove_file(&gguf).expect("there");
    out
}
