//! What a model needs, predicted from the index, against what this machine has, before a weight is read.

pub use gantry_formats::placement::{CardNeed, CardShortage};

use gantry_formats::size::mib;
use std::fmt;

/// Bytes that a model takes on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// What is loaded into its arena.
    pub weights: u64,
    /// Keys, values and other states of a sequence of the whole context.
    pub cache: u64,
    /// Working memory of a batch.
    pub scratch: u64,
}

impl Need {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache).saturating_add(self.scratch)
    }
}

/// Memory that can be had, and what limits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Where the number is from.
    pub limit: Limit,
}

/// What bounds the memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// `MemAvailable` of the machine.
    Machine,
    /// The control group's limit.
    ControlGroup,
    /// The address space of the process (`ulimit -v`).
    AddressSpace,
    /// Memory of the card.
    Card,
    /// What the user gave.
    User,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "available on this machine",
            Self::ControlGroup => "left under the control group's limit",
            Self::AddressSpace => "left under the address space limit (ulimit -v)",
            Self::Card => "free on this card",
            Self::User => "allowed by the memory limit (--memory-limit)",
        })
    }
}

/// A model that does not fit, as a table: needed, free, short by, and what would fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// By card.
    pub need: Vec<Need>,
    /// The card, where it is one of several with memory of its own: `cuda:1`, or `cpu` for the host's.
    pub of: Option<String>,
    /// What there is.
    pub free: Free,
    /// The context that was asked for, in positions.
    pub context: usize,
    /// The longest context that fits; 0 where none does.
    pub fitting_context: usize,
}

impl Shortage {
    fn total(&self) -> u64 {
        self.need.iter().fold(0, |n, c| n.saturating_add(c.total()))
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.of.as_deref() {
            None => String::new(),
            Some("cpu") => " of the host (cpu)".into(),
            Some(card) => format!(" of {card}"),
        };
        writeln!(f, "not enough memory{of} for this model with a context of {}:", self.context)?;
        writeln!(
            f,
            "  {:<6}{:>14}{:>14}{:>14}{:>14}",
            "card", "weights MiB", "KV cache MiB", "scratch MiB", "total MiB"
        )?;
        for (card, n) in self.need.iter().enumerate() {
            let [w, c, s, t] = [n.weights, n.cache, n.scratch, n.total()].map(mib);
            let card = self.of.clone().unwrap_or_else(|| card.to_string());
            writeln!(f, "  {card:<6}{w:>14}{c:>14}{s:>14}{t:>14}")?;
        }
        let total = self.total();
        writeln!(f, "  needed   {:>12} MiB", mib(total))?;
        writeln!(f, "  free     {:>12} MiB  {}", mib(self.free.bytes), self.free.limit)?;
        writeln!(f, "  short by {:>12} MiB", mib(total.saturating_sub(self.free.bytes)))?;
        match self.fitting_context {
            0 => write!(f, "  no context fits; free memory or use a smaller model"),
            n => write!(f, "  a context of {n} would fit (--context {n})"),
        }
    }
}

/// Compares needs by card, all in the memory of this machine, with what is free. `cache_per_position` says how
/// much a shorter context saves.
pub fn check(
    need: &[Need],
    free: Free,
    context: usize,
    cache_per_position: u64,
) -> Result<(), Box<Shortage>> {
    let total = need.iter().fold(0u64, |n, c| n.saturating_add(c.total()));
    if total <= free.bytes {
        return Ok(());
    }
    let rest = total.saturating_sub(cache_per_position.saturating_mul(context as u64));
    let fitting = match cache_per_position {
        0 => 0,
        per => free.bytes.saturating_sub(rest) / per,
    };
    let fitting_context = usize::try_from(fitting).unwrap_or(usize::MAX).min(context);
    Err(Box::new(Shortage { need: need.to_vec(), of: None, free, context, fitting_context }))
}

