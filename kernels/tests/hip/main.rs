//! The compiled HIP kernels: none is missing on any generation, none spills, each fits a card.

mod code_object;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use code_object::{CodeObject, Kernel};
use gantry_kernels::hip::CODE;

/// The code objects by generation; `None`, which is said, without a compiler. `GANTRY_REQUIRE_CLANG` makes that a failure.
fn compiled() -> Option<Vec<(&'static str, BTreeMap<String, Kernel>)>> {
    if CODE.is_empty() {
        assert!(std::env::var_os("GANTRY_REQUIRE_CLANG").is_none(), "built without HIP kernels");
        eprintln!("not run: built without HIP kernels");
        return None;
    }
    Some(CODE.iter().map(|(target, bytes)| (*target, CodeObject(bytes).kernels())).collect())
}

/// Kernels that the sources of `device` define, with their group's size where it stands beside the name.
fn defined(text: &str) -> Vec<(String, Option<u64>)> {
    let sizes: BTreeMap<&str, u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define ")?.split_once(' '))
        .filter_map(|(name, value)| Some((name, value.trim().parse().ok()?)))
        .collect();
    let sizes = |name: &str| match name {
        "PRODUCT_GROUP" => Some(256),
        _ => name.parse().ok().or_else(|| sizes.get(name).copied()),
    };
    let mut found = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        // What a macro defines stands in one line with it.
        let call = line.split_once('(').filter(|(name, _)| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        });
        let Some((name, rest)) = call else { continue };
        if name.starts_with("KERNEL") {
            let size = rest.split(')').next().expect("a size");
            let next = lines.get(i + 1).and_then(|line| line.split_once('(')).expect("a kernel's name");
            found.push((
                next.0.to_owned(),
                Some(sizes(size).unwrap_or_else(|| panic!("{size} of {}", next.0))),
            ));
        } else if let Some(name) = rest.split([',', ' ', ')']).find(|word| word.starts_with("gantry_")) {
            found.push((name.to_owned(), None));
        }
    }
    found
}

#[test]
fn every_kernel_is_compiled_for_every_generation() {
    let Some(compiled) = compiled() else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("device");
    let files = std::fs::read_dir(folder).expect("the sources").map(|file| file.expect("a file").path());
    let files: Vec<_> = files.filter(|file| file.extension().is_some_and(|e| e == "c")).collect();
    let text = files.iter().map(|file| std::fs::read_to_string(file).expect("a source"));
    let wanted: Vec<_> = text.flat_map(|text| defined(&text)).collect();
    assert!(wanted.len() >= 75, "{wanted:?}");
    let sized = wanted.iter().filter(|(_, size)| size.is_some()).count();
    assert!(sized >= 50, "{sized} group sizes");
    for (target, kernels) in &compiled {
        for (name, size) in &wanted {
            let kernel = kernels.get(name).unwrap_or_else(|| panic!("{name} is not compiled for {target}"));
            let compiled = kernel.number(".max_flat_workgroup_size");
            assert!(size.is_none_or(|size| size == compiled), "{name} for {target}: groups of {compiled}");
        }
    }
}

#[test]
fn kernels_fit_their_cards() {
    let Some(compiled) = compiled() else { return };
    for (target, kernels) in &compiled {
        // Waves of 64 up to gfx9.
        let wave = if target.starts_with("gfx9") { 64 } else { 32 };
        for (name, kernel) in kernels {
            let what = format!("{name} for {target}");
            assert_eq!(kernel.scratch, 0, "{what} spills registers");
            assert_eq!(kernel.number(".private_segment_fixed_size"), 0, "{what}");
            assert_eq!(kernel.number(".vgpr_spill_count"), 0, "{what}");
            assert!(kernel.local <= 65536, "{what} takes {} bytes of local memory", kernel.local);
            assert_eq!(u64::from(kernel.local), kernel.number(".group_segment_fixed_size"), "{what}");
            assert_eq!(kernel.number(".wavefront_size"), wave, "{what}");
            let group = kernel.number(".max_flat_workgroup_size");
            assert!(group.is_multiple_of(wave) && group <= 1024, "{what}: groups of {group}");
            // A launch gives the arguments that the source names; the runtime of HIP would add others by itself, and none is needed.
            assert!(!kernel.arguments.is_empty(), "{what} takes nothing");
            let hidden = kernel.arguments.iter().find(|kind| kind.starts_with("hidden_"));
            assert!(hidden.is_none(), "{what} wants {hidden:?}");
        }
    }
}

