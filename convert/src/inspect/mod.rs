//! `gantry inspect`: what a container or a GGUF holds, from its index alone; weights are read for one tensor only.

mod hex;
mod items;
mod layout;
mod memory;
mod metadata;
mod placement;
mod routing;
mod summary;
mod tensor;
mod tensors;
#[cfg(test)]
mod tests;

use crate::failure::Refusal;
use crate::kv::KvType;
use crate::weights::Opened;
use crate::{output, partial};
use clap::{Args, ValueEnum};
use gantry_formats::exit::Exit;
use std::mem::ManuallyDrop;
use std::path::PathBuf;

/// Show what a container or a GGUF holds
///
/// Without options a summary: model, files, totals per type, role, layer and card, memory per card. Of a file of token
/// counts, how evenly experts are used.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  gantry inspect model.gantry\n  gantry inspect model.gguf --tensors --filter 'blk.0.*' --sort bytes\n  gantry inspect model.gantry --tensor blk.0.ffn_down.weight\n  gantry inspect model.gantry --metadata --json\n  gantry inspect --layout i8.frag.nv_a32\n  gantry inspect model.gantry --tensor output.weight --hex --bytes 64\n  gantry inspect model.gantry --routing model.imatrix.gguf\n  gantry inspect moe.gantry --placement\n  gantry inspect moe.gantry --placement --hotness counts.json --report placement.html"
)]
pub(crate) struct InspectArgs {
    /// A container (its index file) or a GGUF (any shard of a set), or a file of token counts
    #[arg(required_unless_present_any = ["layout", "routing"])]
    file: Option<PathBuf>,
    /// Draw a layout: which source element sits at which byte
    #[arg(long, value_name = "NAME", group = "view", conflicts_with = "file")]
    layout: Option<String>,
    /// How evenly tokens are spread over experts, from measured counts: JSON of Gantry, an importance matrix (GGUF), or
    /// SGLang's CSV; several files are summed
    #[arg(long, value_name = "FILE", num_args = 1.., group = "view")]
    routing: Vec<PathBuf>,
    /// Which card holds which expert of a container, and what each card is expected to compute
    #[arg(long, group = "view")]
    placement: bool,
    /// With --placement: counts of tokens by expert, to set what they give against what was expected
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "placement")]
    hotness: Vec<PathBuf>,
    /// With --placement: also write it as one HTML file
    #[arg(long, value_name = "FILE.html", requires = "placement")]
    report: Option<PathBuf>,
    /// With --report: replace a file that exists
    #[arg(long, requires = "report")]
    force: bool,
    /// List the tensors as they are stored
    #[arg(long, group = "view")]
    tensors: bool,
    /// List the metadata, long values shortened
    #[arg(long, group = "view")]
    metadata: bool,
    /// Statistics of one tensor's values, and where they lie
    #[arg(long, value_name = "NAME", group = "view")]
    tensor: Option<String>,
    /// With --tensor: its stored bytes instead
    #[arg(long, requires = "tensor")]
    hex: bool,
    /// With --hex: the first byte
    #[arg(long, value_name = "BYTE", default_value_t = 0, requires = "hex")]
    at: u64,
    /// With --hex: how many
    #[arg(long, value_name = "N", default_value_t = 256, requires = "hex")]
    bytes: u64,
    /// With --hex: of which expert
    #[arg(long, value_name = "N", default_value_t = 0, requires = "hex")]
    expert: u32,
    /// With --tensors or --metadata: only names that match, `*` and `?` allowed
    #[arg(long, value_name = "GLOB")]
    filter: Option<String>,
    /// With --tensors: the order
    #[arg(long, value_enum, default_value_t = Sort::Offset)]
    sort: Sort,
    /// With --metadata: whole values; with --tensor: every expert; with --placement: every layer and card
    #[arg(long)]
    full: bool,
    /// Positions that the KV cache is estimated for [default: the model's context, at most 4096]
    #[arg(long, value_name = "N")]
    context: Option<u64>,
    /// Type of the KV cache in that estimate [default: f32]
    #[arg(long, value_enum)]
    kv: Option<KvType>,
    /// One JSON document
    #[arg(long)]
    json: bool,
}

