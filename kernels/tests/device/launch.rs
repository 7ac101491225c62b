//! Runs a device kernel and brings back what it wrote.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::cuda::Cuda;
use crate::opencl::OpenCl;

/// Bytes after each buffer that nobody may change.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// One argument of a kernel.
pub(crate) enum Arg<'a> {
    /// A buffer that is read.
    In(&'a [u8]),
    /// A buffer that is read and written.
    Out(&'a mut [u8]),
    /// No buffer.
    Null,
    U64(u64),
    U32(u32),
    F32(f32),
    /// A matrix that a CUDA device copies by tiles.
    Tiles(&'a [u8], Tiles),
}

/// Rows of `width` bytes side by side, and rows and bytes of a tile; in it, pieces of 16 bytes are swapped over 128 bytes where
/// `swapped`.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    pub(crate) rows: usize,
    pub(crate) width: usize,
    pub(crate) tile: [u32; 2],
    pub(crate) swapped: bool,
}

/// One argument as a device takes it.
pub(crate) enum Value<'a, B> {
    Buffer(&'a B),
    Tiles(&'a B, Tiles),
    Null,
    U64(u64),
    U32(u32),
    F32(f32),
}

/// A device with the kernels built for it.
pub(crate) trait Device {
    type Buffer;

    /// Memory that holds these bytes, aligned to 128.
    fn buffer(&self, bytes: &[u8]) -> Self::Buffer;

    /// What it holds now.
    fn bytes(&self, buffer: &Self::Buffer, into: &mut [u8]);

    /// Runs a kernel to its end; `grid` counts groups.
    /// `threads`: of a group, where they are not all that the kernel was compiled for.
    fn run(&self, kernel: &str, groups: ([usize; 3], Option<usize>), args: &[Value<'_, Self::Buffer>]);
}

/// Numbers that any bytes are.
pub(crate) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u64 {}
impl Plain for u32 {}
impl Plain for u16 {}
impl Plain for u8 {}
impl Plain for i8 {}

/// A buffer that is read.
pub(crate) fn read<T: Plain>(values: &[T]) -> Arg<'_> {
    // SAFETY: plain numbers are bytes, without padding.
    Arg::In(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
}

/// A buffer that is read where there is one.
pub(crate) fn maybe<T: Plain>(values: Option<&[T]>) -> Arg<'_> {
    values.map_or(Arg::Null, read)
}

/// A buffer that is read and written.
pub(crate) fn write<T: Plain>(values: &mut [T]) -> Arg<'_> {
    // SAFETY: plain numbers are bytes, without padding, and any bytes are a plain number.
    Arg::Out(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) })
}

/// Groups that cover `n` members, `group` in each.
pub(crate) fn groups(n: usize, group: usize) -> usize {
    n.div_ceil(group)
}

/// The folder of the device sources.
pub(crate) fn sources() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(here).join("device")
}

/// The folder of Intel's matrix instructions.
pub(crate) fn intel_sources() -> PathBuf {
    sources().with_file_name("opencl")
}

/// The sources of a folder of kernels, sorted by name.
pub(crate) fn source_files(folder: &Path) -> Vec<PathBuf> {
    let files =
        std::fs::read_dir(folder).expect("a folder of kernels").map(|entry| entry.expect("a file").path());
    let is_source = |path: &PathBuf| path.extension().is_some_and(|e| e == "c" || e == "cl");
    let mut files: Vec<_> = files.filter(is_source).collect();
    files.sort();
    assert!(!files.is_empty(), "no sources in {}", folder.display());
    files
}

/// Whether these tests run on a CUDA device. Where they do not, what only such a device has is not tested, which is said;
/// `GANTRY_REQUIRE_CUDA=1` makes that a failure.
#[track_caller]
pub(crate) fn on_a_card() -> bool {
    let cuda = std::env::var_os("GANTRY_DEVICE").is_some_and(|v| v == "cuda");
    let required = std::env::var_os("GANTRY_REQUIRE_CUDA").is_some_and(|v| v == "1");
    assert!(cuda || !required, "no CUDA device: GANTRY_DEVICE is not cuda");
    if !cuda {
        eprintln!("matrix instructions were not run: GANTRY_DEVICE is not cuda");
    }
    cuda
}

