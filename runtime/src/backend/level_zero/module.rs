//! Kernels: modules of SPIR-V, which are built when a kernel of theirs is first looked for, and launches.

use super::Limits;
use super::context::Context;
use super::error::{done, refusal, said};
use super::stream::Stream;
use crate::backend::device::driver::calls::{Arg, Done, Found, Handle, Launch};
use gantry_kernels::level_zero::{Module, OPTIONS, SPIRV, module_of};
use level_zero_sys::{
    ze_device_handle_t, ze_group_count_t, ze_kernel_desc_t, ze_kernel_handle_t, ze_kernel_properties_t,
    ze_module_build_log_handle_t, ze_module_desc_t, ze_module_format_t, ze_module_handle_t, ze_result_t,
    ze_structure_type_t,
};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of what a compiler says that are told.
const TOLD: usize = 2000;

/// The kernels of a card.
pub(super) struct Kernels {
    context: Arc<Context>,
    device: Handle,
    limits: Limits,
    built: Mutex<Built>,
}

#[derive(Default)]
struct Built {
    /// By the module's name.
    modules: BTreeMap<&'static str, Handle>,
    /// Kernels stay where they are: their addresses are their handles.
    #[allow(clippy::vec_box, reason = "as said")]
    functions: Vec<Box<Function>>,
}

/// A kernel.
pub(super) struct Function {
    kernel: Handle,
    group: u32,
    /// Held while arguments are set and a list takes them.
    setting: Mutex<()>,
}

impl Kernels {
    /// None where this program was built without any.
    pub(super) fn new(context: &Arc<Context>, device: Handle, limits: Limits) -> Option<Self> {
        let built = Mutex::default();
        (!SPIRV.is_empty()).then(|| Self { context: Arc::clone(context), device, limits, built })
    }

