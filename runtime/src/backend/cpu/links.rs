//! What the cards of a run give each other: the steps that send, receive, return and collect, over the mailboxes and
//! boards of [`crate::exchange`].

use super::Loaded;
use super::buffers::Buffers;
use super::workspace::Walker;
use crate::backend::RunOptions;
use crate::exchange::{Board, Epoch, ExchangeError, Mailbox, Patience, Who};
use crate::model::program::{BufferId, CardPrograms, Holders, Program, Step};
use crate::{Result, RuntimeError};
use std::collections::BTreeMap;

/// A way from one card to another.
type Way = (usize, usize);

/// Mailboxes and boards between the cards of a workspace, for runs of some tokens.
pub(super) struct Links {
    tokens: usize,
    patience: Patience,
    /// By (from, to).
    mail: BTreeMap<Way, Mailbox>,
    /// By the card that others return rows to.
    boards: BTreeMap<usize, Board>,
}

/// What links take for each token of a run.
#[derive(Default)]
pub(super) struct Sizes {
    /// Words of the largest message by way.
    pub(super) words: BTreeMap<Way, usize>,
    /// Rows and their width by the card that others return them to.
    pub(super) rows: BTreeMap<usize, (usize, usize)>,
}

impl Sizes {
    pub(super) fn of(program: &Program, cards: &CardPrograms) -> Self {
        let mut sizes = Self::default();
        let buffer = |id: &BufferId| &program.buffers[id.0];
        let words = |id: &BufferId| Buffers::row_words(buffer(id)).saturating_mul(buffer(id).rows);
        for (card, step) in cards.lists().flat_map(|(card, steps)| steps.iter().map(move |s| (card, s))) {
            match step {
                Step::Send { to, buffers, .. } => {
                    let most = sizes.words.entry((card, *to)).or_default();
                    *most = buffers.iter().map(words).fold(0, usize::saturating_add).max(*most);
                }
                Step::Return { to, y, .. } => {
                    let (rows, width) = sizes.rows.entry(*to).or_default();
                    let y = buffer(y);
                    (*rows, *width) = (y.rows.max(*rows), y.width.max(*width));
                }
                _ => {}
            }
        }
        sizes
    }
}

/// How often a card used each of its links: both ends count for themselves.
#[derive(Default)]
pub(super) struct Turns {
    mail: BTreeMap<Way, Epoch>,
    boards: BTreeMap<Way, Epoch>,
}

/// The next epoch of a link.
fn next(turns: &mut BTreeMap<Way, Epoch>, way: Way) -> Epoch {
    let epoch = turns.get(&way).map_or(Epoch::FIRST, |e| e.next());
    turns.insert(way, epoch);
    epoch
}

impl Links {
    /// Links for all that the lists of `cards` exchange in runs of `tokens` tokens.
    ///
    /// # Errors
    /// Where there is no memory for them.
    pub(super) fn new(
        program: &Program,
        cards: &CardPrograms,
        tokens: usize,
        run: &RunOptions,
    ) -> Result<Self> {
        let Sizes { words, rows } = Sizes::of(program, cards);
        let count = cards.body.lists.len();
        let (mut mail, mut boards) = (BTreeMap::new(), BTreeMap::new());
        let delays = run.delays.as_ref();
        for (way, words) in words {
            mail.insert(way, Mailbox::new(words.saturating_mul(tokens))?.with_delays(delays));
        }
        for (to, (rows, width)) in rows {
            boards.insert(to, Board::new(count, rows.saturating_mul(tokens), width)?.with_delays(delays));
        }
        Ok(Self { tokens, patience: run.patience, mail, boards })
    }

    /// Tokens of the longest run that they are for.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Lets no card wait for `card` any longer.
    pub(super) fn fail(&self, card: usize) {
        for ((from, to), mailbox) in &self.mail {
            if *from == card {
                mailbox.abort();
            }
            if *to == card {
                mailbox.refuse();
            }
        }
        self.boards.values().for_each(|board| board.fail(card));
    }

    fn mailbox(&self, way: Way) -> Result<&Mailbox> {
        self.mail.get(&way).ok_or_else(|| missing(way))
    }

    fn board(&self, way: Way) -> Result<&Board> {
        self.boards.get(&way.1).ok_or_else(|| missing(way))
    }
}

fn missing((from, to): Way) -> RuntimeError {
    let what = format!("no link leads from card {from} to card {to}");
    RuntimeError::Tensor { tensor: "program".into(), what }
}

fn short(e: impl Into<ExchangeError>) -> RuntimeError {
    RuntimeError::Exchange(e.into())
}