/// [`check`] of what a card with memory of its own, called so (`cpu`: the host's), needs of its free bytes, or of `user` where
/// that is less.
pub(crate) fn check_card(
    need: &Need,
    (name, bytes): (String, u64),
    user: Option<u64>,
    context: usize,
    cache_per_position: u64,
) -> Result<(), Box<Shortage>> {
    let limit = if name == "cpu" { Limit::Machine } else { Limit::Card };
    let free = match user.filter(|user| *user < bytes) {
        Some(bytes) => Free { bytes, limit: Limit::User },
        None => Free { bytes, limit },
    };
    let short = |short: Box<Shortage>| Box::new(Shortage { of: Some(name), ..*short });
    check(std::slice::from_ref(need), free, context, cache_per_position).map_err(short)
}

/// What this process can still take: the least of the machine's available memory, the control group's limit, the
/// address space limit and `user`. A number that the system does not give limits nothing.
pub fn free(user: Option<u64>) -> Free {
    let candidates = [
        (machine(), Limit::Machine),
        (control_group(), Limit::ControlGroup),
        (address_space(), Limit::AddressSpace),
        (user, Limit::User),
    ];
    let known = candidates.into_iter().filter_map(|(bytes, limit)| Some(Free { bytes: bytes?, limit }));
    known.min_by_key(|f| f.bytes).unwrap_or(Free { bytes: u64::MAX, limit: Limit::Machine })
}

fn machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn address_space() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64)))
}

/// Version 2 groups: the tightest limit on the way to the root, less what is used and cannot be dropped.
fn control_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let root = std::path::Path::new("/sys/fs/cgroup");
    let mut tightest = None;
    for folder in root.join(own).ancestors().take_while(|f| f.starts_with(root)) {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (Some(limit), Some(used)) = (number("memory.max"), number("memory.current")) else { continue };
        let droppable = read("memory.stat").and_then(|stat| {
            stat.lines().find_map(|l| l.strip_prefix("inactive_file "))?.parse::<u64>().ok()
        });
        let left = limit.saturating_sub(used.saturating_sub(droppable.unwrap_or(0)));
        tightest = Some(tightest.map_or(left, |t: u64| t.min(left)));
    }
    tightest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_passes_and_what_does_not_says_which_context_would() {
        let need = [Need { weights: 1000, cache: 4000, scratch: 500 }];
        let free = |bytes| Free { bytes, limit: Limit::User };
        assert_eq!(check(&need, free(5500), 400, 10), Ok(()));
        let short = check(&need, free(3500), 400, 10).unwrap_err();
        assert_eq!(short.fitting_context, 200);
        assert!(short.to_string().contains("--context 200"), "{short}");
        let short = check(&need, free(1000), 400, 10).unwrap_err();
        assert!(short.to_string().contains("no context fits"), "{short}");
        let of = |name: &str, user| check_card(&need[0], (name.into(), 1000), user, 400, 10).unwrap_err();
        assert_eq!(
            (of("cpu", None).free, of("cpu", None).of),
            (Free { bytes: 1000, limit: Limit::Machine }, Some("cpu".into()))
        );
        assert_eq!(of("cuda:0", Some(2000)).free, Free { bytes: 1000, limit: Limit::Card });
        assert_eq!(of("cuda:0", Some(7)).free, free(7));
        // A card with memory of its own is named, the host's too.
        for (of, title, row) in
            [("cuda:1", " of cuda:1 ", "  cuda:1"), ("cpu", " of the host (cpu) ", "  cpu ")]
        {
            let text = Shortage { of: Some(of.into()), ..*short.clone() }.to_string();
            assert!(text.starts_with(&format!("not enough memory{title}for this model")), "{text}");
            assert!(text.lines().any(|line| line.starts_with(row)), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn the_machine_has_some_memory_and_the_user_can_allow_less() {
        assert!(free(None).bytes > 0);
        assert_eq!(free(Some(7)), Free { bytes: 7, limit: Limit::User });
    }
}
