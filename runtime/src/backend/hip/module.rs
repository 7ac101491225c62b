//! Kernels: a code object for each generation of cards, and launches.

use super::card::HipCard;
use crate::backend::device::driver::calls::{Arg, Found, Handle, Launch};
use gantry_kernels::hip::CODE;
use hip_sys::{Code, Hip, function as attribute};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::PoisonError;

/// Most arguments of a kernel.
const MOST: usize = 40;

/// Loads the code object for the card's generation; nothing where there is none.
pub(super) fn load(card: &HipCard) -> Result<Option<Handle>, Code> {
    let Some((_, code)) = CODE.iter().find(|(generation, _)| *generation == card.generation) else {
        return Ok(None);
    };
    // HIP reads headers of it as 64-bit numbers, and may read on as long as it is loaded.
    let word = |c: &[u8]| {
        let mut word = [0; 8];
        word[..c.len()].copy_from_slice(c);
        u64::from_ne_bytes(word)
    };
    let image: Vec<u64> = code.chunks(8).map(word).collect();
    let mut module = null_mut();
    // SAFETY: the image is whole, as the compiler wrote it, and stays until the module is unloaded.
    unsafe { card.hip.module_load(&raw mut module, image.as_ptr().cast()) }?;
    card.images.lock().unwrap_or_else(PoisonError::into_inner).push((module as Handle, image));
    Ok(Some(module as Handle))
}

/// # Safety
/// The module was loaded by this card, and is not used any more.
pub(super) unsafe fn unload(card: &HipCard, kernels: Handle) {
    // SAFETY: the caller's promise.
    let _ = unsafe { card.hip.module_unload(kernels as hip_sys::Module) };
    card.images.lock().unwrap_or_else(PoisonError::into_inner).retain(|(module, _)| *module != kernels);
}

/// # Safety
/// The module lives.
pub(super) unsafe fn function(hip: &Hip, kernels: Handle, name: &str) -> Result<Option<Found>, Code> {
    let Ok(text) = CString::new(name) else { return Ok(None) };
    let mut found = null_mut();
    // SAFETY: the caller's promise; the name ends with a zero.
    match unsafe { hip.module_function(&raw mut found, kernels as hip_sys::Module, text.as_ptr()) } {
        Err(Code::NOT_FOUND) => return Ok(None),
        done => done?,
    }
    // SAFETY: the function was just found.
    let group = unsafe { ask(hip, found as Handle, attribute::MAX_THREADS_PER_BLOCK) }?;
    Ok(Some(Found { function: found as Handle, group: group.max(1) }))
}

/// # Safety
/// The function's module lives.
unsafe fn ask(hip: &Hip, function: Handle, attribute: c_int) -> Result<u32, Code> {
    let mut value = 0;
    // SAFETY: the caller's promise; it writes one integer.
    unsafe { hip.function_attribute(&raw mut value, attribute, function as hip_sys::Function) }?;
    Ok(u32::try_from(value).unwrap_or(0))
}

/// Bytes of shared memory that a group may have beside what its kernel declares: nobody has to ask for them here.
///
/// # Safety
/// The function's module lives.
pub(super) unsafe fn room(hip: &Hip, function: Handle, most: u32) -> Result<u32, Code> {
    // SAFETY: the caller's promise.
    let own = unsafe { ask(hip, function, attribute::SHARED_SIZE_BYTES) }?;
    Ok(most.saturating_sub(own))
}

/// Kernels start when all that the stream had before is done.
///
/// # Safety
/// As [`Card::launch`](crate::backend::device::driver::calls::Card).
///
/// # Panics
/// More than 40 arguments.
pub(super) unsafe fn launch(hip: &Hip, stream: Handle, launch: &Launch<'_>) -> Result<(), Code> {
    assert!(launch.args.len() <= MOST, "{} arguments", launch.args.len());
    // HIP reads as many bytes of each as the kernel declares.
    let mut words = [0u64; MOST];
    let mut pointers = [null_mut::<c_void>(); MOST];
    for ((word, pointer), arg) in words.iter_mut().zip(&mut pointers).zip(launch.args) {
        *word = match arg {
            Arg::U64(n) => *n,
            Arg::U32(n) => (*n).into(),
            Arg::F32(x) => x.to_bits().into(),
            // No kernel of this family takes one.
            Arg::Map(_) => return Err(Code::NOT_SUPPORTED),
        };
        *pointer = std::ptr::from_mut(word).cast();
    }
    let [x, y, z] = launch.grid;
    let function = launch.function as hip_sys::Function;
    let (stream, pointers) = (stream as hip_sys::Stream, pointers.as_mut_ptr());
    // SAFETY: the function's module lives; the pointers live as long as the call; the caller vouches for the arguments.
    unsafe { hip.launch(function, x, y, z, launch.group, 1, 1, launch.shared, stream, pointers, null_mut()) }
}
