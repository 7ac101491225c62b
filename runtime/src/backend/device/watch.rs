//! Who looks at launches: for their kernels' names, or for how long each takes on the card.

use super::driver::{Arg, CardError, Event, Stream};
use super::kernels::{Args, Group, Kernels};
use crate::backend::KernelTime;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the card waits before the first of some launches, so that the host gets ahead of it: an event before a
/// kernel that is not there yet would count the time until it is.
const AHEAD: Duration = Duration::from_micros(400);

/// A kernel that does nothing when it waits for nothing: what looking at a launch costs.
const NOTHING: &str = KernelTime::LOOKING;

/// Launches that are looked at, from one wait for the card to the next.
#[derive(Default)]
pub(super) struct Watch(RefCell<Watched>);

#[derive(Default)]
enum Watched {
    #[default]
    Nothing,
    Names(Vec<&'static str>),
    Times(Times),
}

#[derive(Default)]
struct Times {
    /// Those that the card was given since it was last waited for.
    given: Vec<(&'static str, [Event; 2])>,
    /// Pairs of events for the next.
    free: Vec<[Event; 2]>,
    sums: BTreeMap<&'static str, (u64, Duration)>,
}

impl Times {
    fn give(
        &mut self,
        stream: &Stream,
        name: &'static str,
        launch: impl FnOnce() -> Result<(), CardError>,
    ) -> Result<(), CardError> {
        let events = match self.free.pop() {
            Some(events) => events,
            None => [stream.event(true)?, stream.event(true)?],
        };
        events[0].record(stream)?;
        launch()?;
        events[1].record(stream)?;
        self.given.push((name, events));
        Ok(())
    }
}

impl Watch {
    /// Whether anybody looks: recorded runs do not show single launches.
    pub(super) fn is_on(&self) -> bool {
        !matches!(*self.0.borrow(), Watched::Nothing)
    }

    /// Names of kernels from now on.
    pub(super) fn names(&self) {
        *self.0.borrow_mut() = Watched::Names(Vec::new());
    }

    /// Those since [`names`](Self::names), which ends.
    pub(super) fn take_names(&self) -> Vec<&'static str> {
        match self.0.take() {
            Watched::Names(names) => names,
            _ => Vec::new(),
        }
    }

    /// Times from now on.
    pub(super) fn times(&self) {
        *self.0.borrow_mut() = Watched::Times(Times::default());
    }

    /// Gives a launch to the stream and looks at it.
    pub(super) fn around(
        &self,
        (kernels, stream): (&Kernels, &Stream),
        name: &'static str,
        launch: impl FnOnce() -> Result<(), CardError>,
    ) -> Result<(), CardError> {
        match &mut *self.0.borrow_mut() {
            Watched::Nothing => launch(),
            Watched::Names(names) => {
                names.push(name);
                launch()
            }
            Watched::Times(times) => {
                if times.given.is_empty() {
                    wait(kernels, stream, AHEAD)?;
                    times.give(stream, NOTHING, || wait(kernels, stream, Duration::ZERO))?;
                }
                times.give(stream, name, launch)
            }
        }
    }

    /// Counts what the card has done; the stream was waited for.
    pub(super) fn collect(&self) -> Result<(), CardError> {
        let Watched::Times(times) = &mut *self.0.borrow_mut() else { return Ok(()) };
        for (name, events) in times.given.drain(..) {
            events[1].synchronize()?;
            let milliseconds = events[0].until(&events[1])?;
            let (calls, sum) = times.sums.entry(name).or_default();
            *calls += 1;
            *sum += Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3);
            times.free.push(events);
        }
        Ok(())
    }

    /// What was counted since [`times`](Self::times), the longest first.
    pub(super) fn seen(&self) -> Vec<KernelTime> {
        let Watched::Times(times) = &*self.0.borrow() else { return Vec::new() };
        let each = times.sums.iter().map(|(kernel, (calls, time))| KernelTime {
            kernel,
            calls: *calls,
            time: *time,
        });
        let mut seen: Vec<KernelTime> = each.collect();
        seen.sort_by_key(|k| std::cmp::Reverse(k.time));
        seen
    }
}

/// Lets the card wait.
#[allow(unsafe_code, reason = "a launch")]
fn wait(kernels: &Kernels, stream: &Stream, time: Duration) -> Result<(), CardError> {
    let args = Args::default().with(Arg::U64(time.as_nanos() as u64));
    // SAFETY: the kernel takes a number and no address.
    unsafe { kernels.launch(stream, NOTHING, [1, 1, 1], Group::default(), &args) }
}
