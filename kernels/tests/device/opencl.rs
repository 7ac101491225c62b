//! An OpenCL device: PoCL's is this processor. With `GANTRY_DEVICE=spirv` one that takes SPIR-V, which gets the modules that
//! this crate has for Level Zero: Intel's runtime for processors does.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{self, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{self, CL_MEM_COPY_HOST_PTR, CL_MEM_READ_WRITE, ClMem};
use opencl3::program::Program;
use opencl3::types::cl_device_id;

use crate::launch::{Device, Value, intel_sources, source_files, sources};

/// The device and what is built for it.
pub(crate) struct OpenCl {
    device: cl_device_id,
    context: Context,
    queue: CommandQueue,
    /// Kernels by name.
    kernels: RefCell<BTreeMap<String, Kernel>>,
    /// What is built when one of its kernels is first asked for: to build all takes most of a minute.
    later: BTreeMap<&'static str, Later>,
}

/// A module with its kernels.
#[derive(Clone, Copy)]
struct Later {
    name: &'static str,
    kernels: &'static [&'static str],
    /// None where it is built from its source in `opencl`.
    spirv: Option<&'static [u8]>,
}

// SAFETY: a device id is a name that any thread may use; the others are `Send` themselves.
unsafe impl Send for OpenCl {}

/// What the drivers are told of every source.
fn options() -> String {
    let folders =
        [sources(), sources().with_file_name("opencl")].map(|folder| format!(" -I {}", folder.display()));
    format!("-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -Werror{}", folders.concat())
}

/// Held while anything is asked of OpenCL: PoCL refuses memory while it makes another context.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text(e: opencl3::error_codes::ClError) -> String {
    e.to_string()
}

impl OpenCl {
    /// Builds all sources of `device` and `opencl`.
    pub(crate) fn new() -> Result<Self, String> {
        let open = Self::open(|_| true)?;
        for file in source_files(&sources()).into_iter().chain(source_files(&intel_sources())) {
            open.add_file(&file, "", &[]);
        }
        Ok(open)
    }

    /// Builds these, with further options.
    pub(crate) fn of(files: &[PathBuf], options: &str) -> Result<Self, String> {
        let open = Self::open(|_| true)?;
        for file in files {
            open.add_file(file, options, &[]);
        }
        Ok(open)
    }

    /// Builds one source.
    pub(crate) fn of_source(source: &str) -> Result<Self, String> {
        let open = Self::open(|_| true)?;
        open.add_source(source, source, "", &[]);
        Ok(open)
    }

    /// Has the modules that Level Zero gets, but for those that need matrix instructions, which are built from their sources.
    #[cfg(feature = "level-zero")]
    pub(crate) fn of_spirv() -> Result<Self, String> {
        let takes = |device: &device::Device| device.il_version().is_ok_and(|v| v.contains("SPIR-V_1.0"));
        let mut open = Self::open(takes).map_err(|e| format!("no OpenCL device takes SPIR-V 1.0 ({e})"))?;
        if gantry_kernels::level_zero::SPIRV.is_empty() {
            return Err("this was built without clang: there is no SPIR-V".into());
        }
        for module in gantry_kernels::level_zero::SPIRV {
            let spirv = module.sub_group.is_none().then_some(module.spirv);
            let later = Later { name: module.name, kernels: module.kernels, spirv };
            for name in module.kernels {
                assert!(open.later.insert(name, later).is_none(), "two kernels are called {name}");
            }
        }
        Ok(open)
    }

    #[cfg(not(feature = "level-zero"))]
    pub(crate) fn of_spirv() -> Result<Self, String> {
        Err("these tests were built without the feature level-zero: there is no SPIR-V".into())
    }

    /// The first processor that will do, PoCL's before others, else the first device.
    fn open(fits: impl Fn(&device::Device) -> bool) -> Result<Self, String> {
        let mut devices = get_all_devices(CL_DEVICE_TYPE_CPU).unwrap_or_default();
        devices.extend(get_all_devices(CL_DEVICE_TYPE_ALL).map_err(text)?);
        let is_pocl = |device: &cl_device_id| {
            device::Device::new(*device).version().is_ok_and(|version| version.contains("PoCL"))
        };
        let (pocl, others): (Vec<_>, Vec<_>) = devices.into_iter().partition(is_pocl);
        let device = pocl.into_iter().chain(others).find(|device| fits(&device::Device::new(*device)));
        let device = device.ok_or("the platforms have no such device")?;
        let context = Context::from_device(&device::Device::new(device)).map_err(text)?;
        let queue = CommandQueue::create_default_with_properties(&context, 0, 0).map_err(text)?;
        Ok(OpenCl { device, context, queue, kernels: RefCell::default(), later: BTreeMap::new() })
    }

