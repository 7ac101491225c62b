//! Experts over cards: every broken rule is refused by name, with all hashes made to fit.

mod sample;

use gantry_formats::container::*;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::hotness::{Hotness, LayerCounts};
use sample::Sample;

/// The sample, with a section that says why experts 0 and 2 lie on card 0 and expert 1 on card 1.
fn placed() -> Sample {
    let mut sample = Sample::new();
    let hotness = Hotness {
        fingerprint: None,
        layers: 1,
        experts: 3,
        tokens: 9,
        counts: vec![LayerCounts { layer: 0, counts: vec![3, 4, 2] }],
    };
    let section = PlacementSection {
        strategy: "paired".into(),
        fill: "share".into(),
        cards: vec![
            PlacedCard { host: false, bytes: Some(1 << 20), kv_bytes: 4096 },
            PlacedCard { host: true, bytes: None, kv_bytes: 0 },
        ],
        reserve: 64,
        context: Some(64),
        kv: "f32".into(),
        hotness: Some(HotnessSummary::of(&hotness)),
        shares_ppm: vec![555_556, 444_444],
        layers: vec![LayerShares { layer: 0, shares_ppm: vec![555_556, 444_444] }],
        worst_layer: Some(0),
        blake3: String::new(),
    };
    sample.manifest.placement = Some(section.sealed(&sample.manifest.banks));
    sample
}

/// What opening says after `change`, and the exit code.
fn opened(sample: &Sample) -> Result<Container, (Exit, String)> {
    let dir = tempfile::tempdir().expect("a folder");
    Container::open(&sample.write(dir.path())).map_err(|e| (e.exit(), e.to_string()))
}

/// Refused after `change`, with the section's own hash made to fit as well.
#[track_caller]
fn refused(change: impl FnOnce(&mut Sample), word: &str) {
    let mut sample = placed();
    change(&mut sample);
    let section = sample.manifest.placement.take().expect("it has one");
    sample.manifest.placement = Some(section.sealed(&sample.manifest.banks));
    let (exit, text) = opened(&sample).expect_err(word);
    assert!(text.contains(word), "{word:?} not in {text:?}");
    assert_eq!(exit, Exit::Input, "{text}");
}

fn section(sample: &mut Sample) -> &mut PlacementSection {
    sample.manifest.placement.as_mut().expect("it has one")
}

