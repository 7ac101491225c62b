//! What the environment asks for.
//!
//! | variable | meaning |
//! |---|---|
//! | `GANTRY_STANDIN_ZE_LOG` | the file for what was seen |
//! | `GANTRY_STANDIN_ZE_CACHE` | a folder for kernels that were built, for the next process |
//! | `GANTRY_STANDIN_ZE_API` | the version of Level Zero, 65540 for 1.4 (the minor one in the low 16 bits) |
//! | `GANTRY_STANDIN_ZE_CARDS` | how many cards, 1 |
//! | `GANTRY_STANDIN_ZE_PEERS` | 0: no card reaches another's memory |
//! | `GANTRY_STANDIN_ZE_DEVICE` | the device id of the cards, 57867 (0xe20b) of a Battlemage |
//! | `GANTRY_STANDIN_ZE_MEMORY` | bytes of each card, 4 GiB |
//! | `GANTRY_STANDIN_ZE_MOST` | bytes of an allocation, half of that |
//! | `GANTRY_STANDIN_ZE_RELAXED` | 0: asking for larger ones does not help |
//! | `GANTRY_STANDIN_ZE_GROUP` | members of a group at most, 1024 |
//! | `GANTRY_STANDIN_ZE_SUBGROUP` | the only size of sub-groups; 16 and 32 |
//! | `GANTRY_STANDIN_ZE_LOCAL` | bytes of local memory of a group, 65536 |
//! | `GANTRY_STANDIN_ZE_FAIL` | `zeMemAllocDevice:3` or `zeMemAllocDevice:3=1879048193`: that call fails, with that code |
//! | `GANTRY_STANDIN_ZE_REFUSE` | what the compiler says of every module, which it refuses |
//! | `GANTRY_STANDIN_ZE_LOST` | at that launch of a kernel, from 1, the card is lost |
//! | `GANTRY_STANDIN_ZE_FLIP` | a byte of the arena, one bit of which changes between its copy and its hash |
//! | `GANTRY_STANDIN_ZE_SKIP` | 1: kernels do nothing, and need no OpenCL |
//!
//! A function that frees something frees it even where it is to fail.

use level_zero_sys::{ze_api_version_t, ze_result_t};

/// Functions that fail for lack of memory where nothing else is asked for.
const ALLOCATES: [&str; 2] = ["zeMemAllocDevice", "zeMemAllocHost"];

/// Threads with which Intel's runtime runs groups of one kernel. With more, all that there are may run groups that wait for another
/// card, whose kernels then get none; with one each card has the thread that runs its kernels.
const WORKERS: &str = "CL_CONFIG_CPU_TBB_NUM_WORKERS";

pub(crate) struct Settings {
    pub(crate) log: Option<String>,
    pub(crate) cache: Option<String>,
    pub(crate) api: u32,
    pub(crate) cards: usize,
    pub(crate) peers: bool,
    pub(crate) device: u32,
    pub(crate) memory: usize,
    pub(crate) most: usize,
    pub(crate) relaxed: bool,
    pub(crate) group: u32,
    pub(crate) sub_groups: Vec<u32>,
    pub(crate) local: u32,
    pub(crate) fail: Option<Fail>,
    pub(crate) refuse: Option<String>,
    pub(crate) lost: Option<u64>,
    pub(crate) flip: Option<u64>,
    pub(crate) skip: bool,
}

/// The call that fails.
pub(crate) struct Fail {
    pub(crate) function: String,
    /// From 1.
    pub(crate) turn: u64,
    pub(crate) code: ze_result_t,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Panics
    /// Where it makes no sense: a test that sets it so tests nothing.
    pub(crate) fn read() -> Self {
        let of = |name: &str| std::env::var(format!("GANTRY_STANDIN_ZE_{name}")).ok();
        let number = |name: &str, default: u64| of(name).map_or(default, |text| parse(name, &text));
        let memory = number("MEMORY", 4 << 30);
        let cards = number("CARDS", 1) as usize;
        if cards > 1 && std::env::var_os(WORKERS).is_none() {
            // SAFETY: the loader calls when the program has just started, before it has other threads.
            unsafe { std::env::set_var(WORKERS, "1") };
        }
        let sub_group = of("SUBGROUP").map(|text| vec![parse("SUBGROUP", &text) as u32]);
        Self {
            log: of("LOG"),
            cache: of("CACHE"),
            api: number("API", ze_api_version_t::ZE_API_VERSION_1_4.0.into()) as u32,
            cards,
            peers: number("PEERS", 1) != 0,
            device: number("DEVICE", 0xe20b) as u32,
            memory: memory as usize,
            most: number("MOST", memory / 2) as usize,
            relaxed: number("RELAXED", 1) != 0,
            group: number("GROUP", 1024) as u32,
            sub_groups: sub_group.unwrap_or_else(|| vec![16, 32]),
            local: number("LOCAL", 64 << 10) as u32,
            fail: of("FAIL").map(|text| Fail::parse(&text)),
            refuse: of("REFUSE"),
            lost: of("LOST").map(|text| parse("LOST", &text)),
            flip: of("FLIP").map(|text| parse("FLIP", &text)),
            skip: number("SKIP", 0) == 1,
        }
    }
}

impl Fail {
    fn parse(text: &str) -> Self {
        let (function, rest) = text.split_once(':').unwrap_or((text, "1"));
        let (turn, code) = rest.split_once('=').map_or((rest, None), |(turn, code)| (turn, Some(code)));
        let short = ALLOCATES.contains(&function);
        let default = match short {
            true => ze_result_t::ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY,
            false => ze_result_t::ZE_RESULT_ERROR_UNKNOWN,
        };
        let code = code.map_or(default, |code| ze_result_t(parse("FAIL", code) as u32));
        Self { function: function.into(), turn: parse("FAIL", turn), code }
    }
}

fn parse(name: &str, text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("GANTRY_STANDIN_ZE_{name}: {text:?} is no number"))
}
