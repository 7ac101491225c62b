//! What the environment asks for.
//!
//! | variable | meaning |
//! |---|---|
//! | `GANTRY_STANDIN_HIP_LOG` | the file for what was seen |
//! | `GANTRY_STANDIN_HIP_VERSION` | HIP's version, 60342131 |
//! | `GANTRY_STANDIN_HIP_CARDS` | how many cards, 1 |
//! | `GANTRY_STANDIN_HIP_PEERS` | 0: no card reaches another's memory |
//! | `GANTRY_STANDIN_HIP_GENERATION` | of all cards, `gfx942` |
//! | `GANTRY_STANDIN_HIP_MEMORY` | bytes of each card, 64 GiB |
//! | `GANTRY_STANDIN_HIP_FAIL` | `hipMalloc:3` or `hipMalloc:3=999`: that call fails, with that code |
//! | `GANTRY_STANDIN_HIP_FLIP` | a byte of the arena, one bit of which changes between its copy and its hash |
//! | `GANTRY_STANDIN_HIP_KEEP` | bytes that a card takes for itself when something is first allocated, and keeps |
//! | `GANTRY_STANDIN_HIP_SKIP` | 1: kernels do nothing, but for those that hash and those that choose a token; 2: not these either. Nothing is done later than it was asked for |
//! | `GANTRY_STANDIN_HIP_LOST` | the launch, from 1, at which its card is lost: this one and all after it fail |
//!
//! A function that frees something frees it even where it is to fail: HIP uses these to tell what went wrong before.

use crate::code::{Code, OUT_OF_MEMORY, UNKNOWN};
use std::sync::LazyLock;

/// Functions that fail for lack of memory where nothing else is asked for.
const ALLOCATES: [&str; 3] = ["hipExtMallocWithFlags", "hipHostMalloc", "hipMalloc"];

pub(crate) struct Settings {
    pub(crate) log: Option<String>,
    pub(crate) version: i32,
    pub(crate) cards: usize,
    pub(crate) peers: bool,
    pub(crate) generation: String,
    pub(crate) memory: usize,
    pub(crate) fail: Option<Fail>,
    pub(crate) flip: Option<u64>,
    pub(crate) skip: u64,
    pub(crate) lost: Option<u64>,
    pub(crate) keep: usize,
}

/// The call that fails.
pub(crate) struct Fail {
    pub(crate) function: String,
    /// From 1.
    pub(crate) turn: u64,
    pub(crate) code: Code,
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::read);

/// What this process was given.
pub(crate) fn settings() -> &'static Settings {
    &SETTINGS
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Panics
    /// Where it makes no sense: a test that sets it so tests nothing.
    fn read() -> Self {
        let of = |name: &str| std::env::var(format!("GANTRY_STANDIN_HIP_{name}")).ok();
        let number = |name: &str, default: u64| of(name).map_or(default, |text| parse(name, &text));
        Self {
            log: of("LOG"),
            version: number("VERSION", 60_342_131) as i32,
            cards: number("CARDS", 1) as usize,
            peers: number("PEERS", 1) != 0,
            generation: of("GENERATION").unwrap_or_else(|| "gfx942".into()),
            memory: number("MEMORY", 64 << 30) as usize,
            fail: of("FAIL").map(|text| Fail::parse(&text)),
            skip: number("SKIP", 0),
            lost: of("LOST").map(|text| parse("LOST", &text)),
            keep: number("KEEP", 0) as usize,
            flip: of("FLIP").map(|text| parse("FLIP", &text)),
        }
    }
}

impl Fail {
    fn parse(text: &str) -> Self {
        let (function, rest) = text.split_once(':').unwrap_or((text, "1"));
        let (turn, code) = rest.split_once('=').map_or((rest, None), |(turn, code)| (turn, Some(code)));
        let default = if ALLOCATES.contains(&function) { OUT_OF_MEMORY } else { UNKNOWN };
        let code = code.map_or(default, |code| Code(parse("FAIL", code) as i32));
        assert!(code.name().is_some(), "GANTRY_STANDIN_HIP_FAIL: {} is no error code", code.0);
        Self { function: function.into(), turn: parse("FAIL", turn), code }
    }
}

fn parse(name: &str, text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("GANTRY_STANDIN_HIP_{name}: {text:?} is no number"))
}