/// Order of `--tensors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By name, numbers in it by value
    Name,
    /// Largest first
    Bytes,
    /// By layer, then name
    Layer,
    /// As they lie: by card or shard, then offset
    Offset,
    /// By type or layout, then name
    Type,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> anyhow::Result<()> {
    if let Some(name) = &args.layout {
        let layout = layout::parse(name)?;
        return if args.json {
            output::json("inspect layout", &layout::to_json(layout))
        } else {
            Ok(output::text(&layout::text(layout))?)
        };
    }
    let Some(file) = &args.file else {
        return match args.routing.is_empty() {
            true => Err(Refusal::new(Exit::Usage, "no file given")),
            false => show_routing(&routing::of(&args.routing, None)?, args.json),
        };
    };
    let plain = !args.tensors
        && !args.metadata
        && !args.placement
        && args.tensor.is_none()
        && args.routing.is_empty();
    if plain && let Some(routing) = routing::of_text(file)? {
        return show_routing(&routing, args.json);
    }
    // The program ends after this: freeing tens of thousands of names would take as long as half of the reading.
    let opened = ManuallyDrop::new(Opened::open(file)?);
    if !args.routing.is_empty() {
        return show_routing(&routing::of(&args.routing, Some((&opened, file)))?, args.json);
    }
    if args.placement {
        return show_placement(args, &opened);
    }
    if plain && let Some(routing) = routing::of_imatrix(&opened, file) {
        return show_routing(&routing, args.json);
    }
    let headers = opened.headers();
    let Some(&header) = headers.first() else {
        return Err(Refusal::new(Exit::Input, "no metadata: the container was made of no file"));
    };
    if let Some(name) = args.tensor.as_ref().filter(|_| args.hex) {
        let range = hex::Range { at: args.at, bytes: args.bytes, expert: args.expert };
        let dump = hex::dump(&opened, name, range)?;
        return if args.json {
            output::json("inspect hex", &dump.to_json())
        } else {
            Ok(output::text(&dump.text())?)
        };
    }
    if let Some(name) = &args.tensor {
        let view = tensor::view(&opened, name, args.full)?;
        return if args.json {
            output::json("inspect tensor", &view.to_json())
        } else {
            Ok(output::text(&view.text())?)
        };
    }
    if args.metadata {
        let rows = metadata::rows(&headers, args.filter.as_deref());
        return if args.json {
            output::json("inspect metadata", &metadata::to_json(&rows, args.full))
        } else {
            Ok(output::text(&metadata::text(&rows, args.full))?)
        };
    }
    let items = items::of(&opened);
    if args.tensors {
        let list = tensors::select(items, args.filter.as_deref(), args.sort);
        return if args.json {
            output::json("inspect tensors", &tensors::to_json(&list))
        } else {
            Ok(output::text(&tensors::text(&list))?)
        };
    }
    let memory = memory::estimate(&opened, header, args.context, args.kv);
    let summary = summary::of(&opened, &headers, &items, memory, file);
    if args.json { output::json("inspect", &summary) } else { Ok(output::text(&summary.text())?) }
}

fn show_placement(args: &InspectArgs, opened: &Opened) -> anyhow::Result<()> {
    let Opened::Container(container) = opened else {
        let text = "a GGUF is placed on no cards; gantry plan shows how it would be";
        return Err(Refusal::new(Exit::Usage, text));
    };
    let kv = placement::kv_by_card(opened, args.context, args.kv);
    let view = placement::of(container, &kv, &args.hotness)?;
    if let Some(path) = &args.report {
        let files: Vec<PathBuf> = container.files().collect();
        partial::check_not_input(path, files.iter().chain(&args.hotness).map(PathBuf::as_path))?;
        placement::write_html(&view, path, args.force)?;
    }
    if args.json {
        output::json("inspect placement", &view.to_json())
    } else {
        Ok(output::text(&view.text(args.full))?)
    }
}

fn show_routing(routing: &routing::Routing, json: bool) -> anyhow::Result<()> {
    if json { output::json("inspect routing", routing) } else { Ok(output::text(&routing.text())?) }
}

pub(crate) use metadata::short as short_value;

/// The views of a container without their output.
#[cfg(test)]
pub(crate) fn quietly(path: &std::path::Path, tensor: &str) -> anyhow::Result<String> {
    let opened = Opened::open(path)?;
    let headers = opened.headers();
    let items = items::of(&opened);
    let memory = memory::estimate(&opened, headers[0], Some(u64::MAX), Some(KvType::F32));
    let summary = summary::of(&opened, &headers, &items, memory, path).text();
    let list = tensors::text(&tensors::select(items, None, Sort::Name));
    Ok(summary + &list + &tensor::view(&opened, tensor, false)?.text())
}
