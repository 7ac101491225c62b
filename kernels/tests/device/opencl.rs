//! An OpenCL device: PoCL's is this processor.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr::null_mut;

use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{self, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, get_all_devices};
use opencl3::kernel::{ExecuteKernel, Kernel};
use opencl3::memory::{self, CL_MEM_COPY_HOST_PTR, CL_MEM_READ_WRITE, ClMem};
use opencl3::program::Program;
use opencl3::types::cl_device_id;

use crate::launch::{Device, Value, source_files, sources};

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

impl OpenCl {
    /// Builds all sources of `device`.
    pub(crate) fn new() -> Result<Self, String> {
        Self::of(&source_files(&sources()), "")
    }

    /// Builds these, with further options.
    pub(crate) fn of(files: &[PathBuf], options: &str) -> Result<Self, String> {
        let mut devices = get_all_devices(CL_DEVICE_TYPE_CPU).unwrap_or_default();
        if devices.is_empty() {
            devices = get_all_devices(CL_DEVICE_TYPE_ALL).map_err(|e| e.to_string())?;
        }
        let device = *devices.first().ok_or("the platforms have no device")?;
        let text = |e: opencl3::error_codes::ClError| e.to_string();
        let context = Context::from_device(&device::Device::new(device)).map_err(text)?;
        let queue = CommandQueue::create_default_with_properties(&context, 0, 0).map_err(text)?;
        let mut kernels = BTreeMap::new();
        let options = format!(
            "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -Werror -I {} {options}",
            sources().display()
        );
        for file in files {
            let source = std::fs::read_to_string(file).expect("a source");
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
        let kernel = self.kernels.get(name).unwrap_or_else(|| panic!("no kernel {name}"));
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