/// 10 x major + minor of the CUDA device, 0 where there is none.
pub(crate) fn generation() -> u32 {
    static GENERATION: OnceLock<u32> = OnceLock::new();
    let cuda = std::env::var_os("GANTRY_DEVICE").is_some_and(|v| v == "cuda");
    *GENERATION.get_or_init(|| if cuda { crate::cuda::generation() } else { 0 })
}

/// The device of these tests.
enum Any {
    OpenCl(OpenCl),
    Cuda(Cuda),
}

/// Numbers of 32 bits.
pub(crate) fn u32s<const N: usize>(values: [usize; N]) -> [Arg<'static>; N] {
    values.map(|v| Arg::U32(v as u32))
}

/// Runs a kernel: with `GANTRY_DEVICE=cuda` on the first CUDA device; with `GANTRY_DEVICE=spirv` from the SPIR-V that Level Zero gets, on
/// an OpenCL device that takes it; else from its source, where there is an OpenCL device. Where there is none it says why
/// and gives `false`, which `GANTRY_REQUIRE_OPENCL=1`, or for SPIR-V `GANTRY_REQUIRE_SPIRV=1`, makes a failure. `grid` counts groups.
#[track_caller]
pub(crate) fn launch(kernel: &str, grid: [usize; 3], args: &mut [Arg<'_>]) -> bool {
    launch_groups(kernel, (grid, None), args)
}

/// The same with groups of fewer threads than the kernel was compiled for, where it takes them.
#[track_caller]
pub(crate) fn launch_groups(kernel: &str, grid: ([usize; 3], Option<usize>), args: &mut [Arg<'_>]) -> bool {
    static DEVICE: OnceLock<Result<Mutex<Any>, String>> = OnceLock::new();
    let _alone = crate::opencl::alone();
    let device = DEVICE.get_or_init(|| {
        let wanted = std::env::var("GANTRY_DEVICE").unwrap_or_default();
        let device = match wanted.as_str() {
            "cuda" => Ok(Any::Cuda(Cuda::new())),
            "spirv" => OpenCl::of_spirv().map(Any::OpenCl),
            "" | "opencl" => OpenCl::new().map(Any::OpenCl),
            other => panic!("GANTRY_DEVICE is {other}: cuda, spirv or opencl"),
        };
        device.map(Mutex::new)
    });
    match device {
        Ok(device) => {
            match &*device.lock().unwrap_or_else(PoisonError::into_inner) {
                Any::OpenCl(device) => run(device, kernel, grid, args),
                Any::Cuda(device) => run(device, kernel, grid, args),
            }
            true
        }
        Err(why) => {
            assert!(!required(), "no OpenCL device: {why}");
            eprintln!("{kernel} was not run, there is no OpenCL device: {why}");
            false
        }
    }
}

/// Whether tests fail where what they run on is missing.
pub(crate) fn required() -> bool {
    ["GANTRY_REQUIRE_OPENCL", "GANTRY_REQUIRE_SPIRV"]
        .iter()
        .any(|name| std::env::var_os(name).is_some_and(|v| v == "1"))
}

thread_local! {
    /// How often launches are repeated, and how many of each kernel were.
    static REPEATS: RefCell<(usize, BTreeMap<String, usize>)> = const { RefCell::new((0, BTreeMap::new())) };
}

/// Launches of a kernel that are repeated.
const REPEATED: usize = 3;

/// Does something while the first launches of each kernel are repeated `times` from the same bytes, and must write the same
/// ones; gives the kernels that were.
pub(crate) fn repeating(times: usize, work: impl FnOnce()) -> Vec<String> {
    REPEATS.with_borrow_mut(|r| *r = (times, BTreeMap::new()));
    work();
    REPEATS.with_borrow_mut(|r| std::mem::take(r).1.into_keys().collect())
}

fn repeats(name: &str) -> usize {
    REPEATS.with_borrow_mut(|(times, seen)| {
        if *times == 0 {
            return 0;
        }
        let count = seen.entry(name.to_owned()).or_default();
        *count += 1;
        if *count <= REPEATED { *times } else { 0 }
    })
}

/// Runs a kernel on a device, as [`launch`] does.
#[track_caller]
pub(crate) fn run<D: Device>(
    device: &D,
    name: &str,
    grid: ([usize; 3], Option<usize>),
    args: &mut [Arg<'_>],
) {
    let times = repeats(name);
    let before: Vec<Option<Vec<u8>>> = args
        .iter()
        .map(|arg| match arg {
            Arg::Out(bytes) if times > 0 => Some(bytes.to_vec()),
            _ => None,
        })
        .collect();
    once(device, name, grid, args);
    for _ in 0..times {
        let mut copies = before.clone();
        let mut again: Vec<Arg<'_>> = args
            .iter()
            .zip(&mut copies)
            .map(|(arg, copy)| match (arg, copy) {
                (Arg::Out(_), Some(copy)) => Arg::Out(copy),
                (Arg::In(bytes), _) => Arg::In(bytes),
                (Arg::U64(v), _) => Arg::U64(*v),
                (Arg::U32(v), _) => Arg::U32(*v),
                (Arg::F32(v), _) => Arg::F32(*v),
                (Arg::Tiles(bytes, tiles), _) => Arg::Tiles(bytes, *tiles),
                _ => Arg::Null,
            })
            .collect();
        once(device, name, grid, &mut again);
        for (i, (arg, copy)) in args.iter().zip(&copies).enumerate() {
            if let (Arg::Out(bytes), Some(copy)) = (arg, copy) {
                assert!(**bytes == **copy, "{name} wrote other bytes to argument {i} when it was repeated");
            }
        }
    }
}

#[track_caller]
fn once<D: Device>(device: &D, name: &str, grid: ([usize; 3], Option<usize>), args: &mut [Arg<'_>]) {
    let guarded = |bytes: &[u8]| device.buffer(&[bytes, &[GUARD_BYTE; GUARD]].concat());
    let buffers: Vec<Option<D::Buffer>> = args
        .iter()
        .map(|arg| match arg {
            Arg::In(bytes) | Arg::Tiles(bytes, _) => Some(guarded(bytes)),
            Arg::Out(bytes) => Some(guarded(bytes)),
            _ => None,
        })
        .collect();
    let values: Vec<_> = args
        .iter()
        .zip(&buffers)
        .map(|(arg, buffer)| match (arg, buffer) {
            (Arg::Tiles(_, tiles), Some(buffer)) => Value::Tiles(buffer, *tiles),
            (_, Some(buffer)) => Value::Buffer(buffer),
            (Arg::U64(v), None) => Value::U64(*v),
            (Arg::U32(v), None) => Value::U32(*v),
            (Arg::F32(v), None) => Value::F32(*v),
            _ => Value::Null,
        })
        .collect();
    device.run(name, grid, &values);
    for (i, (arg, buffer)) in args.iter_mut().zip(&buffers).enumerate() {
        let (Some(buffer), Arg::In(_) | Arg::Out(_)) = (buffer, &*arg) else { continue };
        let len = match arg {
            Arg::In(bytes) => bytes.len(),
            Arg::Out(bytes) => bytes.len(),
            _ => 0,
        };
        let mut back = vec![0u8; len + GUARD];
        device.bytes(buffer, &mut back);
        let (now, guard) = back.split_at(len);
        assert!(guard.iter().all(|b| *b == GUARD_BYTE), "{name} wrote beyond the end of argument {i}");
        match arg {
            Arg::In(before) => assert!(*before == now, "{name} changed argument {i}"),
            Arg::Out(bytes) => bytes.copy_from_slice(now),
            _ => {}
        }
    }
}
