//! From logits to the next token.
//!
//! The order is llama.cpp's default chain: repeat penalty, top-k, top-p, min-p, temperature, then a draw. The draw
//! needs no host library (the exponential and the generator are here), so that a seed gives the same tokens on
//! every machine that computed the same logits.

use gantry_formats::exit::{Exit, ExitCode};
use std::collections::VecDeque;

/// Why there is no next token, or no sampler.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SampleError {
    /// A setting outside its range.
    #[error("{name} is {found}, expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: f64,
        /// The range.
        expected: &'static str,
    },
    /// The model gave no logits.
    #[error("there are no logits to sample from")]
    Empty,
    /// A logit is NaN or +infinity: the model's arithmetic broke down.
    #[error("logit of token {token} is {found}, expected a number; the model's arithmetic broke down")]
    NotANumber {
        /// The first such token.
        token: u32,
        /// NaN or infinity.
        found: f32,
    },
    /// Every logit is −infinity: nothing is allowed.
    #[error("every logit is -inf, expected at least one possible token")]
    NothingPossible,
}

impl ExitCode for SampleError {
    fn exit(&self) -> Exit {
        match self {
            Self::Setting { .. } => Exit::Usage,
            Self::Empty | Self::NotANumber { .. } | Self::NothingPossible => Exit::Other,
        }
    }
}

/// How to choose. [`Default`] is llama.cpp's: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalty.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 takes the most probable token, after the penalty.
    pub temperature: f32,
    /// Keep the k most probable; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most probable tokens that have at least this much probability together; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this fraction as probable as the most probable; 0 keeps all.
    pub min_p: f32,
    /// Weakens tokens of the window: a positive logit is divided by this, another multiplied; 1 changes nothing.
    pub repeat_penalty: f32,
    /// How many of the last tokens the penalty looks at; 0 is none.
    pub repeat_last_n: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            seed: 0,
        }
    }
}

impl SamplerOptions {
    /// Always the most probable token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

/// One possible token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// How far its logit lies below the highest, after the penalty and the temperature: 0 or less.
    pub logit: f32,
    /// Its probability among the candidates.
    pub probability: f64,
}

/// Which logits decide what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deciding {
    /// The highest; of equal ones that of the lowest token.
    Highest,
    /// So many of the highest in the total order of floats; of equal ones those of the lowest tokens.
    Best(usize),
    /// All.
    All,
}

/// What is known of the token that follows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Following {
    /// One logit for each token; empty where a device has chosen the best of them.
    pub logits: Vec<f32>,
    /// The tokens that [`Deciding`] asked for, the best first, where a device has chosen them: never one that is
    /// impossible.
    pub best: Vec<(u32, f32)>,
}

impl Following {
    /// Nothing is known.
    pub fn clear(&mut self) {
        self.logits.clear();
        self.best.clear();
    }
}

