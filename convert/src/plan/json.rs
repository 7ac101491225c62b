//! The plan for programs.

use super::Plan;
use crate::output::JSON_SCHEMA;
use serde_json::{Value, json};

/// The plan as one JSON document.
pub(crate) fn json(plan: &Plan, needed: u64, free: Option<u64>) -> Value {
    let tensors = plan.tensors.iter().map(|t| {
        json!({
            "name": t.name, "source": plan.sources[t.source].name, "role": t.role, "layer": t.layer, "type": t.ty, "dims": t.dims,
            "source_bytes": t.bytes, "layout": t.layout.to_string(), "exact": t.exact, "fallback": t.fallback,
            "source_copy_bytes": t.with_source.then_some(t.bytes),
        })
    });
    json!({
        "schema": JSON_SCHEMA,
        "command": "plan",
        "model": plan.model,
        "recipe": plan.recipe,
        "target": plan.target,
        "options": plan.options,
        "sources": plan.shards,
        "layouts": plan.layouts.iter().map(|l| l.tag()).collect::<Vec<_>>(),
        "source_tensors": tensors.collect::<Vec<_>>(),
        "tensors": plan.stored,
        "banks": plan.banks,
        "aliases": plan.aliases,
        "cards": plan.cards,
        "placement": plan.placement.json(),
        "context": plan.context,
        "split_cards": plan.skeleton.split_cards,
        "disk": { "needed": needed, "free": free },
        "warnings": plan.warnings,
        "notes": plan.notes,
    })
}
