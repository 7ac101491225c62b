//! One flipped bit, in the file or in the card's memory.

use super::card::Machine;
use super::models::{Spot, dense, in_large_blob, in_padding, in_small_blob, kernels};
use gantry_formats::container::Container;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

struct Damaged {
    folder: tempfile::TempDir,
}

impl Damaged {
    fn new(spot: &Spot) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let damaged = Self { folder };
        std::fs::copy(dense(), damaged.path()).expect("space");
        let file = OpenOptions::new().read(true).write(true).open(damaged.path()).expect("a file");
        let mut byte = [0];
        file.read_exact_at(&mut byte, spot.in_file).expect("a byte");
        byte[0] ^= 0x10;
        file.write_all_at(&byte, spot.in_file).expect("a byte");
        damaged
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("damaged.gantry")
    }
}

fn spots() -> [Spot; 3] {
    let container = Container::open(dense()).expect("a container");
    [in_small_blob(&container), in_large_blob(&container), in_padding(&container)]
}

#[test]
fn a_flipped_bit_in_the_file_is_found_and_named() {
    if !kernels() {
        return;
    }
    let machine = Machine::new();
    for spot in spots() {
        let damaged = Damaged::new(&spot);
        for (way, level) in [("read", "device"), ("read", "full"), ("map", "device")] {
            let seen = machine.load(&damaged.path(), "cuda:0", &["--load", way, "--verify", level]);
            seen.fails(4, &[&spot.name, "card 0", "the file is damaged"]);
        }
        machine.write(&damaged.path(), "cuda:0", &[]).fails(4, &[&spot.name, "the file is damaged"]);
        // Who asks for no more than the index gets no more.
        machine.load(&damaged.path(), "cuda:0", &["--verify", "index"]).shows(&["only the index verified"]);
    }
}

#[test]
fn the_second_mebibyte_of_a_blob_has_an_address_of_its_own() {
    if !kernels() {
        return;
    }
    let [_, large, _] = spots();
    let seen = Machine::new().load(&Damaged::new(&large).path(), "cuda:0", &[]);
    seen.fails(4, &[&large.name, "block 1: bytes 1048576..2097152 of "]);
}

#[test]
fn a_bit_that_flips_in_the_cards_memory_is_found_by_the_card_alone() {
    if !kernels() {
        return;
    }
    let [small, large, _] = spots();
    for spot in [small, large] {
        let machine = Machine::new().set("FLIP", spot.at);
        for way in ["read", "map"] {
            machine
                .load(dense(), "cuda:0", &["--load", way])
                .fails(4, &[&spot.name, "do not match their BLAKE3"]);
        }
        machine.write(dense(), "cuda:0", &[]).fails(4, &[&spot.name]);
        machine.load(dense(), "cuda:0", &["--verify", "full"]).shows(&["every byte verified in place"]);
    }
}
