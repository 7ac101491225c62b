//! One queue for each card, and threads that go round them.

use super::damage::Place;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is to be done for each card.
pub(super) struct Queues<T> {
    cards: Vec<Queue<T>>,
    start: Instant,
}

struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    /// Nanoseconds from the start of all to the first and the last moment of work for this card.
    begun: AtomicU64,
    ended: AtomicU64,
}

impl<T: Send> Queues<T> {
    /// A queue for each card, in order.
    pub(super) fn new(cards: Vec<VecDeque<T>>) -> Self {
        let queue = |items| Queue {
            items: Mutex::new(items),
            begun: AtomicU64::new(u64::MAX),
            ended: AtomicU64::new(0),
        };
        Self { cards: cards.into_iter().map(queue).collect(), start: Instant::now() }
    }

    /// Works on everything with several threads, which take from one queue after the other, so that all cards are
    /// served at the same time however few threads there are. The first error ends it.
    pub(super) fn run<E: Send>(
        &self,
        threads: usize,
        found: &mut Vec<Place>,
        work: impl Fn(usize, T, &mut Vec<Place>) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let items = self.cards.iter().map(|q| lock(&q.items).len()).sum::<usize>();
        let threads = threads.clamp(1, items.max(1));
        let run = |first: usize| {
            let mut found = Vec::new();
            let mut turn = first;
            while let Some((card, item)) = self.next(turn) {
                let queue = &self.cards[card];
                queue.begun.fetch_min(self.elapsed(), Ordering::Relaxed);
                if let Err(e) = work(card, item, &mut found) {
                    self.cards.iter().for_each(|q| lock(&q.items).clear());
                    return Err(e);
                }
                queue.ended.fetch_max(self.elapsed(), Ordering::Relaxed);
                turn = card + 1;
            }
            Ok(found)
        };
        let run = &run;
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|t| scope.spawn(move || run(t))).collect();
            let mut result = run(0).map(|mine| found.extend(mine));
            for other in others {
                match other.join() {
                    Ok(Ok(theirs)) => found.extend(theirs),
                    Ok(Err(e)) => result = result.and(Err(e)),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            result
        })
    }

    /// By card, the time between the first and the last moment of work for it.
    pub(super) fn times(&self) -> impl Iterator<Item = Duration> + '_ {
        self.cards.iter().map(|q| {
            let [begun, ended] = [&q.begun, &q.ended].map(|t| t.load(Ordering::Relaxed));
            Duration::from_nanos(ended.saturating_sub(begun))
        })
    }

    /// The next item of the card whose turn it is, or of the first after it that has one.
    fn next(&self, turn: usize) -> Option<(usize, T)> {
        let cards = self.cards.len();
        (0..cards)
            .map(|i| (turn + i) % cards)
            .find_map(|c| Some((c, lock(&self.cards[c].items).pop_front()?)))
    }

    fn elapsed(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A thread that panics takes the whole load with it, so a poisoned queue is never used wrongly.
fn lock<T>(items: &Mutex<VecDeque<T>>) -> std::sync::MutexGuard<'_, VecDeque<T>> {
    items.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_serves_all_cards_in_turn_and_then_the_longest() {
        let queues = Queues::new(vec![(0..4).collect(), (10..12).collect(), VecDeque::new(), [20].into()]);
        let order = Mutex::new(Vec::new());
        let note = |card, item, _: &mut Vec<Place>| {
            order.lock().unwrap().push((card, item));
            Ok::<_, &str>(())
        };
        queues.run(1, &mut Vec::new(), note).unwrap();
        let want = [(0, 0), (1, 10), (3, 20), (0, 1), (1, 11), (0, 2), (0, 3)];
        assert_eq!(order.into_inner().unwrap(), want);
        assert_eq!(queues.times().nth(2), Some(Duration::ZERO));
    }

    #[test]
    fn each_item_is_done_once_whatever_the_threads() {
        for threads in [1, 2, 7, 100] {
            let queues = Queues::new((0..5).map(|card| (0..card * 7).collect()).collect());
            let done = Mutex::new(Vec::new());
            let note = |card, item, _: &mut Vec<Place>| {
                done.lock().unwrap().push((card, item));
                Ok::<_, &str>(())
            };
            queues.run(threads, &mut Vec::new(), note).unwrap();
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            let all: Vec<(usize, usize)> = (0..5).flat_map(|c| (0..c * 7).map(move |i| (c, i))).collect();
            assert_eq!(done, all);
        }
    }

    #[test]
    fn an_error_ends_it_for_all_cards() {
        let queues = Queues::new(vec![(0..1000).collect(), (0..1000).collect()]);
        let done = AtomicU64::new(0);
        let fails = |_, item: usize, _: &mut Vec<Place>| match item {
            3 => Err("three"),
            _ => {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        let error = queues.run(2, &mut Vec::new(), fails).unwrap_err();
        assert_eq!(error, "three");
        assert!(done.into_inner() < 1990);
    }
}
