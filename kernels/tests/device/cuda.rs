//! A CUDA device, for who has one: `GANTRY_DEVICE=cuda GANTRY_NVCC=... cargo test -p gantry-kernels --test device`.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use dlopen2::raw::Library;

use crate::launch::{Device, Tiles, Value, source_files, sources};
use crate::nvcc::{compile, nvcc};

type Ptr = *mut c_void;
type Status = c_int;

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`: the group of a kernel, which its launch bounds state.
const MAX_THREADS: c_int = 0;

/// `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`, `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, and
/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
const OWN_SHARED: c_int = 1;
const MAX_SHARED: c_int = 8;
const CARD_SHARED: c_int = 97;

/// Bytes of shared memory that a group of `threads` needs beside what the kernel declares, where it may have `most`.
fn shared_of(kernel: &str, threads: u32, most: u32) -> u32 {
    let e8 = ["gantry_decode_e8_planar_", "gantry_decode_experts_e8_planar_"];
    let tokens = e8.iter().find_map(|start| kernel.strip_prefix(start)?.parse::<u32>().ok());
    let tables = tokens.map(|tokens| 256 * 256 + threads / 32 * ((8 * 36 + 2 * 8) * 4 * tokens + 32 * 16));
    tables.unwrap_or_else(|| gantry_kernels::room::room(kernel).on(most))
}

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// A `CUtensorMap`.
#[repr(C, align(128))]
struct Map([u64; 16]);

/// The driver's functions that are needed here, as cuda.h declares them.
struct Driver {
    _library: Library,
    memory_allocate: unsafe extern "C" fn(*mut u64, usize) -> Status,
    memory_free: unsafe extern "C" fn(u64) -> Status,
    to_device: unsafe extern "C" fn(u64, *const c_void, usize) -> Status,
    to_host: unsafe extern "C" fn(Ptr, u64, usize) -> Status,
    set_current: unsafe extern "C" fn(Ptr) -> Status,
    synchronize: unsafe extern "C" fn() -> Status,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, Ptr) -> Status,
    set_attribute: unsafe extern "C" fn(Ptr, c_int, c_int) -> Status,
    #[allow(clippy::type_complexity)]
    encode: unsafe extern "C" fn(
        *mut Map,
        c_int,
        c_uint,
        Ptr,
        *const u64,
        *const u64,
        *const c_uint,
        *const c_uint,
        c_int,
        c_int,
        c_int,
        c_int,
    ) -> Status,
    #[allow(clippy::type_complexity)]
    launch: unsafe extern "C" fn(
        Ptr,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        Ptr,
        *mut Ptr,
        *mut Ptr,
    ) -> Status,
}

/// The first device and what is built for it.
pub(crate) struct Cuda {
    driver: Driver,
    context: Ptr,
    /// By name.
    kernels: BTreeMap<String, Kernel>,
}

/// A kernel, the threads of its groups, and the shared memory that one may have beside what it declares.
#[derive(Clone, Copy)]
struct Kernel {
    kernel: Ptr,
    group: u32,
    room: u32,
}

// SAFETY: handles of the driver are good on any thread that has made their context its own, which `run` and the others
// do.
unsafe impl Send for Cuda {}

/// Memory of the device.
pub(crate) struct Memory {
    at: u64,
    free: unsafe extern "C" fn(u64) -> Status,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `Cuda::buffer`, freed once.
        unsafe { (self.free)(self.at) };
    }
}

#[track_caller]
fn check(status: Status, what: &str) {
    assert!(status == 0, "{what}: CUDA error {status}");
}

/// 10 x major + minor of the first device.
pub(crate) fn generation() -> u32 {
    let [major, minor] = CAPABILITY.map(|which| of_card(which) as u32);
    10 * major + minor
}

/// An attribute of the first device.
fn of_card(which: c_int) -> c_int {
    let library = Library::open("libcuda.so.1").expect("the CUDA driver");
    // SAFETY: each name is that of a function of this type in cuda.h; the driver writes one integer at the pointer.
    unsafe {
        let init: unsafe extern "C" fn(c_uint) -> Status = library.symbol("cuInit").expect("cuInit");
        let get: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> Status =
            library.symbol("cuDeviceGetAttribute").expect("cuDeviceGetAttribute");
        check(init(0), "cuInit");
        let mut value = 0;
        check(get(&mut value, which, 0), "cuDeviceGetAttribute");
        value
    }
}

