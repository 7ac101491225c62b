//! Text tables that fit 80 columns.

/// Columns of a terminal that every table fits.
pub(crate) const WIDTH: usize = 80;
const GAP: usize = 2;

/// Which side of its column a cell keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table. The first column gives way where a row would be too wide; its cells are cut in the middle, since
/// names differ at both ends.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these titles.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: one cell per column.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// Adds a row that stands for rows left out.
    pub(crate) fn gap(&mut self) {
        let mut cells = vec![String::new(); self.columns.len()];
        if let Some(first) = cells.first_mut() {
            *first = "…".into();
        }
        self.rows.push(cells);
    }

    /// The table as lines, each ended.
    pub(crate) fn render(&self) -> String {
        let mut widths: Vec<usize> = self.columns.iter().map(|(title, _)| length(title)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = length(cell).max(*width);
            }
        }
        let others: usize = widths.iter().skip(1).map(|w| w + GAP).sum();
        if let Some(first) = widths.first_mut() {
            *first = (*first).min(WIDTH.saturating_sub(others)).max(8);
        }
        let mut out = String::new();
        let titles: Vec<String> = self.columns.iter().map(|(title, _)| title.to_string()).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let start = out.len();
            for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let cell = shorten(cell, width);
                let fill = " ".repeat(width - length(&cell));
                let gap = if i == 0 { 0 } else { GAP };
                out.extend(std::iter::repeat_n(' ', gap));
                match self.columns[i].1 {
                    Align::Left => out.extend([&*cell, &*fill]),
                    Align::Right => out.extend([&*fill, &*cell]),
                }
            }
            out.truncate(start + out[start..].trim_end().len());
            out.push('\n');
        }
        out
    }
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// `text` in at most `width` characters, its middle left out.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    let len = length(text);
    if len <= width {
        return text.into();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    let chars = text.chars();
    chars.clone().take(head).chain(std::iter::once('…')).chain(chars.skip(len - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_column_gives_way() {
        let mut table = Table::new(&[("name", Align::Left), ("bytes", Align::Right)]);
        table.row(["a".repeat(100), "1".into()]);
        table.row(["b".into(), "123,456".into()]);
        let text = table.render();
        assert!(text.lines().all(|l| length(l) <= WIDTH), "{text}");
        assert!(text.lines().next().unwrap().ends_with("  bytes"));
        assert!(text.contains("a…a"));
        assert!(text.lines().nth(2).unwrap().ends_with("123,456"));
    }

    #[test]
    fn shortening_keeps_both_ends() {
        assert_eq!(shorten("blk.0.ffn_gate_exps.weight", 11), "blk.0…eight");
        assert_eq!(shorten("abc", 3), "abc");
        assert_eq!(shorten("äöüß", 3), "ä…ß");
    }
}
