//! HIP, for AMD's and Hygon's cards: its calls, behind what [`device`](super::device) asks of a family.
//!
//! The library is looked for when a card is opened, never linked (`hip_sys`).
#![allow(unsafe_code, reason = "calls of the driver, each with its reason")]

mod card;
mod memory;
mod module;
mod stream;

use super::device::driver::calls::{Card, Done, Driver, NoDriver, Refusal};
use super::device::driver::{CardInfo, CardName, Family, Generation};
use card::HipCard;
use hip_sys::{Code, Hip, NoLibrary, attribute};
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

/// The oldest version that will do, as HIP counts: its structure of a card's properties is the one that is read here.
const NEEDS: i32 = 60_000_000;

/// Bytes of a card's name.
const NAME: usize = 256;

/// The library, started.
struct Started {
    hip: Arc<Hip>,
    version: String,
    /// Whether it has a card.
    cards: bool,
}

/// Finds the library and starts it, once.
pub(super) fn driver() -> Result<&'static dyn Driver, NoDriver> {
    static STARTED: OnceLock<Result<Started, NoDriver>> = OnceLock::new();
    let started = STARTED.get_or_init(start);
    started.as_ref().map(|driver| driver as &dyn Driver).map_err(Clone::clone)
}

fn start() -> Result<Started, NoDriver> {
    let hip = Hip::open().map_err(|none| match none {
        NoLibrary::Absent => NoDriver::Absent,
        NoLibrary::Symbol { symbol, .. } => NoDriver::Symbol(symbol),
        broken @ NoLibrary::Broken { .. } => {
            NoDriver::Start(Refusal { name: broken.to_string().into(), code: 0, is_short: false })
        }
    })?;
    let mut version = 0;
    // SAFETY: it writes one integer.
    let read = unsafe { hip.runtime_version(&raw mut version) };
    read.map_err(|code| NoDriver::Start(refusal(&hip, code)))?;
    if version < NEEDS {
        return Err(NoDriver::Old { found: words(version), needs: words(NEEDS) });
    }
    // SAFETY: it takes nothing but flags, of which there are none.
    let cards = match unsafe { hip.init(0) } {
        Ok(()) => true,
        // A library that is installed where there is no card, as in many a container, has nothing to start.
        Err(Code::NO_DEVICE) => false,
        Err(code) => return Err(NoDriver::Start(refusal(&hip, code))),
    };
    Ok(Started { hip: Arc::new(hip), version: words(version), cards })
}

/// A version as HIP counts: 10,000,000 × major + 100,000 × minor + patch.
fn words(version: i32) -> String {
    format!("HIP {}.{}.{}", version / 10_000_000, version / 100_000 % 100, version % 100_000)
}

fn refusal(hip: &Hip, code: Code) -> Refusal {
    Refusal { name: hip.name(code).into(), code: code.0, is_short: code.is_short() }
}

impl Driver for Started {
    fn cards(&self) -> Done<Vec<CardInfo>> {
        if !self.cards {
            return Ok(Vec::new());
        }
        let mut count = 0;
        // SAFETY: it writes one integer.
        match unsafe { self.hip.device_count(&raw mut count) } {
            Err(Code::NO_DEVICE) => return Ok(Vec::new()),
            done => done.map_err(|code| refusal(&self.hip, code))?,
        }
        (0..usize::try_from(count).unwrap_or(0)).map(|card| self.info(card)).collect()
    }

    fn open(&self, card: &CardInfo) -> Done<Arc<dyn Card>> {
        Ok(Arc::new(HipCard::open(&self.hip, card)?))
    }
}

impl Started {
    fn info(&self, card: usize) -> Done<CardInfo> {
        let hip = &self.hip;
        let refused = |code| refusal(hip, code);
        let number = card as c_int;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: it writes one integer.
            unsafe { hip.device_attribute(&raw mut value, which, number) }.map_err(refused)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let processors = attribute(attribute::MULTIPROCESSOR_COUNT)?;
        let shared = attribute(attribute::MAX_SHARED_MEMORY_PER_BLOCK)?;
        let mut memory = 0;
        // SAFETY: it writes one number.
        unsafe { hip.device_memory(&raw mut memory, number) }.map_err(refused)?;
        let mut name = [0u8; NAME];
        // SAFETY: there is room for as many bytes as are told.
        unsafe { hip.device_name(name.as_mut_ptr().cast(), NAME as c_int, number) }.map_err(refused)?;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        let generation = hip.generation(number).map_err(refused)?;
        let generation = Generation::Named(generation.unwrap_or_else(|| "an unknown generation".into()));
        let at = CardName { family: Family::Hip, card };
        let (memory, driver) = (memory as u64, self.version.clone());
        Ok(CardInfo { at, name, generation, processors, shared, memory, driver })
    }
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn versions_are_told_as_rocm_tells_them() {
        assert_eq!(words(60_342_131), "HIP 6.3.42131");
        assert_eq!(words(71_460_850), "HIP 7.14.60850");
    }
}
