//! Bytes that change, in the file or in the card's memory.

use super::machine::{Machine, computes};
use super::models::small;
use gantry_formats::container::Container;

/// The last byte of the first blob: its name, its place in the segment, and in the file.
fn spot() -> (String, u64, u64) {
    let container = Container::open(small()).expect("a container");
    let blob = container.table().blobs()[0];
    let at = blob.offset + blob.bytes - 1;
    (container.blob_name(0), at, container.card(0).expect("the card's file").offset + at)
}

#[test]
fn a_flipped_bit_in_the_file_is_found_and_named() {
    if !computes() {
        return;
    }
    let (name, _, in_file) = spot();
    let machine = Machine::new();
    let file = machine.file("damaged.gantry");
    let mut bytes = std::fs::read(small()).expect("the container");
    bytes[in_file as usize] ^= 0x10;
    std::fs::write(&file, bytes).expect("space");
    let seen = machine.load(&file, "level-zero:0", &[]);
    seen.fails(4, &[&name, "card 0", "the file is damaged"]);
    machine.write(&file, "level-zero:0", &[]).fails(4, &[&name, "the file is damaged"]);
}

#[test]
fn a_bit_that_flips_in_the_cards_memory_is_found_by_the_card() {
    if !computes() {
        return;
    }
    let (name, at, _) = spot();
    let machine = Machine::new().set("FLIP", at);
    machine.load(small(), "level-zero:0", &[]).fails(4, &[&name, "do not match their BLAKE3"]);
}
