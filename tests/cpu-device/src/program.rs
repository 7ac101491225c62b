//! Programs and their kernels.

use crate::Error;
use crate::device::Shared;
use opencl3::kernel::{
    CL_KERNEL_ARG_ADDRESS_CONSTANT, CL_KERNEL_ARG_ADDRESS_GLOBAL, CL_KERNEL_ARG_ADDRESS_QUALIFIER,
    CL_KERNEL_ARG_TYPE_NAME, CL_KERNEL_COMPILE_WORK_GROUP_SIZE, CL_KERNEL_NUM_ARGS, create_kernel,
    get_kernel_arg_data, get_kernel_arg_info, get_kernel_info, get_kernel_work_group_data, release_kernel,
};
use opencl3::program::{
    CL_PROGRAM_BINARIES, CL_PROGRAM_BUILD_LOG, build_program, create_program_with_binary,
    create_program_with_il, create_program_with_source, get_program_build_data, get_program_info,
    release_program,
};
use opencl3::types::{cl_device_id, cl_kernel, cl_program};
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex};

/// A program that was built for all cards.
#[derive(Debug)]
pub struct Program {
    shared: Arc<Shared>,
    program: cl_program,
    name: String,
}

// SAFETY: programs of OpenCL may be used by any thread.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made below, released once; its kernels keep what they need.
        let _ = unsafe { release_program(self.program) };
    }
}

impl Program {
    pub(crate) fn of_source(
        shared: &Arc<Shared>,
        name: &str,
        text: &str,
        options: &str,
    ) -> Result<Self, Error> {
        let made = create_program_with_source(shared.context, &[text]);
        Self::build(shared, name, made, &format!("{options} -cl-kernel-arg-info -Werror"))
    }

    pub(crate) fn of_il(shared: &Arc<Shared>, name: &str, il: &[u8], options: &str) -> Result<Self, Error> {
        Self::build(shared, name, create_program_with_il(shared.context, il), options)
    }

    pub(crate) fn of_binary(shared: &Arc<Shared>, name: &str, binary: &[u8]) -> Result<Self, Error> {
        let devices = distinct(shared);
        let binaries = vec![binary; devices.len()];
        // SAFETY: a binary for each device.
        let made = unsafe { create_program_with_binary(shared.context, &devices, &binaries) };
        Self::build(shared, name, made, "")
    }

    /// The program as it was built, for the first card's device.
    ///
    /// # Errors
    /// What OpenCL says.
    pub fn binary(&self) -> Result<Vec<u8>, Error> {
        let binaries = get_program_info(self.program, CL_PROGRAM_BINARIES);
        let binaries = binaries.map_err(Error::refused(format!("the binary of {}", self.name)))?;
        Ok(binaries.to_vec_vec_uchar().into_iter().next().unwrap_or_default())
    }

    fn build(
        shared: &Arc<Shared>,
        name: &str,
        made: Result<cl_program, i32>,
        options: &str,
    ) -> Result<Self, Error> {
        let program = made.map_err(Error::refused(name))?;
        // From here on it is released with it.
        let built = Self { shared: Arc::clone(shared), program, name: name.into() };
        let options = CString::new(options)
            .map_err(|_| Error::Build { name: name.into(), log: "options with a zero byte".into() })?;
        let devices = distinct(shared);
        match build_program(program, &devices, &options, None, std::ptr::null_mut()) {
            Ok(()) => Ok(built),
            Err(code) => {
                let log =
                    get_program_build_data(program, devices[0], CL_PROGRAM_BUILD_LOG).unwrap_or_default();
                let log = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
                Err(Error::Build { name: name.into(), log: format!("{code}: {log}") })
            }
        }
    }

    /// One of its kernels, to be run on any card.
    ///
    /// # Errors
    /// [`Error::NoKernel`]
    pub fn kernel(&self, name: &str) -> Result<Kernel, Error> {
        let none = |_| Error::NoKernel { program: self.name.clone(), name: name.into() };
        let text = CString::new(name).map_err(|_| none(0))?;
        let kernel = create_kernel(self.program, &text).map_err(none)?;
        let mut made = Kernel {
            shared: Arc::clone(&self.shared),
            setting: Mutex::new(()),
            kernel,
            name: name.into(),
            group: [0; 3],
            parameters: Vec::new(),
        };
        made.group = made.compiled_group(self.shared.cards[0])?;
        made.parameters = made.ask_parameters()?;
        Ok(made)
    }
}

fn distinct(shared: &Shared) -> Vec<cl_device_id> {
    let mut devices = shared.cards.clone();
    devices.sort_unstable();
    devices.dedup();
    devices
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// An address of memory.
    Address,
    /// A value of so many bytes.
    Value(usize),
    /// The platform does not tell.
    Unknown,
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    shared: Arc<Shared>,
    /// Held while arguments are set and the kernel is enqueued with them.
    pub(crate) setting: Mutex<()>,
    pub(crate) kernel: cl_kernel,
    pub(crate) name: String,
    group: [usize; 3],
    parameters: Vec<Parameter>,
}

// SAFETY: a kernel of OpenCL may be used by any thread; what is for one thread at a time is done under `setting`.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: made in `Program::kernel`, released once.
        let _ = unsafe { release_kernel(self.kernel) };
        // It is the context's, which lives until here.
        let _ = &self.shared;
    }
}

impl Kernel {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Members of a group that it was compiled for, in three directions; zeros where any will do.
    pub fn group(&self) -> [usize; 3] {
        self.group
    }

    /// What it takes, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn compiled_group(&self, device: cl_device_id) -> Result<[usize; 3], Error> {
        let what = || Error::refused(format!("the group of {}", self.name));
        let bytes = get_kernel_work_group_data(self.kernel, device, CL_KERNEL_COMPILE_WORK_GROUP_SIZE);
        let bytes = bytes.map_err(what())?;
        let (words, _) = bytes.as_chunks::<8>();
        let mut group = [0; 3];
        group.iter_mut().zip(words).for_each(|(to, word)| *to = usize::from_ne_bytes(*word));
        Ok(group)
    }

    fn ask_parameters(&self) -> Result<Vec<Parameter>, Error> {
        let what = || Error::refused(format!("the parameters of {}", self.name));
        let count = get_kernel_info(self.kernel, CL_KERNEL_NUM_ARGS).map_err(what())?.to_uint();
        Ok((0..count).map(|i| self.parameter(i)).collect())
    }

    /// Platforms tell of parameters only where the program was built so.
    fn parameter(&self, index: u32) -> Parameter {
        let space = get_kernel_arg_info(self.kernel, index, CL_KERNEL_ARG_ADDRESS_QUALIFIER);
        let name = get_kernel_arg_data(self.kernel, index, CL_KERNEL_ARG_TYPE_NAME);
        let (Ok(space), Ok(name)) = (space, name) else { return Parameter::Unknown };
        if [CL_KERNEL_ARG_ADDRESS_GLOBAL, CL_KERNEL_ARG_ADDRESS_CONSTANT].contains(&space.to_uint()) {
            return Parameter::Address;
        }
        match CStr::from_bytes_until_nul(&name).map(CStr::to_bytes) {
            Ok(b"char" | b"uchar") => Parameter::Value(1),
            Ok(b"short" | b"ushort" | b"half") => Parameter::Value(2),
            Ok(b"int" | b"uint" | b"float") => Parameter::Value(4),
            Ok(b"long" | b"ulong" | b"double") => Parameter::Value(8),
            _ => Parameter::Unknown,
        }
    }
}
