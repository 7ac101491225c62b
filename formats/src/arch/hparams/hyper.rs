//! Hyper-connections: a residual of several streams.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Their shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// `hyper_connection.count`: streams, at least 2.
    pub streams: usize,
    /// `hyper_connection.low_rank` of `qwen4exp`: rows of `down`.
    pub rank: Option<usize>,
    /// `hyper_connection.sinkhorn_iterations` of `deepseek4`, else 0.
    pub iterations: usize,
    /// `hyper_connection.epsilon` of `deepseek4`, else 0.
    pub eps: f32,
}

impl Hyper {
    /// Reads it: of `qwen4exp` the rank must be there, of `deepseek4` the iterations and epsilon, and its streams are 4.
    ///
    /// # Errors
    /// Where a key is missing or out of range.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        const COUNT: &str = "hyper_connection.count";
        const EPS: &str = "hyper_connection.epsilon";
        let keys = Keys::new(h, meta);
        let streams = keys.size(COUNT)?;
        if streams < 2 {
            return Err(keys.wrong(COUNT, streams, "at least 2".into()));
        }
        if h.architecture != "deepseek4" {
            let rank = keys.size("hyper_connection.low_rank")?;
            return Ok(Self { streams, rank: Some(rank), iterations: 0, eps: 0.0 });
        }
        if streams != 4 {
            return Err(keys.wrong(COUNT, streams, "4".into()));
        }
        const ITERATIONS: &str = "hyper_connection.sinkhorn_iterations";
        let iterations = keys.size(ITERATIONS)?;
        // It converges in some twenty; a count beyond all use must not keep a token waiting for ever.
        if iterations > 1000 {
            return Err(keys.wrong(ITERATIONS, iterations, "at most 1000".into()));
        }
        let eps = keys.float(EPS)?.ok_or_else(|| keys.missing(EPS))?;
        Ok(Self { streams, rank: None, iterations, eps: h.at_least(eps, 0.0, EPS)? as f32 })
    }
}
