//! Work shared by a few threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most threads that are started: more only wait for the memory bus.
pub(crate) const MAX_THREADS: usize = 256;

/// Threads to use where the command line does not say.
pub(crate) fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `work` for every item, on `threads` threads; each has a state of its own, made by `init`. Items are taken
/// in order, one at a time. The first error ends it.
pub(crate) fn for_each<T, S>(
    threads: usize,
    items: impl Iterator<Item = T> + Send,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let items = Mutex::new(items);
    let failed = AtomicBool::new(false);
    let first = Mutex::new(None);
    let run = || {
        let mut state = init();
        while !failed.load(Ordering::Relaxed) {
            let next = items.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some(item) = next else { break };
            if let Err(error) = work(&mut state, item) {
                failed.store(true, Ordering::Relaxed);
                first.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, MAX_THREADS) {
            // Where the system gives no more threads, those that there are do the work.
            if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        run();
    });
    first.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_item_once_and_the_error_comes_back() {
        for threads in [0, 1, 7] {
            let sum = AtomicU64::new(0);
            let add = |_: &mut (), n: u64| {
                sum.fetch_add(n, Ordering::Relaxed);
                Ok(())
            };
            for_each(threads, 0..1000u64, || (), add).expect("no error");
            assert_eq!(sum.into_inner(), 499_500);
            let fail = |_: &mut (), n: u64| if n == 7 { anyhow::bail!("seven") } else { Ok(()) };
            assert_eq!(for_each(threads, 0..1000u64, || (), fail).expect_err("fails").to_string(), "seven");
        }
    }
}
