//! The functions.

use crate::library::open;
use crate::properties::{ROOM, architecture};
use crate::{Code, NoLibrary};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::path::{Path, PathBuf};

/// `hipStream_t`, a queue of work.
pub type Stream = *mut c_void;
/// `hipEvent_t`, a moment in a stream.
pub type Event = *mut c_void;
/// `hipModule_t`, a code object that was loaded.
pub type Module = *mut c_void;
/// `hipFunction_t`, a kernel of a module.
pub type Function = *mut c_void;
/// `hipGraph_t`, work that was recorded.
pub type Graph = *mut c_void;
/// `hipGraphExec_t`, work that was recorded and can be launched.
pub type GraphExec = *mut c_void;

macro_rules! functions {
    ($($(#[$about:meta])* $symbol:ident as $name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// HIP's functions, by their own names.
        #[allow(non_snake_case, reason = "as the library calls them")]
        #[derive(Debug)]
        struct Functions {
            $($symbol: unsafe extern "C" fn($($ty),*) -> c_int,)*
            hipGetErrorName: unsafe extern "C" fn(c_int) -> *const c_char,
        }

        /// Their names.
        #[cfg(test)]
        const SYMBOLS: &[&str] = &[$(stringify!($symbol),)* "hipGetErrorName"];

        impl Functions {
            /// Looks all of them up; the name of the first that is not there.
            fn find(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    // SAFETY: of each function the type is the header's, and it is called no longer than the library is open.
                    $($symbol: unsafe { find(library, stringify!($symbol)) }?,)*
                    // SAFETY: as above.
                    hipGetErrorName: unsafe { find(library, "hipGetErrorName") }?,
                })
            }
        }

        /// Each call as the header describes it.
        ///
        /// # Safety
        /// Of all: pointers that are written to have room for what is written, pointers that are read from lead to what is
        /// read, handles are ones that HIP gave and that were not given back, and addresses of cards lie in allocations
        /// that live until the work that uses them is done.
        ///
        /// # Errors
        /// Of all: what HIP says, of an earlier call's work too.
        #[allow(clippy::missing_safety_doc, clippy::missing_errors_doc, reason = "above, for all of them")]
        #[allow(clippy::too_many_arguments, reason = "as many as the functions have")]
        impl Hip {
            $(
                $(#[$about])*
                pub unsafe fn $name(&self, $($arg: $ty),*) -> Result<(), Code> {
                    // SAFETY: the caller's contract is the function's.
                    Code::done(unsafe { (self.functions.$symbol)($($arg),*) })
                }
            )*
        }
    };
}

/// A function of the library.
///
/// # Safety
/// `T` is a pointer to a function of the type that it has, and is not called when the library was closed.
unsafe fn find<T: Copy>(library: &Library, name: &'static str) -> Result<T, &'static str> {
    // SAFETY: as the caller says.
    unsafe { library.get::<T>(name) }.map(|found| *found).map_err(|_| name)
}

functions! {
    /// Starts HIP; `flags` is 0.
    hipInit as init(flags: c_uint);
    /// The driver's version: 10,000,000 × major + 100,000 × minor + patch.
    hipDriverGetVersion as driver_version(version: *mut c_int);
    /// The library's version, counted alike.
    hipRuntimeGetVersion as runtime_version(version: *mut c_int);
    /// How many cards there are.
    hipGetDeviceCount as device_count(count: *mut c_int);
    /// A card's name, of at most `len` bytes.
    hipDeviceGetName as device_name(name: *mut c_char, len: c_int, card: c_int);
    /// One of [`attribute`](crate::attribute).
    hipDeviceGetAttribute as device_attribute(value: *mut c_int, attribute: c_int, card: c_int);
    /// Bytes of a card's memory.
    hipDeviceTotalMem as device_memory(bytes: *mut usize, card: c_int);
    /// All of a card's properties, as many bytes as the library's header says: [`Hip::generation`] is the way to ask.
    hipGetDevicePropertiesR0600 as device_properties(properties: *mut c_void, card: c_int);
    /// Makes a card that of the calling thread.
    hipSetDevice as set_device(card: c_int);
    /// Whether the first card can reach the second one's memory.
    hipDeviceCanAccessPeer as can_access_peer(can: *mut c_int, card: c_int, peer: c_int);
    /// Lets the thread's card reach the memory of another.
    hipDeviceEnablePeerAccess as enable_peer_access(peer: c_int, flags: c_uint);
    /// Bytes that are free on the thread's card, and all.
    hipMemGetInfo as memory_info(free: *mut usize, all: *mut usize);
    /// Memory of the thread's card.
    hipMalloc as malloc(address: *mut *mut c_void, bytes: usize);
    /// The same, of a kind of [`device_malloc`](crate::device_malloc).
    hipExtMallocWithFlags as malloc_with_flags(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Frees it, when all cards are idle.
    hipFree as free(address: *mut c_void);
    /// Pinned memory of the host; `flags` of [`host_malloc`](crate::host_malloc).
    hipHostMalloc as host_malloc(address: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Frees it.
    hipHostFree as host_free(address: *mut c_void);
    /// Pins memory of the host; `flags` of [`host_register`](crate::host_register).
    hipHostRegister as host_register(address: *mut c_void, bytes: usize, flags: c_uint);
    /// Undoes that.
    hipHostUnregister as host_unregister(address: *mut c_void);
    /// Copies to a card.
    hipMemcpyHtoDAsync as copy_to(to: *mut c_void, from: *const c_void, bytes: usize, stream: Stream);
    /// Copies from a card.
    hipMemcpyDtoHAsync as copy_from(to: *mut c_void, from: *mut c_void, bytes: usize, stream: Stream);
    /// Sets bytes on a card.
    hipMemsetD8Async as fill(to: *mut c_void, value: c_uchar, bytes: usize, stream: Stream);
    /// A stream of the thread's card; `flags` of [`stream`](crate::stream).
    hipStreamCreateWithFlags as stream_create(stream: *mut Stream, flags: c_uint);
    /// Gives it back.
    hipStreamDestroy as stream_destroy(stream: Stream);
    /// Waits for all that it was given.
    hipStreamSynchronize as stream_synchronize(stream: Stream);
    /// [`Code::NOT_READY`] while there is something to do.
    hipStreamQuery as stream_query(stream: Stream);
    /// What the stream is given from now on comes after the event; `flags` is 0.
    hipStreamWaitEvent as stream_wait(stream: Stream, event: Event, flags: c_uint);
    /// An event of the thread's card; `flags` of [`event`](crate::event).
    hipEventCreateWithFlags as event_create(event: *mut Event, flags: c_uint);
    /// Gives it back.
    hipEventDestroy as event_destroy(event: Event);
    /// Comes when the stream has done what it was given so far.
    hipEventRecord as event_record(event: Event, stream: Stream);
    /// Waits for it.
    hipEventSynchronize as event_synchronize(event: Event);
    /// Milliseconds between two.
    hipEventElapsedTime as event_elapsed(milliseconds: *mut f32, first: Event, second: Event);
    /// Loads a code object for the thread's card.
    hipModuleLoadData as module_load(module: *mut Module, image: *const c_void);
    /// Gives it back.
    hipModuleUnload as module_unload(module: Module);
    /// A kernel by its name.
    hipModuleGetFunction as module_function(function: *mut Function, module: Module, name: *const c_char);
    /// One of [`function`](crate::function).
    hipFuncGetAttribute as function_attribute(value: *mut c_int, attribute: c_int, function: Function);
    /// Gives a kernel to a stream: groups in three directions, threads of a group, bytes of shared memory beside what the
    /// kernel declares, a pointer to each argument.
    hipModuleLaunchKernel as launch(
        function: Function,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        group_x: c_uint,
        group_y: c_uint,
        group_z: c_uint,
        shared: c_uint,
        stream: Stream,
        args: *mut *mut c_void,
        extra: *mut *mut c_void
    );
    /// From now on the stream records; `mode` of [`capture`](crate::capture).
    hipStreamBeginCapture as capture_begin(stream: Stream, mode: c_int);
    /// Ends that.
    hipStreamEndCapture as capture_end(stream: Stream, graph: *mut Graph);
    /// What was recorded, made ready; `node`, `log` and its bytes may be null and 0.
    hipGraphInstantiate as graph_instantiate(
        executable: *mut GraphExec,
        graph: Graph,
        node: *mut *mut c_void,
        log: *mut c_char,
        log_bytes: usize
    );
    /// Does it once more.
    hipGraphLaunch as graph_launch(executable: GraphExec, stream: Stream);
    /// Gives it back.
    hipGraphDestroy as graph_destroy(graph: Graph);
    /// Gives it back.
    hipGraphExecDestroy as executable_destroy(executable: GraphExec);
}

/// The library, with all its functions that there are here.
#[derive(Debug)]
pub struct Hip {
    functions: Functions,
    path: PathBuf,
    /// Its functions are called as long as it is open.
    _library: Library,
}

impl Hip {
    /// Finds it. It is not started.
    ///
    /// # Errors
    /// Where there is none, or it lacks a function.
    pub fn open() -> Result<Self, NoLibrary> {
        let (path, library) = open()?;
        match Functions::find(&library) {
            Ok(functions) => Ok(Self { functions, path, _library: library }),
            Err(symbol) => Err(NoLibrary::Symbol { path, symbol }),
        }
    }

    /// Where it was found, or what it is called where the system's loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// HIP's name of a code: its own where it is known here, else what the library says.
    pub fn name(&self, code: Code) -> String {
        if let Some(name) = code.name() {
            return name.into();
        }
        // SAFETY: the function takes any number.
        let name = unsafe { (self.functions.hipGetErrorName)(code.0 as c_int) };
        if name.is_null() {
            return "an unknown error".into();
        }
        // SAFETY: a text that ends with a zero and lives as long as the library.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// The generation of a card, `gfx942`, or `None` where HIP tells none.
    ///
    /// # Errors
    /// What HIP says.
    pub fn generation(&self, card: i32) -> Result<Option<String>, Code> {
        // Properties hold pointers and lengths, and so are aligned.
        let mut properties = vec![0u64; ROOM / 8];
        // SAFETY: there is more room than any version writes.
        unsafe { self.device_properties(properties.as_mut_ptr().cast(), card) }?;
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(architecture(&bytes).map(str::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::SYMBOLS;

    #[test]
    fn every_function_is_hips_and_is_there_once() {
        for (i, name) in SYMBOLS.iter().enumerate() {
            assert!(name.starts_with("hip") && !SYMBOLS[..i].contains(name), "{name}");
        }
    }
}
