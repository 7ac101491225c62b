//! Patterns of `--set` and `--filter`: `*` stands for any run of characters, `?` for one, everything else for itself.

/// Whether `text` is what `pattern` describes.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how far the text had been taken when it was tried.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    p = at + 1;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, want) in [
            ("ffn_down", "ffn_down", true),
            ("ffn_down", "ffn_down_exps", false),
            ("ffn_*", "ffn_down", true),
            ("*", "", true),
            ("?", "", false),
            ("blk.?.attn_q.weight", "blk.3.attn_q.weight", true),
            ("blk.?.attn_q.weight", "blk.13.attn_q.weight", false),
            ("blk.*.ffn_*.weight", "blk.13.ffn_gate.weight", true),
            ("*a*b", "xaxbxxab", true),
            ("*a*b", "xaxbxxabc", false),
        ] {
            assert_eq!(matches(pattern, text), want, "{pattern} {text}");
        }
    }
}
