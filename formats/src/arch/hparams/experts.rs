//! How a token's experts are chosen and weighted.

use super::{Hparams, HparamsError, Keys, Metadata};

/// What the keys say of it; what an architecture fixes is not here.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `expert_gating_func`: 1 softmax, 2 sigmoid, 3 softmax of the chosen, 4 square root of softplus. `None` where it is
    /// absent or 0: what the architecture means.
    pub gating: Option<u64>,
    /// `expert_weights_scale`: factor of the weights, 1 where it is absent or 0.
    pub scale: f32,
    /// `expert_weights_norm`: whether the weights are made to sum to 1.
    pub normalize: Option<bool>,
    /// `expert_group_count`, at least 1; a divisor of the experts.
    pub groups: usize,
    /// `expert_group_used_count`: groups whose experts can be chosen, at most `groups`.
    pub groups_used: usize,
}

impl Experts {
    /// Reads it.
    ///
    /// # Errors
    /// Where the model has no experts, more are used than there are, or the groups do not divide.
    pub fn read(h: &Hparams, meta: &dyn Metadata) -> Result<Self, HparamsError> {
        const USED: &str = "expert_used_count";
        const GROUPS: &str = "expert_group_count";
        const GROUPS_USED: &str = "expert_group_used_count";
        const GATING: &str = "expert_gating_func";
        const SCALE: &str = "expert_weights_scale";
        let keys = Keys::new(h, meta);
        let experts = keys.given(Some(h.experts), "expert_count")?;
        let used = match h.experts_used {
            0 if keys.number(USED).is_none() => return Err(keys.missing(USED)),
            used => keys.given(Some(used), USED)?,
        };
        let groups = keys.count(GROUPS)?.max(1);
        if experts % groups != 0 {
            return Err(keys.wrong(GROUPS, groups, format!("a divisor of the {experts} experts")));
        }
        let groups_used = match keys.count(GROUPS_USED)? {
            0 => groups,
            n if n <= groups => n,
            n => return Err(keys.wrong(GROUPS_USED, n, format!("at most the {groups} groups"))),
        };
        let choice = experts / groups * groups_used;
        if used > choice {
            return Err(keys.wrong(USED, used, format!("at most the {choice} that can be chosen")));
        }
        keys.given(h.expert_ff, "expert_feed_forward_length")?;
        let gating = keys.number(GATING).filter(|&n| n != 0);
        if h.architecture == "deepseek4" && gating != Some(4) {
            let found = gating.map_or("missing".into(), |n| n.to_string());
            return Err(keys.wrong(GATING, found, "4, the square root of softplus".into()));
        }
        if let Some(odd) = gating.filter(|&n| n > 4) {
            return Err(keys.wrong(GATING, odd, "between 0 and 4".into()));
        }
        let scale = keys.float(SCALE)?.filter(|&s| s != 0.0).unwrap_or(1.0) as f32;
        Ok(Self { gating, scale, normalize: keys.flag("expert_weights_norm"), groups, groups_used })
    }
}