impl Cuda {
    /// Builds all sources.
    pub(crate) fn new() -> Self {
        let nvcc = nvcc().expect("GANTRY_DEVICE=cuda needs nvcc: set GANTRY_NVCC");
        let library = Library::open("libcuda.so.1").expect("the CUDA driver");
        let folder = tempfile::tempdir().expect("a folder for what is compiled");
        // SAFETY: each name is that of a function of this type in cuda.h; pointers are good for each call.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> Status = library.symbol("cuInit").expect("cuInit");
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> Status =
                library.symbol("cuDeviceGet").expect("cuDeviceGet");
            let retain: unsafe extern "C" fn(*mut Ptr, c_int) -> Status =
                library.symbol("cuDevicePrimaryCtxRetain").expect("cuDevicePrimaryCtxRetain");
            let load: unsafe extern "C" fn(*mut Ptr, *const c_void) -> Status =
                library.symbol("cuModuleLoadData").expect("cuModuleLoadData");
            let function: unsafe extern "C" fn(*mut Ptr, Ptr, *const c_char) -> Status =
                library.symbol("cuModuleGetFunction").expect("cuModuleGetFunction");
            let driver = Driver {
                memory_allocate: library.symbol("cuMemAlloc_v2").expect("cuMemAlloc_v2"),
                memory_free: library.symbol("cuMemFree_v2").expect("cuMemFree_v2"),
                to_device: library.symbol("cuMemcpyHtoD_v2").expect("cuMemcpyHtoD_v2"),
                to_host: library.symbol("cuMemcpyDtoH_v2").expect("cuMemcpyDtoH_v2"),
                set_current: library.symbol("cuCtxSetCurrent").expect("cuCtxSetCurrent"),
                synchronize: library.symbol("cuCtxSynchronize").expect("cuCtxSynchronize"),
                attribute: library.symbol("cuFuncGetAttribute").expect("cuFuncGetAttribute"),
                set_attribute: library.symbol("cuFuncSetAttribute").expect("cuFuncSetAttribute"),
                encode: library.symbol("cuTensorMapEncodeTiled").expect("cuTensorMapEncodeTiled"),
                launch: library.symbol("cuLaunchKernel").expect("cuLaunchKernel"),
                _library: library,
            };
            let (mut device, mut context) = (0, null_mut());
            check(init(0), "cuInit");
            check(get(&mut device, 0), "cuDeviceGet");
            check(retain(&mut context, device), "cuDevicePrimaryCtxRetain");
            check((driver.set_current)(context), "cuCtxSetCurrent");
            // Of Hopper what only Hopper has, as the build script does.
            let arch = match generation() {
                90 => "-gencode=arch=compute_90a,code=sm_90a".to_owned(),
                _ => "-arch=native".to_owned(),
            };
            let (mut kernels, most) = (BTreeMap::new(), of_card(CARD_SHARED));
            for file in source_files(&sources()).into_iter().chain(cuda_files()) {
                let (code, _) = compile(&nvcc, &file, folder.path(), std::slice::from_ref(&arch));
                let mut module = null_mut();
                check(load(&mut module, code.as_ptr().cast()), "cuModuleLoadData");
                for name in names(&file) {
                    let symbol = CString::new(name.as_str()).expect("a name");
                    let (mut kernel, mut group) = (null_mut(), 0);
                    check(function(&mut kernel, module, symbol.as_ptr()), &name);
                    check((driver.attribute)(&mut group, MAX_THREADS, kernel), &name);
                    let mut own = 0;
                    check((driver.attribute)(&mut own, OWN_SHARED, kernel), &name);
                    let room = most - own;
                    check((driver.set_attribute)(kernel, MAX_SHARED, room), &name);
                    kernels.insert(name, Kernel { kernel, group: group as u32, room: room as u32 });
                }
            }
            Cuda { driver, context, kernels }
        }
    }

    /// What a kernel is told of a matrix that it copies by tiles: as bytes, or where a tile has many of them in a row by eight.
    fn map(&self, memory: &Memory, tiles: Tiles) -> Map {
        const SWAPPED: c_int = 3; // CU_TENSOR_MAP_SWIZZLE_128B
        let (kind, each) = if tiles.tile[1] > 256 { (5, 8) } else { (0, 1) };
        let dims = [tiles.width as u64 / each, tiles.rows as u64];
        let (strides, tile) = ([tiles.width as u64], [tiles.tile[1] / each as u32, tiles.tile[0]]);
        let (steps, swizzle) = ([1; 2], if tiles.swapped { SWAPPED } else { 0 });
        let mut map = Map([0; 16]);
        // SAFETY: the driver reads two numbers of each and writes the map.
        let status = unsafe {
            let (dims, strides, tile) = (dims.as_ptr(), strides.as_ptr(), tile.as_ptr());
            let at = memory.at as usize as Ptr;
            (self.driver.encode)(&mut map, kind, 2, at, dims, strides, tile, steps.as_ptr(), 0, swizzle, 3, 0)
        };
        check(status, "cuTensorMapEncodeTiled");
        map
    }

    fn make_current(&self) {
        // SAFETY: the context is retained as long as the process lives.
        check(unsafe { (self.driver.set_current)(self.context) }, "cuCtxSetCurrent");
    }
}

