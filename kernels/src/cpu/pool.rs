//! A fork-join pool for steps of a few microseconds.
//!
//! A decoded token takes some hundred parallel steps, so a worker that has finished one spins for the next:
//! [`SPINS`] pauses, then yields to other processes until [`SPIN_TIME`] has passed, then sleeps. An idle
//! process therefore uses no processor time.
//!
//! A step never waits for a worker that has not started (asleep, or displaced by another process): the caller
//! takes its part back and runs it. It waits only for one that is in the middle of its part.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::disjoint::Disjoint;

/// Pauses before the first yield: some 10 to 40 µs, by processor.
const SPINS: usize = 1000;
/// How long a waiting thread stays awake at most.
const SPIN_TIME: Duration = Duration::from_micros(250);

type Step<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A value on cache lines of its own, so that threads that poll it disturb nobody else.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    workers: Vec<Alone<Slot>>,
    /// Indices but 0 that have not finished the current step.
    running: Alone<AtomicUsize>,
    /// The current step, its lifetime erased. Written while `running` is 0, before any part is `posted`.
    step: UnsafeCell<Option<Step<'static>>>,
    /// What each thread has left of the current `for_chunks`.
    shares: Vec<Alone<Share>>,
    stop: AtomicBool,
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What a worker polls.
#[derive(Default)]
struct Slot {
    /// Its part of the current step waits to be taken: by it, or by the caller.
    posted: AtomicBool,
    asleep: AtomicBool,
}

/// A range of items that its owner takes from the front and others from the back: start in the high 32 bits,
/// end in the low ones.
struct Share(AtomicU64);

impl Share {
    fn set(&self, range: Range<usize>) {
        // Relaxed, here and below: the fork orders it before every take, and nothing else hangs on it.
        self.0.store((range.start as u64) << 32 | range.end as u64, Ordering::Relaxed);
    }

    fn take_front(&self, chunk: usize) -> Option<Range<usize>> {
        self.take(|range| (range.start..range.end.min(range.start + chunk), range.start + chunk..range.end))
    }

    fn take_back(&self, chunk: usize) -> Option<Range<usize>> {
        self.take(|range| {
            let cut = range.start.max(range.end.saturating_sub(chunk));
            (cut..range.end, range.start..cut)
        })
    }

    /// Cut what is there into (taken, left).
    fn take(&self, cut: impl Fn(Range<usize>) -> (Range<usize>, Range<usize>)) -> Option<Range<usize>> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let range = (now >> 32) as usize..(now as u32) as usize;
            if range.is_empty() {
                return None;
            }
            let (taken, left) = cut(range);
            let left = (left.start.min(left.end) as u64) << 32 | left.end as u64;
            match self.0.compare_exchange_weak(now, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(other) => now = other,
            }
        }
    }
}

// SAFETY: `step` is the only field that is not Sync by itself. It is written only by the thread that holds
// `Pool::gate`, while no part is posted or running, and read only by a worker that has taken a part that was
// posted after the write.
unsafe impl Sync for Shared {}

