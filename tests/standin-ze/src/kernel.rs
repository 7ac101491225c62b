//! Kernels, their arguments, and launches.

use crate::driver::{Code, Driver, alive, call, call_to_free, expect_type, give, read};
use crate::memory::Use;
use crate::spirv::{Entry, Parameter};
use level_zero_sys::*;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

pub(crate) struct Kernel {
    pub(crate) module: usize,
    card: usize,
    name: Arc<str>,
    entry: Entry,
    code: Option<Arc<gantry_cpu_device::Kernel>>,
    group: Option<[u32; 3]>,
    args: Vec<Option<Arg>>,
}

/// An argument that was set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Address(u64),
    /// So many bytes of it.
    Value([u8; 8], usize),
}

/// A kernel with its arguments.
pub(crate) struct Launch {
    pub(crate) name: Arc<str>,
    pub(crate) code: Option<Arc<gantry_cpu_device::Kernel>>,
    pub(crate) grid: [u32; 3],
    pub(crate) args: Vec<Arg>,
}

impl Driver {
    fn kernel(&mut self, handle: usize) -> Result<&mut Kernel, Code> {
        self.kernels.get_mut(&handle).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    }

    /// A launch with the arguments as they are now, and the memory that it uses.
    pub(crate) fn launch(
        &mut self,
        kernel: usize,
        card: usize,
        grid: [u32; 3],
    ) -> Result<(Launch, Vec<Use>), Code> {
        let of = self.kernels.get(&kernel).filter(|kernel| kernel.card == card);
        let of = of.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        if of.group.is_none() || grid.contains(&0) {
            return Err(Code::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
        }
        let args: Option<Vec<Arg>> = of.args.iter().copied().collect();
        let args = args.ok_or(Code::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX)?;
        let addresses = args.iter().filter_map(|arg| match arg {
            Arg::Address(at) if *at != 0 => Some(*at as usize),
            _ => None,
        });
        let uses: Result<Vec<Use>, Code> = addresses.map(|at| self.reached(card, at, 1)).collect();
        if uses.is_err() {
            let what = format!("{} was given an address of no allocation: {args:x?}", of.name);
            self.wrong.push(what);
            return Err(Code::ZE_RESULT_ERROR_INVALID_ARGUMENT);
        }
        let launch = Launch { name: Arc::clone(&of.name), code: of.code.clone(), grid, args };
        Ok((launch, uses?))
    }
}

pub(crate) unsafe extern "C" fn zeKernelCreate(
    module: usize,
    desc: *const ze_kernel_desc_t,
    to: *mut usize,
) -> ze_result_t {
    call("zeKernelCreate", |driver| {
        let handle = driver.handle();
        let of = driver.modules.get(&module).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?;
        alive(of.card)?;
        // SAFETY: the caller's pointer, to one structure.
        let desc = unsafe { read(desc) }?;
        expect_type(desc.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_DESC)?;
        if desc.pKernelName.is_null() {
            return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER);
        }
        // SAFETY: the caller's text, which ends with a zero.
        let name = unsafe { CStr::from_ptr(desc.pKernelName) }.to_string_lossy();
        let entry = of.entries.get(&*name).ok_or(Code::ZE_RESULT_ERROR_INVALID_KERNEL_NAME)?.clone();
        let code = match &of.program {
            None => None,
            Some(program) => {
                let code = program.kernel(&name).map_err(|_| Code::ZE_RESULT_ERROR_INVALID_KERNEL_NAME)?;
                Some(Arc::new(code))
            }
        };
        let args = vec![None; entry.parameters.len()];
        let kernel = Kernel { module, card: of.card, name: (&*name).into(), entry, code, group: None, args };
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(to, handle) }?;
        driver.kernels.insert(handle, kernel);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeKernelDestroy(kernel: usize) -> ze_result_t {
    call_to_free("zeKernelDestroy", |driver| {
        driver.kernels.remove(&kernel).map(|_| ()).ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)
    })
}

pub(crate) unsafe extern "C" fn zeKernelSetArgumentValue(
    kernel: usize,
    index: u32,
    bytes: usize,
    value: *const c_void,
) -> ze_result_t {
    call("zeKernelSetArgumentValue", |driver| {
        let of = driver.kernel(kernel)?;
        let parameter = of.entry.parameters.get(index as usize).copied();
        let parameter = parameter.ok_or(Code::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX)?;
        let size = match parameter {
            Parameter::Address => 8,
            Parameter::Value(bytes) => bytes,
            Parameter::Other => return Err(Code::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE),
        };
        if bytes != size || bytes > 8 {
            return Err(Code::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE);
        }
        let mut word = [0; 8];
        if !value.is_null() {
            // SAFETY: the caller has so many bytes there.
            unsafe { std::ptr::copy_nonoverlapping(value.cast(), word.as_mut_ptr(), bytes) };
        } else if parameter != Parameter::Address {
            return Err(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER);
        }
        let arg = match parameter {
            Parameter::Address => Arg::Address(u64::from_le_bytes(word)),
            _ => Arg::Value(word, bytes),
        };
        of.args[index as usize] = Some(arg);
        Ok(())
    })
}

/// Only the size that the kernel was compiled for.
pub(crate) unsafe extern "C" fn zeKernelSetGroupSize(kernel: usize, x: u32, y: u32, z: u32) -> ze_result_t {
    call("zeKernelSetGroupSize", |driver| {
        let most = driver.settings.group;
        let of = driver.kernel(kernel)?;
        if of.entry.group.is_some_and(|group| group != [x, y, z]) || x * y * z > most || x * y * z == 0 {
            return Err(Code::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION);
        }
        of.group = Some([x, y, z]);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn zeKernelGetProperties(
    kernel: usize,
    to: *mut ze_kernel_properties_t,
) -> ze_result_t {
    call("zeKernelGetProperties", |driver| {
        let sub_group = driver.settings.sub_groups.iter().copied().max().unwrap_or(1);
        let entry = &driver.kernel(kernel)?.entry;
        // SAFETY: the caller's pointer, to one structure.
        let to = unsafe { to.as_mut() }.ok_or(Code::ZE_RESULT_ERROR_INVALID_NULL_POINTER)?;
        expect_type(to.stype, ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES)?;
        to.numKernelArgs = entry.parameters.len() as u32;
        [to.requiredGroupSizeX, to.requiredGroupSizeY, to.requiredGroupSizeZ] =
            entry.group.unwrap_or_default();
        (to.requiredNumSubGroups, to.requiredSubgroupSize) = (0, entry.sub_group);
        let members = entry.group.map_or(1, |[x, y, z]| x * y * z);
        (to.maxSubgroupSize, to.maxNumSubgroups) = (sub_group, members.div_ceil(sub_group));
        (to.localMemSize, to.privateMemSize, to.spillMemSize) = (0, 0, 0);
        Ok(())
    })
}
