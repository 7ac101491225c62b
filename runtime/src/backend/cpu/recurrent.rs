//! States that cannot forget: convolutions and delta nets.
//!
//! A delta net's state takes a token in and has no way back. So that the last few can be taken back all the same
//! (tokens that were only proposed), a run of up to `window` tokens works on a copy and writes down what each token
//! gave; the next run first repeats those that stayed. What comes out is bitwise the same.

use super::saved::{floats, read_floats};
use gantry_kernels::cpu::{ConvShape, DeltaInput, DeltaShape, Isa, Pieces, Pool, causal_conv, delta_net};

/// The inputs before those of a batch.
pub(super) struct ConvState {
    shape: ConvShape,
    window: usize,
    /// The last `history + window` rows at most, at least `history`, the oldest first.
    rows: Vec<f32>,
    /// Position after the last row.
    end: usize,
}

impl ConvState {
    pub(super) fn new(shape: ConvShape, window: usize) -> Self {
        Self { shape, window, rows: vec![0.0; shape.history() * shape.channels], end: 0 }
    }

    pub(super) fn bytes(shape: ConvShape, window: usize) -> usize {
        (shape.history() + window).saturating_mul(shape.channels).saturating_mul(4)
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.rows.resize(self.shape.history() * self.shape.channels, 0.0);
        self.end = 0;
    }

    pub(super) fn remembers(&self, position: usize) -> bool {
        let extra = self.rows.len() / self.shape.channels - self.shape.history();
        position + extra >= self.end
    }

    /// Whether all inputs before `position` came.
    pub(super) fn reaches(&self, position: usize) -> bool {
        position <= self.end
    }

    /// Appends its rows and gives the position after them.
    pub(super) fn save(&self, out: &mut Vec<u8>) -> usize {
        floats(&self.rows, out);
        self.end
    }

    /// Takes what [`save`](Self::save) wrote.
    pub(super) fn restore(&mut self, end: usize, saved: &[u8]) -> bool {
        let least = self.shape.history() * self.shape.channels;
        let most = least + self.window * self.shape.channels;
        let rows = read_floats(saved);
        let fits = (least..=most).contains(&rows.len()) && rows.len().is_multiple_of(self.shape.channels);
        if fits {
            (self.rows, self.end) = (rows, end);
        }
        fits
    }

    /// [`causal_conv`] for the tokens from position `start` on: token t's input stands at `x[t · stride..]`.
    #[allow(clippy::too_many_arguments)] // Each is a part of the formula.
    pub(super) fn run(
        &mut self,
        isa: Isa,
        pool: &Pool,
        weight: &[f32],
        start: usize,
        tokens: usize,
        (x, stride): (&[f32], usize),
        silu: bool,
        y: &mut [f32],
    ) {
        let (channels, least) = (self.shape.channels, self.shape.history() * self.shape.channels);
        let back = self.end.saturating_sub(start);
        self.rows.truncate(self.rows.len() - (back * channels).min(self.rows.len() - least));
        if self.window == 0 {
            causal_conv(isa, pool, self.shape, weight, tokens, x, stride, &mut self.rows, silu, y);
        } else {
            let mut history = self.rows[self.rows.len() - least..].to_vec();
            causal_conv(isa, pool, self.shape, weight, tokens, x, stride, &mut history, silu, y);
            let most = least + self.window * channels;
            let taken = tokens.min(most / channels);
            for t in tokens - taken..tokens {
                self.rows.extend_from_slice(&x[t * stride..][..channels]);
            }
            let surplus = self.rows.len().saturating_sub(most);
            self.rows.drain(..surplus);
        }
        self.end = start + tokens;
    }
}

/// The state of a delta net.
pub(super) struct DeltaState {
    shape: DeltaShape,
    window: usize,
    state: Vec<f32>,
    /// Position of `state`.
    at: usize,
    /// What tokens after `at` gave: queries, keys and values; logits of write strength and decay.
    qkv: Vec<f32>,
    rates: Vec<f32>,
    /// Where a run that may be taken back works.
    copy: Vec<f32>,
}

/// One run's input: the rows of `DeltaInput` that are its tokens'.
pub(super) type Input<'a> = DeltaInput<'a>;

