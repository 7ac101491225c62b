//! Writes how often each expert was used: what `gantry` places experts by.

use super::failure::Refusal;
use super::output;
use gantry_formats::exit::Exit;
use gantry_formats::hotness::{self, Format, Hotness, RoutedModel};
use gantry_runtime::{Container, Model};
use std::path::{Path, PathBuf};

/// A record in the making.
pub(crate) struct Record {
    file: PathBuf,
    model: RoutedModel,
}

impl Record {
    /// A record of `container` that goes to `file`, where one is wanted. Refused before anything is computed: a
    /// model without experts, and a file that cannot be written.
    pub(crate) fn of(container: &Container, file: Option<&Path>) -> anyhow::Result<Option<Self>> {
        let Some(file) = file else { return Ok(None) };
        let model = RoutedModel::of_container(container)?;
        // Not after a long run.
        output::check("--record-hotness", file)?;
        if file.exists() && !matches!(hotness::read(&[file.into()]), Ok(r) if r.format == Format::Json) {
            let text = format!(
                "{} exists and holds no counts that this program wrote; name another for --record-hotness",
                file.display()
            );
            return Err(Refusal::error(Exit::Usage, text));
        }
        Ok(Some(Self { file: file.into(), model }))
    }

    /// Writes the counts of `model` so far, in a file that takes its name in the end.
    pub(crate) fn write(self, model: &Model) -> anyhow::Result<()> {
        let mut hotness = Hotness::new(&self.model);
        let routed = model.routed().unwrap_or_default();
        for layer in &mut hotness.counts {
            let Some(counts) = routed.get(layer.layer as usize).filter(|c| !c.is_empty()) else { continue };
            layer.counts.clone_from(counts);
            // Every token takes as many experts in each layer.
            let tokens = counts.iter().sum::<u64>() / u64::from(self.model.used.max(1));
            hotness.tokens = hotness.tokens.max(tokens);
        }
        output::replace(&self.file, hotness.to_json().as_bytes())?;
        eprintln!("wrote the use of experts by {} tokens to {}", hotness.tokens, self.file.display());
        Ok(())
    }
}
