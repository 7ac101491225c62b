//! Starting, and what cards are.

use crate::code::{
    Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, PEER_ENABLED, PEER_UNSUPPORTED,
};
use crate::driver::{CURRENT, Driver, call, give};
use crate::settings::settings;
use std::ffi::{c_char, c_int, c_uchar, c_uint};

const NAME: &[u8] = b"Stand-in\0";

/// `hipDeviceAttribute_t`
const MOST_THREADS: c_int = 56;
const PROCESSORS: c_int = 63;
const SHARED: c_int = 74;
const WAVE: c_int = 87;
const REGISTERS_HOST_MEMORY: c_int = 90;

/// Bytes of shared memory that a group may have: on every generation so far.
pub(crate) const MOST_SHARED: c_int = 65_536;

/// `sizeof(hipDeviceProp_tR0600)`, and where in it a card's memory, its shared memory, its processors and its generation
/// stand.
const PROPERTIES: usize = 1472;
const AT_MEMORY: usize = 288;
const AT_SHARED: usize = 296;
const AT_PROCESSORS: usize = 388;
const AT_GENERATION: usize = 1160;

impl Driver {
    /// The card that a number stands for.
    fn card(&self, card: c_int) -> Result<usize, Code> {
        if !self.started {
            return Err(NOT_INITIALIZED);
        }
        usize::try_from(card).ok().filter(|card| *card < settings().cards).ok_or(INVALID_DEVICE)
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipInit(flags: c_uint) -> i32 {
    call("hipInit", |driver| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if settings().cards == 0 {
            return Err(NO_DEVICE);
        }
        driver.started = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> i32 {
    // SAFETY: the caller's pointer, to one number.
    call("hipDriverGetVersion", |_| unsafe { give(version, settings().version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> i32 {
    // SAFETY: the caller's pointer, to one number.
    call("hipRuntimeGetVersion", |_| unsafe { give(version, settings().version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> i32 {
    call("hipGetDeviceCount", |_| match settings().cards {
        0 => Err(NO_DEVICE),
        // SAFETY: the caller's pointer, to one number.
        cards => unsafe { give(count, cards as c_int) },
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, len: c_int, card: c_int) -> i32 {
    call("hipDeviceGetName", |driver| {
        driver.card(card)?;
        if name.is_null() || (len as usize) < NAME.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `len` bytes, which is enough, as was just seen.
        unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr(), name.cast(), NAME.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, card: c_int) -> i32 {
    call("hipDeviceGetAttribute", |driver| {
        driver.card(card)?;
        let found = match attribute {
            MOST_THREADS => 1024,
            PROCESSORS => 2,
            SHARED => MOST_SHARED,
            // From gfx10 on.
            WAVE => 64 >> c_int::from(settings().generation.len() > "gfx942".len()),
            REGISTERS_HOST_MEMORY => 1,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(value, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, card: c_int) -> i32 {
    call("hipDeviceTotalMem", |driver| {
        driver.card(card)?;
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(bytes, settings().memory) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut c_uchar, card: c_int) -> i32 {
    call("hipGetDevicePropertiesR0600", |driver| {
        driver.card(card)?;
        let mut bytes = [0; PROPERTIES];
        let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
        put(0, NAME);
        put(AT_MEMORY, &settings().memory.to_ne_bytes());
        put(AT_SHARED, &(MOST_SHARED as usize).to_ne_bytes());
        put(AT_PROCESSORS, &2i32.to_ne_bytes());
        put(AT_GENERATION, format!("{}:sramecc+:xnack-", settings().generation).as_bytes());
        // SAFETY: the caller has room for as many, as the function's name promises.
        unsafe { give(properties.cast(), bytes) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipSetDevice(card: c_int) -> i32 {
    call("hipSetDevice", |driver| {
        CURRENT.set(Some(driver.card(card)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipDeviceCanAccessPeer(can: *mut c_int, card: c_int, peer: c_int) -> i32 {
    call("hipDeviceCanAccessPeer", |driver| {
        let other = driver.card(card)? != driver.card(peer)?;
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(can, c_int::from(other && settings().peers)) }
    })
}

/// For the current card.
#[unsafe(no_mangle)]
extern "C" fn hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> i32 {
    call("hipDeviceEnablePeerAccess", |driver| {
        let card = driver.current()?;
        let peer = driver.card(peer)?;
        match (flags, peer == card, settings().peers) {
            (1.., ..) => Err(INVALID_VALUE),
            (_, true, _) => Err(INVALID_DEVICE),
            (.., false) => Err(PEER_UNSUPPORTED),
            _ if !driver.peers.insert((card, peer)) => Err(PEER_ENABLED),
            _ => Ok(()),
        }
    })
}
