//! Numbers that calls take.

/// `hipDeviceAttribute_t`
pub mod attribute {
    /// Most threads of a group.
    pub const MAX_THREADS_PER_BLOCK: i32 = 56;
    /// Compute units, or pairs of them on cards that count so.
    pub const MULTIPROCESSOR_COUNT: i32 = 63;
    /// Bytes of shared memory that a group may have.
    pub const MAX_SHARED_MEMORY_PER_BLOCK: i32 = 74;
    /// Threads that go together: 32 or 64.
    pub const WARP_SIZE: i32 = 87;
    /// Whether memory of the host can be pinned where it is.
    pub const HOST_REGISTER_SUPPORTED: i32 = 90;
}

/// Flags of `hipHostMalloc`.
pub mod host_malloc {
    /// Pinned for all cards.
    pub const PORTABLE: u32 = 1;
    /// In the address space of cards too.
    pub const MAPPED: u32 = 2;
    /// Cards and the host see what each other writes while kernels run.
    pub const COHERENT: u32 = 0x4000_0000;
}

/// Flags of `hipHostRegister`.
pub mod host_register {
    /// Pinned for all cards.
    pub const PORTABLE: u32 = 1;
    /// In the address space of cards too.
    pub const MAPPED: u32 = 2;
    /// Cards only read it.
    pub const READ_ONLY: u32 = 8;
}

/// Flags of `hipExtMallocWithFlags`.
pub mod device_malloc {
    /// As `hipMalloc` does it: other cards see what kernels write when these have ended.
    pub const DEFAULT: u32 = 0;
    /// Other cards see what kernels write while they run, and the other way round.
    pub const FINE_GRAINED: u32 = 1;
}

/// Flags of `hipStreamCreateWithFlags`.
pub mod stream {
    /// It does not wait for the default stream.
    pub const NON_BLOCKING: u32 = 1;
}

/// Flags of `hipEventCreateWithFlags`.
pub mod event {
    /// One that measures time.
    pub const DEFAULT: u32 = 0;
    /// One that only tells that it came.
    pub const DISABLE_TIMING: u32 = 2;
}

/// `hipStreamCaptureMode`
pub mod capture {
    /// What other threads do is their own.
    pub const THREAD_LOCAL: i32 = 1;
    /// Nothing is refused.
    pub const RELAXED: i32 = 2;
}

/// `hipFunction_attribute`
pub mod function {
    /// Threads of a group, as many as the kernel was compiled for.
    pub const MAX_THREADS_PER_BLOCK: i32 = 0;
    /// Bytes of shared memory that the kernel declares.
    pub const SHARED_SIZE_BYTES: i32 = 1;
    /// Bytes of shared memory beside these.
    pub const MAX_DYNAMIC_SHARED_SIZE_BYTES: i32 = 8;
}

#[cfg(test)]
mod tests {
    use super::{attribute, capture, device_malloc, event, function, host_malloc, host_register, stream};

    /// As `hip_runtime_api.h` has them. They are written twice so that no slip of the keyboard changes one.
    #[test]
    fn numbers_are_those_of_the_header() {
        let attributes = [
            attribute::MAX_THREADS_PER_BLOCK,
            attribute::MULTIPROCESSOR_COUNT,
            attribute::MAX_SHARED_MEMORY_PER_BLOCK,
            attribute::WARP_SIZE,
            attribute::HOST_REGISTER_SUPPORTED,
        ];
        assert_eq!(attributes, [56, 63, 74, 87, 90]);
        assert_eq!(
            [host_malloc::PORTABLE, host_malloc::MAPPED, host_malloc::COHERENT],
            [1, 2, 1_073_741_824]
        );
        assert_eq!([host_register::PORTABLE, host_register::MAPPED, host_register::READ_ONLY], [1, 2, 8]);
        assert_eq!([device_malloc::DEFAULT, device_malloc::FINE_GRAINED], [0, 1]);
        assert_eq!([stream::NON_BLOCKING, event::DEFAULT, event::DISABLE_TIMING], [1, 0, 2]);
        assert_eq!([capture::THREAD_LOCAL, capture::RELAXED], [1, 2]);
        let functions = [
            function::MAX_THREADS_PER_BLOCK,
            function::SHARED_SIZE_BYTES,
            function::MAX_DYNAMIC_SHARED_SIZE_BYTES,
        ];
        assert_eq!(functions, [0, 1, 8]);
    }
}
