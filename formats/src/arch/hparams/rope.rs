//! Rotations of queries and keys.

use super::{Hparams, HparamsError, Keys, Metadata};

/// Which values a rotation pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeType {
    /// `(x[2j], x[2j+1])`.
    Norm,
    /// `(x[j], x[j + n_rot/2])`.
    Neox,
    /// Neox pairs whose angles come from one of four positions each, by `rope.dimension_sections`. The positions of
    /// text are all the same, so that it is Neox there: see [`sections`].
    Imrope,
}

/// `rope.scaling.*`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Positions as they are.
    None,
    /// Positions divided by the factor.
    Linear {
        /// `rope.scaling.factor`.
        factor: f64,
    },
    /// YaRN: low frequencies interpolated, high ones kept.
    Yarn {
        /// `rope.scaling.factor`.
        factor: f64,
        /// `rope.scaling.original_context_length`, or the context length.
        original_context: u64,
        /// `rope.scaling.attn_factor`, default 1.
        attn_factor: f64,
        /// `rope.scaling.yarn_ext_factor`, default 1.
        ext_factor: f64,
        /// `rope.scaling.yarn_beta_fast`, default 32.
        beta_fast: f64,
        /// `rope.scaling.yarn_beta_slow`, default 1.
        beta_slow: f64,
    },
}

impl Hparams {
    /// The rope scaling that the metadata asks for, as llama.cpp reads it.
    pub fn rope_scaling(&self, meta: &dyn Metadata) -> Result<RopeScaling, HparamsError> {
        let key = |name: &str| format!("{}.rope.scaling.{name}", self.architecture);
        // Older files say `rope.scale_linear` alone; the newer keys win.
        let factor = meta
            .f64(&key("factor"))
            .or_else(|| meta.f64(&format!("{}.rope.scale_linear", self.architecture)))
            .filter(|&f| f != 0.0)
            .unwrap_or(1.0);
        let factor = self.at_least(factor, f64::from(f32::MIN_POSITIVE), "rope.scaling.factor")?;
        let number = |name: &str, default: f64| match meta.f64(&key(name)) {
            // Beyond f32 it would be none there.
            Some(found) if !found.is_finite() || found.abs() > f64::from(f32::MAX) => {
                let expected = "a finite number".into();
                Err(HparamsError::Value { key: key(name), found: found.to_string(), expected })
            }
            found => Ok(found.unwrap_or(default)),
        };
        let attn_factor = Some(number("attn_factor", 1.0)?).filter(|&f| f != 0.0).unwrap_or(1.0);
        let original_context = meta.u64(&key("original_context_length")).filter(|&n| n > 0);
        let yarn = |factor, ext_factor, beta_fast, beta_slow| RopeScaling::Yarn {
            factor,
            original_context: original_context.or(self.context_length).unwrap_or(0),
            attn_factor,
            ext_factor,
            beta_fast,
            beta_slow,
        };
        // Absent means linear, where a factor of 1 changes nothing.
        let kind = meta.text(&key("type")).unwrap_or_else(|| "linear".into());
        match kind.as_str() {
            // The factor of cos and sin holds for every type; YaRN without its own part is linear with that factor.
            "none" if attn_factor != 1.0 => Ok(yarn(1.0, 0.0, 32.0, 1.0)),
            "linear" if attn_factor != 1.0 => Ok(yarn(factor, 0.0, 32.0, 1.0)),
            "none" => Ok(RopeScaling::None),
            "linear" if factor == 1.0 => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor }),
            "yarn" => {
                // llama.cpp writes a negative one where the model says nothing.
                let ext_factor = Some(number("yarn_ext_factor", 1.0)?).filter(|&f| f >= 0.0).unwrap_or(1.0);
                Ok(yarn(factor, ext_factor, number("yarn_beta_fast", 32.0)?, number("yarn_beta_slow", 1.0)?))
            }
            other => Err(HparamsError::Value {
                key: key("type"),
                found: other.into(),
                expected: "none, linear or yarn".into(),
            }),
        }
    }
}

/// `rope.dimension_sections`: how many pairs of a rotation take their angle from each of time, height and width (the
/// fourth is for what is none of them).
///
/// # Errors
/// Where a pair below `n_rot / 2` would take the fourth position: it is 0 for text, so that the pair would not be
/// rotated, and no model means that.
pub fn sections(h: &Hparams, meta: &dyn Metadata) -> Result<[u64; 4], HparamsError> {
    const NAME: &str = "rope.dimension_sections";
    let keys = Keys::new(h, meta);
    let list = keys.list(NAME, 4)?.ok_or_else(|| keys.missing(NAME))?;
    let sections = [list[0], list[1], list[2], list[3]];
    let wrong = |expected: String| keys.wrong(NAME, format!("{sections:?}"), expected);
    let pairs = keys.given(h.rot, "rope.dimension_count")? as u64 / 2;
    let sum = sections.iter().try_fold(0u64, |sum, &n| sum.checked_add(n)).filter(|&sum| sum > 0);
    let Some(sum) = sum else { return Err(wrong("a sum between 1 and 2^64".into())) };
    // Pair j is in sector j % sum, which belongs to section sector % 3 up to sector 3 · section.
    let first = (0..3u64).filter_map(|c| sections[c as usize].checked_mul(3)?.checked_add(c)).min();
    match first.filter(|&pair| pair < pairs.min(sum)) {
        Some(pair) => Err(wrong(format!("sections that cover all {pairs} pairs; pair {pair} is in none"))),
        None => Ok(sections),
    }
}
