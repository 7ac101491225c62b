//! Kernels on the processor, through OpenCL.

use crate::driver::{lock, lose};
use crate::kernel::{Arg, Launch};
use gantry_cpu_device::{Argument, Devices, Error, INTEL, Program, Queue};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// One for each card, opened when the first module is built. A thread that waits for a kernel's end runs other kernels of
/// the same device meanwhile: one that waits for this thread's card would never end.
static DEVICES: LazyLock<Result<Vec<Devices>, Error>> = LazyLock::new(|| {
    let cards = lock().settings.cards;
    Devices::apart(INTEL, cards)
});

/// What was built, by card and the hash of what it is built of.
static BUILT: Mutex<BTreeMap<(usize, String), Arc<Program>>> = Mutex::new(BTreeMap::new());

fn devices(card: usize) -> Result<&'static Devices, String> {
    let all = DEVICES.as_ref().map_err(ToString::to_string)?;
    all.get(card).ok_or_else(|| format!("no device for card {card}"))
}

/// Options that mean nothing to a processor: its addresses always have 64 bits, and it has the registers that it has.
const FLAGS: [&str; 2] = ["-ze-opt-greater-than-4GB-buffer-required", "-ze-intel-enable-auto-large-GRF-mode"];

/// Builds SPIR-V, or takes what an earlier process built of it; or what the compiler says.
pub(crate) fn build(card: usize, il: &[u8], flags: &str) -> Result<Arc<Program>, String> {
    if let Some(unknown) = flags.split_whitespace().find(|flag| !FLAGS.contains(flag)) {
        return Err(format!("unknown option {unknown}"));
    }
    let devices = devices(card)?;
    let version = devices.version().map_err(|e| e.to_string())?;
    let mut hasher = blake3::Hasher::new();
    let parts = [il, version.as_bytes()];
    for part in parts {
        hasher.update(part).update(b"\0");
    }
    let name = hasher.finalize().to_hex().to_string();
    // Another module of the same waits for it.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (card, name.clone());
    if let Some(program) = built.get(&key) {
        return Ok(Arc::clone(program));
    }
    let cache = lock().settings.cache.clone();
    let file = cache.as_ref().map(|folder| Path::new(folder).join(&name));
    let kept = file.as_ref().and_then(|file| std::fs::read(file).ok());
    let kept = kept.and_then(|binary| devices.build_binary("SPIR-V", &binary).ok());
    let program = match kept {
        Some(program) => program,
        None => {
            let program = devices.build_il("SPIR-V", il, "").map_err(|e| e.to_string())?;
            // Without room for it the next process builds it again.
            if let (Some(file), Ok(binary)) = (&file, program.binary()) {
                let part = file.with_extension(std::process::id().to_string());
                let _ = std::fs::write(&part, binary).and_then(|()| std::fs::rename(&part, file));
            }
            program
        }
    };
    let program = Arc::new(program);
    built.insert(key, Arc::clone(&program));
    Ok(program)
}

/// Runs a launch; what goes wrong loses the card, and is told where it is no test's wish.
pub(crate) fn run(launch: &Launch, card: usize, queue: &mut Option<Queue>) -> Result<(), Option<String>> {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    let turn = LAUNCHES.fetch_add(1, Ordering::SeqCst) + 1;
    let (lost, flip) = {
        let settings = &lock().settings;
        (settings.lost, settings.flip)
    };
    if lost == Some(turn) {
        lose(card);
        return Ok(());
    }
    let Some(code) = &launch.code else { return Ok(()) };
    if let (Some(flip), "gantry_blake3") = (flip, &*launch.name) {
        flip_bit(launch, flip);
    }
    let queue = match queue {
        Some(queue) => queue,
        None => {
            let devices = devices(card).map_err(Some)?;
            queue.insert(devices.queue(0).map_err(|e| Some(e.to_string()))?)
        }
    };
    let args = launch.args.iter().map(|arg| match arg {
        Arg::Address(at) => Argument::Address(*at),
        Arg::Value(word, bytes) => Argument::Value(&word[..*bytes]),
    });
    // SAFETY: addresses lie in allocations, which are not freed before this is done.
    let done = unsafe { queue.run(code, launch.grid, &args.collect::<Vec<_>>()) };
    done.map_err(|e| Some(e.to_string()))
}

/// Bytes of a stretch's description in `kernels/device/blake3.c`: where it begins, then its first chunk, then its length.
const DESCRIBED: usize = 24;
const LENGTH_AT: usize = 16;

/// Changes a bit of the byte at `flip` of what is hashed, once, as soon as a launch hashes it.
fn flip_bit(launch: &Launch, flip: u64) {
    static FLIPPED: AtomicBool = AtomicBool::new(false);
    let [Arg::Address(memory), Arg::Address(stretches), ..] = launch.args[..] else { return };
    for stretch in 0..launch.grid[0] as usize {
        let at = stretches as usize + stretch * DESCRIBED;
        // SAFETY: the kernel reads as many descriptions there.
        let (start, bytes) = unsafe {
            let word = std::ptr::with_exposed_provenance::<u64>(at).read_unaligned();
            (word, std::ptr::with_exposed_provenance::<u32>(at + LENGTH_AT).read_unaligned())
        };
        let is_in = flip.checked_sub(start).is_some_and(|at| at < u64::from(bytes));
        if is_in && !FLIPPED.swap(true, Ordering::SeqCst) {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>((memory + flip) as usize);
            // SAFETY: the kernel reads it.
            unsafe { *byte ^= 1 };
        }
    }
}