    fn module(&self, modules: &mut BTreeMap<&'static str, Handle>, of: &Module) -> Done<ze_module_handle_t> {
        if let Some(module) = modules.get(of.name) {
            return Ok(*module as ze_module_handle_t);
        }
        let options = CString::new(OPTIONS).unwrap_or_default();
        let desc = ze_module_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_MODULE_DESC,
            pNext: std::ptr::null(),
            format: ze_module_format_t::ZE_MODULE_FORMAT_IL_SPIRV,
            inputSize: of.spirv.len(),
            pInputModule: of.spirv.as_ptr(),
            pBuildFlags: options.as_ptr(),
            pConstants: std::ptr::null(),
        };
        let mut module: ze_module_handle_t = std::ptr::null_mut();
        let mut log: ze_module_build_log_handle_t = std::ptr::null_mut();
        let device = self.device as ze_device_handle_t;
        let Context { ze, .. } = &*self.context;
        // SAFETY: context and device live; the module is whole, as the compiler wrote it.
        let code = unsafe {
            ze.zeModuleCreate(self.context.raw(), device, &raw const desc, &raw mut module, &raw mut log)
        };
        let told = if log.is_null() { String::new() } else { self.told(log) };
        if code == ze_result_t::ZE_RESULT_ERROR_MODULE_BUILD_FAILURE {
            return Err(said(code, format!("{}.c as SPIR-V was refused: {told}", of.name)));
        }
        done(code)?;
        modules.insert(of.name, module as Handle);
        Ok(module)
    }

    /// What a compiler said, of which not too much is told.
    fn told(&self, log: ze_module_build_log_handle_t) -> String {
        let Context { ze, .. } = &*self.context;
        let mut size = 0;
        // SAFETY: the driver gave the log, and without room it says how much is needed; then there is as much. It is
        // destroyed once.
        let text = unsafe {
            let mut text = Vec::new();
            let none = std::ptr::null_mut::<c_char>();
            let mut code = ze.zeModuleBuildLogGetString(log, &raw mut size, none);
            if code == ze_result_t::ZE_RESULT_SUCCESS && size > 0 {
                text.resize(size, 0);
                code = ze.zeModuleBuildLogGetString(log, &raw mut size, text.as_mut_ptr().cast::<c_char>());
            }
            let _ = ze.zeModuleBuildLogDestroy(log);
            if code == ze_result_t::ZE_RESULT_SUCCESS { text } else { Vec::new() }
        };
        let text: Vec<u8> = text.into_iter().take_while(|byte| *byte != 0).take(TOLD).collect();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// The kernel called `name`, or none.
    pub(super) fn function(&self, name: &str) -> Done<Option<Found>> {
        let Some(of) = module_of(name) else { return Ok(None) };
        let Ok(text) = CString::new(name) else { return Ok(None) };
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let module = self.module(&mut built.modules, of)?;
        let desc = ze_kernel_desc_t {
            stype: ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_DESC,
            pNext: std::ptr::null(),
            flags: 0,
            pKernelName: text.as_ptr(),
        };
        let mut kernel: ze_kernel_handle_t = std::ptr::null_mut();
        let Context { ze, .. } = &*self.context;
        // SAFETY: the module lives, and the text ends with a zero.
        match unsafe { ze.zeKernelCreate(module, &raw const desc, &raw mut kernel) } {
            ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_NAME => return Ok(None),
            code => done(code)?,
        }
        // From here on it is destroyed with the others.
        let mut function = Box::new(Function { kernel: kernel as Handle, group: 0, setting: Mutex::new(()) });
        let group = self.prepare(kernel);
        function.group = *group.as_ref().unwrap_or(&0);
        let handle = std::ptr::from_ref(&*function).expose_provenance();
        built.functions.push(function);
        Ok(Some(Found { function: handle, group: group? }))
    }

    /// Chooses the group that a kernel was compiled for; gives its members.
    fn prepare(&self, kernel: ze_kernel_handle_t) -> Done<u32> {
        let Context { ze, .. } = &*self.context;
        // SAFETY: a structure of plain numbers and a null pointer, of which zeros are one.
        let mut of: ze_kernel_properties_t = unsafe { std::mem::zeroed() };
        of.stype = ze_structure_type_t::ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES;
        // SAFETY: the kernel lives, and the structure says what it is.
        done(unsafe { ze.zeKernelGetProperties(kernel, &raw mut of) })?;
        let group = of.requiredGroupSizeX;
        if group > self.limits.group {
            let most = self.limits.group;
            let words = format!("its groups have {group} members, the card takes {most}");
            return Err(said(ze_result_t::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION, words));
        }
        let sub_group = of.requiredSubgroupSize;
        if sub_group > 0 && !self.limits.sub_groups.contains(&sub_group) {
            let sizes: Vec<String> =
                self.limits.sub_groups.iter().filter(|n| **n > 0).map(u32::to_string).collect();
            let words = format!("its sub-groups have {sub_group} members, the card has {}", sizes.join(", "));
            return Err(said(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_SIZE, words));
        }
        // SAFETY: the kernel lives.
        done(unsafe { ze.zeKernelSetGroupSize(kernel, group, 1, 1) })?;
        Ok(group)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let Self { context, built, .. } = self;
        let Built { modules, functions } = built.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made here, destroyed once, kernels before their modules. What the driver says helps nobody.
        unsafe {
            for function in functions.drain(..) {
                let _ = context.ze.zeKernelDestroy(function.kernel as ze_kernel_handle_t);
            }
            for module in modules.values() {
                let _ = context.ze.zeModuleDestroy(*module as ze_module_handle_t);
            }
        }
    }
}

/// Gives a kernel to a stream.
///
/// # Safety
/// The arguments are the kernel's.
pub(super) unsafe fn launch(stream: &Stream, function: &Function, launch: &Launch<'_>) -> Done {
    let Launch { grid: [x, y, z], group, shared, args, .. } = *launch;
    let kernel = function.kernel as ze_kernel_handle_t;
    if group != function.group || shared > 0 {
        return Err(refusal(ze_result_t::ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION));
    }
    let mut giving = stream.give();
    let ze = giving.ze;
    // Arguments are the kernel's until a list takes them, with a copy.
    let _alone = function.setting.lock().unwrap_or_else(PoisonError::into_inner);
    for (index, arg) in args.iter().enumerate() {
        let (word, bytes) = match arg {
            Arg::U64(n) => (*n, 8),
            Arg::U32(n) => ((*n).into(), 4),
            Arg::F32(x) => (x.to_bits().into(), 4),
            Arg::Map(_) => return Err(refusal(ze_result_t::ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE)),
        };
        let word: u64 = word;
        // SAFETY: the kernel lives, and the driver copies as many bytes, of the low end.
        done(unsafe { ze.zeKernelSetArgumentValue(kernel, index as u32, bytes, (&raw const word).cast()) })?;
    }
    let groups = ze_group_count_t { groupCountX: x, groupCountY: y, groupCountZ: z };
    giving.command(|ze, list| {
        // SAFETY: list and kernel live; the caller vouches for the arguments.
        unsafe {
            let none = std::ptr::null_mut();
            ze.zeCommandListAppendLaunchKernel(list, kernel, &raw const groups, none, 0, std::ptr::null_mut())
        }
    })
}
