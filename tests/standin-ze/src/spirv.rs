//! What a module of SPIR-V says of its kernels.
//!
//! Numbers are those of the [specification](https://registry.khronos.org/SPIR-V/specs/unified1/SPIRV.html).

use std::collections::BTreeMap;

const MAGIC: u32 = 0x0723_0203;
/// Words before the first instruction.
const HEADER: usize = 5;

const ENTRY_POINT: u32 = 15;
const EXECUTION_MODE: u32 = 16;
const TYPE_INT: u32 = 21;
const TYPE_FLOAT: u32 = 22;
const TYPE_POINTER: u32 = 32;
const FUNCTION: u32 = 54;
const FUNCTION_PARAMETER: u32 = 55;

const KERNEL: u32 = 6;
const LOCAL_SIZE: u32 = 17;
const SUBGROUP_SIZE: u32 = 35;

/// Storage classes: constants, memory of all groups.
const IN_MEMORY: [u32; 2] = [0, 5];

/// A kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// Members of a group, where the module fixes that.
    pub(crate) group: Option<[u32; 3]>,
    pub(crate) sub_group: u32,
    pub(crate) parameters: Vec<Parameter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    Address,
    /// A value of so many bytes.
    Value(usize),
    /// Something that no kernel of this program takes.
    Other,
}

/// Kernels by name; or why there are none.
pub(crate) fn entries(bytes: &[u8]) -> Result<BTreeMap<String, Entry>, String> {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    if words.first() != Some(&MAGIC) || !rest.is_empty() || words.len() < HEADER {
        return Err("this is no SPIR-V".into());
    }
    let mut names: Vec<(u32, String)> = Vec::new();
    let mut of: BTreeMap<u32, Entry> = BTreeMap::new();
    let mut types: BTreeMap<u32, Parameter> = BTreeMap::new();
    let mut function = 0;
    let mut at = HEADER;
    while let Some(first) = words.get(at) {
        let (op, len) = (first & 0xffff, (first >> 16) as usize);
        let end = at.checked_add(len).filter(|end| len > 0 && *end <= words.len());
        let args = &words[at + 1..end.ok_or("an instruction that does not end")?];
        match (op, args) {
            (ENTRY_POINT, [KERNEL, id, name @ ..]) => {
                let bytes: Vec<u8> = name.iter().flat_map(|word| word.to_le_bytes()).collect();
                let name = bytes.split(|b| *b == 0).next().unwrap_or_default();
                names.push((*id, String::from_utf8_lossy(name).into_owned()));
            }
            (EXECUTION_MODE, [id, LOCAL_SIZE, x, y, z]) => {
                of.entry(*id).or_default().group = Some([*x, *y, *z])
            }
            (EXECUTION_MODE, [id, SUBGROUP_SIZE, size]) => of.entry(*id).or_default().sub_group = *size,
            (TYPE_INT, [id, width, _]) | (TYPE_FLOAT, [id, width]) => {
                types.insert(*id, Parameter::Value(*width as usize / 8));
            }
            (TYPE_POINTER, [id, class, _]) if IN_MEMORY.contains(class) => {
                types.insert(*id, Parameter::Address);
            }
            (FUNCTION, [_, id, ..]) => function = *id,
            (FUNCTION_PARAMETER, [kind, _]) => {
                let kind = types.get(kind).copied().unwrap_or(Parameter::Other);
                of.entry(function).or_default().parameters.push(kind);
            }
            _ => {}
        }
        at += len;
    }
    Ok(names.into_iter().map(|(id, name)| (name, of.get(&id).cloned().unwrap_or_default())).collect())
}
