//! Compiles the kernels of `device` and `opencl` to SPIR-V for Intel's cards, a module for each source, where clang 15,
//! opt 15 and llvm-spirv 15 are found, and checks each by spirv-val, where that is.
//!
//! They are looked for in the folder that `GANTRY_LLVM_15` names, else on the `PATH` and where Debian puts them. Without them the
//! crate is built all the same, with a warning and no such kernels, unless `GANTRY_REQUIRE_CLANG` is set; then spirv-val has to be
//! there too.

use crate::kept::{files, once, out};
use std::env;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the kernels are made of.
const FOLDERS: [&str; 2] = ["device", "opencl"];

/// OpenCL C 1.2 has no pointers into any space, which cost more. Nothing is optimised here: clang's own optimising makes of some
/// kernels what is not SPIR-V, or is and computes something else.
const CLANG: [&str; 19] = [
    "-c",
    "-target",
    "spir64",
    "-x",
    "cl",
    "-cl-std=CL1.2",
    "-DGANTRY_SPIRV",
    "-emit-llvm",
    "-Xclang",
    "-finclude-default-header",
    "-O0",
    "-Xclang",
    "-disable-O0-optnone",
    "-Wall",
    "-Werror",
    "-I",
    "device",
    "-I",
    "opencl",
];

/// Values in registers, and no more.
const OPT: [&str; 1] = ["-passes=sroa,early-cse,instcombine"];

/// A product and a sum stay two operations, which drivers otherwise need not know. The extension is used by what is for sub-groups
/// of one size alone.
const LLVM_SPIRV: [&str; 3] =
    ["--spirv-max-version=1.2", "--spirv-fp-contract=off", "--spirv-ext=+SPV_INTEL_subgroups"];

