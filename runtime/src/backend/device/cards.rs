//! Runs programs on several cards: the list of each on its own stream, all at once.

use super::batch::Span;
use super::beside::HostWays;
use super::driver::CardError;
use super::exchange::Exchange;
use super::limits::no_drafts;
use super::loaded::Loaded;
use super::parts::{List, Recorded, Shape};
use super::peers::{Peers, rank};
use super::sequence::CardSequence;
use super::shares::CardsSequence;
use super::workspace::{CardWorkspace, GRAPHS, HEAD_ROWS, most_tokens};
use crate::backend::cpu::{HostCard, HostLoaded};
use crate::backend::{Part, RunOptions, Sequence, Settings, Wanted, Workspace};
use crate::model::program::{self, CardPrograms, Split, Step};
use crate::sample::Deciding;
use crate::{Result, RuntimeError};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Working memory of runs on several cards.
pub(super) struct CardsWorkspace {
    /// First to go: their streams are waited for then.
    cards: Vec<CardWorkspace>,
    /// Runs of one token of each sequence, as they were recorded on each card that has something to do.
    graphs: BTreeMap<Vec<Shape>, Vec<Option<Recorded>>>,
    programs: Arc<CardPrograms>,
    exchange: Arc<dyn Exchange>,
    /// The card after all others, in the host's memory.
    host: Option<HostCard>,
    /// Of the tokens of a run.
    positions: Vec<u32>,
}

/// What sequences keep, by card.
type Shares<'s> = Vec<Vec<&'s mut CardSequence>>;

impl CardsWorkspace {
    pub(super) fn new(
        (loaded, host): (&[Arc<Loaded>], Option<&HostLoaded>),
        programs: &Arc<CardPrograms>,
        settings: &Settings,
        run: &RunOptions,
    ) -> Result<Self> {
        let peers = Arc::new(Peers::new(loaded, programs, most_tokens(settings), run)?);
        let ways = |host: &HostLoaded| {
            host.card(Arc::new(HostWays { peers: Arc::clone(&peers), card: loaded.len() }))
        };
        let host = host.map(ways);
        let exchange: Arc<dyn Exchange> = peers;
        let card = |loaded: &Arc<Loaded>| {
            let mut card = CardWorkspace::new(loaded, settings)?;
            card.runner.exchange = Some(Arc::clone(&exchange));
            Ok(card)
        };
        let cards = loaded.iter().map(card).collect::<Result<_, CardError>>()?;
        let (graphs, programs) = (BTreeMap::new(), Arc::clone(programs));
        Ok(Self { cards, graphs, programs, exchange, host, positions: Vec::new() })
    }