#[test]
fn a_placed_container_opens_and_says_its_map() {
    let mut sample = placed();
    widen(&mut sample);
    opened(&sample).expect("the room in a blob is not the rule that is broken below");
    let sample = placed();
    let container = opened(&sample).expect("sound");
    assert_eq!(container.manifest().placement, sample.manifest.placement);
    let map = container.manifest().expert_map(2);
    assert_eq!(map.layers.len(), 1);
    assert_eq!(map.layers[0].cards, [vec![0, 2], vec![1]]);
    assert_eq!(map.layers[0].holders(1).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_container_from_before_opens() {
    let sample = Sample::new();
    let json = serde_json::to_value(&sample.manifest).expect("JSON");
    assert!(json.get("placement").is_none());
    assert_eq!(opened(&sample).expect("sound").manifest().placement, None);
}

#[test]
fn maps_that_are_not_total_are_refused() {
    refused(|s| s.manifest.banks[1].experts = vec![2], "layer 0: expert 1 lies on no card");
    refused(|s| s.manifest.banks[0].experts = vec![2, 2], "layer 0 card 0: expert 2 has two slots");
    refused(|s| s.manifest.banks[0].experts = vec![0, 3], "slot 1 has expert 3, the layer has 3");
    refused(|s| s.manifest.banks[0].experts = vec![0, u32::MAX], "expert 4294967295, the layer has 3");
    refused(|s| s.manifest.banks[0].experts = vec![2, 0], "slots are not ascending, expert 2 before 0");
    refused(
        |s| {
            let mut second = s.manifest.banks[0].clone();
            second.experts.pop();
            second.first_blob += 1;
            second.offset += second.stride;
            s.manifest.banks[0].experts.pop();
            s.manifest.banks.push(second);
        },
        "layer 0 has two banks on card 0",
    );
}

/// Gives every expert's blob 64 bytes more, which its matrices leave free.
fn widen(s: &mut Sample) {
    for bank in &mut s.manifest.banks {
        bank.bytes += 64;
        bank.stride = bank.bytes.next_multiple_of(512);
        let blobs = &mut s.blobs[bank.card as usize];
        let first = blobs.len() - bank.experts.len();
        for (slot, (offset, bytes)) in blobs[first..].iter_mut().enumerate() {
            *offset = bank.offset + slot as u64 * bank.stride;
            bytes.resize(bank.bytes as usize, 0);
        }
        let end = bank.offset + bank.stride * bank.experts.len() as u64;
        s.segments[bank.card as usize] = end.next_multiple_of(4096);
    }
}

#[test]
fn banks_of_one_layer_that_differ_are_refused() {
    refused(
        |s| {
            s.manifest.banks[1].bytes -= 64;
            let blob = s.blobs[1].last_mut().expect("an expert");
            blob.1.truncate(blob.1.len() - 64);
            s.manifest.banks[1].matrices.pop();
        },
        "layer 0: blobs of",
    );
    refused(
        |s| {
            s.manifest.banks[1].matrices.pop();
        },
        "layer 0: 2 matrices on card 0, 1 on card 1",
    );
    refused(
        |s| s.manifest.banks[1].matrices[1].name = "blk.0.ffn_up_exps.weight".into(),
        "layer 0: blk.0.ffn_down_exps.weight differs between cards 0 and 1",
    );
    refused(|s| s.manifest.banks[1].matrices[0].role = "ffn_up_exps".into(), "ffn_gate_exps.weight differs");
    // The same layout under another index: a reader compares what is written.
    refused(
        |s| {
            let f16 = s.manifest.layouts.iter().position(|l| l.name == "raw.f16").expect("there");
            s.manifest.layouts.push(s.manifest.layouts[f16].clone());
            s.manifest.banks[1].matrices[1].layout = s.manifest.layouts.len() as u32 - 1;
        },
        "ffn_down_exps.weight differs",
    );
    refused(|s| s.manifest.banks[1].matrices[1].shape = vec![2, 2, 32], "ffn_down_exps.weight differs");
    refused(
        |s| {
            widen(s);
            s.manifest.banks[1].matrices[1].offset += 64;
        },
        "ffn_down_exps.weight differs",
    );
    refused(|s| s.manifest.banks[1].matrices[1].shape = vec![4, 64], "blk.0.ffn_down_exps.weight");
    refused(|s| s.manifest.banks[1].matrices[1].parts[0].rows = [0, 5], "does not fit");
}

#[test]
fn sections_that_do_not_belong_are_refused() {
    refused(|s| section(s).cards.truncate(1), "1 cards, the container has 2 cards");
    refused(|s| section(s).cards.push(PlacedCard::default()), "placed for another number of cards");
    refused(|s| section(s).shares_ppm.truncate(1), "1 shares, the container has 2 cards");
    refused(|s| section(s).layers.clear(), "its layers are not those that have banks");
    refused(|s| section(s).layers[0].layer = 7, "its layers are not those that have banks");
    refused(|s| section(s).layers[0].shares_ppm.push(0), "layer 0: 3 shares for 2 cards");
    refused(|s| section(s).worst_layer = Some(9), "worst layer 9 has no bank");
    refused(
        |s| section(s).hotness.as_mut().expect("there").blake3 = "beef".into(),
        "\"beef\" is no BLAKE3 in hex",
    );
    refused(
        |s| section(s).cards[0].bytes = Some(4096),
        "of KV cache and 64 of reserve are over its budget of 4096",
    );
    refused(|s| section(s).reserve = u64::MAX, "card 0: ");
    refused(|s| section(s).cards[0].kv_bytes = 1 << 20, "over its budget");
}

#[test]
fn every_field_of_the_section_and_the_map_are_under_its_hash() {
    type Change = fn(&mut Sample);
    let changes: [Change; 17] = [
        |s| section(s).strategy = "balanced".into(),
        |s| section(s).fill = "first".into(),
        |s| section(s).cards[0].bytes = Some(1 << 21),
        |s| section(s).cards[0].bytes = None,
        |s| section(s).cards[0].host = true,
        |s| section(s).cards[1].kv_bytes = 1,
        |s| section(s).reserve = 65,
        |s| section(s).context = None,
        |s| section(s).kv = "f16".into(),
        |s| section(s).hotness = None,
        |s| section(s).hotness.as_mut().expect("there").tokens = 10,
        |s| section(s).hotness.as_mut().expect("there").fingerprint = Some("0".repeat(64)),
        |s| section(s).shares_ppm.reverse(),
        |s| section(s).layers[0].shares_ppm.reverse(),
        |s| section(s).worst_layer = None,
        |s| section(s).blake3 = "0".repeat(64),
        |s| {
            // The same blobs under other experts: still a total map, yet not the one that was sealed.
            s.manifest.banks[0].experts = vec![0, 1];
            s.manifest.banks[1].experts = vec![2];
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut sample = placed();
        change(&mut sample);
        let (exit, text) = opened(&sample).expect_err("another hash");
        assert!(text.starts_with("placement: its BLAKE3 is "), "change {i}: {text}");
        assert_eq!(exit, Exit::Integrity, "change {i}");
    }
}
