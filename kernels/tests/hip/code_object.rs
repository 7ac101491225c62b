//! Reads a code object: an ELF file with a descriptor of 64 bytes for each kernel, `NAME.kd`, and a note about them all, in
//! MessagePack. See "Code Object" in LLVM's User Guide for AMDGPU Backend.

use std::collections::BTreeMap;

/// What is said of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    /// By the descriptor: bytes of local memory, and of memory that takes what registers have no room for.
    pub(crate) local: u32,
    pub(crate) scratch: u32,
    /// By the note: numbers by name, kinds of arguments in order.
    pub(crate) numbers: BTreeMap<String, u64>,
    pub(crate) arguments: Vec<String>,
}

impl Kernel {
    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> u64 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.numbers))
    }
}

/// A code object.
#[derive(Clone, Copy)]
pub(crate) struct CodeObject<'a>(pub(crate) &'a [u8]);

/// A section: its type, address, bytes, the section that it belongs to.
struct Section<'a> {
    kind: u32,
    address: u64,
    bytes: &'a [u8],
    link: usize,
}

impl<'a> CodeObject<'a> {
    fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
        let mut all = [0; 8];
        all[..N].copy_from_slice(&bytes[at..at + N]);
        u64::from_le_bytes(all)
    }

    /// Processor of the header's flags, EF_AMDGPU_MACH.
    pub(crate) fn processor(&self) -> u64 {
        assert_eq!(&self.0[..6], b"\x7fELF\x02\x01", "an ELF file of 64 bits");
        assert_eq!(Self::number::<2>(self.0, 18), 224, "EM_AMDGPU");
        Self::number::<4>(self.0, 48) & 0xff
    }

    fn sections(&self) -> Vec<Section<'a>> {
        let (table, size) = (Self::number::<8>(self.0, 40) as usize, Self::number::<2>(self.0, 58) as usize);
        let section = |i: usize| {
            let header = &self.0[table + i * size..][..size];
            let (at, len) = (Self::number::<8>(header, 24) as usize, Self::number::<8>(header, 32) as usize);
            let kind = Self::number::<4>(header, 4) as u32;
            let bytes = if kind == 8 { &[][..] } else { &self.0[at..at + len] };
            let (address, link) = (Self::number::<8>(header, 16), Self::number::<4>(header, 40) as usize);
            Section { kind, address, bytes, link }
        };
        (0..Self::number::<2>(self.0, 60) as usize).map(section).collect()
    }

    /// The kernels by name.
    pub(crate) fn kernels(&self) -> BTreeMap<String, Kernel> {
        let sections = self.sections();
        let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
        // SHT_DYNSYM: what a loader finds.
        let symbols = sections.iter().find(|s| s.kind == 11).expect("dynamic symbols");
        let names = sections[symbols.link].bytes;
        for symbol in symbols.bytes.chunks_exact(24) {
            let name = &names[Self::number::<4>(symbol, 0) as usize..];
            let name = name.split(|b| *b == 0).next().expect("a name");
            let name = std::str::from_utf8(name).expect("a name");
            let Some(name) = name.strip_suffix(".kd") else { continue };
            let at = Self::number::<8>(symbol, 8);
            let inside = |s: &&Section<'_>| {
                s.address > 0 && (s.address..s.address + s.bytes.len() as u64).contains(&at)
            };
            let section = sections.iter().find(inside).expect("a section with the descriptor");
            let descriptor = &section.bytes[(at - section.address) as usize..][..64];
            let kernel = kernels.entry(name.to_owned()).or_default();
            kernel.local = Self::number::<4>(descriptor, 0) as u32;
            kernel.scratch = Self::number::<4>(descriptor, 4) as u32;
        }
        // SHT_NOTE, of it NT_AMDGPU_METADATA.
        for section in sections.iter().filter(|s| s.kind == 7) {
            let (name, len) =
                (Self::number::<4>(section.bytes, 0), Self::number::<4>(section.bytes, 4) as usize);
            assert_eq!((name, Self::number::<4>(section.bytes, 8)), (7, 32), "a note about AMD's kernels");
            let mut note = Packed(&section.bytes[20..20 + len]);
            let Value::Map(all) = note.value() else { panic!("the note is no map") };
            let Some(Value::List(all)) = all.get("amdhsa.kernels") else { panic!("the note has no kernels") };
            for of_kernel in all {
                let Value::Map(of_kernel) = of_kernel else { panic!("a kernel that is no map") };
                let Some(Value::Text(name)) = of_kernel.get(".name") else {
                    panic!("a kernel without a name")
                };
                let kernel = kernels.get_mut(name).unwrap_or_else(|| panic!("{name} has no descriptor"));
                for (name, value) in of_kernel {
                    match value {
                        Value::Number(number) => drop(kernel.numbers.insert(name.clone(), *number)),
                        Value::List(list) if name == ".args" => {
                            kernel.arguments = list.iter().map(Value::kind).collect();
                        }
                        _ => {}
                    }
                }
            }
        }
        kernels
    }
}

/// A value of MessagePack, of the kinds that notes hold.
enum Value {
    Number(u64),
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, Value>),
}

impl Value {
    /// Of an argument.
    fn kind(&self) -> String {
        let Value::Map(map) = self else { panic!("an argument that is no map") };
        let Some(Value::Text(kind)) = map.get(".value_kind") else { panic!("an argument of no kind") };
        kind.clone()
    }
}

/// What is left to read.
struct Packed<'a>(&'a [u8]);

impl Packed<'_> {
    fn take(&mut self, bytes: usize) -> u64 {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest;
        taken.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }

    fn text(&mut self, len: u64) -> Value {
        let (text, rest) = self.0.split_at(len as usize);
        self.0 = rest;
        Value::Text(String::from_utf8(text.to_vec()).expect("text"))
    }

    fn list(&mut self, len: u64) -> Value {
        Value::List((0..len).map(|_| self.value()).collect())
    }

    fn map(&mut self, len: u64) -> Value {
        let pair = |_| match (self.value(), self.value()) {
            (Value::Text(name), value) => (name, value),
            _ => panic!("a name that is no text"),
        };
        Value::Map((0..len).map(pair).collect())
    }

    fn value(&mut self) -> Value {
        match self.take(1) {
            small @ ..=0x7f => Value::Number(small),
            map @ 0x80..=0x8f => self.map(map & 15),
            list @ 0x90..=0x9f => self.list(list & 15),
            text @ 0xa0..=0xbf => self.text(text & 31),
            truth @ (0xc2 | 0xc3) => Value::Number(truth & 1),
            size @ 0xcc..=0xcf => Value::Number(self.take(1 << (size & 3))),
            size @ 0xd9..=0xdb => {
                let len = self.take(1 << (size - 0xd9));
                self.text(len)
            }
            size @ (0xdc | 0xdd) => {
                let len = self.take(2 << (size & 1));
                self.list(len)
            }
            size @ (0xde | 0xdf) => {
                let len = self.take(2 << (size & 1));
                self.map(len)
            }
            other => panic!("a value of kind {other:#x}"),
        }
    }
}