    /// Lets all cards that are `busy` work at once, the host's too on its list, and waits for them.
    fn each(
        &mut self,
        shares: &Shares<'_>,
        list: &[Step],
        busy: impl Fn(usize) -> bool,
        work: impl Fn(usize, &mut CardWorkspace, &[&mut CardSequence]) -> Result<()> + Sync,
    ) -> Result<()> {
        let exchange = Arc::clone(&self.exchange);
        let jobs = self.cards.iter_mut().zip(shares).enumerate();
        let mut jobs = jobs.filter(|(card, _)| busy(*card));
        let run = |(i, (card, share)): (usize, (&mut CardWorkspace, &Vec<&mut CardSequence>))| {
            let done = work(i, card, share).and_then(|()| Ok(card.runner.stream.synchronize()?));
            if done.is_err() {
                exchange.abort();
            }
            done
        };
        let Some(first) = jobs.next() else { return Ok(()) };
        let host = self.host.as_mut().filter(|_| !list.is_empty());
        let positions = &self.positions;
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let host = host.map(|host| scope.spawn(|| beside(host, list, positions, &*exchange)));
            // A card may wait for one that has not begun, so that each has a thread which gives it its work.
            let others: Vec<_> = jobs.map(|job| scope.spawn(|| run(job))).collect();
            let own = run(first);
            let joined = others.into_iter().chain(host).map(|other| match other.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            std::iter::once(own).chain(joined).collect()
        });
        self.judge(results)
    }

    /// Runs all lists of `split` for `n` rows.
    fn walk(&mut self, split: &Split, shares: &Shares<'_>, n: usize) -> Result<()> {
        let busy = |card: usize| !split.lists[card].is_empty();
        let list = split.lists.get(self.cards.len()).map_or(&[][..], Vec::as_slice);
        self.each(shares, list, busy, |i, card, share| card.walk(&split.lists[i], share, n))
    }

    /// The error that says most, where there is one.
    fn judge(&self, results: Vec<Result<()>>) -> Result<()> {
        let failed: Vec<RuntimeError> = results.into_iter().filter_map(Result::err).collect();
        // What a card reports after another was lost is that it was told so.
        if failed.is_empty() {
            return self.exchange.check();
        }
        failed.into_iter().min_by_key(rank).map_or(Ok(()), Err)
    }

    /// What a run of one token of each sequence may be recorded as; `None` where launches depend on more.
    fn shape(&self, spans: &[Span], wanted: &[Wanted]) -> Option<Vec<Shape>> {
        let shape = |card: &CardWorkspace| card.shape(List::Trunk, (spans, wanted), &[], Deciding::All);
        self.cards.iter().map(shape).collect()
    }

    /// Body and head for one token of each of `n` sequences, as each card does them, recorded.
    fn record(&mut self, shares: &Shares<'_>, n: usize) -> Result<Vec<Option<Recorded>>> {
        let programs = Arc::clone(&self.programs);
        let record = |(i, (card, share)): (usize, (&mut CardWorkspace, &Vec<&mut CardSequence>))| {
            let record =
                || card.record(&programs.body.lists[i], share, n, |card| end_token(&programs, i, card, n));
            takes_part(&programs, i).then(record).transpose()
        };
        self.cards.iter_mut().zip(shares).enumerate().map(record).collect()
    }

    /// A run of one token of each sequence, recorded the first time.
    fn replay(&mut self, shape: Vec<Shape>, shares: &Shares<'_>, n: usize) -> Result<()> {
        let mut recorded = match self.graphs.remove(&shape) {
            Some(recorded) => recorded,
            None => {
                if self.graphs.len() >= GRAPHS {
                    self.graphs.clear();
                }
                self.record(shares, n)?
            }
        };
        let launched = self.launch(&mut recorded, shares);
        self.graphs.insert(shape, recorded);
        if launched.is_err() {
            self.exchange.abort();
        }
        launched?;
        let list = self.programs.body.lists.get(self.cards.len());
        let beside = match (&mut self.host, list) {
            (Some(host), Some(list)) => beside(host, list, &self.positions, &*self.exchange),
            _ => Ok(()),
        };
        self.wait(beside)
    }

    /// Gives all cards what was recorded; rows are gathered once every card has its first part.
    fn launch(&mut self, recorded: &mut [Option<Recorded>], shares: &Shares<'_>) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let parts = recorded.iter().flatten().map(Recorded::parts).max().unwrap_or(0);
        for part in 0..parts {
            let each = self.cards.iter_mut().zip(shares).zip(recorded.iter_mut()).enumerate();
            for (i, ((card, share), recorded)) in each {
                if let Some(recorded) = recorded {
                    card.launch(recorded, part, &programs.body.lists[i], share)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for all cards at once: one that is lost must not be waited for by the others.
    /// `beside` is what became of the host's.
    fn wait(&self, beside: Result<()>) -> Result<()> {
        let mut open: Vec<&CardWorkspace> = self.cards.iter().collect();
        let mut results = vec![beside];
        while !open.is_empty() {
            open.retain(|card| match card.runner.stream.is_idle() {
                Ok(idle) => !idle,
                Err(error) => {
                    self.exchange.abort();
                    results.push(Err(error.into()));
                    false
                }
            });
            std::hint::spin_loop();
        }
        self.judge(results)
    }

    /// Brings the tables of a run to all cards.
    fn prepare(&mut self, tokens: &[u32], spans: &[Span], shares: &Shares<'_>) -> Result<()> {
        let own = |s: &Span| (s.start..s.start + s.tokens).map(|p| p as u32);
        self.positions.clear();
        self.positions.extend(spans.iter().flat_map(own));
        for (card, share) in self.cards.iter_mut().zip(shares) {
            if tokens.len() > card.most {
                let what = format!("{} tokens in a run that has room for {}", tokens.len(), card.most);
                return Err(RuntimeError::Setting(what));
            }
            card.batch.set(&card.loaded, tokens, spans.to_vec(), share, &card.runner.stream)?;
        }
        Ok(())
    }

    fn compute(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        let programs = Arc::clone(&self.programs);
        let (mut spans, mut tokens, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
        let mut shares: Shares<'_> = self.cards.iter().map(|_| Vec::with_capacity(parts.len())).collect();
        for part in parts {
            if part.drafting {
                return Err(no_drafts());
            }
            let sequence = own(part.sequence)?;
            spans.push(Span { row: tokens.len(), tokens: part.tokens.len(), start: sequence.position() });
            tokens.extend_from_slice(part.tokens);
            sequence.extend(part.tokens);
            wanted.push(part.wanted);
            shares.iter_mut().zip(&mut sequence.shares).for_each(|(all, one)| all.push(one));
        }
        self.prepare(&tokens, &spans, &shares)?;
        let (head, n) = (&programs.head, spans.len());
        let single = spans.iter().all(|s| s.tokens == 1) && wanted.iter().all(|w| *w == Wanted::Last);
        if single && n <= HEAD_ROWS {
            match self.shape(&spans, &wanted) {
                Some(shape) => self.replay(shape, &shares, n)?,
                None => {
                    let part = |card: usize| takes_part(&programs, card);
                    let list = programs.body.lists.get(self.cards.len()).map_or(&[][..], Vec::as_slice);
                    self.each(&shares, list, part, |i, card, share| token(&programs, i, card, share, n))?;
                }
            }
            let end = &mut self.cards[head.end];
            end.bring(n)?;
            let vocab = end.loaded.program.vocab;
            end.logits.chunks_exact(vocab).enumerate().for_each(|(i, row)| sink(i, row));
            return Ok(());
        }
        self.walk(&programs.body, &shares, tokens.len())?;
        let none: Shares<'_> = self.cards.iter().map(|_| Vec::new()).collect();
        for (i, (span, wanted)) in spans.iter().zip(wanted).enumerate() {
            let rows = wanted.rows(span.row, span.tokens);
            for first in rows.clone().step_by(HEAD_ROWS) {
                let some = first..rows.end.min(first + HEAD_ROWS);
                self.cards[head.start].choose(some.clone())?;
                self.walk(head, &none, some.len())?;
                let end = &mut self.cards[head.end];
                end.bring(some.len())?;
                sink(i, &end.logits);
            }
        }
        Ok(())
    }

    /// Brings all cards to rest after an error, and lets them begin anew.
    fn rest(&mut self) {
        self.exchange.abort();
        for card in &self.cards {
            let _ = card.runner.stream.synchronize();
        }
        // Where a card is lost the next run says so.
        let _ = self.exchange.reset();
    }
}

/// Runs the host's card; where it fails, no other card waits for it.
fn beside(host: &mut HostCard, list: &[Step], positions: &[u32], exchange: &dyn Exchange) -> Result<()> {
    let done = host.walk(list, positions);
    if done.is_err() {
        exchange.abort();
    }
    done
}

/// Whether a card has something to do for a token.
fn takes_part(programs: &CardPrograms, card: usize) -> bool {
    let CardPrograms { body, head, .. } = programs;
    !body.lists[card].is_empty() || !head.lists[card].is_empty() || card == head.start
}

/// What card `i` does for one token of each of `n` sequences: body and head.
fn token(
    programs: &CardPrograms,
    i: usize,
    card: &mut CardWorkspace,
    share: &[&mut CardSequence],
    n: usize,
) -> Result<()> {
    card.walk(&programs.body.lists[i], share, n)?;
    end_token(programs, i, card, n)
}

/// What card `i` does of the head.
fn end_token(programs: &CardPrograms, i: usize, card: &mut CardWorkspace, n: usize) -> Result<()> {
    let head = &programs.head;
    if i == head.start {
        card.choose(0..n)?;
    }
    card.walk(&head.lists[i], &[], n)
}

/// A sequence of these cards.
fn own(sequence: &mut dyn Sequence) -> Result<&mut CardsSequence> {
    let any: &mut dyn Any = sequence;
    any.downcast_mut().ok_or_else(|| RuntimeError::Setting("a sequence of another device".into()))
}

impl Workspace for CardsWorkspace {
    fn run(&mut self, parts: &mut [Part<'_>], sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        // Nobody writes to an arena of any card meanwhile.
        let loaded: Vec<Arc<Loaded>> = self.cards.iter().map(|card| Arc::clone(&card.loaded)).collect();
        let _used: Vec<_> =
            loaded.iter().map(|card| card.used.read().unwrap_or_else(PoisonError::into_inner)).collect();
        let result = self.compute(parts, sink);
        if result.is_err() {
            self.rest();
            // Some of what a sequence keeps has these tokens, some has not.
            for part in parts {
                part.sequence.rewind(0);
            }
        }
        result
    }

    fn measure(&mut self) {
        self.cards.iter_mut().for_each(|card| card.profile = Some(BTreeMap::new()));
    }

    fn measured(&self) -> Vec<(program::Part, Duration)> {
        let mut sums: BTreeMap<program::Part, Duration> = BTreeMap::new();
        for (part, time) in self.cards.iter().flat_map(|card| card.profile.iter().flatten()) {
            *sums.entry(*part).or_default() += *time;
        }
        sums.into_iter().collect()
    }

    fn draft(&mut self, _: &mut dyn Sequence, _: u32, _: usize) -> Result<u32> {
        Err(no_drafts())
    }

    fn accept(&mut self, _: &mut dyn Sequence, _: &[u32], _: usize) -> Result<()> {
        Err(no_drafts())
    }
}
