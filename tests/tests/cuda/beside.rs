//! A card in the host's memory beside NVIDIA cards: all but what it computes, with kernels that do nothing.

use super::card::Machine;
use super::models::{experts, kernels, small, split};
use gantry_formats::container::Container;
use gantry_tests::standin::Seen;
use std::time::Instant;

/// Budgets of which the first holds all but experts, and a few of those.
const BUDGETS: &str = "--cards=16MiB,cpu:1GiB";

fn refused(seen: &Seen, code: i32, words: &[&str]) {
    seen.fails(code, words);
    assert!(!seen.err.contains("load:"), "{}", seen.err);
}

#[test]
fn experts_go_where_there_is_room() {
    if !kernels() {
        return;
    }
    let model = experts().to_str().expect("UTF-8");
    let write = |device: &str, more: &[&str]| {
        let head = [model, "-p", "x", "-n", "2", "--threads", "3", "--card-timeout", "1", "--device", device];
        Machine::new().set("SKIP", 1).run(&[&head, more].concat())
    };
    // All of it fits the card: the host's has nothing to do.
    write("cuda:0,cpu", &["--greedy"]).shows(&[]);
    // The card sends nothing, for its kernels do nothing; the host's says whom it waited for, and nobody waits for long.
    let start = Instant::now();
    let seen = write("cuda:0,cpu:1GiB", &["-v", "--fill", "first", BUDGETS]);
    seen.fails(1, &["card 1", "card 0", "layer 0"]);
    assert!(start.elapsed().as_secs() < 60);
    let lines: Vec<&str> = seen.err.lines().filter(|line| line.trim_start().starts_with("card ")).collect();
    assert!(lines.len() >= 2 && !lines[1].contains("0 B"), "{}", seen.err);
    // The same where a run is recorded.
    let args = ["bench", model, "-p", "0", "-n", "2", "-r", "1", "-c", "1024", "--card-timeout", "1"];
    let more = ["--device", "cuda:0,cpu", "--fill", "first", BUDGETS];
    let seen = Machine::new().set("SKIP", 1).run(&[&args[..], &more].concat());
    seen.fails(1, &["card 1", "card 0", "layer 0"]);
}

#[test]
fn bytes_of_the_hosts_card_are_verified_too() {
    if !kernels() {
        return;
    }
    let machine = Machine::new().set("SKIP", 1);
    let file = machine.file("damaged.gantry");
    let mut bytes = std::fs::read(experts()).expect("the container");
    let container = Container::open(experts()).expect("a container");
    // The last expert of the last bank is the last to find room.
    let bank = container.manifest().banks.last().expect("experts");
    let blob = (bank.first_blob as usize + bank.experts.len()) - 1;
    let at = container.card(0).expect("the card's file").offset + container.table().blobs()[blob].offset + 5;
    let name = container.blob_name(blob);
    drop(container);
    bytes[at as usize] ^= 4;
    std::fs::write(&file, bytes).expect("space");
    let model = file.to_str().expect("UTF-8");
    let device = ["--device", "cuda:0,cpu", "--fill", "first", BUDGETS, "--threads", "2"];
    let seen = machine.run(&[&[model, "-p", "x", "-n", "1"], &device[..]].concat());
    seen.fails(4, &[&name]);
}

#[test]
fn what_the_hosts_card_does_not_do_is_refused() {
    let machine = Machine::new();
    let text = |device: &str, more: &[&str]| machine.write(experts(), device, more);
    if !kernels() {
        return;
    }
    refused(&text("cuda:0,cpu", &["--ep-verify"]), 2, &["another order"]);
    refused(&text("cuda:0,cpu", &["--spec", "2"]), 2, &["no block that drafts"]);
    refused(
        &text("cuda:0,cpu", &["--cards", "2"]),
        5,
        &["card 1 is no card of the host", "--device names cpu"],
    );
    refused(&text("cuda:0,cpu", &["--cards", "cpu,1GiB"]), 5, &["card 0 is the host's"]);
    refused(&text("cuda:0", &["--cards", "cpu"]), 5, &["card 0 is the host's", "cuda:0,cpu"]);
    refused(&text("cuda:0,cpu:9MiB", &["--load", "map"]), 2, &["--load"]);
    let layers = text("cuda:0,cpu", &["--placement", "layers", "--cards", "1GiB,cpu"]);
    refused(&layers, 5, &["computes experts alone"]);
    let dense = machine.write(small(), "cuda:0,cpu", &["--cards", "1GiB,cpu", "--placement", "layers"]);
    refused(&dense, 5, &["computes experts alone"]);
    refused(&machine.load(split(), "cuda:0,cpu", &[]), 2, &["leave cpu out"]);
}
