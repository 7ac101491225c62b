//! Numbers for people.

/// Bytes in binary units: `138.1 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// A count with separators: `134,515,008`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A share in per cent: `12.3`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1}", part as f64 / whole as f64 * 100.0) }
}

/// Bytes in a time, in decimal GB/s as storage and memory are sold.
pub(crate) fn rate(bytes: u64, seconds: f64) -> String {
    format!("{:.2} GB/s", bytes as f64 / seconds.max(1e-9) / 1e9)
}

/// `1 tensor`, `2 tensors`.
pub(crate) fn plural(n: u64, word: &str) -> String {
    format!("{} {word}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A float in few characters, exact enough to compare by eye.
pub(crate) fn float(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        a if !a.is_finite() => x.to_string(),
        a if (1e-3..1e5).contains(&a) => format!("{x:.6}"),
        _ => format!("{x:.4e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_counts() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(1 << 20), "1.0 MiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(count(999), "999");
        assert_eq!(count(134_515_008), "134,515,008");
        assert_eq!(plural(1, "tensor"), "1 tensor");
        assert_eq!(plural(2000, "tensor"), "2,000 tensors");
    }
}
