//! How fast something went.

use gantry_runtime::speculate::Counts;
use serde_json::{Value, json};
use std::time::Duration;

/// Tokens in a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speed {
    pub(crate) tokens: usize,
    pub(crate) time: Duration,
}

impl Speed {
    /// Tokens per second; 0 for none.
    pub(crate) fn per_second(self) -> f64 {
        if self.tokens == 0 { 0.0 } else { self.tokens as f64 / self.time.as_secs_f64().max(1e-9) }
    }

    pub(crate) fn json(self) -> Value {
        json!({
            "tokens": self.tokens,
            "seconds": self.time.as_secs_f64(),
            "tokens_per_second": self.per_second(),
        })
    }
}

impl std::fmt::Display for Speed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} token{} in {:.3} s ({:.1} tok/s)",
            self.tokens,
            if self.tokens == 1 { "" } else { "s" },
            self.time.as_secs_f64(),
            self.per_second()
        )
    }
}

/// What loading a model did, for `--json`.
pub(crate) fn load_json(model: &gantry_runtime::Model) -> Value {
    report_json(model.load_report())
}

/// What loading did, for `--json`.
pub(crate) fn report_json(report: &gantry_runtime::load::LoadReport) -> Value {
    let verified = match report.verified {
        gantry_runtime::Verify::Full => "full",
        gantry_runtime::Verify::Device => "device",
        gantry_runtime::Verify::Index => "index",
        gantry_runtime::Verify::None => "none",
    };
    let mode = match report.mode {
        gantry_runtime::LoadMode::Read => "read",
        gantry_runtime::LoadMode::Map => "map",
    };
    let card = |(card, of): (usize, &gantry_runtime::load::CardReport)| {
        json!({
            "card": card,
            "bytes": of.bytes,
            "seconds": of.time.as_secs_f64(),
            "gb_per_second": of.gb_per_s(),
        })
    };
    json!({
        "cards": report.cards.iter().enumerate().map(card).collect::<Vec<_>>(),
        "bytes": report.bytes,
        "seconds": report.time.as_secs_f64(),
        "gb_per_second": report.gb_per_s(),
        "mode": mode,
        "verified": verified,
    })
}

/// What came of drafts, for people.
pub(crate) fn drafts(counts: Counts) -> String {
    let Counts { steps, drafted, accepted } = counts;
    let share = 100.0 * accepted as f64 / (drafted as f64).max(1.0);
    let each = (steps + accepted) as f64 / (steps as f64).max(1.0);
    format!("{accepted} of {drafted} drafted tokens accepted ({share:.1} %), {each:.2} tokens a step")
}

/// What came of drafts, for `--json`.
pub(crate) fn drafts_json(counts: Counts) -> Value {
    json!({ "steps": counts.steps, "drafted": counts.drafted, "accepted": counts.accepted })
}
