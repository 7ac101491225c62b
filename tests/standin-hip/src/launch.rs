//! Launches.

use crate::code::{
    Code, ILLEGAL_ADDRESS, INVALID_CONFIGURATION, INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILURE,
};
use crate::compute;
use crate::driver::{Driver, call, lock};
use crate::flip::flip;
use crate::module::Function;
use crate::settings::settings;
use crate::work::Work;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// What hashes the arena.
const HASHES: &str = "gantry_blake3";

/// What is computed even where others are not: what is found is looked at by the host.
const LOOKED_AT: [&str; 3] = [HASHES, "gantry_argmax", "gantry_top_k"];

/// Kernels by which cards wait for each other begin so.
const EXCHANGES: &str = "gantry_exchange_";

/// A kernel with its arguments.
pub(crate) struct Launch {
    function: Arc<Function>,
    pub(crate) grid: [u32; 3],
    /// The bytes of each, of which the kernel takes as many as it declares.
    pub(crate) args: Vec<[u8; 8]>,
}

impl Launch {
    pub(crate) fn name(&self) -> &str {
        &self.function.name
    }

    /// Whether it does anything here.
    pub(crate) fn is_computed(&self) -> bool {
        settings().skip == 0 || settings().skip == 1 && LOOKED_AT.contains(&self.name())
    }

    /// Its arguments: whether each is an address, and its bytes.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = (bool, &[u8])> {
        let parameters = self.function.told.parameters.iter();
        parameters.zip(&self.args).map(|(parameter, arg)| (parameter.address, &arg[..parameter.bytes]))
    }

    /// Its argument as a number of 64 bits; 0 where there is none.
    pub(crate) fn number(&self, index: usize) -> u64 {
        self.args.get(index).map_or(0, |arg| u64::from_ne_bytes(*arg))
    }

    /// Whether its addresses are ones that the card reaches.
    pub(crate) fn check(&self, driver: &mut Driver, card: usize) -> Result<(), Code> {
        let live = self.name().starts_with(EXCHANGES);
        for (i, (parameter, arg)) in self.function.told.parameters.iter().zip(&self.args).enumerate() {
            let address = u64::from_ne_bytes(*arg) as usize;
            if !parameter.address || address == 0 {
                continue;
            }
            if let Some(why) = driver.out_of_reach(card, address, live) {
                driver.wrong.push(format!("{}: argument {i}, {address:#x}, {why}", self.name()));
                return Err(ILLEGAL_ADDRESS);
            }
        }
        Ok(())
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, card: usize) -> Result<(), Code> {
        if is_lost(card) {
            return Err(LAUNCH_FAILURE);
        }
        if !self.is_computed() {
            return Ok(());
        }
        if self.name() == HASHES {
            flip(self);
        }
        compute::run(card, self).map_err(|why| {
            lock().wrong.push(format!("{}: {why}", self.name()));
            LAUNCH_FAILURE
        })
    }
}

/// Counts a launch of a card; whether the card is lost now.
fn is_lost(card: usize) -> bool {
    static LAUNCHES: AtomicU64 = AtomicU64::new(0);
    static LOST: OnceLock<usize> = OnceLock::new();
    let Some(turn) = settings().lost else { return false };
    if LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1 == turn {
        LOST.get_or_init(|| card);
    }
    LOST.get() == Some(&card)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    group_x: c_uint,
    group_y: c_uint,
    group_z: c_uint,
    shared: c_uint,
    stream: usize,
    args: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    call("hipModuleLaunchKernel", |driver| {
        let card = driver.stream(stream)?.card;
        let function = driver.functions.get(&function).filter(|f| f.card == card).ok_or(INVALID_HANDLE)?;
        let function = Arc::clone(function);
        let grid = [grid_x, grid_y, grid_z];
        let whole = [group_x, group_y, group_z] == [function.told.group, 1, 1];
        if grid.contains(&0) || !whole || shared != 0 {
            let group = [group_x, group_y, group_z];
            let name = &function.name;
            driver
                .wrong
                .push(format!("{name}: {grid:?} groups of {group:?} with {shared} bytes of shared memory"));
            return Err(INVALID_CONFIGURATION);
        }
        if args.is_null() || !extra.is_null() || function.told.parameters.iter().any(|p| p.bytes > 8) {
            return Err(INVALID_VALUE);
        }
        let mut values = Vec::with_capacity(function.told.parameters.len());
        for (i, parameter) in function.told.parameters.iter().enumerate() {
            let mut value = [0; 8];
            // SAFETY: the caller has a pointer for each that the kernel declares, to as many bytes as it declares.
            unsafe {
                let from = args.add(i).read().cast::<u8>();
                std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), parameter.bytes);
            }
            values.push(value);
        }
        let launch = Launch { function, grid, args: values };
        if settings().skip == 0 {
            launch.check(driver, card)?;
        }
        driver.give_work(stream, Work::Launch(Arc::new(launch)))
    })
}
