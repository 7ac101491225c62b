//! Kernels: a module of them, and launches.
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

use super::{Context, CudaError, Stream, TensorMap};
use cudarc::driver::{result, sys};
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// Compiled kernels on a card.
#[derive(Debug)]
pub(crate) struct Module {
    context: Arc<Context>,
    module: sys::CUmodule,
}

// SAFETY: the driver lets any thread use a module.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads a fat binary, of which the driver takes what fits the card.
    ///
    /// # Errors
    /// [`CudaError::NoKernels`] for an empty one; what the driver says.
    pub(crate) fn new(context: &Arc<Context>, fatbin: &[u8]) -> Result<Arc<Self>, CudaError> {
        if fatbin.is_empty() {
            return Err(CudaError::NoKernels);
        }
        context.current()?;
        // The driver reads headers of it as 64-bit numbers.
        let aligned: Vec<u64> = fatbin
            .chunks(8)
            .map(|c| {
                let mut word = [0; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            })
            .collect();
        // SAFETY: the image is whole, as the compiler wrote it, and the driver copies what it keeps.
        let module = unsafe { result::module::load_data(aligned.as_ptr().cast()) };
        let module = module.map_err(|e| context.failed("loading kernels", e))?;
        Ok(Arc::new(Self { context: Arc::clone(context), module }))
    }

    /// The kernel called `name`.
    ///
    /// # Errors
    /// [`CudaError::NoKernel`]; what the driver says.
    pub(crate) fn function(self: &Arc<Self>, name: &str) -> Result<Function, CudaError> {
        self.context.current()?;
        let missing = || CudaError::NoKernel(name.into());
        let text = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the module lives as long as the function, which holds it.
        let function = unsafe { result::module::get_function(self.module, text) };
        let function = function.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_NOT_FOUND => missing(),
            _ => self.context.failed("looking for a kernel", e),
        })?;
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
        // SAFETY: the function was just found.
        let group = unsafe { result::function::get_function_attribute(function, most) };
        let group = group.map_err(|e| self.context.failed("asking for a kernel's group", e))?;
        let module = Arc::clone(self);
        Ok(Function { module, function, group: group.max(1) as u32, shared: 0, name: name.into() })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.current();
        // SAFETY: loaded in `new`, unloaded once.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// A kernel.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    module: Arc<Module>,
    function: sys::CUfunction,
    group: u32,
    /// Bytes of shared memory that a group may have beside what the kernel declares.
    shared: u32,
    name: Arc<str>,
}

// SAFETY: the driver lets any thread launch a kernel.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arg {
    /// An address on the card, or a number of 64 bits.
    U64(u64),
    /// A number of 32 bits.
    U32(u32),
    /// A float.
    F32(f32),
    /// A matrix that is copied by tiles.
    Map(TensorMap),
}

/// When a kernel may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// When all that the stream had before is done.
    After,
    /// As soon as the kernel before it lets it (`BEGIN` in `kernels/device/portable.h`): what does not depend on that one
    /// is then under way already. On cards before sm_90 the same as `After`.
    Early,
}

/// Most arguments of a kernel.
const MOST: usize = 40;

impl Function {
    /// Threads of a group: as many as the kernel was compiled for.
    pub(crate) fn group(&self) -> u32 {
        self.group
    }

    /// Bytes of shared memory that a group may have beside what the kernel declares: none before [`Self::allow_shared`].
    pub(crate) fn shared(&self) -> u32 {
        self.shared
    }

    /// Lets launches ask for as much shared memory as a group may have on the card.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn allow_shared(&mut self) -> Result<(), CudaError> {
        use sys::CUfunction_attribute as Attribute;
        let context = &self.module.context;
        let failed = |e| context.failed(format!("allowing {} its shared memory", self.name), e);
        let own = Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        // SAFETY: the function is the module's, which lives.
        let own = unsafe { result::function::get_function_attribute(self.function, own) }.map_err(failed)?;
        let most = context.info().shared.saturating_sub(own.max(0) as u32);
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(self.function, which, most as i32) }
            .map_err(failed)?;
        self.shared = most;
        Ok(())
    }

    /// Gives the kernel to `stream`: `grid` groups of `group` threads, each with `shared` bytes of shared memory beside what the
    /// kernel declares.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, in order, and all that it does with the addresses among them
    /// stays within allocations that live until the stream is past it. With [`Start::Early`] it waits for what came
    /// before by itself.
    ///
    /// # Errors
    /// What the driver says; errors of the kernel itself come when the stream is waited for.
    ///
    /// # Panics
    /// More than 40 arguments.
    pub(crate) unsafe fn launch(
        &self,
        stream: &Stream,
        grid: [u32; 3],
        (group, shared): (u32, u32),
        start: Start,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        assert!(args.len() <= MOST, "{} arguments", args.len());
        if grid.contains(&0) {
            return Ok(());
        }
        // The driver reads as many bytes of each as the kernel declares.
        let mut words = [0u64; MOST];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MOST];
        for ((word, pointer), arg) in words.iter_mut().zip(&mut pointers).zip(args) {
            *word = match arg {
                Arg::U64(n) => *n,
                Arg::U32(n) => (*n).into(),
                Arg::F32(x) => x.to_bits().into(),
                Arg::Map(map) => {
                    *pointer = std::ptr::from_ref(map).cast_mut().cast();
                    continue;
                }
            };
            *pointer = std::ptr::from_mut(word).cast();
        }
        let context = &self.module.context;
        context.current()?;
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: group,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shared,
            hStream: stream.raw(),
            attrs: &raw mut early,
            numAttrs: u32::from(start == Start::Early && context.info().generation >= 90),
        };
        let (pointers, extra) = (pointers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the function is the module's, which lives; the configuration and the pointers live as long as the
        // call; the caller vouches for the arguments.
        let status = unsafe { sys::cuLaunchKernelEx(&raw const config, self.function, pointers, extra) };
        status.result().map_err(|e| context.failed(format!("launching {}", self.name), e))
    }
}
