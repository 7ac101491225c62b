//! A plot of kernels: which share of the roof each reaches, by the bytes that it must read.

use gantry_runtime::backend::device::{KernelBench, KernelCase};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The plot's area in the picture, and the picture.
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;
const WIDE: f64 = 620.0;
const HIGH: f64 = 340.0;
const PICTURE: (f64, f64) = (920.0, 440.0);

/// Colours that differ on white and on black, for people who see colours differently too (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b09a00", "#888888"];

/// An SVG document.
pub(crate) fn plot(bench: &KernelBench, cases: &[KernelCase]) -> String {
    let title = format!("{}: share of {:.0} GB/s", bench.card().name, bench.roof().rate / 1e9);
    draw(&title, bench.roof().rate, cases)
}

fn draw(title: &str, roof: f64, cases: &[KernelCase]) -> String {
    let mut svg = String::new();
    let (width, height) = PICTURE;
    // Writing to a string does not fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<style>\n  .back {{ fill: #fff; }} .ink {{ fill: #222; }} .line {{ stroke: #bbb; }}\n  \
         @media (prefers-color-scheme: dark) {{\n    .back {{ fill: #161616; }} .ink {{ fill: #ddd; }} .line \
         {{ stroke: #555; }}\n  }}\n</style>\n<rect class=\"back\" width=\"{width}\" height=\"{height}\"/>\n"
    );
    text(&mut svg, LEFT, 22.0, "start", title);
    let drawn: Vec<(&KernelCase, f64)> =
        cases.iter().filter_map(|c| Some((c, c.rate()? / roof))).filter(|(c, _)| c.bytes > 0).collect();
    let exponent = |c: &KernelCase| (c.bytes as f64).log10();
    let least = drawn.iter().map(|(c, _)| exponent(c)).fold(f64::INFINITY, f64::min).min(9.0).floor();
    let most = drawn.iter().map(|(c, _)| exponent(c)).fold(least + 1.0, f64::max).ceil();
    let highest = drawn.iter().map(|(_, share)| *share).fold(1.0, f64::max);
    let x = |exponent: f64| LEFT + (exponent - least) / (most - least) * WIDE;
    let y = |share: f64| TOP + HIGH - share / highest * HIGH;
    for decade in least as i32..=most as i32 {
        let at = x(f64::from(decade));
        line(&mut svg, [at, TOP, at, TOP + HIGH]);
        text(&mut svg, at, TOP + HIGH + 18.0, "middle", &bytes(decade));
    }
    for tenths in (0..=(highest * 10.0) as i32).step_by(2) {
        let at = y(f64::from(tenths) / 10.0);
        line(&mut svg, [LEFT, at, LEFT + WIDE, at]);
        text(&mut svg, LEFT - 6.0, at + 4.0, "end", &format!("{}%", tenths * 10));
    }
    text(
        &mut svg,
        LEFT + WIDE / 2.0,
        TOP + HIGH + 38.0,
        "middle",
        "bytes that must be read; larger dots: more tokens",
    );
    let mut series: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, share) in drawn {
        let next = series.len();
        let which = *series.entry(&case.what).or_insert(next);
        let radius = 2.5 + (case.tokens.max(1) as f64).log2() * 0.4;
        let colour = COLOURS[which % COLOURS.len()];
        // What is compared with is hollow.
        let fill = if case.baseline { "none" } else { colour };
        let name = escaped(&format!("{} {}, n = {}: {:.3}", case.what, case.shape, case.tokens, share));
        let _ = writeln!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\" fill=\"{fill}\" fill-opacity=\"0.7\" \
             stroke=\"{colour}\"><title>{name}</title></circle>",
            x(exponent(case)),
            y(share)
        );
    }
    for (what, which) in series {
        let at = TOP + 12.0 + which as f64 * 18.0;
        let colour = COLOURS[which % COLOURS.len()];
        let left = LEFT + WIDE + 20.0;
        let _ = writeln!(svg, "<circle cx=\"{left}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", at - 4.0);
        text(&mut svg, left + 10.0, at, "start", what);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A power of ten, in words.
fn bytes(decade: i32) -> String {
    let (unit, of) = match decade {
        ..3 => ("B", 0),
        3..6 => ("kB", 3),
        6..9 => ("MB", 6),
        _ => ("GB", 9),
    };
    format!("{} {unit}", 10f64.powi(decade - of))
}

fn line(svg: &mut String, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<line class=\"line\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke-width=\"0.5\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(
        svg,
        "<text class=\"ink\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::bench_kernels::tests::case;
    use super::*;
    use gantry_runtime::backend::device::Timing;

    #[test]
    fn a_dot_for_each_case_and_a_name_for_each_layout() {
        let time = |median| Ok(Timing { median, p90: median });
        let mut cases =
            vec![case("a<b", 1, time(40.0)), case("a<b", 8, time(80.0)), case("c & d", 1, time(10.0))];
        cases.push(case("failed", 1, Err("no way".into())));
        cases[2].bytes = 1000;
        let svg = draw("a card", 4e12, &cases);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<title>").count(), 3);
        assert_eq!(svg.matches("<circle").count(), 3 + 2);
        assert!(
            svg.contains(">a&lt;b</text>") && svg.contains(">c &amp; d</text>") && !svg.contains("failed")
        );
        assert!(svg.contains("prefers-color-scheme: dark") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.contains("1 kB") && svg.contains("1 GB"), "{svg}");
        // A plot of nothing is a plot.
        let empty = draw("a card", 4e12, &[]);
        assert!(empty.ends_with("</svg>\n") && !empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
