//! The choice of a token on the card, with kernels that do nothing but choose: all logits are equal then.

use super::card::Machine;
use super::models::{kernels, small};
use gantry_formats::container::Container;
use gantry_tests::standin::Seen;
use serde_json::Value;

fn write(machine: &Machine, more: &[&str]) -> Seen {
    let model = small().to_str().expect("UTF-8");
    let head = [model, "-p", "x", "-n", "4", "--ignore-eos", "--device", "cuda:0", "--json", "--seed", "7"];
    machine.run(&[&head, more].concat())
}

fn tokens(seen: &Seen) -> Vec<u64> {
    seen.shows(&[]);
    let document: Value = serde_json::from_str(&seen.out).expect("one JSON document");
    let tokens = document["tokens"].as_array().expect("tokens");
    tokens.iter().map(|t| t.as_u64().expect("a number")).collect()
}

#[test]
fn the_card_chooses_what_the_host_would() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    assert_eq!(tokens(&write(&machine, &["--greedy"])), [0, 0, 0, 0]);
    let vocab = gantry_runtime::model::plan(&Container::open(small()).expect("a container"), 1)
        .expect("a model")
        .vocab;
    assert!(vocab > 256);
    for options in [
        &["--greedy"][..],
        &["--top-k", "1"],
        &["--top-k", "7", "--top-p", "1"],
        &["--top-k", "40", "--temp", "1.7"],
        &["--top-k", "256", "--min-p", "0"],
    ] {
        let card = write(&machine, options);
        let host = write(&machine, &[options, &["--sample-on-host"]].concat());
        assert_eq!(tokens(&card), tokens(&host), "{options:?}");
        let launches = |seen: &Seen| seen.log.called["cuLaunchKernelEx"];
        assert!(launches(&card) > launches(&host), "{options:?}");
    }
}

#[test]
fn what_the_card_cannot_choose_the_host_does() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    for options in [
        &["--top-k", "0"][..],
        &["--top-k", "257"],
        &["--greedy", "--repeat-penalty", "1.5"],
        &["--top-k", "5", "--repeat-penalty", "1.5"],
    ] {
        let card = write(&machine, options);
        let host = write(&machine, &[options, &["--sample-on-host"]].concat());
        assert_eq!(tokens(&card), tokens(&host), "{options:?}");
        assert_eq!(card.log.called["cuLaunchKernelEx"], host.log.called["cuLaunchKernelEx"], "{options:?}");
    }
    // Without a penalty every token would be the first.
    assert_ne!(tokens(&write(&machine, &["--greedy", "--repeat-penalty", "1.5"])), [0, 0, 0, 0]);
}
