//! Names of any bytes, as text for people and back.

use std::fmt::Write;

/// `bytes` as text: valid UTF-8 as it is, a backslash as `\\`, and each byte of anything else (bytes that are not
/// UTF-8, control characters, marks that reorder or hide text on a terminal) as `\xNN`. Different bytes give
/// different text; [`parse_display_name`] is the inverse.
pub fn display_name(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\\' {
                out.push_str("\\\\");
            } else if is_hidden(c) {
                escape(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                out.push(c);
            }
        }
        escape(&mut out, chunk.invalid());
    }
    out
}

/// The bytes that [`display_name`] shows as `text`. `None` where a backslash starts neither `\\` nor `\xNN`.
pub fn parse_display_name(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = match (first, tail) {
            (b'\\', [b'\\', tail @ ..]) => {
                out.push(b'\\');
                tail
            }
            (b'\\', [b'x', high, low, tail @ ..]) => {
                out.push(digit(*high)? << 4 | digit(*low)?);
                tail
            }
            (b'\\', _) => return None,
            (byte, tail) => {
                out.push(byte);
                tail
            }
        };
    }
    Some(out)
}

/// [`display_name`] cut after 96 characters, so that an error stays a line.
pub(super) fn shown(bytes: &[u8]) -> String {
    let head = bytes.get(..96).unwrap_or(bytes);
    let mut text = display_name(head);
    if head.len() < bytes.len() {
        let _ = write!(text, "… ({} bytes)", bytes.len());
    }
    text
}

fn escape(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(out, "\\x{byte:02x}");
    }
}

fn digit(c: u8) -> Option<u8> {
    char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

/// Control characters, and those of Unicode's format characters that move or hide the text around them.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shows_each_kind_of_byte() {
        for (bytes, text) in [
            (&b"blk.0.ffn_down.weight"[..], "blk.0.ffn_down.weight"),
            ("café 重".as_bytes(), "café 重"),
            (b"caf\xe9", "caf\\xe9"),
            (b"a\\x41", "a\\\\x41"),
            (b"\0\x1b[2J\n", "\\x00\\x1b[2J\\x0a"),
            ("\u{85}\u{202e}".as_bytes(), "\\xc2\\x85\\xe2\\x80\\xae"),
            (b"\xe2\x96", "\\xe2\\x96"),
        ] {
            assert_eq!(display_name(bytes), text);
            assert_eq!(parse_display_name(text).as_deref(), Some(bytes));
        }
    }

    #[test]
    fn refuses_a_lone_backslash() {
        for text in ["\\", "a\\", "\\x", "\\x4", "\\xg0", "\\n"] {
            assert_eq!(parse_display_name(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn is_inverted(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(parse_display_name(&display_name(&bytes)), Some(bytes));
        }

        #[test]
        fn is_inverted_on_text(text in any::<String>()) {
            let bytes = parse_display_name(&display_name(text.as_bytes()));
            prop_assert_eq!(bytes, Some(text.into_bytes()));
        }
    }
}