pub(crate) fn build() {
    println!("cargo:rerun-if-changed=opencl");
    for name in ["GANTRY_LLVM_15", "GANTRY_REQUIRE_CLANG"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("CARGO_FEATURE_LEVEL_ZERO").is_none() {
        return;
    }
    let modules: Vec<PathBuf> = sources().iter().map(|source| module(source)).collect();
    let required = env::var_os("GANTRY_REQUIRE_CLANG").is_some();
    let tools = ["clang", "opt", "llvm-spirv"].map(|name| tool(&format!("{name}-15"), name));
    let made = match tools {
        [Some(clang), Some(opt), Some(llvm_spirv)] => {
            let val = tool("spirv-val", "spirv-val");
            assert!(val.is_some() || !required, "spirv-val was not found (package spirv-tools)");
            let tools = Tools { clang, opt, llvm_spirv, val };
            std::fs::create_dir_all(out().join("spirv")).expect("OUT_DIR can be written");
            let means: Vec<String> =
                [&CLANG[..], &OPT, &LLVM_SPIRV].concat().into_iter().map(String::from).collect();
            let means: Vec<String> =
                [&tools.clang, &tools.opt, &tools.llvm_spirv].into_iter().map(version).chain(means).collect();
            let means: Vec<&[u8]> = means.iter().map(String::as_bytes).collect();
            once("spirv.rs", &FOLDERS, &means, &modules, || {
                sources().iter().zip(&modules).for_each(|(source, made)| tools.compile(source, made));
            });
            modules
        }
        _ => {
            let missing = "clang, opt and llvm-spirv of LLVM 15 were not found (GANTRY_LLVM_15 names their folder): \
                           built without kernels for Level Zero";
            assert!(!required, "{missing}");
            println!("cargo:warning={missing}");
            Vec::new()
        }
    };
    std::fs::write(out().join("spirv.rs"), list(&made)).expect("OUT_DIR can be written");
}

/// A tool by either of its names, the second where its folder says which version it is.
fn tool(versioned: &str, plain: &str) -> Option<PathBuf> {
    if let Some(folder) = env::var_os("GANTRY_LLVM_15") {
        let found = [versioned, plain].map(|name| Path::new(&folder).join(name));
        if let Some(found) = found.into_iter().find(|file| file.is_file()) {
            return Some(found);
        }
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let on_path = env::split_paths(&path).map(|folder| folder.join(versioned));
    on_path.chain([Path::new("/usr/lib/llvm-15/bin").join(plain)]).find(|file| file.is_file())
}

/// What a tool calls itself.
fn version(tool: &PathBuf) -> String {
    let said = Command::new(tool).arg("--version").output();
    let said = said.unwrap_or_else(|e| panic!("{}: {e}", tool.display()));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

fn sources() -> Vec<PathBuf> {
    let is_source = |file: &PathBuf| file.extension().is_some_and(|e| e == "c" || e == "cl");
    files(&FOLDERS).into_iter().filter(is_source).collect()
}

/// Where a source's module is made.
fn module(source: &Path) -> PathBuf {
    out().join("spirv").join(source.file_stem().expect("a name")).with_extension("spv")
}

struct Tools {
    clang: PathBuf,
    opt: PathBuf,
    llvm_spirv: PathBuf,
    val: Option<PathBuf>,
}

impl Tools {
    fn compile(&self, source: &Path, made: &Path) {
        let (code, plain) = (made.with_extension("bc"), made.with_extension("opt.bc"));
        run(Command::new(&self.clang).args(CLANG).arg("-o").arg(&code).arg(source));
        run(Command::new(&self.opt).args(OPT).arg("-o").arg(&plain).arg(&code));
        run(Command::new(&self.llvm_spirv).args(LLVM_SPIRV).arg("-o").arg(made).arg(&plain));
        for between in [code, plain] {
            std::fs::remove_file(between).expect("OUT_DIR can be written");
        }
        if let Some(val) = &self.val {
            run(Command::new(val).args(["--target-env", "opencl2.2"]).arg(made));
        }
    }
}

/// A warning is as bad as an error.
fn run(command: &mut Command) {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(done.status.success() && said.trim().is_empty(), "{command:?}:\n{said}");
}

/// The modules as Rust has them.
fn list(modules: &[PathBuf]) -> String {
    let mut text = String::from("&[\n");
    for module in modules {
        let name = module.file_stem().expect("a name").to_string_lossy();
        let (kernels, sub_group) = kernels(&std::fs::read(module).expect("what was compiled"));
        let file = format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/spirv/{name}.spv\"))");
        let (kernels, sub_group) = (format!("kernels: &{kernels:?}"), format!("sub_group: {sub_group:?}"));
        writeln!(text, "Module {{ name: {name:?}, {kernels}, {sub_group}, spirv: {file} }},")
            .expect("memory");
    }
    text + "]\n"
}

/// The kernels of a module, and the size of sub-groups where they need one: the names that its OpEntryPoints (15) have from
/// their fourth word on, and what its OpExecutionModes (16) say of SubgroupSize (35).
fn kernels(spirv: &[u8]) -> (Vec<String>, Option<u32>) {
    let words: Vec<u32> = spirv.as_chunks().0.iter().map(|w| u32::from_le_bytes(*w)).collect();
    assert_eq!(words.first(), Some(&0x0723_0203), "SPIR-V begins with its number");
    let (mut at, mut kernels, mut sub_group) = (5, Vec::new(), None);
    while let Some(first) = words.get(at) {
        let (op, len) = (first & 0xffff, (first >> 16) as usize);
        assert!(len > 0 && at + len <= words.len(), "an instruction of {len} words at {at}");
        let operands = &words[at + 1..at + len];
        if op == 15 {
            let name = operands[2..].iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0);
            kernels.push(String::from_utf8(name.collect()).expect("a name of C"));
        } else if op == 16 && operands[1] == 35 {
            sub_group = Some(operands[2]);
        }
        at += len;
    }
    assert!(!kernels.is_empty(), "a module without kernels");
    (kernels, sub_group)
}
