//! `gantry plan`: what would be written; writes nothing.

use super::{ShapeArgs, header_bytes};
use crate::output;
use crate::plan::{Plan, json, table};
use anyhow::Result;
use clap::Args;
use gantry_formats::gguf::Gguf;
use std::path::Path;

/// Shows what `convert` would write and what each card needs; writes nothing.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  gantry plan model.gguf\n  gantry plan model.gguf --recipe lossless --cards 2 --json\n  gantry plan moe.gguf --cards 24GiB,16GiB,cpu:64GiB --hotness moe.imatrix.gguf\n  gantry plan moe.gguf --cards 8 --placement replicate:4 --hotness counts.json"
)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    shape: ShapeArgs,

    /// One JSON document on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs `gantry plan`.
pub(crate) fn plan(args: &PlanArgs) -> Result<()> {
    let source = Gguf::open(args.shape.input()?)?;
    let plan = Plan::make(&source, &args.shape.options(&source)?)?;
    let needed = plan.disk_bytes(header_bytes(&source));
    let stat = rustix::fs::statvfs(Path::new(".")).ok();
    let free = stat.map(|s| s.f_bavail.saturating_mul(s.f_frsize));
    let text = match args.json {
        true => format!("{:#}\n", json(&plan, needed, free)),
        false => table(&plan, needed, free),
    };
    Ok(output::text(&text)?)
}
