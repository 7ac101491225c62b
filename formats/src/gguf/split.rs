//! Names of the shards of a split set: `NAME-00001-of-00003.gguf`.

/// A shard's file name, taken apart. Numbers in file names start at 1, the key `split.no` at 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    prefix: Vec<u8>,
    number: u32,
    count: u32,
}

impl ShardName {
    /// Takes a file name (without folders) apart; `None` where it is no shard's name.
    pub fn parse(file_name: &[u8]) -> Option<Self> {
        let stem = file_name.strip_suffix(b".gguf")?;
        let (stem, count) = strip_number(stem)?;
        let stem = stem.strip_suffix(b"-of-")?;
        let (prefix, number) = strip_number(stem)?;
        let prefix = prefix.strip_suffix(b"-")?;
        if number == 0 || number > count {
            return None;
        }
        Some(Self { prefix: prefix.to_vec(), number, count })
    }

    /// What comes before `-00001-of-00003.gguf`.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// This shard's number, from 1.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// How many shards there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The file name of shard `number` (from 1) of the same set.
    pub fn sibling(&self, number: u32) -> Vec<u8> {
        Self::format(&self.prefix, number, self.count)
    }

    /// The file name of shard `number` (from 1) of `count` with this prefix.
    pub fn format(prefix: &[u8], number: u32, count: u32) -> Vec<u8> {
        let mut name = prefix.to_vec();
        name.extend_from_slice(format!("-{number:05}-of-{count:05}.gguf").as_bytes());
        name
    }
}

/// Five digits off the end.
fn strip_number(text: &[u8]) -> Option<(&[u8], u32)> {
    let (head, digits) = text.split_at_checked(text.len().checked_sub(5)?)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some((head, digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_apart_and_puts_them_together() {
        let name = ShardName::parse(b"m-00002-of-00003-00002-of-00012.gguf").expect("a shard");
        assert_eq!((name.prefix(), name.number(), name.count()), (&b"m-00002-of-00003"[..], 2, 12));
        assert_eq!(name.sibling(11), b"m-00002-of-00003-00011-of-00012.gguf");
        let odd = ShardName::parse(b"\xff-00001-of-00001.gguf").expect("any bytes");
        assert_eq!(odd.sibling(1), b"\xff-00001-of-00001.gguf");
    }

    #[test]
    fn refuses_what_is_no_shard() {
        for name in [
            &b"model.gguf"[..],
            b"m-00000-of-00002.gguf",
            b"m-00003-of-00002.gguf",
            b"m-1-of-2.gguf",
            b"m-00001-of-00002.bin",
            b"m-0000a-of-00002.gguf",
            b"00001-of-00002.gguf",
            b"-of-.gguf",
            b"",
        ] {
            assert_eq!(ShardName::parse(name), None, "{}", String::from_utf8_lossy(name));
        }
    }
}
