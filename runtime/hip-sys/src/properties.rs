//! What `hipGetDevicePropertiesR0600` tells.

/// Bytes that it writes: `sizeof(hipDeviceProp_tR0600)` of HIP 6.2 to 7.14 is 1472. There is room for what may come.
pub(crate) const ROOM: usize = 8192;

/// Where `gcnArchName` stands in it.
const ARCHITECTURE: usize = 1160;

/// The generation of a card as it stands in the properties' bytes, without its features: `gfx942` of
/// `gfx942:sramecc+:xnack-`. Where it is not at its place, a library whose properties have grown before it, the first
/// text behind the card's name that looks so is taken.
pub(crate) fn architecture(properties: &[u8]) -> Option<&str> {
    let found = properties.get(ARCHITECTURE..).and_then(generation_at);
    found.or_else(|| {
        let behind_name = properties.get(256..)?;
        (0..behind_name.len()).find_map(|at| generation_at(&behind_name[at..]))
    })
}

/// `gfx` and what follows of digits and small letters up to `f`, at the beginning of `bytes`.
fn generation_at(bytes: &[u8]) -> Option<&str> {
    let rest = bytes.strip_prefix(b"gfx")?;
    let len = rest.iter().take_while(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(*b)).count();
    let ends = matches!(rest.get(len), Some(b'\0' | b':'));
    if !(3..=5).contains(&len) || !ends {
        return None;
    }
    std::str::from_utf8(&bytes[..3 + len]).ok()
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, ROOM, architecture};

    fn with(at: usize, text: &str) -> Vec<u8> {
        let mut bytes = vec![0; ROOM];
        bytes[..6].copy_from_slice(b"gfx000");
        bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn the_generation_stands_without_its_features() {
        for (text, name) in [
            ("gfx942:sramecc+:xnack-", Some("gfx942")),
            ("gfx90a:sramecc+:xnack-", Some("gfx90a")),
            ("gfx1201", Some("gfx1201")),
            ("gfx928:xnack-", Some("gfx928")),
            ("gfx", None),
            ("gfx9", None),
            ("gfx942x", None),
            ("", None),
        ] {
            assert_eq!(architecture(&with(ARCHITECTURE, text)), name, "{text}");
        }
        // One that has grown.
        assert_eq!(architecture(&with(ARCHITECTURE + 68, "gfx950:sramecc+")), Some("gfx950"));
        assert_eq!(architecture(&[]), None);
        assert_eq!(architecture(&with(ARCHITECTURE, "gfx942")[..ARCHITECTURE + 6]), None);
    }
}
