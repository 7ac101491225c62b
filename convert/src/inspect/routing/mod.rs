//! `--routing`: how evenly the routers spread tokens over experts, from measured counts.

mod balance;
#[cfg(test)]
mod tests;

use crate::table::{Align, Table};
use crate::units;
use crate::weights::{Opened, file_name};
use balance::Balance;
use gantry_formats::hotness::{self, Format, Reading, RoutedModel};
use gantry_formats::message::wrap;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most used experts that a line of the table names.
const TOP: usize = 3;

/// Everything the view says.
#[derive(Debug, Serialize)]
pub(super) struct Routing {
    /// The model that the counts were compared with.
    model: Option<String>,
    format: &'static str,
    #[serde(skip)]
    described: &'static str,
    files: Vec<String>,
    fingerprint: Option<String>,
    /// Blocks of the model; without a model as many as the files need.
    layers: u32,
    experts: u32,
    /// Experts that each token goes to.
    experts_used: Option<u32>,
    /// Tokens that were seen.
    tokens: Option<u64>,
    /// The layer with the largest share on one expert, beside the mean.
    worst_layer: Option<u32>,
    unused_experts: u64,
    by_layers: Vec<Balance>,
    warnings: Vec<String>,
}

/// Reads the counts in `files` and compares them with `model`, which has this path.
///
/// # Errors
/// Where a file is refused, or its counts are of another model.
pub(super) fn of(files: &[PathBuf], model: Option<(&Opened, &Path)>) -> anyhow::Result<Routing> {
    let reading = hotness::read(files)?;
    let Some((opened, path)) = model else { return Ok(alone(reading)) };
    let model = match opened {
        Opened::Container(container) => RoutedModel::of_container(container)?,
        Opened::Gguf(gguf) => RoutedModel::of_gguf(gguf)?,
    };
    let (format, names) = (reading.format, reading.file_names());
    let (hotness, warnings) = reading.fit(&model)?;
    let mut routing = gather(format, names, &hotness, warnings);
    routing.model = Some(file_name(path));
    routing.fingerprint = model.fingerprint;
    routing.experts_used = Some(model.used).filter(|n| *n > 0);
    Ok(routing)
}

/// The counts in `path` where it is text with token counts, and no model.
///
/// # Errors
/// Where it is meant to be counts, and is refused.
pub(super) fn of_text(path: &Path) -> anyhow::Result<Option<Routing>> {
    let mut head = [0; 16];
    // Whoever is asked to open it says why it cannot be read.
    let n = File::open(path).and_then(|mut file| file.read(&mut head)).unwrap_or(0);
    if !hotness::is_text(&head[..n]) {
        return Ok(None);
    }
    Ok(Some(alone(hotness::read(&[path.into()])?)))
}

/// The counts in `path`, the importance matrix that was opened. `None` where it has none, as a dense model's, or where
/// they are not sound: its summary is shown then.
pub(super) fn of_imatrix(opened: &Opened, path: &Path) -> Option<Routing> {
    let Opened::Gguf(gguf) = opened else { return None };
    let path = path.to_path_buf();
    gguf.is_imatrix().then(|| hotness::read(&[path]).ok().map(alone)).flatten()
}

fn alone(reading: Reading) -> Routing {
    let files = reading.file_names();
    let mut warnings = reading.notes;
    warnings.extend(reading.hotness.warnings());
    gather(reading.format, files, &reading.hotness, warnings)
}

fn gather(format: Format, files: Vec<String>, hotness: &hotness::Hotness, warnings: Vec<String>) -> Routing {
    let by_layers: Vec<Balance> = hotness.counts.iter().map(Balance::of).collect();
    let seen = by_layers.iter().filter(|b| b.choices > 0);
    // The first of equals: `max_by` would take the last.
    let worst = seen.rev().max_by(|a, b| a.max_over_mean.total_cmp(&b.max_over_mean));
    Routing {
        model: None,
        format: format.name(),
        described: format.describe(),
        files,
        fingerprint: hotness.fingerprint.clone(),
        layers: hotness.layers,
        experts: hotness.experts,
        experts_used: None,
        tokens: Some(hotness.tokens).filter(|n| *n > 0),
        worst_layer: worst.map(|b| b.layer),
        unused_experts: by_layers.iter().map(|b| b.unused.len() as u64).sum(),
        by_layers,
        warnings,
    }
}

impl Routing {
    /// For people.
    pub(super) fn text(&self) -> String {
        let files = match self.files.as_slice() {
            [one] => one.clone(),
            many => format!("sum of {} files", many.len()),
        };
        let mut out = wrap(&format!("{files}: {}", self.described), 2) + "\n";
        let mut line = |label: &str, text: String| {
            out += &wrap(&format!("  {label:<10}{text}"), 12);
            out.push('\n');
        };
        let unknown = "not given; counts are not compared with one".to_string();
        line("model", self.model.clone().unwrap_or(unknown));
        let used = self.experts_used.map_or(String::new(), |n| format!(", {n} for each token"));
        let layers = units::plural(self.by_layers.len() as u64, "layer");
        line("experts", format!("{} in each of {layers}{used}", self.experts));
        let tokens = self.tokens.map_or("the file does not say how many".into(), units::count);
        line("tokens", tokens);
        if let Some(worst) = self.by_layers.iter().find(|b| Some(b.layer) == self.worst_layer) {
            let expert = worst.top.first().map_or(0, |t| t.expert);
            let times = worst.max_over_mean;
            line("worst", format!("layer {}: expert {expert} has {times:.2} times the mean", worst.layer));
        }
        line("unused", units::plural(self.unused_experts, "expert"));
        self.warnings.iter().for_each(|warning| line("warning", warning.clone()));
        out.push('\n');
        out + &self.table() + "effective: experts that an even spread of the same entropy would use\n"
    }

    fn table(&self) -> String {
        let right = Align::Right;
        let mut table = Table::new(&[
            ("layer", right),
            ("max/mean", right),
            ("CV", right),
            ("effective", right),
            ("unused", right),
            ("least %", right),
            ("most %", right),
            ("most used", Align::Left),
        ]);
        for b in &self.by_layers {
            let layer = b.layer.to_string();
            if b.choices == 0 {
                let none = || "-".to_string();
                table.row([layer, none(), none(), none(), none(), none(), none(), "no token seen".into()]);
                continue;
            }
            let top: Vec<String> = b.top.iter().take(TOP).map(|t| t.expert.to_string()).collect();
            table.row([
                layer,
                format!("{:.2}", b.max_over_mean),
                format!("{:.2}", b.variation),
                format!("{:.1}", b.effective_experts),
                b.unused.len().to_string(),
                format!("{:.2}", b.least_share * 100.0),
                format!("{:.2}", b.most_share * 100.0),
                top.join(", "),
            ]);
        }
        table.render()
    }
}