    fn add_later(&self, later: Later) {
        match later.spirv {
            Some(spirv) => {
                let program = Program::create_from_il(&self.context, spirv).expect("a program");
                self.add(later.name, program, "", later.kernels);
            }
            None => {
                let mut files = source_files(&intel_sources()).into_iter();
                let file = files.find(|file| file.file_stem().is_some_and(|s| s == later.name));
                self.add_file(&file.expect("the source of a module"), "", later.kernels);
            }
        }
    }

    fn add_file(&self, file: &Path, options: &str, names: &[&str]) {
        let source = std::fs::read_to_string(file).expect("a source");
        self.add_source(&file.display().to_string(), &source, options, names);
    }

    fn add_source(&self, what: &str, source: &str, more: &str, names: &[&str]) {
        let program = Program::create_from_source(&self.context, source).expect("a program");
        self.add(what, program, &format!("{} {more}", options()), names);
    }

    /// Builds a program and takes its kernels: the `names`, or all that it says it has.
    fn add(&self, what: &str, mut program: Program, options: &str, names: &[&str]) {
        let built = program.build(&[self.device], options);
        let log = program.get_build_log(self.device).unwrap_or_default();
        assert!(built.is_ok() && is_quiet(&log), "{what}: {built:?}\n{log}");
        let all = program.kernel_names().to_owned();
        let names = if names.is_empty() { all.split(';').collect() } else { names.to_vec() };
        for name in names {
            let kernel = Kernel::create(&program, name).expect("a kernel of its program");
            let other = self.kernels.borrow_mut().insert(name.to_owned(), kernel);
            assert!(other.is_none(), "two kernels are called {name}");
        }
    }
}

/// Whether a build's log warns of nothing: Intel's tells at length what it does.
fn is_quiet(log: &str) -> bool {
    let log = log.trim_matches([' ', '\n', '\0']);
    let told = log.starts_with("Compilation started") && !log.contains("warning:");
    log.is_empty() || told
}

impl Device for OpenCl {
    type Buffer = memory::Buffer<u8>;

    fn buffer(&self, bytes: &[u8]) -> Self::Buffer {
        let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
        let from = bytes.as_ptr().cast_mut().cast::<c_void>();
        // SAFETY: the bytes are copied, not changed, before the call returns.
        unsafe { memory::Buffer::create(&self.context, flags, bytes.len(), from) }
            .expect("memory for a buffer")
    }

    fn bytes(&self, buffer: &Self::Buffer, into: &mut [u8]) {
        // SAFETY: the call blocks until the bytes are there, and is an error where the buffer holds fewer.
        unsafe { self.queue.enqueue_read_buffer(buffer, 1, 0, into, &[]) }.expect("a buffer is read");
    }

    #[track_caller]
    fn run(
        &self,
        name: &str,
        (grid, threads): ([usize; 3], Option<usize>),
        args: &[Value<'_, Self::Buffer>],
    ) {
        assert!(threads.is_none(), "{name}: groups of kernels in OpenCL have one size");
        if let Some(later) = self.later.get(name).filter(|_| !self.kernels.borrow().contains_key(name)) {
            self.add_later(*later);
        }
        let kernels = self.kernels.borrow();
        let kernel = kernels.get(name).unwrap_or_else(|| panic!("no kernel {name}"));
        assert_eq!(
            kernel.num_args().expect("a kernel's arguments") as usize,
            args.len(),
            "arguments of {name}"
        );
        let group = kernel.get_compile_work_group_size(self.device).expect("a kernel's group size");
        assert!(group[0] > 1 && group[0] <= 1024 && group[1..] == [1, 1], "{name}: a group of {group:?}");
        let mut run = ExecuteKernel::new(kernel);
        // SAFETY: the number of arguments is right, a mismatch of size is an error, and buffers live until the queue
        // has finished. That the kernel stays inside of them is what guards are for.
        unsafe {
            for arg in args {
                match arg {
                    Value::U64(value) => run.set_arg(value),
                    Value::U32(value) => run.set_arg(value),
                    Value::F32(value) => run.set_arg(value),
                    Value::Buffer(buffer) => run.set_arg(&buffer.get()),
                    Value::Tiles(..) => panic!("{name}: OpenCL copies no tiles"),
                    Value::Null => run.set_arg(&null_mut::<c_void>()),
                };
            }
            run.set_local_work_sizes(&group);
            run.set_global_work_sizes(&[grid[0] * group[0], grid[1], grid[2]]);
            run.enqueue_nd_range(&self.queue).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        self.queue.finish().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