impl DeltaState {
    pub(super) fn new(shape: DeltaShape, window: usize) -> Self {
        let state = vec![0.0; shape.state()];
        Self { shape, window, state, at: 0, qkv: Vec::new(), rates: Vec::new(), copy: Vec::new() }
    }

    pub(super) fn bytes(shape: DeltaShape, window: usize) -> usize {
        let copies = if window > 0 { 2 } else { 1 };
        let row = (2 * shape.key_heads + shape.value_heads) * shape.dim + 2 * shape.value_heads;
        shape.state().saturating_mul(copies).saturating_add(window.saturating_mul(row)).saturating_mul(4)
    }

    pub(super) fn clear(&mut self) {
        self.state.fill(0.0);
        self.at = 0;
        self.qkv.clear();
        self.rates.clear();
    }

    pub(super) fn remembers(&self, position: usize) -> bool {
        self.at <= position
    }

    /// Whether all tokens before `position` came.
    pub(super) fn reaches(&self, position: usize) -> bool {
        position <= self.at.saturating_add(self.qkv.len() / self.row())
    }

    /// Appends its state, and what later tokens gave, and gives the state's position.
    pub(super) fn save(&self, out: &mut Vec<u8>) -> usize {
        for values in [&self.state, &self.qkv, &self.rates] {
            floats(values, out);
        }
        self.at
    }

    /// Takes what [`save`](Self::save) wrote.
    pub(super) fn restore(&mut self, at: usize, saved: &[u8]) -> bool {
        let values = read_floats(saved);
        let row = self.row() + 2 * self.shape.value_heads;
        let Some(later) = values.len().checked_sub(self.state.len()) else { return false };
        if !later.is_multiple_of(row) || later / row > self.window {
            return false;
        }
        let tokens = later / row;
        let (state, later) = values.split_at(self.state.len());
        let (qkv, rates) = later.split_at(tokens * self.row());
        self.state.copy_from_slice(state);
        (self.qkv, self.rates) = (qkv.to_vec(), rates.to_vec());
        self.at = at;
        true
    }

    /// Queries, keys and values of a token.
    fn row(&self) -> usize {
        (2 * self.shape.key_heads + self.shape.value_heads) * self.shape.dim
    }

    /// [`delta_net`] for the tokens from position `start` on.
    pub(super) fn run(
        &mut self,
        isa: Isa,
        pool: &Pool,
        start: usize,
        tokens: usize,
        input: &Input<'_>,
        y: &mut [f32],
    ) {
        let repeated = start - self.at;
        if repeated > 0 {
            let mut state = std::mem::take(&mut self.state);
            self.repeat(isa, pool, repeated, input.decay, input.dt, &mut state);
            self.state = state;
        }
        self.at = start;
        self.qkv.clear();
        self.rates.clear();
        if tokens > self.window {
            delta_net(isa, pool, &self.shape, tokens, input, &mut self.state, y);
            self.at += tokens;
            return;
        }
        self.copy.clone_from(&self.state);
        delta_net(isa, pool, &self.shape, tokens, input, &mut self.copy, y);
        self.qkv.extend_from_slice(input.qkv);
        for t in 0..tokens {
            for (values, pieces) in [input.beta, input.alpha] {
                let row = &values[t * pieces.row..];
                for piece in 0..pieces.count {
                    self.rates.extend_from_slice(&row[pieces.start + piece * pieces.stride..][..pieces.len]);
                }
            }
        }
    }

    /// Takes the first `tokens` of those that were written down into `state`.
    fn repeat(&self, isa: Isa, pool: &Pool, tokens: usize, decay: &[f32], dt: &[f32], state: &mut [f32]) {
        if tokens == 0 {
            return;
        }
        let heads = self.shape.value_heads;
        let width = self.row();
        let rates =
            |start| (&self.rates[..], Pieces { row: 2 * heads, start, count: 1, len: heads, stride: heads });
        let input =
            DeltaInput { qkv: &self.qkv[..tokens * width], beta: rates(0), alpha: rates(heads), decay, dt };
        let mut y = vec![0.0; tokens * heads * self.shape.dim];
        delta_net(isa, pool, &self.shape, tokens, &input, state, &mut y);
    }
}
