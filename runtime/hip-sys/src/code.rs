//! What a call says that was refused.

/// A `hipError_t` that is not success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($(#[$about:meta])* $constant:ident = $number:literal, $name:literal;)*) => {
        impl Code {
            $($(#[$about])* pub const $constant: Self = Self($number);)*

            /// HIP's name of it, where it is one of those here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)*
                    _ => None,
                }
            }
        }

        #[cfg(test)]
        const ALL: &[(Code, u32, &str)] = &[$((Code::$constant, $number, $name)),*];
    };
}

codes! {
    /// An argument makes no sense.
    INVALID_VALUE = 1, "hipErrorInvalidValue";
    /// Memory was short.
    OUT_OF_MEMORY = 2, "hipErrorOutOfMemory";
    /// `hipInit` was not called, or failed.
    NOT_INITIALIZED = 3, "hipErrorNotInitialized";
    /// The process is ending.
    DEINITIALIZED = 4, "hipErrorDeinitialized";
    /// A launch of a shape that no card takes.
    INVALID_CONFIGURATION = 9, "hipErrorInvalidConfiguration";
    /// An address that is none of a card's.
    INVALID_DEVICE_POINTER = 17, "hipErrorInvalidDevicePointer";
    /// The kernel's driver is too old for the library.
    INSUFFICIENT_DRIVER = 35, "hipErrorInsufficientDriver";
    /// A kernel that does not run on this card.
    INVALID_DEVICE_FUNCTION = 98, "hipErrorInvalidDeviceFunction";
    /// There is no card.
    NO_DEVICE = 100, "hipErrorNoDevice";
    /// No card has this number.
    INVALID_DEVICE = 101, "hipErrorInvalidDevice";
    /// What was to be loaded is no code object.
    INVALID_IMAGE = 200, "hipErrorInvalidImage";
    /// No card is chosen.
    INVALID_CONTEXT = 201, "hipErrorInvalidContext";
    /// A code object for another generation of cards.
    NO_BINARY_FOR_GPU = 209, "hipErrorNoBinaryForGpu";
    /// Memory is damaged beyond repair.
    ECC = 214, "hipErrorECCNotCorrectable";
    /// Nothing leads to the other card's memory.
    PEER_UNSUPPORTED = 217, "hipErrorPeerAccessUnsupported";
    /// The operating system refused.
    OPERATING_SYSTEM = 304, "hipErrorOperatingSystem";
    /// A handle that is none.
    INVALID_HANDLE = 400, "hipErrorInvalidHandle";
    /// There is no such kernel.
    NOT_FOUND = 500, "hipErrorNotFound";
    /// Not done yet.
    NOT_READY = 600, "hipErrorNotReady";
    /// A kernel reached for memory that is not there.
    ILLEGAL_ADDRESS = 700, "hipErrorIllegalAddress";
    /// A launch that wants more than a card has.
    OUT_OF_RESOURCES = 701, "hipErrorLaunchOutOfResources";
    /// A kernel ran for too long.
    LAUNCH_TIME_OUT = 702, "hipErrorLaunchTimeOut";
    /// The other card's memory is within reach already.
    PEER_ENABLED = 704, "hipErrorPeerAccessAlreadyEnabled";
    /// The other card's memory was not within reach.
    PEER_NOT_ENABLED = 705, "hipErrorPeerAccessNotEnabled";
    /// The memory is pinned already.
    ALREADY_REGISTERED = 712, "hipErrorHostMemoryAlreadyRegistered";
    /// The memory was not pinned.
    NOT_REGISTERED = 713, "hipErrorHostMemoryNotRegistered";
    /// A kernel failed.
    LAUNCH_FAILURE = 719, "hipErrorLaunchFailure";
    /// This card or this library cannot do that.
    NOT_SUPPORTED = 801, "hipErrorNotSupported";
    /// What a stream that is recorded cannot do.
    CAPTURE_UNSUPPORTED = 900, "hipErrorStreamCaptureUnsupported";
    /// A recording that something spoilt.
    CAPTURE_INVALIDATED = 901, "hipErrorStreamCaptureInvalidated";
    /// No more is known.
    UNKNOWN = 999, "hipErrorUnknown";
    /// The runtime below has no memory.
    RUNTIME_MEMORY = 1052, "hipErrorRuntimeMemory";
    /// The runtime below failed.
    RUNTIME_OTHER = 1053, "hipErrorRuntimeOther";
}

impl Code {
    /// Whether memory was short.
    pub fn is_short(self) -> bool {
        matches!(self, Self::OUT_OF_MEMORY | Self::RUNTIME_MEMORY)
    }

    /// What a status says: 0 is success.
    pub(crate) fn done(status: i32) -> Result<(), Self> {
        match status {
            0 => Ok(()),
            // HIP has no negative ones.
            code => Err(Self(code as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL, Code};

    #[test]
    fn codes_have_one_number_and_one_name_each() {
        for (i, (code, number, name)) in ALL.iter().enumerate() {
            assert_eq!((code.0, code.name()), (*number, Some(*name)));
            assert!(name.starts_with("hipError"), "{name}");
            assert!(ALL[..i].iter().all(|(_, n, other)| n < number && other != name), "{name}");
        }
        assert_eq!(Code(5000).name(), None);
    }

    #[test]
    fn a_status_is_success_or_a_code() {
        assert_eq!(Code::done(0), Ok(()));
        assert_eq!(Code::done(2), Err(Code::OUT_OF_MEMORY));
        assert!(Code::OUT_OF_MEMORY.is_short() && !Code::ILLEGAL_ADDRESS.is_short());
    }
}