/// The sources that are for CUDA alone.
fn cuda_files() -> Vec<std::path::PathBuf> {
    let folder = sources().with_file_name("cuda");
    let files = std::fs::read_dir(folder).expect("kernels/cuda").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "cu")).collect();
    files.sort();
    files
}

/// The kernels that a source defines: every word `gantry_*` before a parenthesis or a comma, outside of comments.
fn names(file: &std::path::Path) -> Vec<String> {
    let source = std::fs::read_to_string(file).expect("a source");
    let mut found = Vec::new();
    let mut rest = source.as_str();
    while let Some(at) = rest.find("gantry_") {
        let line = &rest[..at];
        let comment = line.rfind("/*").is_some_and(|open| line[open..].find("*/").is_none())
            || line.rfind("//").is_some_and(|open| line[open..].find('\n').is_none());
        let end =
            rest[at..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').expect("an end of a name");
        let name = &rest[at..at + end];
        if !comment && matches!(&rest[at + end..at + end + 1], "(" | ",") {
            found.push(name.to_owned());
        }
        rest = if comment {
            // The rest of the line, or of the comment.
            let line_only = line.rfind("//").is_some_and(|open| line[open..].find('\n').is_none());
            let end = if line_only { "\n" } else { "*/" };
            rest[at..].split_once(end).map_or("", |(_, after)| after)
        } else {
            &rest[at + end..]
        };
    }
    assert!(!found.is_empty() && sources().is_dir(), "no kernels in {}", file.display());
    found
}

impl Device for Cuda {
    type Buffer = Memory;

    fn buffer(&self, bytes: &[u8]) -> Memory {
        self.make_current();
        let mut at = 0;
        // SAFETY: the memory is as long as what is copied.
        unsafe {
            check((self.driver.memory_allocate)(&mut at, bytes.len()), "cuMemAlloc");
            check((self.driver.to_device)(at, bytes.as_ptr().cast(), bytes.len()), "cuMemcpyHtoD");
        }
        Memory { at, free: self.driver.memory_free }
    }

    fn bytes(&self, buffer: &Memory, into: &mut [u8]) {
        self.make_current();
        // SAFETY: the buffer was made as long.
        check(
            unsafe { (self.driver.to_host)(into.as_mut_ptr().cast(), buffer.at, into.len()) },
            "cuMemcpyDtoH",
        );
    }

    #[track_caller]
    fn run(&self, name: &str, (grid, threads): ([usize; 3], Option<usize>), args: &[Value<'_, Memory>]) {
        self.make_current();
        let Kernel { kernel, group, room } =
            *self.kernels.get(name).unwrap_or_else(|| panic!("no kernel {name}"));
        let mut maps: Vec<Option<Map>> = args
            .iter()
            .map(|arg| match arg {
                Value::Tiles(memory, tiles) => Some(self.map(memory, *tiles)),
                _ => None,
            })
            .collect();
        let mut words: Vec<u64> = args
            .iter()
            .map(|arg| match arg {
                Value::Buffer(memory) => memory.at,
                Value::Null | Value::Tiles(..) => 0,
                Value::U64(v) => *v,
                Value::U32(v) => u64::from(*v),
                Value::F32(v) => u64::from(v.to_bits()),
            })
            .collect();
        let params = words.iter_mut().zip(&mut maps).map(|(word, map)| match map {
            Some(map) => std::ptr::from_mut(map).cast(),
            None => std::ptr::from_mut(word).cast(),
        });
        let mut params: Vec<Ptr> = params.collect();
        let group = threads.map_or(group, |n| n as c_uint);
        let shared = shared_of(name, group, room);
        let [x, y, z] = grid.map(|n| n as c_uint);
        let extra = null::<Ptr>().cast_mut();
        // SAFETY: each argument has a word, of which the kernel reads the low bytes that are its own; buffers live until
        // the kernel has ended.
        unsafe {
            let params = params.as_mut_ptr();
            let status =
                (self.driver.launch)(kernel, x, y, z, group, 1, 1, shared, null_mut(), params, extra);
            check(status, name);
            check((self.driver.synchronize)(), name);
        }
    }
}
