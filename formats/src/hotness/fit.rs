//! Counts beside the model that they are to serve.

use super::{Format, Hotness, HotnessError, HotnessFault, LayerCounts, Reading, RoutedModel};

/// Tokens that an expert of average use needs to be called well measured: the standard error of its share is then a
/// tenth of it (1/√n).
pub const ENOUGH: u64 = 100;

impl Reading {
    /// The counts of `model`, a line of zeros for each layer with experts that the files do not have, and warnings
    /// for people. Tokens that the format does not know follow from the counts, each token going to
    /// [`RoutedModel::used`] experts.
    ///
    /// # Errors
    /// [`HotnessFault::OtherModel`] where layers, experts or fingerprint disagree.
    pub fn fit(self, model: &RoutedModel) -> Result<(Hotness, Vec<String>), HotnessError> {
        let Self { mut hotness, format, files, notes: mut warnings } = self;
        if let Err(fault) = agree(&hotness, format, model) {
            return Err(fault.of(files.join(" + ")));
        }
        hotness.layers = model.layers;
        hotness.experts = model.experts;
        let experts = model.experts as usize;
        hotness.counts.iter_mut().for_each(|l| l.counts.resize(experts, 0));
        for &layer in &model.routed {
            if let Err(at) = hotness.counts.binary_search_by_key(&layer, |l| l.layer) {
                hotness.counts.insert(at, LayerCounts { layer, counts: vec![0; experts] });
            }
        }
        if hotness.tokens == 0 && model.used > 0 {
            let most = hotness.counts.iter().map(|l| l.counts.iter().sum::<u64>()).max().unwrap_or(0);
            hotness.tokens = most.div_ceil(u64::from(model.used));
        }
        warnings.extend(hotness.warnings());
        Ok((hotness, warnings))
    }
}

impl Hotness {
    /// What a placement by these counts cannot be sure of: layers and experts that no token came to, and few tokens.
    pub fn warnings(&self) -> Vec<String> {
        let mut out = Vec::new();
        let sum = |l: &LayerCounts| l.counts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        let silent: Vec<u32> = self.counts.iter().filter(|l| sum(l) == 0).map(|l| l.layer).collect();
        if !silent.is_empty() {
            out.push(format!("no token was seen in {}", layers(&silent)));
        }
        let unused = |l: &&LayerCounts| sum(l) > 0 && l.counts.contains(&0);
        let with_unused: Vec<u32> = self.counts.iter().filter(unused).map(|l| l.layer).collect();
        if !with_unused.is_empty() {
            let of_layer = |l: &LayerCounts| l.counts.iter().filter(|n| **n == 0).count();
            let n: usize = self.counts.iter().filter(unused).map(of_layer).sum();
            let experts = if n == 1 { "expert was" } else { "experts were" };
            out.push(format!("{n} {experts} never chosen, in {}", layers(&with_unused)));
        }
        let few = |l: &&LayerCounts| (1..ENOUGH.saturating_mul(self.experts.into())).contains(&sum(l));
        let scarce: Vec<u32> = self.counts.iter().filter(few).map(|l| l.layer).collect();
        if !scarce.is_empty() {
            let least = self.counts.iter().filter(few).map(sum).min().unwrap_or(0);
            let mean = least as f64 / f64::from(self.experts.max(1));
            out.push(format!(
                "few tokens: down to {mean:.1} for an expert of average use, in {}; below {ENOUGH} shares are off by \
                 more than a tenth",
                layers(&scarce)
            ));
        }
        out
    }
}

fn agree(hotness: &Hotness, format: Format, model: &RoutedModel) -> Result<(), HotnessFault> {
    let other = |what: &str, found: String, expected: String| {
        Err(HotnessFault::OtherModel { what: what.into(), found, expected })
    };
    let (layers, experts) = (hotness.layers, hotness.experts);
    let states_layers = format == Format::Json;
    if layers > model.layers || states_layers && layers != model.layers {
        let found =
            if states_layers { layers.to_string() } else { format!("layer {}", layers.saturating_sub(1)) };
        return other("layers", found, model.layers.to_string());
    }
    if experts > model.experts || format != Format::Csv && experts != model.experts {
        let found = if format == Format::Csv {
            format!("expert {}", experts.saturating_sub(1))
        } else {
            experts.to_string()
        };
        return other("experts of a layer", found, model.experts.to_string());
    }
    if let Some(l) = hotness.counts.iter().find(|l| model.routed.binary_search(&l.layer).is_err()) {
        let expected = format!("no experts in that layer, but in {}", self::layers(&model.routed));
        return other("layers with experts", format!("layer {}", l.layer), expected);
    }
    match (&hotness.fingerprint, &model.fingerprint) {
        (Some(found), Some(expected)) if found != expected => {
            let short = |s: &str| s.chars().take(16).collect::<String>() + "…";
            let expected = format!("{} (without the field `fingerprint` it would pass)", short(expected));
            other("fingerprint of the routers", short(found), expected)
        }
        _ => Ok(()),
    }
}

/// `layer 3`, `layers 0-2, 5`; of many runs the first four.
fn layers(list: &[u32]) -> String {
    const RUNS: usize = 4;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &layer in list {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(layer) => *last = layer,
            _ => runs.push((layer, layer)),
        }
    }
    let run = |&(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    let shown: Vec<String> = runs.iter().take(RUNS).map(run).collect();
    let more = if runs.len() > RUNS { ", …" } else { "" };
    format!("layer{} {}{more}", if list.len() == 1 { "" } else { "s" }, shown.join(", "))
}