/// Each code object is for the generation that it is listed under.
#[test]
fn code_objects_are_for_their_generations() {
    // EF_AMDGPU_MACH of LLVM's guide.
    let known = [
        ("gfx908", 0x30),
        ("gfx90a", 0x3f),
        ("gfx942", 0x4c),
        ("gfx950", 0x4f),
        ("gfx1100", 0x41),
        ("gfx1201", 0x4e),
    ];
    for (target, bytes) in CODE {
        if let Some((_, number)) = known.iter().find(|(name, _)| name == target) {
            assert_eq!(CodeObject(bytes).processor(), *number, "{target}");
        }
    }
}

/// What a disassembler makes of a code object, by kernel; `None`, which is said, where there is none.
fn disassembled(target: &str, bytes: &[u8]) -> Option<BTreeMap<String, String>> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("a code object");
    let names = ["llvm-objdump-19", "llvm-objdump-20", "llvm-objdump-21", "llvm-objdump"];
    let said = names.iter().find_map(|name| {
        let said = Command::new(name).arg("-d").arg(format!("--mcpu={target}")).arg(file.path()).output();
        said.ok().filter(|said| said.status.success())
    });
    let Some(said) = said else {
        assert!(std::env::var_os("GANTRY_REQUIRE_CLANG").is_none(), "no llvm-objdump (package llvm-19)");
        eprintln!("not run: there is no llvm-objdump");
        return None;
    };
    let text = String::from_utf8(said.stdout).expect("text");
    let functions = text.split("\n\n").filter_map(|part| {
        let (head, body) = part.trim_start().split_once(">:\n")?;
        Some((head.split_once('<')?.1.to_owned(), body.to_owned()))
    });
    Some(functions.collect())
}

/// The kernels for few tokens multiply by matrix instructions, whose weights come by loads as wide as their order allows.
#[test]
fn matrix_instructions_are_there() {
    let instructions = [
        ("gfx90a", "v_mfma_i32_16x16x16"),
        ("gfx942", "v_mfma_i32_16x16x32_i8"),
        ("gfx950", "v_mfma_i32_16x16x32_i8"),
        ("gfx1100", "v_wmma_i32_16x16x16_iu8"),
        ("gfx1201", "v_wmma_i32_16x16x16_iu8"),
    ];
    for (target, bytes) in CODE {
        let Some((_, instruction)) = instructions.iter().find(|(name, _)| name == target) else { continue };
        let Some(functions) = disassembled(target, bytes) else { return };
        let mut kernels = 0;
        for (name, body) in functions.iter().filter(|(name, _)| name.starts_with("gantry_decode_")) {
            let what = format!("{name} for {target}");
            let count = |text: &str| body.lines().filter(|line| line.trim_start().starts_with(text)).count();
            assert!(count(instruction) >= 4, "{what}: {} of {instruction}", count(instruction));
            for narrow in ["global_load_ubyte", "global_load_u8", "global_load_ushort", "global_load_u16"] {
                assert_eq!(count(narrow), 0, "{what}: {narrow}");
            }
            assert_eq!(count("scratch_") + count("buffer_store"), 0, "{what}");
            // Lists that may be absent are read by any kind of address, weights never.
            assert_eq!(
                count("flat_load_dwordx") + count("flat_load_b64") + count("flat_load_b128"),
                0,
                "{what}"
            );
            let (eight, sixteen) = (
                count("global_load_dwordx2") + count("global_load_b64"),
                count("global_load_dwordx4") + count("global_load_b128"),
            );
            let by_eight = name.contains("slot8") || name.contains("rdna4");
            assert!(
                if by_eight { eight >= 8 } else { sixteen >= 4 },
                "{what}: {eight} and {sixteen} wide loads"
            );
            kernels += 1;
        }
        assert!(kernels >= 4, "{kernels} kernels for {target}");
    }
}
