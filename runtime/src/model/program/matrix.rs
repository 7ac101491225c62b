//! Where weights lie.

use gantry_formats::layout::Layout;
use std::ops::Range;
use std::sync::Arc;

/// Some rows of a stored matrix: where it lies and how to read it.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The tensor's name.
    pub name: Arc<str>,
    /// Card.
    pub card: usize,
    /// First byte of the stored matrix inside the card's arena.
    pub offset: usize,
    /// Rows of the stored matrix.
    pub stored_rows: usize,
    /// The rows that are meant: one value comes out for each.
    pub rows: Range<usize>,
    /// Columns: values that go in.
    pub cols: usize,
    /// How the bytes are ordered.
    pub layout: Layout,
}

/// One matrix of every expert of a layer, by expert: alike in layout, rows and columns, each where a card has it, or
/// several cards.
#[derive(Clone, Debug)]
pub struct ExpertMatrices(Vec<Vec<Matrix>>);

impl ExpertMatrices {
    /// By expert its copies, in ascending order of their cards. `None` where there are none, where an expert has no
    /// copy or two on a card, or where they are not alike.
    pub fn new(copies: Vec<Vec<Matrix>>) -> Option<Self> {
        let alike =
            |a: &Matrix, b: &Matrix| (a.layout, a.rows.len(), a.cols) == (b.layout, b.rows.len(), b.cols);
        let first = copies.first()?.first()?.clone();
        let fine = |copies: &Vec<Matrix>| {
            !copies.is_empty()
                && copies.iter().all(|m| alike(m, &first))
                && copies.windows(2).all(|w| w[0].card < w[1].card)
        };
        copies.iter().all(fine).then_some(Self(copies))
    }

    /// The same matrix `count` times.
    pub fn repeated(matrix: Matrix, count: usize) -> Self {
        Self(vec![vec![matrix]; count.max(1)])
    }

    /// How many experts.
    pub fn experts(&self) -> usize {
        self.0.len()
    }

    /// The matrix of `expert` that a token at `position` of its sequence is given to: that of the card that
    /// [`Holders::of`] names.
    pub fn get(&self, expert: usize, position: usize) -> Option<&Matrix> {
        chosen(&self.0, expert, position)
    }

    /// The copy of `expert` on `card`; where it has none, the first.
    pub fn copy(&self, expert: usize, card: usize) -> Option<&Matrix> {
        let copies = self.0.get(expert)?;
        copies.iter().find(|m| m.card == card).or_else(|| copies.first())
    }

    /// The copies of `expert`, in ascending order of their cards; none where there is no such expert.
    pub fn copies(&self, expert: usize) -> &[Matrix] {
        self.0.get(expert).map_or(&[], Vec::as_slice)
    }

    /// All of them, by expert.
    pub fn iter(&self) -> impl Iterator<Item = &Matrix> + Clone {
        self.0.iter().flatten()
    }

    /// One matrix for each expert of both, stacked, where they were fused in this order; else `None`.
    pub fn fused(&self, below: &Self) -> Option<Self> {
        let joined = self.0.iter().zip(&below.0).map(|(above, below)| {
            let both = above.iter().zip(below).map(|(a, b)| {
                let follows = (a.card, a.offset, a.rows.end) == (b.card, b.offset, b.rows.start);
                follows.then(|| Matrix { rows: a.rows.start..b.rows.end, ..a.clone() })
            });
            if above.len() == below.len() { both.collect() } else { None }
        });
        Self::new(joined.collect::<Option<Vec<_>>>()?)
    }

    /// Which cards have which expert.
    pub fn holders(&self) -> Holders {
        Holders(self.0.iter().map(|copies| copies.iter().map(|m| m.card).collect()).collect())
    }

    /// How their bytes are ordered.
    pub fn layout(&self) -> Layout {
        self.0[0][0].layout
    }

    /// Rows of each: values that come out.
    pub fn rows(&self) -> usize {
        self.0[0][0].rows.len()
    }

    /// Columns of each: values that go in.
    pub fn cols(&self) -> usize {
        self.0[0][0].cols
    }
}

/// The copy of `expert` that a token at `position` of its sequence is given to: of several number `position` modulo
/// their count, a fixed rule, so that runs repeat bit for bit.
fn chosen<T>(copies: &[Vec<T>], expert: usize, position: usize) -> Option<&T> {
    let copies = copies.get(expert)?;
    copies.get(position.checked_rem(copies.len())?)
}

/// By expert, the cards that hold it, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders(Vec<Vec<usize>>);

impl Holders {
    /// The card that computes `expert` for a token at `position` of its sequence.
    pub fn of(&self, expert: usize, position: usize) -> Option<usize> {
        chosen(&self.0, expert, position).copied()
    }

    /// Of each expert how many copies there are, and which of them is that of `card`: the one for positions that leave
    /// that remainder. 1 and 1, which no remainder is, for an expert that it has not.
    pub fn turns(&self, card: usize) -> Vec<[u32; 2]> {
        let turn = |cards: &Vec<usize>| match cards.iter().position(|c| *c == card) {
            Some(at) => [cards.len() as u32, at as u32],
            None => [1, 1],
        };
        self.0.iter().map(turn).collect()
    }

    /// How many experts.
    pub fn experts(&self) -> usize {
        self.0.len()
    }

    /// All cards that hold an expert, ascending.
    pub fn cards(&self) -> Vec<usize> {
        let mut cards: Vec<usize> = self.0.iter().flatten().copied().collect();
        cards.sort_unstable();
        cards.dedup();
        cards
    }
}

#[cfg(test)]
mod tests {
    use super::Holders;

    #[test]
    fn turns_say_the_same_as_the_rule_for_copies() {
        let holders = Holders(vec![vec![0], vec![1], vec![0, 2], vec![0, 1, 2], vec![2]]);
        for position in 0..12u32 {
            for expert in 0..holders.experts() {
                let computes = |card: &usize| {
                    let [copies, turn] = holders.turns(*card)[expert];
                    position % copies == turn
                };
                let cards: Vec<usize> = (0..4).filter(computes).collect();
                let card = holders.of(expert, position as usize).unwrap();
                assert_eq!(cards, [card], "expert {expert} at {position}: one card, and that one");
            }
        }
    }
}