/// Chooses tokens, one sequence at a time.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplerOptions,
    window: VecDeque<u32>,
    random: SplitMix64,
    penalized: Vec<f32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler.
    ///
    /// # Errors
    /// [`SampleError::Setting`] for a setting out of range.
    pub fn new(options: SamplerOptions) -> Result<Self, SampleError> {
        let check = |name, found: f32, fine: bool, expected| {
            if fine { Ok(()) } else { Err(SampleError::Setting { name, found: found.into(), expected }) }
        };
        let SamplerOptions { temperature, top_p, min_p, repeat_penalty, .. } = options;
        let finite = temperature.is_finite() && temperature >= 0.0;
        check("temperature", temperature, finite, "a number from 0 on")?;
        check("top_p", top_p, (0.0..=1.0).contains(&top_p), "0 to 1")?;
        check("min_p", min_p, (0.0..=1.0).contains(&min_p), "0 to 1")?;
        let positive = repeat_penalty.is_finite() && repeat_penalty > 0.0;
        check("repeat_penalty", repeat_penalty, positive, "a number above 0")?;
        Ok(Self {
            random: SplitMix64(options.seed),
            options,
            window: VecDeque::new(),
            penalized: Vec::new(),
            candidates: Vec::new(),
        })
    }

    /// The settings.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Records a token of the sequence, prompt or answer, for the repeat penalty.
    pub fn accept(&mut self, token: u32) {
        if self.options.repeat_last_n == 0 {
            return;
        }
        while self.window.len() >= self.options.repeat_last_n {
            self.window.pop_front();
        }
        self.window.push_back(token);
    }

    /// Forgets the sequence and begins the draws again at the seed.
    pub fn reset(&mut self) {
        self.window.clear();
        self.random = SplitMix64(self.options.seed);
    }

    /// Which logits decide what it chooses next: no others are needed.
    pub fn deciding(&self) -> Deciding {
        let SamplerOptions { temperature, top_k, repeat_penalty, .. } = self.options;
        match top_k {
            // Any logit may be the highest after the penalty.
            _ if repeat_penalty != 1.0 && self.options.repeat_last_n > 0 => Deciding::All,
            _ if temperature == 0.0 => Deciding::Highest,
            0 => Deciding::All,
            k => Deciding::Best(k),
        }
    }

    /// Chooses the next token from what is known of it, which [`deciding`](Self::deciding) asked for: the one that
    /// [`sample`](Self::sample) chooses from all logits.
    ///
    /// # Errors
    /// As there.
    pub fn choose(&mut self, following: &Following) -> Result<u32, SampleError> {
        let Some(&(_, highest)) = following.best.first() else { return self.sample(&following.logits) };
        let each = |&(token, logit): &(u32, f32)| Candidate { token, logit, probability: 0.0 };
        self.candidates.clear();
        self.candidates.extend(following.best.iter().map(each));
        if self.options.temperature == 0.0 {
            self.candidates.truncate(1);
        } else {
            self.weigh(highest);
        }
        self.draw()
    }

    /// Chooses the next token from one logit per token. The caller passes it to [`Self::accept`].
    ///
    /// # Errors
    /// [`SampleError::Empty`], [`SampleError::NotANumber`], [`SampleError::NothingPossible`]; then no draw is used
    /// up.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SampleError> {
        self.candidates(logits)?;
        self.draw()
    }

    fn draw(&mut self) -> Result<u32, SampleError> {
        let mut left = if self.candidates.len() > 1 { self.random.fraction() } else { 0.0 };
        let drawn = self.candidates.iter().find(|candidate| {
            left -= candidate.probability;
            left < 0.0
        });
        // Rounding may leave a crumb of the draw: it falls to the last.
        Ok(drawn.or(self.candidates.last()).ok_or(SampleError::Empty)?.token)
    }

    /// The tokens that a draw chooses among, never none. With top-k, top-p or min-p they come by probability, equal
    /// ones by token; without, by token alone. A draw walks them in this order.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn candidates(&mut self, logits: &[f32]) -> Result<&[Candidate], SampleError> {
        self.penalize(logits);
        let (token, highest) = best(&self.penalized)?;
        let SamplerOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        self.candidates.clear();
        if temperature == 0.0 {
            self.candidates.push(Candidate { token, logit: 0.0, probability: 1.0 });
            return Ok(&self.candidates);
        }
        let possible = self.penalized.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
        self.candidates.extend(possible.map(|(token, &logit)| Candidate {
            token: token as u32,
            logit,
            probability: 0.0,
        }));
        let by_logit = |a: &Candidate, b: &Candidate| b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token));
        if top_k > 0 && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, by_logit);
            self.candidates.truncate(top_k);
        }
        if top_k > 0 || top_p < 1.0 || min_p > 0.0 {
            self.candidates.sort_unstable_by(by_logit);
        }
        self.weigh(highest);
        Ok(&self.candidates)
    }

    /// What is done to candidates once top-k has left them, in order, `highest` being the highest logit of all: top-p,
    /// min-p, temperature, probabilities.
    fn weigh(&mut self, highest: f32) {
        let SamplerOptions { temperature, top_p, min_p, .. } = self.options;
        if top_p < 1.0 {
            softmax(&mut self.candidates, highest);
            let mut together = 0.0;
            let enough = self.candidates.iter().position(|candidate| {
                together += candidate.probability;
                together >= f64::from(top_p)
            });
            self.candidates.truncate(enough.map_or(usize::MAX, |at| at + 1));
        }
        if min_p > 0.0 {
            let probable = |c: &Candidate| exp(f64::from(c.logit) - f64::from(highest)) >= f64::from(min_p);
            let keep = self.candidates.partition_point(probable);
            self.candidates.truncate(keep.max(1));
        }
        // In the quotient the highest may overflow; every difference to it is right before the division.
        for candidate in &mut self.candidates {
            candidate.logit = (candidate.logit - highest) / temperature;
        }
        softmax(&mut self.candidates, 0.0);
    }

    fn penalize(&mut self, logits: &[f32]) {
        self.penalized.clear();
        self.penalized.extend_from_slice(logits);
        let penalty = self.options.repeat_penalty;
        if penalty == 1.0 {
            return;
        }
        for (at, &token) in self.window.iter().enumerate() {
            if self.window.range(..at).any(|&earlier| earlier == token) {
                continue;
            }
            if let Some(logit) = self.penalized.get_mut(token as usize) {
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
    }
}

/// The most probable token; of equal ones the lowest.
///
/// # Errors
/// [`SampleError::Empty`], [`SampleError::NotANumber`], [`SampleError::NothingPossible`].
pub fn greedy(logits: &[f32]) -> Result<u32, SampleError> {
    best(logits).map(|(token, _)| token)
}

fn best(logits: &[f32]) -> Result<(u32, f32), SampleError> {
    if logits.is_empty() {
        return Err(SampleError::Empty);
    }
    let mut found = None;
    let mut highest = f32::NEG_INFINITY;
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SampleError::NotANumber { token: token as u32, found: logit });
        }
        if logit > highest {
            (found, highest) = (Some(token as u32), logit);
        }
    }
    found.map(|token| (token, highest)).ok_or(SampleError::NothingPossible)
}

