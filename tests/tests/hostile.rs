//! Every odd and hostile GGUF gets its verdict from `gantry convert`, and leaves nothing behind when refused.

use gantry_tests::{fixtures, run};
use std::path::Path;

struct Verdict {
    file: String,
    want: String,
    say: String,
}

fn verdicts(folder: &Path) -> Vec<Verdict> {
    let text = std::fs::read_to_string(folder.join("verdicts.txt")).expect("verdicts.txt");
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let file = words.next().expect("a name").to_string();
        let want = words.nth(1).expect("a verdict").to_string();
        Verdict { file, want, say: words.skip(1).collect::<Vec<_>>().join(" ") }
    };
    text.lines().map(line).collect()
}

#[test]
fn every_fixture_gets_its_verdict() {
    let folder = fixtures("hostile");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let all = verdicts(&folder);
    assert!(all.len() > 50, "{} fixtures", all.len());
    let mut wrong = Vec::new();
    for Verdict { file, want, say } in &all {
        let input = folder.join(format!("{file}.gguf"));
        let output = scratch.path().join(format!("{file}.gantry"));
        let before = std::fs::read(&input).expect("the fixture");
        let result = run(
            "gantry",
            &[
                "convert".as_ref(),
                "--allow-incomplete".as_ref(),
                input.as_os_str(),
                "-o".as_ref(),
                output.as_os_str(),
            ],
        );
        let message = String::from_utf8_lossy(&result.stderr).into_owned();
        let code = result.status.code();
        let refused = code != Some(0);
        if std::fs::read(&input).expect("the fixture") != before {
            wrong.push(format!("{file}: the input was changed"));
        }
        if code == Some(101) || code.is_none() {
            wrong.push(format!("{file}: crashed with {code:?}\n{message}"));
        }
        match (want.as_str(), refused) {
            ("ok", true) => wrong.push(format!("{file}: refused with {code:?}: {message}")),
            ("refuse", false) => wrong.push(format!("{file}: taken, expected to be refused: {say}")),
            ("refuse", true) => {
                // The words that name the fault, in any order.
                let lower = message.to_lowercase();
                let missing: Vec<_> = say
                    .to_lowercase()
                    .split_whitespace()
                    .filter(|w| !lower.contains(*w))
                    .map(String::from)
                    .collect();
                if !missing.is_empty() {
                    wrong.push(format!("{file}: message lacks {missing:?}: {message}"));
                }
                let left: Vec<_> = std::fs::read_dir(scratch.path())
                    .expect("the scratch folder")
                    .filter_map(|e| e.ok()?.file_name().into_string().ok())
                    .filter(|n| n.starts_with(file.as_str()))
                    .collect();
                if !left.is_empty() {
                    wrong.push(format!("{file}: left {left:?} behind"));
                }
            }
            _ => {}
        }
        if !refused {
            let checked = run(
                "gantry",
                &["verify".as_ref(), output.as_os_str(), "--against".as_ref(), input.as_os_str()],
            );
            if !checked.status.success() {
                let said = String::from_utf8_lossy(&checked.stderr).into_owned();
                wrong.push(format!("{file}: its container does not verify: {said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} fixtures:\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

#[test]
fn quantized_values_are_those_of_the_reference() {
    // "d=3c00 q=127,1,-1,…": scale and first quants that a fixture must give.
    let folder = fixtures("hostile");
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let mut checked = 0;
    for Verdict { file, say, .. } in verdicts(&folder) {
        let word = |key: &str| {
            say.split_whitespace().find_map(|w| Some(w.trim_end_matches(';').strip_prefix(key)?.to_string()))
        };
        let (scale, quants) = (word("d="), word("q="));
        if !file.starts_with('v') || (scale.is_none() && quants.is_none()) {
            continue;
        }
        let output = scratch.path().join(format!("{file}.gantry"));
        let back = scratch.path().join(format!("{file}.gguf"));
        let input = folder.join(format!("{file}.gguf"));
        gantry_tests::run_ok(
            "gantry",
            &[
                "convert".as_ref(),
                "--allow-incomplete".as_ref(),
                "--recipe".as_ref(),
                "q8".as_ref(),
                input.as_os_str(),
                "-o".as_ref(),
                output.as_os_str(),
            ],
        );
        gantry_tests::run_ok(
            "gantry",
            &["export".as_ref(), output.as_os_str(), "-o".as_ref(), back.as_os_str()],
        );
        // One tensor of 2 × 32 values: the first Q8_0 block lies at the start of the data.
        let gguf = gantry_formats::gguf::Gguf::open(&back).expect("an exported GGUF");
        let tensor = gguf.tensors().next().expect("one tensor");
        let mut block = [0u8; 34];
        gguf.read_tensor(&tensor, 0, &mut block).expect("one block");
        if let Some(scale) = scale {
            let got = u16::from_le_bytes([block[0], block[1]]);
            assert_eq!(format!("{got:04x}"), scale, "{file}: scale");
        }
        for (i, want) in quants.iter().flat_map(|q| q.split(',')).enumerate() {
            assert_eq!(block[2 + i] as i8, want.parse::<i8>().expect("a quant"), "{file}: quant {i}");
        }
        checked += 1;
    }
    assert!(checked >= 6, "{checked} fixtures with values");
}
