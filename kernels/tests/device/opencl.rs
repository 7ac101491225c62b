//! Runs a device kernel on an OpenCL device and brings back what it wrote.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock};

use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, Device, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{Buffer, CL_MEM_COPY_HOST_PTR, CL_MEM_READ_WRITE, ClMem};
use opencl3::program::Program;
use opencl3::types::cl_device_id;

/// Bytes after each buffer that nobody may change.
const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xa5;

/// The device and what is built for it.
pub(crate) struct OpenCl {
    device: cl_device_id,
    context: Context,
    queue: CommandQueue,
    /// Kernels by name.
    kernels: BTreeMap<String, Kernel>,
}

// SAFETY: a device id is a name that any thread may use; the others are `Send` themselves.
unsafe impl Send for OpenCl {}

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

pub(crate) fn sources() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("device")
}

/// The device sources, sorted by name.
pub(crate) fn source_files() -> Vec<PathBuf> {
    let files =
        std::fs::read_dir(sources()).expect("kernels/device").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "c")).collect();
    files.sort();
    assert!(!files.is_empty(), "no sources in {}", sources().display());
    files
}

/// Runs a kernel where there is an OpenCL device; says why and gives `false` where there is none, which
/// `GANTRY_REQUIRE_OPENCL=1` makes a failure. `grid` counts groups.
#[track_caller]
pub(crate) fn launch(kernel: &str, grid: [usize; 3], args: &mut [Arg<'_>]) -> bool {
    static OPENCL: OnceLock<Result<Mutex<OpenCl>, String>> = OnceLock::new();
    match OPENCL.get_or_init(|| OpenCl::new().map(Mutex::new)) {
        Ok(opencl) => {
            let opencl = opencl.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            opencl.launch(kernel, grid, args);
            true
        }
        Err(why) => {
            let required = std::env::var_os("GANTRY_REQUIRE_OPENCL").is_some_and(|v| v == "1");
            assert!(!required, "no OpenCL device: {why}");
            eprintln!("{kernel} was not run, there is no OpenCL device: {why}");
            false
        }
    }
}

impl OpenCl {
    /// Builds all sources.
    fn new() -> Result<Self, String> {
        let mut devices = get_all_devices(CL_DEVICE_TYPE_CPU).unwrap_or_default();
        if devices.is_empty() {
            devices = get_all_devices(CL_DEVICE_TYPE_ALL).map_err(|e| e.to_string())?;
        }
        let device = *devices.first().ok_or("the platforms have no device")?;
        let text = |e: opencl3::error_codes::ClError| e.to_string();
        let context = Context::from_device(&Device::new(device)).map_err(text)?;
        let queue = CommandQueue::create_default_with_properties(&context, 0, 0).map_err(text)?;
        let mut kernels = BTreeMap::new();
        let include = sources();
        let options =
            format!("-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -Werror -I {}", include.display());
        for file in source_files() {
            let source = std::fs::read_to_string(&file).expect("a source");
            let mut program = Program::create_from_source(&context, &source).map_err(text)?;
            let built = program.build(&[device], &options);
            let log = program.get_build_log(device).unwrap_or_default();
            assert!(built.is_ok() && log.trim().is_empty(), "{}: {built:?}\n{log}", file.display());
            for name in program.kernel_names().split(';') {
                let kernel = Kernel::create(&program, name).expect("a kernel of its program");
                assert!(kernels.insert(name.to_owned(), kernel).is_none(), "two kernels are called {name}");
            }
        }
        Ok(OpenCl { device, context, queue, kernels })
    }

    #[track_caller]
    fn launch(&self, name: &str, grid: [usize; 3], args: &mut [Arg<'_>]) {
        let kernel = self.kernels.get(name).unwrap_or_else(|| panic!("no kernel {name}"));
        assert_eq!(
            kernel.num_args().expect("a kernel's arguments") as usize,
            args.len(),
            "arguments of {name}"
        );
        let group = kernel.get_compile_work_group_size(self.device).expect("a kernel's group size");
        assert!(group[0] > 1 && group[0] <= 256 && group[1..] == [1, 1], "{name}: a group of {group:?}");
        let buffers: Vec<Option<Buffer<u8>>> = args.iter().map(|arg| self.buffer(arg)).collect();
        let mut run = ExecuteKernel::new(kernel);
        // SAFETY: the number of arguments is right, a mismatch of size is an error, and buffers live until the queue
        // has finished. That the kernel stays inside of them is what the guards look at.
        unsafe {
            for (arg, buffer) in args.iter().zip(&buffers) {
                match arg {
                    Arg::U64(value) => run.set_arg(value),
                    Arg::U32(value) => run.set_arg(value),
                    Arg::F32(value) => run.set_arg(value),
                    _ => run.set_arg(&buffer.as_ref().map_or(null_mut::<c_void>(), Buffer::get)),
                };
            }
            run.set_local_work_sizes(&group);
            run.set_global_work_sizes(&[grid[0] * group[0], grid[1], grid[2]]);
            run.enqueue_nd_range(&self.queue).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        self.queue.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
        for (i, (arg, buffer)) in args.iter_mut().zip(&buffers).enumerate() {
            let Some(buffer) = buffer else { continue };
            let len = match arg {
                Arg::In(bytes) => bytes.len(),
                Arg::Out(bytes) => bytes.len(),
                _ => continue,
            };
            let mut back = vec![0u8; len + GUARD];
            // SAFETY: the buffer holds as many bytes.
            unsafe { self.queue.enqueue_read_buffer(buffer, 1, 0, &mut back, &[]) }
                .expect("a buffer is read");
            let (now, guard) = back.split_at(len);
            assert!(guard.iter().all(|b| *b == GUARD_BYTE), "{name} wrote beyond the end of argument {i}");
            match arg {
                Arg::In(before) => assert!(*before == now, "{name} changed argument {i}"),
                Arg::Out(bytes) => bytes.copy_from_slice(now),
                _ => {}
            }
        }
    }

    fn buffer(&self, arg: &Arg<'_>) -> Option<Buffer<u8>> {
        let bytes = match arg {
            Arg::In(bytes) => bytes,
            Arg::Out(bytes) => &**bytes,
            _ => return None,
        };
        let mut all = bytes.to_vec();
        all.resize(bytes.len() + GUARD, GUARD_BYTE);
        let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
        // SAFETY: the bytes are copied before the call returns.
        let buffer = unsafe { Buffer::create(&self.context, flags, all.len(), all.as_mut_ptr().cast()) };
        Some(buffer.expect("memory for a buffer"))
    }
}
