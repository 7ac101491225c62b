//! What programs tell people: lines that fit a terminal, and the name that was probably meant.

/// Columns of a line.
pub const COLUMNS: usize = 80;

/// `text` in lines of at most [`COLUMNS`] characters, broken between words; lines that go on are indented by two more than the
/// one they go on from. Words that are longer, as paths are, stay whole, and so do lines that are short enough: tables.
pub fn wrapped(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(wrapped_line).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str) -> String {
    let indent = line.chars().take_while(|c| *c == ' ').count();
    if line.chars().count() <= COLUMNS { line.to_owned() } else { wrap(line, indent + 2) }
}

/// `text` broken at spaces into lines of at most [`COLUMNS`] characters; lines after the first start with `indent` spaces.
pub fn wrap(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let lead = text.len() - text.trim_start().len();
    out.push_str(&text[..lead]);
    let mut column = lead;
    let mut first = true;
    for word in text[lead..].split(' ') {
        let len = word.chars().count();
        if !first && column + 1 + len > COLUMNS {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if !first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += len;
        first = false;
    }
    out
}

/// The one of `names` that was probably meant by `word`: fewest letters differ, at most a third of them and no more than five. Of equal ones the
/// first.
pub fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_lowercase();
    let most = (word.chars().count() / 3).clamp(1, 5);
    let near = names.into_iter().map(|name| (distance(&name.to_lowercase(), &word), name));
    near.filter(|(far, _)| *far <= most).min_by_key(|(far, _)| *far).map(|(_, name)| name)
}

/// `; did you mean NAME?`, or nothing where no name is near.
pub fn did_you_mean<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(word, names).map_or(String::new(), |name| format!("; did you mean {}?", name.escape_debug()))
}

/// How many letters must be added, taken away, replaced or exchanged with the next one to make `b` of `a` (optimal string
/// alignment, <https://en.wikipedia.org/wiki/Damerau%E2%80%93Levenshtein_distance>).
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = row[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            next[j] = replaced.min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                next[j] = next[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        assert_eq!(distance("chat", "chat"), 0);
        assert_eq!(distance("chat", "chatt"), 1);
        assert_eq!(distance("bench", "bnech"), 1);
        assert_eq!(distance("bench", "nbehc"), 3);
        assert_eq!(distance("chat", ""), 4);
        assert_eq!(distance("", ""), 0);
    }

    #[test]
    fn the_nearest_name_is_found_where_one_is_near() {
        let names = ["balanced", "compact", "w8a8", "q8", "lossless"];
        assert_eq!(nearest("loseless", names), Some("lossless"));
        assert_eq!(nearest("Balanced", names), Some("balanced"));
        assert_eq!(nearest("q9", names), Some("q8"));
        assert_eq!(nearest("smallest", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(did_you_mean("compct", names), "; did you mean compact?");
        assert_eq!(did_you_mean("x", []), "");
    }

    #[test]
    fn long_lines_are_broken_between_words() {
        let word = "word ".repeat(40);
        let text = format!("error: {word}\n  {}\nshort  line", word.trim_end());
        let lines = wrapped(&text);
        assert!(lines.lines().all(|line| line.chars().count() <= COLUMNS), "{lines}");
        let broken: Vec<&str> = lines.lines().collect();
        assert!(broken[1].starts_with("  word") && broken[3].starts_with("  word"), "{lines}");
        assert!(broken[4].starts_with("    word") && lines.ends_with("\nshort  line"), "{lines}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines), words(&text));
        // What cannot be broken stays whole.
        let path = format!("/{}", "x".repeat(100));
        assert_eq!(
            wrapped(&format!("error: {path} is not there")),
            format!("error:\n  {path}\n  is not there")
        );
    }

    #[test]
    fn wrapping_indents() {
        let text = wrap(&format!("  warning   {}", "word ".repeat(30).trim_end()), 12);
        assert!(text.lines().all(|l| l.chars().count() <= COLUMNS), "{text}");
        assert!(text.lines().nth(1).unwrap().starts_with("            word"));
    }
}
