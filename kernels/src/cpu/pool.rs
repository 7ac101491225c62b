//! A fork-join pool for steps of a few microseconds.
//!
//! A decoded token takes some hundred parallel steps, so a worker that has finished one spins for the next:
//! [`SPINS`] pauses, then yields to other processes until [`SPIN_TIME`] has passed, then sleeps. An idle
//! process therefore uses no processor time, and the first step after a pause pays for the waking.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Pauses before the first yield: some 10 to 40 µs, by processor.
const SPINS: usize = 1000;
/// How long a waiting thread stays awake at most.
const SPIN_TIME: Duration = Duration::from_micros(250);

type Step<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A value on cache lines of its own, so that threads that poll it disturb nobody else.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    /// Counts the steps; a worker starts when it changes.
    epoch: Alone<AtomicUsize>,
    /// Workers that have not finished the current step.
    running: Alone<AtomicUsize>,
    /// The current step, its lifetime erased. Written while `running` is 0, before `epoch` changes.
    step: UnsafeCell<Option<Step<'static>>>,
    stop: AtomicBool,
    asleep: Vec<Alone<AtomicBool>>,
    caller_asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `step` is the only field that is not Sync by itself. It is written only by the thread that holds
// `Pool::gate`, while no worker runs (running == 0), and read only by workers after they have seen the change
// of `epoch` that was stored after the write.
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
            epoch: Alone(AtomicUsize::new(0)),
            running: Alone(AtomicUsize::new(0)),
            step: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            asleep: (1..threads).map(|_| Alone(AtomicBool::new(false))).collect(),
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
    /// returned. Index 0 runs on the calling thread. Inside such a call (of any pool) a further one runs its
    /// indices one after the other, so `f` must not wait for another index.
    ///
    /// # Panics
    /// With the panic of `f`, after every thread has come back; the pool stays usable.
    pub fn run(&self, f: impl Fn(usize, usize) + Sync) {
        let threads = self.threads();
        if threads == 1 || INSIDE.get() {
            (0..threads).for_each(|index| f(index, threads));
            return;
        }
        let _gate = lock(&self.gate);
        let shared = &*self.shared;
        let step: Step<'_> = &f;
        // SAFETY: only the lifetime changes. No worker keeps the reference beyond `running` reaching 0, and
        // this function neither returns nor unwinds before that.
        let step = unsafe { std::mem::transmute::<Step<'_>, Step<'static>>(step) };
        // SAFETY: the gate is held and running == 0: nobody reads `step` now.
        unsafe { *shared.step.get() = Some(step) };
        shared.running.0.store(self.workers.len(), Ordering::Relaxed);
        // SeqCst here and in `await_step`: either a worker that is about to sleep sees the new epoch, or we
        // see that it sleeps.
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers) {
            if asleep.0.load(Ordering::SeqCst) && asleep.0.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let mine = inside(|| f(0, threads));
        shared.await_workers();
        let theirs = lock(&shared.panic).take();
        if let Some(payload) = mine.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Call `f` with ranges that cover `0..items` once, each of at least `chunk` items (but the last), as
    /// threads come free: large ranges first, smaller ones towards the end. Which thread takes which range is
    /// not fixed, so the result of an item must not depend on its range.
    pub fn for_chunks(&self, items: usize, chunk: usize, f: impl Fn(Range<usize>) + Sync) {
        let chunk = chunk.max(1);
        if items <= chunk || self.threads() == 1 {
            if items > 0 {
                f(0..items);
            }
            return;
        }
        let next = Alone(AtomicUsize::new(0));
        self.run(|_, threads| {
            let mut start = next.0.load(Ordering::Relaxed);
            while start < items {
                let take = ((items - start) / (2 * threads)).max(chunk).min(items - start);
                let end = start + take;
                match next.0.compare_exchange_weak(start, end, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        f(start..end);
                        start = next.0.load(Ordering::Relaxed);
                    }
                    Err(now) => start = now,
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
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches every panic of a step, so it cannot end by one.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Wait until the epoch is no longer `seen`; what it is then.
    fn await_step(&self, seen: usize, asleep: &AtomicBool) -> usize {
        let changed = || self.epoch.0.load(Ordering::Acquire) != seen;
        while !spin_until(changed) {
            asleep.store(true, Ordering::SeqCst);
            if self.epoch.0.load(Ordering::SeqCst) == seen {
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
        self.epoch.0.load(Ordering::Acquire)
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
    let mut seen = 0;
    loop {
        // The caller starts no step before the last one has finished here, so no epoch is missed.
        seen = shared.await_step(seen, &shared.asleep[index - 1].0);
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: the new epoch was seen, so the write of this step happened before, and the next write
        // waits until `finish` below.
        let step = unsafe { *shared.step.get() }.expect("a step is set before its epoch");
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

/// A mutable slice that threads write in disjoint parts.
pub(super) struct Disjoint<'a, T> {
    start: *mut T,
    pub(super) len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Disjoint<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Disjoint<'_, T> {}

// SAFETY: it hands out `&mut [T]` to other threads, which T: Send allows; that the parts are disjoint is the
// promise of every call to `slice` and `at`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Disjoint { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The part of `len` from `offset`.
    ///
    /// # Safety
    /// It lies inside the slice, and no two live parts overlap.
    pub(super) unsafe fn slice(&self, offset: usize, len: usize) -> &'a mut [T] {
        debug_assert!(offset + len <= self.len);
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), len) }
    }

    /// The address of the element at `offset`.
    ///
    /// # Safety
    /// It lies inside the slice; what is written through it overlaps no other thread's part.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: usize) -> *mut T {
        debug_assert!(offset < self.len);
        // SAFETY: the caller's.
        unsafe { self.start.add(offset) }
    }
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
        pool.run(|i, _| std::thread::sleep(Duration::from_millis(3 * i as u64)));
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
