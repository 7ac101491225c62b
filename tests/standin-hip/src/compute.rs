//! Kernels by name, from their portable sources, on this processor.

use crate::launch::Launch;
use crate::settings::settings;
use gantry_cpu_device::{Argument, Devices, Kernel, POCL, Program, Queue, flat};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

/// Where portable kernels are.
const FOLDERS: [&str; 2] = ["device", "hip"];

/// A look at a flag takes a processor about 10 ns.
const OPTIONS: &str = "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -D LOOK=10";

/// The matrix instruction that `kernels/hip/mma.h` emulates for a generation.
fn instruction(generation: &str) -> &'static str {
    match generation {
        "gfx90a" => "MMA_CDNA2",
        "gfx942" | "gfx950" => "MMA_CDNA3",
        "gfx928" => "MMA_GFX928",
        "gfx1100" => "MMA_RDNA3",
        _ => "MMA_RDNA4",
    }
}

/// A source, which is built when one of its kernels is looked for.
struct Source {
    name: String,
    text: String,
    built: OnceLock<Result<Program, String>>,
}

struct Computer {
    devices: Devices,
    sources: Vec<Source>,
    kernels: Mutex<BTreeMap<String, Arc<Kernel>>>,
}

static COMPUTER: LazyLock<Result<Computer, String>> = LazyLock::new(Computer::new);

thread_local! {
    /// This thread's queue, and the card that it is of.
    static QUEUE: RefCell<Option<(usize, Queue)>> = const { RefCell::new(None) };
}

/// Runs a kernel to its end.
pub(crate) fn run(card: usize, launch: &Launch) -> Result<(), String> {
    let computer = COMPUTER.as_ref()?;
    let kernel = computer.kernel(launch.name())?;
    let args: Vec<Argument<'_>> = launch
        .arguments()
        .enumerate()
        .map(|(i, (address, bytes))| match address {
            true => Argument::Address(launch.number(i)),
            false => Argument::Value(bytes),
        })
        .collect();
    QUEUE.with_borrow_mut(|queue| {
        if queue.as_ref().is_none_or(|(of, _)| *of != card) {
            *queue = Some((card, computer.devices.queue(card).map_err(|e| e.to_string())?));
        }
        let Some((_, queue)) = queue else { return Ok(()) };
        // SAFETY: addresses begin in allocations, as was seen when it was launched, whose owners keep them until the stream is
        // past it; that kernels stay inside of these is what guards are for.
        unsafe { queue.run(&kernel, launch.grid, &args) }.map_err(|e| e.to_string())
    })
}

impl Computer {
    fn new() -> Result<Self, String> {
        let devices = Devices::open(POCL, settings().cards).map_err(|e| e.to_string())?;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels");
        let mut sources = Vec::new();
        for folder in FOLDERS {
            // Not all there are hold anything.
            let Ok(entries) = std::fs::read_dir(root.join(folder)) else { continue };
            let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            files.retain(|file| file.extension().is_some_and(|e| e == "c"));
            files.sort();
            for file in files {
                let text = flat(&file).map_err(|e| e.to_string())?;
                sources.push(Source { name: file.display().to_string(), text, built: OnceLock::new() });
            }
        }
        Ok(Self { devices, sources, kernels: Mutex::default() })
    }

    fn kernel(&self, name: &str) -> Result<Arc<Kernel>, String> {
        let known = || self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = known().get(name) {
            return Ok(Arc::clone(kernel));
        }
        // Sources that name it first: most kernels are written out where they are, some are made by macros.
        let (naming, others): (Vec<&Source>, _) = self.sources.iter().partition(|s| s.text.contains(name));
        for source in naming.into_iter().chain(others) {
            let options = format!("{OPTIONS} -D{}", instruction(&settings().generation));
            let build =
                || self.devices.build_source(&source.name, &source.text, &options).map_err(|e| e.to_string());
            let program = source.built.get_or_init(build).as_ref()?;
            if let Ok(kernel) = program.kernel(name) {
                let kernel = Arc::new(kernel);
                return Ok(Arc::clone(known().entry(name.to_owned()).or_insert(kernel)));
            }
        }
        Err("no source has it".into())
    }
}