/// Threads that run one closure together. Dropping it ends them.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    gate: Mutex<()>,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `threads` (at least 1): the calling thread and `threads - 1` workers.
    ///
    /// # Panics
    /// Where `threads` is 0 or the system starts no thread.
    pub fn new(threads: usize) -> Pool {
        assert!(threads > 0, "a pool needs a thread");
        let shared = Arc::new(Shared {
            workers: (1..threads).map(|_| Alone(Slot::default())).collect(),
            running: Alone(AtomicUsize::new(0)),
            step: UnsafeCell::new(None),
            shares: (0..threads).map(|_| Alone(Share(AtomicU64::new(0)))).collect(),
            stop: AtomicBool::new(false),
            caller_asleep: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("gantry-cpu-{index}"))
                    .spawn(move || work(&shared, index, threads))
                    .expect("the system starts a worker thread")
            })
            .collect();
        Pool { shared, workers, gate: Mutex::new(()) }
    }

    /// How many threads take part, the caller's among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Call `f(thread_index, threads)` once for each index, at once on all threads, and return when all have
    /// returned. Index 0 runs on the calling thread, and so do those whose worker has not come by then; inside
    /// such a call (of any pool) a further one runs all of them in turn. So `f` must not wait for another index.
    ///
    /// # Panics
    /// With the panic of `f`, after every thread has come back; the pool stays usable.
    pub fn run(&self, f: impl Fn(usize, usize) + Sync) {
        let threads = self.threads();
        if threads == 1 || INSIDE.get() {
            (0..threads).for_each(|index| f(index, threads));
            return;
        }
        self.fork(lock(&self.gate), &f);
    }

    /// [`Pool::run`] once nobody else is in it.
    fn fork(&self, _gate: MutexGuard<'_, ()>, step: Step<'_>) {
        let threads = self.threads();
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. No worker keeps the reference beyond `running` reaching 0, and
        // this function neither returns nor unwinds before that.
        let step = unsafe { std::mem::transmute::<Step<'_>, Step<'static>>(step) };
        // SAFETY: the gate is held, no part is posted or running: nobody reads `step` now.
        unsafe { *shared.step.get() = Some(step) };
        shared.running.0.store(self.workers.len(), Ordering::Relaxed);
        for (slot, worker) in shared.workers.iter().zip(&self.workers) {
            // SeqCst here and in `await_part`: either a worker that is about to sleep sees its part, or we see
            // that it sleeps.
            slot.0.posted.store(true, Ordering::SeqCst);
            if slot.0.asleep.load(Ordering::SeqCst) && slot.0.asleep.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mut mine = inside(|| step(0, threads));
        for (i, slot) in shared.workers.iter().enumerate() {
            if slot.0.posted.swap(false, Ordering::AcqRel) {
                mine = mine.and(inside(|| step(i + 1, threads)));
                shared.running.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        shared.await_workers();
        let theirs = lock(&shared.panic).take();
        if let Some(payload) = mine.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Call `f` with ranges that cover `0..items` once, each of `chunk` items (the last of a thread's share may
    /// be shorter). Each thread has a contiguous share and takes it in ascending order, so that what follows a
    /// range is probably its next one; who has finished takes from the ends of the others' shares. Which thread
    /// takes which range is therefore not fixed, and the result of an item must not depend on its range.
    ///
    /// # Panics
    /// As [`Pool::run`], and where `items` exceeds 2^32.
    pub fn for_chunks(&self, items: usize, chunk: usize, f: impl Fn(Range<usize>) + Sync) {
        let chunk = chunk.max(1);
        let threads = self.threads();
        if items <= chunk || threads == 1 || INSIDE.get() {
            if items > 0 {
                f(0..items);
            }
            return;
        }
        let items = u32::try_from(items).expect("fewer than 2^32 items") as usize;
        let shares = &self.shared.shares;
        let gate = lock(&self.gate);
        for (i, share) in shares.iter().enumerate() {
            share.0.set(i * items / threads..(i + 1) * items / threads);
        }
        self.fork(gate, &|me, _| {
            while let Some(range) = shares[me].0.take_front(chunk) {
                f(range);
            }
            for other in (me + 1..threads).chain(0..me) {
                while let Some(range) = shares[other].0.take_back(chunk) {
                    f(range);
                }
            }
        });
    }

    /// Call `f(row, values)` once for each row of `out` (`[rows][row_len]`), at least `chunk` rows to a thread
    /// at a time.
    ///
    /// # Panics
    /// Where `row_len` is 0 or does not divide the length of `out`.
    pub fn for_rows<T: Send>(
        &self,
        out: &mut [T],
        row_len: usize,
        chunk: usize,
        f: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(row_len > 0 && out.len().is_multiple_of(row_len), "rows of {row_len} in {}", out.len());
        let rows = Disjoint::new(out);
        self.for_chunks(rows.len / row_len, chunk, |range| {
            for row in range {
                // SAFETY: row < len / row_len, so the range lies inside; for_chunks gives each row once.
                f(row, unsafe { rows.slice(row * row_len, row_len) });
            }
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            // It may be asleep; a token for one that is not does no harm.
            worker.thread().unpark();
            // A worker catches every panic of a step, so it cannot end by one.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Wait for a part and take it; false to end.
    fn await_part(&self, slot: &Slot) -> bool {
        loop {
            // A part that the caller took back meanwhile is nothing to wake up for.
            if slot.posted.swap(false, Ordering::AcqRel) {
                return true;
            }
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            let called = || slot.posted.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed);
            if !spin_until(called) {
                slot.asleep.store(true, Ordering::SeqCst);
                if !slot.posted.load(Ordering::SeqCst) && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                slot.asleep.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Wait until no worker runs.
    fn await_workers(&self) {
        let finished = || self.running.0.load(Ordering::Acquire) == 0;
        while !spin_until(finished) {
            *lock(&self.caller) = Some(std::thread::current());
            self.caller_asleep.store(true, Ordering::SeqCst);
            if self.running.0.load(Ordering::SeqCst) != 0 {
                std::thread::park();
            }
            self.caller_asleep.store(false, Ordering::SeqCst);
        }
    }

    /// One worker has finished the step.
    fn finish(&self) {
        // SeqCst: either the caller that is about to sleep sees 0, or we see that it sleeps.
        if self.running.0.fetch_sub(1, Ordering::SeqCst) == 1
            && self.caller_asleep.load(Ordering::SeqCst)
            && let Some(caller) = lock(&self.caller).take()
        {
            caller.unpark();
        }
    }
}

/// A worker's life.
fn work(shared: &Shared, index: usize, threads: usize) {
    while shared.await_part(&shared.workers[index - 1].0) {
        // SAFETY: the part was posted after the write of this step, and the next write waits until `finish`
        // below.
        let step = unsafe { *shared.step.get() }.expect("a step is set before its parts are posted");
        if let Err(payload) = inside(|| step(index, threads)) {
            *lock(&shared.panic) = Some(payload);
        }
        shared.finish();
    }
}

/// Run `f` marked as inside a step; a panic becomes an error.
fn inside(f: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    INSIDE.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    INSIDE.set(false);
    result
}

/// Stay awake until `done` or [`SPIN_TIME`]; whether it is done.
fn spin_until(done: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    while start.elapsed() < SPIN_TIME {
        if done() {
            return true;
        }
        std::thread::yield_now();
    }
    done()
}

/// What these mutexes guard stays valid through a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_index_runs_once_in_each_of_many_steps() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            let hits: Vec<AtomicU32> = (0..threads).map(|_| AtomicU32::new(0)).collect();
            for _ in 0..2000 {
                pool.run(|i, n| {
                    assert_eq!(n, threads);
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2000));
        }
    }

    #[test]
    fn workers_that_slept_wake_up() {
        let pool = Pool::new(3);
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(3));
            let hits = AtomicU32::new(0);
            pool.run(|_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 3);
        }
    }

    #[test]
    fn a_caller_that_slept_wakes_up() {
        let pool = Pool::new(2);
        pool.run(|i, _| std::thread::sleep(Duration::from_millis(1 + 3 * i as u64)));
    }

    #[test]
    fn chunks_cover_every_item_once() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            for items in [0, 1, 2, 7, 64, 1001] {
                for chunk in [0, 1, 3, 64, 5000] {
                    let mut hits = vec![0u8; items];
                    let cells = Disjoint::new(&mut hits);
                    pool.for_chunks(items, chunk, |range| {
                        for i in range {
                            // SAFETY: i < items; what is tested is that no other thread has it.
                            unsafe { *cells.at(i) += 1 };
                        }
                    });
                    assert!(hits.iter().all(|&h| h == 1), "{threads} {items} {chunk}");
                }
            }
        }
    }

    #[test]
    fn rows_are_handed_out_whole() {
        let pool = Pool::new(3);
        let mut out = vec![0usize; 50 * 7];
        pool.for_rows(&mut out, 7, 2, |row, values| values.fill(row + 1));
        assert!(out.chunks(7).enumerate().all(|(i, r)| r == [i + 1; 7]));
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|i, _| {
                    if i == bad {
                        panic!("index {bad}");
                    }
                })
            }));
            let payload = caught.expect_err("it panics");
            assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("index {bad}"));
            let hits = AtomicU32::new(0);
            pool.run(|_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.into_inner(), 3);
        }
    }

    #[test]
    fn a_step_inside_a_step_runs_in_turn() {
        let pool = Pool::new(2);
        let hits = AtomicU32::new(0);
        pool.run(|_, _| {
            pool.run(|_, _| {
                hits.fetch_add(1, Ordering::Relaxed);
            })
        });
        assert_eq!(hits.into_inner(), 4);
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(2);
        let hits = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(|_, _| {
                            hits.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(hits.into_inner(), 1600);
    }
}
