//! Running kernels.

use crate::device::Shared;
use crate::{Error, Kernel, Parameter};
use opencl3::command_queue::{create_command_queue, enqueue_nd_range_kernel, finish, release_command_queue};
use opencl3::event::release_event;
use opencl3::kernel::{set_kernel_arg, set_kernel_arg_svm_pointer};
use opencl3::types::cl_command_queue;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument<'a> {
    /// An address of memory, of its inside too; 0 for none.
    Address(u64),
    /// The bytes of a value.
    Value(&'a [u8]),
}

/// What runs kernels on a card, one after the other.
#[derive(Debug)]
pub struct Queue {
    shared: Arc<Shared>,
    queue: cl_command_queue,
}

// SAFETY: queues of OpenCL may be used by any thread.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: made in `new`, released once.
        let _ = unsafe { release_command_queue(self.queue) };
        // It is the context's, which lives until here.
        let _ = &self.shared;
    }
}

impl Queue {
    pub(crate) fn new(shared: &Arc<Shared>, card: usize) -> Result<Self, Error> {
        // SAFETY: context and device live, and no properties are asked for.
        let queue = unsafe { create_command_queue(shared.context, shared.cards[card], 0) };
        let queue = queue.map_err(Error::refused("making a queue"))?;
        Ok(Self { shared: Arc::clone(shared), queue })
    }

    /// Runs a kernel to its end, in groups of the size that it was compiled for: `grid` of them, none of the numbers 0.
    ///
    /// # Errors
    /// [`Error::Arguments`] where they are not what the kernel takes; what OpenCL says.
    ///
    /// # Safety
    /// What the kernel does with the addresses stays within memory of this process that nobody frees meanwhile.
    pub unsafe fn run(&self, kernel: &Kernel, grid: [u32; 3], args: &[Argument<'_>]) -> Result<(), Error> {
        let group = kernel.group();
        let wrong = |what: String| Error::Arguments { kernel: kernel.name.clone(), what };
        if args.len() != kernel.parameters().len() {
            return Err(wrong(format!("{} arguments for {}", args.len(), kernel.parameters().len())));
        }
        if group.contains(&0) || grid.contains(&0) {
            return Err(wrong(format!("groups {group:?}, {grid:?} of them")));
        }
        let mut global = [0; 3];
        for (global, (grid, group)) in global.iter_mut().zip(grid.into_iter().zip(group)) {
            *global = grid as usize * group;
        }
        let refused = |what: &str| Error::refused(format!("{what} {}", kernel.name));
        {
            // Arguments are the kernel's until it is enqueued, which keeps a copy.
            let _alone = kernel.setting.lock().unwrap_or_else(PoisonError::into_inner);
            for (i, (arg, parameter)) in args.iter().zip(kernel.parameters()).enumerate() {
                let index = i as u32;
                let set = match (arg, parameter) {
                    (Argument::Address(at), Parameter::Address | Parameter::Unknown) => {
                        let at = std::ptr::with_exposed_provenance::<c_void>(*at as usize);
                        // SAFETY: the caller vouches for what lies there.
                        unsafe { set_kernel_arg_svm_pointer(kernel.kernel, index, at) }
                    }
                    (Argument::Value(bytes), Parameter::Value(_) | Parameter::Unknown)
                        if *parameter == Parameter::Unknown
                            || *parameter == Parameter::Value(bytes.len()) =>
                    {
                        // SAFETY: as many bytes as are named; another number than the kernel's is an error.
                        unsafe { set_kernel_arg(kernel.kernel, index, bytes.len(), bytes.as_ptr().cast()) }
                    }
                    _ => {
                        return Err(wrong(format!(
                            "argument {i} is {arg:?}, the kernel takes {parameter:?}"
                        )));
                    }
                };
                set.map_err(refused(&format!("argument {i} of")))?;
            }
            // SAFETY: three sizes each, without an offset; the caller vouches for what the kernel does.
            let event = unsafe {
                enqueue_nd_range_kernel(
                    self.queue,
                    kernel.kernel,
                    3,
                    std::ptr::null(),
                    global.as_ptr(),
                    group.as_ptr(),
                    0,
                    std::ptr::null(),
                )
            };
            let event = event.map_err(refused("running"))?;
            // SAFETY: given by the call above, released once.
            let _ = unsafe { release_event(event) };
        }
        finish(self.queue).map_err(refused("running"))
    }
}