fn softmax(candidates: &mut [Candidate], highest: f32) {
    let mut sum = 0.0;
    for candidate in candidates.iter_mut() {
        candidate.probability = exp(f64::from(candidate.logit) - f64::from(highest));
        sum += candidate.probability;
    }
    for candidate in candidates {
        candidate.probability /= sum;
    }
}

/// e^x for x ≤ 0, by sums and products alone: C libraries differ in the last bits, IEEE arithmetic does not.
///
/// x = k·ln 2 + r with |r| ≤ ln 2 / 2, and 14 terms of the series for e^r, whose remainder is below 2⁻⁵⁶.
fn exp(x: f64) -> f64 {
    // e^-708 is the last normal number; below it is nothing to draw.
    if x < -708.0 {
        return 0.0;
    }
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let k = (x * std::f64::consts::LOG2_E).round();
    let r = x - k * LN_2_HIGH - k * LN_2_LOW;
    let mut sum = 1.0;
    for n in (1..=13).rev() {
        sum = 1.0 + sum * r / f64::from(n);
    }
    sum * f64::from_bits(((k as i64 + 1023) as u64) << 52)
}

/// The generator: SplitMix64 (Steele, Lea, Flood 2014), 64 bits of state that any seed fills well.
#[derive(Clone, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below 1, of 53 bits.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{SplitMix64, exp};

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs for seed 1234567, from the reference implementation (https://prng.di.unimi.it).
        let mut random = SplitMix64(1_234_567);
        let found: Vec<u64> = (0..5).map(|_| random.next()).collect();
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(found, expected);
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
    }

    #[test]
    fn the_exponential_is_exact_enough() {
        for step in 0..70_000 {
            let x = f64::from(step) * -0.01;
            let (found, expected) = (exp(x), x.exp());
            assert!((found - expected).abs() <= expected * 4e-16, "exp({x}) is {found}, expected {expected}");
        }
        assert_eq!((exp(0.0), exp(-0.0), exp(-1e9), exp(f64::NEG_INFINITY)), (1.0, 1.0, 0.0, 0.0));
    }
}
