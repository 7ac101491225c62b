//! Words for models: loom's own, weakened ones, and ones that keep a ledger of who may know of what.

use crate::exchange::{Pause, Word};
use loom::sync::atomic::AtomicU32;
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Most threads of a model.
const THREADS: usize = 3;

/// A word that a model can be made of.
pub(super) trait ModelWord: Word + 'static {
    /// Says which of the model's threads this one is.
    fn enter(_thread: usize) {}
}

impl Word for AtomicU32 {
    fn new(value: u32) -> Self {
        Self::new(value)
    }
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
    fn set(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }
    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }
    fn pause(_: Pause) {
        loom::thread::yield_now();
    }
}

impl ModelWord for AtomicU32 {}

/// A word whose flags are read or written without order.
pub(super) struct Weak<const ACQUIRE: bool, const RELEASE: bool>(AtomicU32);

impl<const ACQUIRE: bool, const RELEASE: bool> Word for Weak<ACQUIRE, RELEASE> {
    fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }
    fn get(&self) -> u32 {
        Word::get(&self.0)
    }
    fn set(&self, value: u32) {
        self.0.set(value);
    }
    fn acquire(&self) -> u32 {
        if ACQUIRE { self.0.acquire() } else { Word::get(&self.0) }
    }
    fn release(&self, value: u32) {
        if RELEASE { self.0.release(value) } else { self.0.set(value) }
    }
    fn pause(pause: Pause) {
        <AtomicU32 as Word>::pause(pause);
    }
}

impl<const ACQUIRE: bool, const RELEASE: bool> ModelWord for Weak<ACQUIRE, RELEASE> {}

/// For each thread, up to which of its own steps another knows.
type Clock = [u32; THREADS];

loom::thread_local! {
    /// Which thread this is, and what it knows.
    static HERE: RefCell<(usize, Clock)> = RefCell::new((0, [0; THREADS]));
}

/// A word that objects when one thread writes it without knowing that another's access is over, or reads it without
/// knowing that another's write is. Loom by itself runs each thread's accesses in their order, so it does not see a
/// read that a processor may put off until after the acknowledge; the ledger does.
pub(super) struct Ledger {
    value: AtomicU32,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    read: Clock,
    written: Clock,
    /// What each value told when it was released.
    released: Vec<(u32, Clock)>,
}

fn known(accesses: Clock, clock: Clock) -> bool {
    accesses.iter().zip(clock).all(|(access, known)| *access <= known)
}

impl Word for Ledger {
    fn new(value: u32) -> Self {
        Self { value: AtomicU32::new(value), log: Mutex::default() }
    }
    fn get(&self) -> u32 {
        HERE.with(|here| {
            let (me, clock) = *here.borrow();
            let mut log = self.log.lock().unwrap();
            assert!(known(log.written, clock), "a read races with a write");
            log.read[me] = clock[me];
        });
        Word::get(&self.value)
    }
    fn set(&self, value: u32) {
        HERE.with(|here| {
            let (me, clock) = *here.borrow();
            let mut log = self.log.lock().unwrap();
            assert!(known(log.written, clock) && known(log.read, clock), "a write races with another access");
            log.written[me] = clock[me];
        });
        self.value.set(value);
    }
    fn acquire(&self) -> u32 {
        let value = self.value.acquire();
        HERE.with(|here| {
            let log = self.log.lock().unwrap();
            if let Some((_, told)) = log.released.iter().find(|(released, _)| *released == value) {
                let clock = &mut here.borrow_mut().1;
                *clock = std::array::from_fn(|thread| clock[thread].max(told[thread]));
            }
        });
        value
    }
    fn release(&self, value: u32) {
        HERE.with(|here| {
            let (me, clock) = &mut *here.borrow_mut();
            self.log.lock().unwrap().released.push((value, *clock));
            clock[*me] += 1;
        });
        self.value.release(value);
    }
    fn pause(pause: Pause) {
        <AtomicU32 as Word>::pause(pause);
    }
}

impl ModelWord for Ledger {
    fn enter(thread: usize) {
        // From 1 on: what a thread does first is known to no other.
        let mut clock = [0; THREADS];
        clock[thread] = 1;
        HERE.with(|here| *here.borrow_mut() = (thread, clock));
    }
}
