//! Graphs, replayed and timed.

use super::Timing;
use crate::Result;
use crate::backend::device::driver::{CardError, Event, Graph, Stream};

/// Microseconds of each of `samples` replays after `warm_up` others, graph after graph. All are given to the stream
/// before the first is waited for, so that the card never waits for the host.
#[allow(unsafe_code, reason = "launches")]
pub(super) fn run(
    stream: &Stream,
    graphs: &mut [Graph],
    (warm_up, samples): (usize, usize),
) -> Result<Vec<f64>> {
    let count = graphs.len().max(1);
    let mut launch = |turn: usize| -> Result<(), CardError> {
        let Some(graph) = graphs.get_mut(turn % count) else { return Ok(()) };
        // SAFETY: every caller records launches on allocations that live until the stream was waited for, below.
        unsafe { graph.launch(stream) }
    };
    (0..warm_up).try_for_each(&mut launch)?;
    let mut events: Vec<[Event; 2]> = Vec::with_capacity(samples);
    for turn in 0..samples {
        let pair = [stream.event(true)?, stream.event(true)?];
        pair[0].record(stream)?;
        launch(warm_up + turn)?;
        pair[1].record(stream)?;
        events.push(pair);
    }
    stream.synchronize()?;
    let times = events.iter().map(|[begin, end]| Ok(f64::from(begin.until(end)?) * 1e3));
    Ok(times.collect::<Result<_, CardError>>()?)
}

/// The median and the 90th percentile of times, each of `launches` launches.
pub(super) fn timing(mut times: Vec<f64>, launches: usize) -> Timing {
    times.sort_by(f64::total_cmp);
    let at = |i: usize| times.get(i.min(times.len().saturating_sub(1))).copied().unwrap_or(0.0);
    let each = launches.max(1) as f64;
    Timing {
        median: at(times.len() / 2) / each,
        p90: at((times.len() * 9).div_ceil(10).saturating_sub(1)) / each,
    }
}

/// The median.
pub(super) fn median_of(times: &[f64]) -> f64 {
    timing(times.to_vec(), 1).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_single_samples() {
        let times: Vec<f64> = (1..=30).rev().map(f64::from).collect();
        assert_eq!(timing(times.clone(), 1), Timing { median: 16.0, p90: 27.0 });
        assert_eq!(timing(times, 2), Timing { median: 8.0, p90: 13.5 });
        assert_eq!(timing(vec![3.0], 1), Timing { median: 3.0, p90: 3.0 });
        assert_eq!(timing(Vec::new(), 1), Timing { median: 0.0, p90: 0.0 });
    }
}
