//! Starting, cards and their contexts.

use crate::code::{
    Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_INITIALIZED, PEER_ENABLED,
    PEER_UNSUPPORTED,
};
use crate::driver::{CURRENT, Driver, call, call_to_free, give};
use std::ffi::{c_char, c_int, c_uint};

const NAME: &[u8] = b"Stand-in\0";

/// `CU_DEVICE_ATTRIBUTE_…`.
const PROCESSORS: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const SHARED: c_int = 97;

/// Bytes of shared memory that a group may have: of Hopper.
pub(crate) const MOST_SHARED: c_int = 232_448;

impl Driver {
    /// The card that a device number stands for.
    fn card(&self, device: c_int) -> Result<usize, Code> {
        if !self.started {
            return Err(NOT_INITIALIZED);
        }
        usize::try_from(device).ok().filter(|card| *card < self.settings.cards).ok_or(INVALID_DEVICE)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuInit(flags: c_uint) -> i32 {
    call("cuInit", |driver| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if driver.settings.cards == 0 {
            return Err(NO_DEVICE);
        }
        driver.started = true;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> i32 {
    // SAFETY: the caller's pointer, to one number.
    call("cuDriverGetVersion", |driver| unsafe { give(version, driver.settings.version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> i32 {
    call("cuDeviceGetCount", |driver| {
        if !driver.started {
            return Err(NOT_INITIALIZED);
        }
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(count, driver.settings.cards as c_int) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> i32 {
    call("cuDeviceGet", |driver| {
        driver.card(ordinal)?;
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> i32 {
    call("cuDeviceGetName", |driver| {
        driver.card(device)?;
        if name.is_null() || (len as usize) < NAME.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for `len` bytes, which is enough, as was just seen.
        unsafe { std::ptr::copy_nonoverlapping(NAME.as_ptr(), name.cast(), NAME.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> i32 {
    call("cuDeviceGetAttribute", |driver| {
        driver.card(device)?;
        let found = match attribute {
            PROCESSORS => 2,
            SHARED => MOST_SHARED,
            MAJOR => driver.settings.generation / 10,
            MINOR => driver.settings.generation % 10,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(value, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> i32 {
    call("cuDeviceTotalMem_v2", |driver| {
        driver.card(device)?;
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(bytes, driver.settings.memory) }
    })
}

/// A context's handle is its card's number and one.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> i32 {
    call("cuDevicePrimaryCtxRetain", |driver| {
        let card = driver.card(device)?;
        // SAFETY: the caller's pointer, to one handle.
        unsafe { give(context, card + 1) }?;
        driver.retained[card] += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> i32 {
    call_to_free("cuDevicePrimaryCtxRelease_v2", |driver| {
        let card = driver.card(device)?;
        driver.retained[card] = driver.retained[card].checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if driver.retained[card] == 0 {
            driver.peers.retain(|(from, to)| *from != card && *to != card);
            // The driver frees what is left, and whoever frees it later frees what is not his.
            let left = driver.left(Some(card));
            driver.wrong.extend(left.into_iter().map(|what| format!("released before {what} was freed")));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxSetCurrent(context: usize) -> i32 {
    call("cuCtxSetCurrent", |driver| {
        let card = context.checked_sub(1);
        if card.is_some_and(|card| driver.retained.get(card).is_none_or(|n| *n == 0)) {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(card);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> i32 {
    call("cuDeviceCanAccessPeer", |driver| {
        let other = driver.card(device)? != driver.card(peer)?;
        // SAFETY: the caller's pointer, to one number.
        unsafe { give(can, c_int::from(other && driver.settings.peers)) }
    })
}

/// For the current card, with the context of another.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxEnablePeerAccess(peer: usize, flags: c_uint) -> i32 {
    call("cuCtxEnablePeerAccess", |driver| {
        let card = driver.current()?;
        let peer = peer.checked_sub(1).filter(|peer| driver.retained.get(*peer).is_some_and(|n| *n > 0));
        let peer = peer.ok_or(INVALID_CONTEXT)?;
        match (flags, peer == card, driver.settings.peers) {
            (1.., ..) => Err(INVALID_VALUE),
            (_, true, _) => Err(INVALID_DEVICE),
            (.., false) => Err(PEER_UNSUPPORTED),
            _ if !driver.peers.insert((card, peer)) => Err(PEER_ENABLED),
            _ => Ok(()),
        }
    })
}
