//! The thread of a queue.

use crate::command::Command;
use crate::driver::{Code, DONE, Driver, lock};
use crate::list::List;
use crate::memory::Use;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A queue, whose work is done in the order in which it was given.
pub(crate) struct Worker {
    pub(crate) card: usize,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Jobs that were given and are not done.
    pending: Arc<AtomicUsize>,
}

/// Some work.
pub(crate) struct Job {
    pub(crate) commands: Arc<Vec<Command>>,
    /// Counted already.
    pub(crate) uses: Vec<Use>,
    /// The list that it is of, counted already.
    pub(crate) list: Option<Arc<List>>,
}

impl Worker {
    pub(crate) fn new(card: usize) -> Self {
        let (jobs, receiver) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&pending);
        let thread = std::thread::spawn(move || work(card, &receiver, &count));
        Self { card, jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)), pending }
    }

    pub(crate) fn give(&self, job: Job) -> Result<(), Code> {
        self.pending.fetch_add(1, Ordering::SeqCst);
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let given = jobs.as_ref().and_then(|jobs| jobs.send(job).ok());
        given.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    }

    /// Ends it. One that is not idle is left to itself, and told of.
    pub(crate) fn end(&self, driver: &mut Driver) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.pending.load(Ordering::SeqCst) > 0 && !crate::driver::is_lost(self.card) {
            driver.wrong.push(format!("a queue of card {} was destroyed while it worked", self.card));
        }
        // The thread ends by itself: it may need the driver to do so.
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

fn work(card: usize, jobs: &Receiver<Job>, pending: &AtomicUsize) {
    let mut queue = None;
    for job in jobs {
        let (last, first) = match &job.commands[..] {
            // What tells others that all is done comes after all is put away.
            [first @ .., last @ Command::Signal(_)] => (Some(last), first),
            all => (None, all),
        };
        first.iter().for_each(|command| command.run(card, &mut queue));
        let mut driver = lock();
        driver.untake(&job.uses);
        if let Some(list) = &job.list {
            list.ended();
        }
        pending.fetch_sub(1, Ordering::SeqCst);
        drop(driver);
        last.iter().for_each(|command| command.run(card, &mut queue));
        DONE.notify_all();
    }
}
