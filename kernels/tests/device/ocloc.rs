//! What Intel's own compiler makes of the SPIR-V, for cards that are not here: machine code for every kernel, none of whose
//! registers go to memory, with the matrix instruction where it is meant, and with subnormal numbers kept.
//!
//! `ocloc` comes with Intel's OpenCL driver. Where it is not found these are not run, which is said; `GANTRY_REQUIRE_SPIRV=1` makes that
//! a failure.

use std::path::Path;
use std::process::Command;

use gantry_kernels::level_zero::{Module, OPTIONS, SPIRV};

use crate::launch::required;

/// Intel's names of cards, with the lanes of their matrix instruction.
const CARDS: [(&str, u32); 3] = [("dg2", 8), ("pvc", 16), ("bmg", 16)];

/// The cards that `ocloc` knows, of these; `None` where there is none.
fn known(cards: &[(&'static str, u32)]) -> Option<Vec<(&'static str, u32)>> {
    let help = match Command::new("ocloc").args(["compile", "--help"]).output() {
        Ok(help) => String::from_utf8_lossy(&help.stdout).into_owned(),
        Err(e) => {
            assert!(!required(), "ocloc: {e} (package intel-opencl-icd)");
            eprintln!("nothing was compiled for Intel's cards: there is no ocloc ({e})");
            return None;
        }
    };
    let names = |name: &str| help.split([',', ' ', '\n']).any(|word| word == name) || name == "dg2";
    Some(cards.iter().copied().filter(|(name, _)| names(name)).collect())
}

/// Compiles a module; gives what IGC says of each kernel where it is asked to.
#[track_caller]
fn compile(module: &Module, card: &str, tell: bool) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, said) = (folder.path().join("kernels.spv"), folder.path().join("said"));
    std::fs::write(&file, module.spirv).expect("a file");
    std::fs::create_dir(&said).expect("a folder");
    let mut command = Command::new("ocloc");
    command.args([
        "compile",
        "-spirv_input",
        "-device",
        card,
        "-options",
        OPTIONS,
        "-output",
        "code",
        "-file",
    ]);
    command.arg(&file).arg("-out_dir").arg(folder.path());
    if tell {
        command.env("IGC_ShaderDumpEnable", "1").env("IGC_DumpToCustomDir", format!("{}/", said.display()));
    }
    let done = command.output().expect("ocloc runs");
    let text = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let expected = ["", "Build succeeded.", "Compilation from IR - skipping loading of FCL"];
    let more: Vec<&str> = text.lines().filter(|line| !expected.contains(&line.trim())).collect();
    assert!(done.status.success() && more.is_empty(), "{} for {card}: {more:?}", module.name);
    let made = files(folder.path(), "bin");
    let code = made.first().map(|code| std::fs::metadata(code).expect("a file").len());
    assert!(code.is_some_and(|bytes| bytes > 1000), "{} for {card}: {code:?} bytes", module.name);
    let asm = files(&said, "asm");
    asm.iter().map(|file| std::fs::read_to_string(file).expect("text")).collect()
}

fn files(folder: &Path, extension: &str) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    all.filter(|file| file.extension().is_some_and(|e| e == extension)).collect()
}

/// Compiles all modules that a card takes.
fn compile_all(cards: &[(&'static str, u32)]) {
    let Some(cards) = known(cards) else { return };
    assert!(!SPIRV.is_empty() || !required(), "this was built without clang: there is no SPIR-V");
    for (card, lanes) in cards {
        for module in SPIRV.iter().filter(|module| module.sub_group.is_none_or(|size| size == lanes)) {
            compile(module, card, false);
        }
    }
}

#[test]
fn every_module_compiles_without_spills_for_xe_hpg() {
    compile_all(&CARDS[..1]);
}

#[test]
fn every_module_compiles_without_spills_for_xe_hpc_and_xe2() {
    compile_all(&CARDS[1..]);
}

#[test]
fn matrix_instructions_are_there_and_subnormal_numbers_are_kept() {
    let Some(cards) = known(&CARDS) else { return };
    for (card, lanes) in cards {
        for module in SPIRV.iter().filter(|module| module.sub_group == Some(lanes) || module.name == "norm") {
            let said = compile(module, card, true);
            for kernel in module.kernels {
                let name = format!("//.kernel {kernel}\n");
                let asm = said.iter().find(|asm| asm.contains(&name));
                let asm = asm.unwrap_or_else(|| panic!("{card}: nothing is said of {kernel}"));
                if module.sub_group.is_some() {
                    let found = asm.lines().filter(|line| line.trim_start().starts_with("dpas.8x8")).count();
                    assert!(
                        found > 0 && asm.contains(&format!("dpas.8x8 ({lanes}|M0)")),
                        "{card}: {kernel}: {found}"
                    );
                }
                // Bits 6, 7 and 10 of the control register: subnormal numbers of 64, 32 and 16 bits.
                let kept = asm.lines().any(|line| line.contains("cr0.0<1>:ud") && line.contains("0x4C0:uw"));
                assert!(kept, "{card}: {kernel} does not set the mode for subnormal numbers");
            }
        }
    }
}

/// Nobody adds to a product without rounding it first, whatever is usual: every kernel says so (OpExecutionMode ContractionOff).
#[test]
fn every_kernel_forbids_contraction() {
    for module in SPIRV {
        let words: Vec<u32> = module.spirv.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
        let (mut at, mut off) = (5, 0);
        while let Some(first) = words.get(at) {
            let (op, len) = (first & 0xffff, (first >> 16) as usize);
            assert!(len > 0, "an instruction without words");
            off += usize::from(op == 16 && words[at + 2] == 31);
            at += len;
        }
        assert_eq!(off, module.kernels.len(), "{}", module.name);
    }
}