impl Walker {
    /// Runs a step that exchanges rows of `n` tokens with other cards.
    pub(super) fn exchange(&mut self, loaded: &Loaded, step: &Step, n: usize) -> Result<()> {
        let links = self.links.clone().ok_or_else(|| missing((loaded.card, loaded.card)))?;
        let (own, patience) = (loaded.card, &links.patience);
        let who = |for_card, layer: &Option<usize>| Who {
            waiting: own,
            for_card,
            layer: layer.and_then(|l| u32::try_from(l).ok()),
        };
        match step {
            Step::Send { to, layer, buffers } => {
                let way = (own, *to);
                let epoch = next(&mut self.turns.mail, way);
                let mailbox = links.mailbox(way)?;
                let sent = mailbox.publish(epoch, patience, who(*to, layer), |out| {
                    buffers.iter().try_for_each(|id| {
                        let rows = n * loaded.program.buffers[id.0].rows;
                        self.buffers.send(*id, rows, loaded.program.buffers[id.0].width, out)
                    })
                });
                sent.map_err(short)
            }
            Step::Receive { from, layer, buffers } => {
                let way = (*from, own);
                let epoch = next(&mut self.turns.mail, way);
                let mut words =
                    links.mailbox(way)?.wait(epoch, patience, who(*from, layer)).map_err(short)?;
                for id in buffers {
                    let buffer = &loaded.program.buffers[id.0];
                    self.buffers.receive(*id, n * buffer.rows, buffer.width, &mut words).map_err(short)?;
                }
                words.finish().map_err(short)
            }
            Step::Return { to, holders, ids, y } => {
                let epoch = next(&mut self.turns.boards, (own, *to));
                let width = loaded.program.buffers[y.0].width;
                let values = self.buffers.f32(*y);
                let rows = self.rows(loaded, holders, *ids, n, |card| card == own);
                let posted = links.board((own, *to))?.post(own, epoch, |board| {
                    let row = |row: usize| board.put(row, &values[row * width..][..width]);
                    rows.into_iter().try_for_each(|(r, _)| row(r))
                });
                posted.map_err(short)
            }
            Step::Collect { from, layer, holders, ids, y, compare } => {
                let width = loaded.program.buffers[y.0].width;
                let pairs = n * loaded.program.values(*ids);
                let mut values = self.buffers.take(*y, pairs * width);
                for &card in from {
                    let way = (card, own);
                    let epoch = next(&mut self.turns.boards, way);
                    let board = links.board(way)?;
                    board.wait(epoch, patience, who(card, layer)).map_err(short)?;
                    let mut theirs = vec![0.0; if *compare { width } else { 0 }];
                    for (row, pair) in self.rows(loaded, holders, *ids, n, |holder| holder == card) {
                        let mine = &mut values[row * width..][..width];
                        if !compare {
                            board.read(row, mine).map_err(short)?;
                            continue;
                        }
                        board.read(row, &mut theirs).map_err(short)?;
                        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
                        if let Some(at) = mine.iter().zip(&theirs).position(|pair| !same(pair)) {
                            let differ = Differ {
                                card,
                                layer: *layer,
                                pair,
                                at,
                                found: theirs[at],
                                expected: mine[at],
                            };
                            return Err(RuntimeError::Experts(Box::new(differ)));
                        }
                    }
                }
                self.buffers.give(*y, values);
                Ok(())
            }
            _ => Err(super::buffers::wrong_format()),
        }
    }

    /// Rows of the tokens' experts whose card is `wanted`, each with its token and expert.
    pub(super) fn rows(
        &self,
        loaded: &Loaded,
        holders: &Holders,
        ids: BufferId,
        n: usize,
        wanted: impl Fn(usize) -> bool,
    ) -> Vec<(usize, Pair)> {
        let used = loaded.program.values(ids);
        let all = self.buffers.ids(ids)[..n * used].iter().enumerate();
        let own = all.filter_map(|(row, &expert)| {
            let token = row / used;
            let card = holders.of(expert as usize, self.positions[token] as usize)?;
            wanted(card).then_some((row, Pair { token, expert }))
        });
        own.collect()
    }
}

/// A token of a batch and an expert of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    token: usize,
    expert: u32,
}

/// Two cards computed an expert of a token, and not the same.
#[derive(Debug, thiserror::Error)]
#[error(
    "card {card} gave {found:e} for value {at} of expert {} for token {} of the batch{}, this card {expected:e}: the \
     card computes wrong, or its weights are damaged; verify the container and run without it",
    pair.expert, pair.token, layer.map(|l| format!(" in layer {l}")).unwrap_or_default()
)]
pub struct Differ {
    card: usize,
    layer: Option<usize>,
    pair: Pair,
    at: usize,
    found: f32,
    expected: f32,
}

#[cfg(feature = "cards")]
impl Differ {
    /// `card` gave the first of two values in `layer`, another the second, at a place: token of the batch, expert, value.
    pub(in crate::backend) fn new(
        card: usize,
        layer: Option<usize>,
        (token, expert, at): (usize, u32, usize),
        [found, expected]: [f32; 2],
    ) -> Self {
        Self { card, layer, pair: Pair { token, expert }, at, found, expected }
    }
}
