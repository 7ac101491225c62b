//! A container of several files that is replaced, and a run that ends before all of them are.

use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::exit::{Exit, ExitCode};
use std::fs;
use std::path::{Path, PathBuf};

const CARDS: usize = 3;

struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        let room = Self(tempfile::tempdir().expect("a folder"));
        llama(&room.path("m.gguf"), 3, 6, GgmlType::BF16);
        room
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// `m.gantry` of several files in `folder`.
    fn convert(&self, folder: &str, more: &[&str]) {
        fs::create_dir_all(self.path(folder)).expect("a folder");
        let (input, output) = (self.text("m.gguf"), self.text(&format!("{folder}/m.gantry")));
        let args = ["convert", &input, "-o", &output, "--cards", "3", "--split-cards", "--force"];
        succeed(&[&args, more].concat());
    }

    /// In the order in which they get their names.
    fn names() -> Vec<String> {
        let cards = (0..CARDS).map(|card| format!("m.card{card}.gantry"));
        cards.chain(["m.gantry".to_string()]).collect()
    }

    /// `mix/` with the files of `new/` that `is_new` says, the others of `old/`.
    fn mix(&self, is_new: impl Fn(usize) -> bool) -> PathBuf {
        let _ = fs::create_dir(self.path("mix"));
        for (i, name) in Self::names().iter().enumerate() {
            let from = if is_new(i) { "new" } else { "old" };
            fs::copy(self.path(from).join(name), self.path("mix").join(name)).expect("a copy");
        }
        self.path("mix/m.gantry")
    }
}

/// What opening says, and that every card is there.
fn open(path: &Path) -> Result<(), (Exit, String)> {
    let fault = |e: gantry_formats::container::ContainerError| (e.exit(), e.to_string());
    let container = Container::open(path).map_err(fault)?;
    (0..CARDS).try_for_each(|card| container.card(card).map(|_| ()).map_err(fault))
}

#[test]
fn no_mix_of_old_and_new_files_opens() {
    // Other values; the same values in another order of experts; the same bytes of all cards, and other metadata.
    let changes: [(&[&str], &[&str]); 3] = [
        (&["--recipe", "q8"], &["--recipe", "lossless"]),
        (&["--placement", "paired"], &["--placement", "balanced"]),
        (&["--placement", "paired"], &["--placement", "paired", "--context", "100"]),
    ];
    for (old, new) in changes {
        let room = Room::new();
        room.convert("old", old);
        room.convert("new", new);
        let files = CARDS + 1;
        for mask in 0u32..1 << files {
            let path = room.mix(|i| mask >> i & 1 == 1);
            let whole = mask == 0 || mask == (1 << files) - 1;
            match open(&path) {
                Ok(()) => assert!(whole, "{new:?}: a mix was taken, {mask:b}"),
                Err((exit, text)) => {
                    assert!(!whole && exit == Exit::Integrity, "{new:?} {mask:b}: {exit:?} {text}");
                    // The first card's file that is not of the index's container.
                    let index = mask >> CARDS & 1;
                    let odd = (0..CARDS).find(|card| mask >> card & 1 != index).expect("a mix");
                    let want = format!("m.card{odd}.gantry belongs to another container than ");
                    assert!(text.contains(&want) && text.contains("interrupted conversion"), "{text}");
                    assert!(!text.contains("damaged"), "{text}");
                }
            }
        }
        // Verifying says so too, without taking it for damage of the bytes.
        let path = room.mix(|i| i == 1).display().to_string();
        refuse(&["verify", &path], 4, &["m.card1.gantry", "belongs to another container"]);
        refuse(&["inspect", &path], 4, &["m.card1.gantry", "run it again"]);
    }
}

/// A run that ended after some of its renames left the others' files as partial ones: the next run puts all in order.
#[test]
fn the_next_run_replaces_what_an_interrupted_one_left() {
    let room = Room::new();
    room.convert("old", &["--recipe", "q8"]);
    room.convert("new", &["--recipe", "lossless"]);
    for renamed in 0..=CARDS {
        room.mix(|i| i < renamed);
        for name in &Room::names()[renamed..] {
            let partial = room.path("mix").join(format!("{name}.partial"));
            fs::copy(room.path("new").join(name), partial).expect("a copy");
        }
        room.convert("mix", &["--recipe", "lossless"]);
        let names = |folder: &str| {
            let list = fs::read_dir(room.path(folder)).expect("a folder");
            let mut names: Vec<_> = list.map(|e| e.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names("mix"), names("new"), "{renamed} renamed");
        for name in Room::names() {
            let bytes = |folder: &str| fs::read(room.path(folder).join(&name)).expect("bytes");
            assert!(bytes("mix") == bytes("new"), "{renamed} renamed: {name}");
        }
    }
}
