//! Loading onto other cards than a container was packed for: every place is checked, and everything gets there.
#![allow(missing_docs)]

mod oracle;
mod packing;

use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::hotness::{Hotness, RoutedModel};
use gantry_formats::placement::{CardSpec, Strategy};
use gantry_runtime::load::{LoadOptions, Places, load};
use gantry_runtime::memory::CardShortage;
use gantry_runtime::{Container, Device, LoadMode, Model, ModelOptions, Result, RuntimeError, Verify};
use oracle::Config;
use packing::How;
use std::path::{Path, PathBuf};

/// Layers of 5 experts, so that no number of cards but one divides them.
fn config() -> Config {
    Config {
        experts: 5,
        used: 2,
        layers: 4,
        vocab: 40,
        embd: 32,
        heads: 2,
        kv: 1,
        head: 16,
        ff: 32,
        ..Config::default()
    }
}

fn write(dir: &Path, config: Config, how: &How) -> PathBuf {
    let model = oracle::Model::random(config, 3);
    packing::pack(dir, &model.header, &model.tensors, how)
}

fn any(cards: usize) -> Vec<CardSpec> {
    vec![CardSpec { host: false, bytes: None }; cards]
}

fn budgets(bytes: &[u64]) -> Vec<CardSpec> {
    bytes.iter().map(|&bytes| CardSpec { host: false, bytes: Some(bytes) }).collect()
}

fn run(path: &Path, options: &ModelOptions) -> Result<Model> {
    Model::load(&Container::open(path)?, &Device::cpu(Some(2)).unwrap(), options)
}

fn how_to_load(mode: LoadMode) -> LoadOptions {
    LoadOptions { mode, verify: Verify::Full, threads: 3, progress: None, left: Vec::new() }
}

const STRATEGIES: [Strategy; 4] =
    [Strategy::Paired, Strategy::Layers, Strategy::Balanced, Strategy::Replicate(2)];

/// Counts that make the strategies differ.
fn hotness(container: &Container) -> Hotness {
    let mut hotness = Hotness::new(&RoutedModel::of_container(container).unwrap());
    for (layer, line) in hotness.counts.iter_mut().enumerate() {
        line.counts = vec![900, 20, 500, 40 * layer as u64, 7];
    }
    hotness.tokens = 1000;
    hotness
}

#[test]
fn each_tensor_and_each_expert_has_its_bytes_on_any_cards() {
    let dir = tempfile::tempdir().unwrap();
    for packed_for in [1, 2, 3] {
        let how = How { cards: packed_for, split_cards: packed_for == 3, ..How::default() };
        let container = Container::open(&write(dir.path(), config(), &how)).unwrap();
        let hotness = hotness(&container);
        let packed = Places::as_packed(&container);
        let (source, _) = load(&container, &packed, &how_to_load(LoadMode::Read)).unwrap();
        let packed_bytes = |blob: usize| {
            let blob = container.table().blobs()[blob];
            &source.arenas()[blob.card as usize].bytes()[blob.offset as usize..][..blob.bytes as usize]
        };
        for cards in 1..=4 {
            for strategy in STRATEGIES {
                let name = format!("{packed_for} to {cards}, {strategy}");
                let places = Places::anew(&container, &any(cards), strategy, Some(&hotness)).unwrap();
                let (weights, report) = load(&container, &places, &how_to_load(LoadMode::Read)).unwrap();
                assert_eq!((weights.arenas().len(), report.cards.len()), (cards, cards), "{name}");
                let here = |card: usize, offset: u64, bytes: usize| {
                    &weights.arenas()[card].bytes()[offset as usize..][..bytes]
                };
                for (place, tensor) in places.tensors.iter().zip(&container.manifest().tensors) {
                    let want = packed_bytes(tensor.blob as usize);
                    assert!(here(place.card, place.offset, want.len()) == want, "{name}: {}", tensor.name);
                    assert!(strategy == Strategy::Layers || place.card == 0, "{name}: {}", tensor.name);
                }
                let mut copies = 0;
                for bank in &places.banks {
                    for (number, slot) in (0..).zip(&bank.slots) {
                        let want = packed_bytes(slot.blob);
                        let got = here(bank.card, bank.offset + number * bank.stride, want.len());
                        assert!(got == want, "{name}: layer {} expert {}", bank.layer, slot.expert);
                        // Whatever the places say, the blob must be that expert's.
                        let said = container.blob_name(slot.blob);
                        assert_eq!(said, format!("layer {} expert {}", bank.layer, slot.expert), "{name}");
                        copies += 1;
                    }
                }
                let extra = strategy == Strategy::Replicate(2) && cards > 1;
                assert_eq!(copies > 4 * 5, extra, "{name}: {copies}");
                let used: Vec<usize> = (0..cards).filter(|&c| report.cards[c].bytes > 0).collect();
                assert_eq!(used.len(), cards, "{name}: cards {used:?}");
                assert_eq!(report.cards.iter().map(|c| c.bytes).sum::<u64>(), report.bytes, "{name}");
            }
        }
    }
}

#[test]
fn logits_have_the_same_bits_on_any_cards() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen: Option<Vec<u32>> = None;
    for packed_for in [1, 2] {
        let path = write(dir.path(), config(), &How { cards: packed_for, ..How::default() });
        for cards in 1..=4 {
            for placement in STRATEGIES.map(Some).into_iter().chain([None]) {
                let options = ModelOptions { cards: Some(any(cards)), placement, ..ModelOptions::default() };
                let model = run(&path, &options).unwrap();
                let logits = model.session().unwrap().prefill(&[1, 2, 3, 4, 5, 6, 7]).unwrap().to_vec();
                let bits: Vec<u32> = logits.iter().map(|v| v.to_bits()).collect();
                assert_eq!(
                    *seen.get_or_insert_with(|| bits.clone()),
                    bits,
                    "{packed_for} to {cards}, {placement:?}"
                );
                assert_eq!(model.need().len(), cards);
                let moved = model.notes().iter().any(|n| n.contains("while loading"));
                let other = cards != packed_for || cards > 1 && placement.is_some();
                assert_eq!(moved, other, "{packed_for} to {cards}, {placement:?}: {:?}", model.notes());
            }
        }
    }
}

type Break = fn(&mut Places);

#[test]
fn places_that_are_no_total_map_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), config(), &How { cards: 2, ..How::default() });
    let container = Container::open(&path).unwrap();
    let good = Places::anew(&container, &any(2), Strategy::Paired, None).unwrap();
    good.check(&container).unwrap();
    Places::as_packed(&container).check(&container).unwrap();
    let cases: [(Break, &str); 22] = [
        (|p| p.tensors.truncate(p.tensors.len() - 1), "tensors have a place, the container has"),
        (|p| p.tensors[0].card = 7, "there is no card 7 of 2"),
        (|p| p.tensors[0].offset += 1, "is no multiple of 64"),
        (|p| p.tensors[0].offset = p.cards[0].bytes, "of card 0"),
        (|p| p.tensors[0].offset = u64::MAX - 63, "lie outside"),
        (|p| p.tensors[1] = p.tensors[0], "overlap on card 0"),
        (|p| p.tensors[0].offset = p.banks[0].offset, "overlap on card 0"),
        (|p| p.cards[1].bytes = 64, "lie outside the 64 of card 1"),
        (|p| p.cards.truncate(1), "there is no card 1 of 1"),
        (|p| p.banks.truncate(1), "lies on no card"),
        (|p| p.banks[0].slots.truncate(1), "lies on no card"),
        (|p| p.banks[0].slots[0].expert = 5, "layer 0 expert 5: the model has no such expert"),
        (|p| p.banks[0].slots[0] = p.banks[0].slots[1], "it lies twice on card 0"),
        (|p| p.banks[0].slots[0].blob = p.banks[0].slots[1].blob, "is another's"),
        (|p| p.banks[0].slots[0].blob = usize::MAX, "is another's"),
        (|p| p.banks[0].layer = 1, "layer 1 on card 0: it has no such experts"),
        (|p| p.banks[0].like = 99, "it has no such experts"),
        (|p| p.banks.push(p.banks[0].clone()), "two banks"),
        (|p| p.banks[0].slots.clear(), "a bank without experts"),
        (|p| p.banks[0].stride = 0, "slots of 0 bytes"),
        (|p| p.banks[0].stride += 1, "the stride"),
        (|p| p.banks[0].stride = u64::MAX - 255, "lie outside"),
    ];
    for (damage, said) in cases {
        let mut bad = good.clone();
        damage(&mut bad);
        for mode in [LoadMode::Read, LoadMode::Map] {
            let error = load(&container, &bad, &how_to_load(mode)).unwrap_err();
            assert!(matches!(error, RuntimeError::Placement(_)), "{said}: {error}");
            assert!(error.to_string().contains(said), "{said:?} in {error}");
            assert_eq!(error.exit(), Exit::Input, "{error}");
        }
    }
    // Those of another model.
    let dir = tempfile::tempdir().unwrap();
    let other = write(dir.path(), Config { experts: 4, ..config() }, &How { cards: 2, ..How::default() });
    let error = load(&Container::open(&other).unwrap(), &good, &how_to_load(LoadMode::Read)).unwrap_err();
    assert!(matches!(error, RuntimeError::Placement(_)), "{error}");
}

#[test]
fn damage_is_named_where_the_container_has_it_and_where_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), config(), &How { cards: 2, ..How::default() });
    let container = Container::open(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    for (blob, entry) in container.table().blobs().iter().enumerate() {
        let mut bad = good.clone();
        let segment = container.header().cards[entry.card as usize].offset;
        bad[(segment + entry.offset + entry.bytes / 2) as usize] ^= 0x40;
        std::fs::write(&path, bad).unwrap();
        for (cards, strategy) in [(1, Strategy::Layers), (3, Strategy::Paired), (4, Strategy::Replicate(3))] {
            let with = |verify| ModelOptions {
                cards: Some(any(cards)),
                placement: Some(strategy),
                verify: Some(verify),
                ..ModelOptions::default()
            };
            let error = run(&path, &with(Verify::Full)).unwrap_err();
            assert_eq!(error.exit(), Exit::Integrity, "{error}");
            let text = error.to_string();
            let name = container.blob_name(blob);
            assert!(text.contains(&format!("card {}, {name}, block 0", entry.card)), "{name}: {text}");
            // A damaged expert with a copy is damaged once.
            assert!(!text.contains("damaged places"), "{text}");
            if cards == 1 && entry.card == 1 {
                assert!(text.contains("; loaded for card 0"), "{text}");
            }
            run(&path, &with(Verify::Index)).unwrap();
            run(&path, &with(Verify::None)).unwrap();
        }
    }
}

#[test]
fn what_is_mapped_stays_as_it_was_packed() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), config(), &How { cards: 2, ..How::default() });
    let options = |cards, placement| ModelOptions {
        load: LoadMode::Map,
        cards: Some(any(cards)),
        placement,
        ..ModelOptions::default()
    };
    run(&path, &options(2, None)).unwrap();
    for (cards, placement) in [(1, None), (3, None), (2, Some(Strategy::Layers))] {
        let error = run(&path, &options(cards, placement)).unwrap_err();
        assert!(error.to_string().contains("--load read"), "{error}");
        assert_eq!(error.exit(), Exit::Usage);
    }
}

/// What is refused for these cards, from a file whose weights are gone: nothing of them was read.
fn short(path: &Path, options: &ModelOptions) -> CardShortage {
    let container = Container::open(path).unwrap();
    let copy = path.with_file_name("cut.gantry");
    std::fs::copy(path, &copy).unwrap();
    let cut = Container::open(&copy).unwrap();
    std::fs::OpenOptions::new().write(true).open(&copy).unwrap().set_len(5000).unwrap();
    let device = Device::cpu(Some(2)).unwrap();
    let plain = ModelOptions { cards: None, placement: None, ..options.clone() };
    let error = Model::load(&cut, &device, &plain).unwrap_err();
    assert_eq!(error.exit(), Exit::Integrity, "weights are needed: {error}");
    let error = Model::load(&cut, &device, options).unwrap_err();
    assert_eq!(error.exit(), Exit::Resources, "{error}");
    assert!(error.to_string().lines().all(|line| line.len() <= 80), "{error}");
    drop(container);
    match error {
        RuntimeError::Cards(short) => *short,
        other => panic!("{other}"),
    }
}

#[test]
fn short_budgets_are_refused_before_a_weight_is_read_and_what_would_fit_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), Config { vocab: 300, ..config() }, &How::default());
    let base = ModelOptions { context: Some(64), batch: 8, ..ModelOptions::default() };
    let roomy = run(&path, &ModelOptions { cards: Some(any(1)), ..base.clone() }).unwrap();
    let all = roomy.need()[0].total();
    let cache = roomy.need()[0].cache;
    assert!(cache > 0);
    for strategy in STRATEGIES {
        for parts in [vec![1], vec![1, 1], vec![2, 1], vec![1, 2], vec![3, 2, 1]] {
            if parts.len() == 1 && strategy != Strategy::Paired {
                continue;
            }
            let whole: u64 = parts.iter().sum();
            for percent in [1, 40, 90] {
                let bytes: Vec<u64> = parts.iter().map(|p| all * percent / 100 * p / whole).collect();
                let options =
                    ModelOptions { cards: Some(budgets(&bytes)), placement: Some(strategy), ..base.clone() };
                let name = format!("{strategy}, {percent} % of {all} as {bytes:?}");
                let found = short(&path, &options);
                let lacks = found.cards.iter().any(|card| card.short > 0);
                assert!(lacks && found.cards.len() == parts.len(), "{name}: {found}");
                let fits = ModelOptions { cards: Some(found.fitting_cards.clone()), ..options.clone() };
                let model = run(&path, &fits).unwrap_or_else(|e| panic!("{name}: {found}\nbut {e}"));
                for (need, card) in model.need().iter().zip(&found.fitting_cards) {
                    assert!(Some(need.total()) <= card.bytes, "{name}: {need:?} on {card}");
                }
                if let Some(longest) = found.fitting_context {
                    let at = |context| ModelOptions { context: Some(context as usize), ..options.clone() };
                    run(&path, &at(longest)).unwrap_or_else(|e| panic!("{name}: {e}"));
                    let more = short(&path, &at(longest + 1));
                    assert_eq!(more.fitting_context, found.fitting_context, "{name}");
                }
            }
        }
    }
}

#[test]
fn cards_with_just_enough_room_hold_it_and_a_byte_less_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), config(), &How { cards: 2, ..How::default() });
    for strategy in [None, Some(Strategy::Paired), Some(Strategy::Balanced)] {
        let options =
            |cards| ModelOptions { cards: Some(cards), placement: strategy, ..ModelOptions::default() };
        let roomy = run(&path, &options(any(2))).unwrap();
        let just: Vec<u64> = roomy.need().iter().map(gantry_runtime::memory::Need::total).collect();
        let model = run(&path, &options(budgets(&just))).unwrap();
        assert!(model.need().iter().zip(&just).all(|(need, budget)| need.total() <= *budget));
        // As it was packed it does not fit; placed anew it may.
        let less = [just[0].min(just[1]) / 4; 2];
        assert!(matches!(run(&path, &options(budgets(&less))), Err(RuntimeError::Cards(_))));
    }
    // The machine's memory counts too, over all cards.
    let options =
        ModelOptions { cards: Some(any(3)), memory_limit: Some(1 << 12), ..ModelOptions::default() };
    assert!(matches!(run(&path, &options), Err(RuntimeError::Memory(_))));
}

#[test]
fn what_cannot_be_placed_at_all_is_refused_by_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), config(), &How::default());
    let on =
        |cards, placement| ModelOptions { cards: Some(any(cards)), placement, ..ModelOptions::default() };
    let error = run(&path, &on(5, Some(Strategy::Layers))).unwrap_err();
    assert!(error.to_string().contains("5 cards for 4 layers"), "{error}");
    assert_eq!(error.exit(), Exit::Usage);
    let container = Container::open(&path).unwrap();
    let mut counts = hotness(&container);
    counts.fingerprint = Some("0".repeat(64));
    let error = run(&path, &ModelOptions { hotness: Some(counts.into()), ..on(2, None) }).unwrap_err();
    assert!(error.to_string().contains("another model"), "{error}");
    assert_eq!(error.exit(), Exit::Input);
    // Without experts there are only layers.
    let dense = write(dir.path(), Config { experts: 0, used: 0, ..config() }, &How::default());
    let error = run(&dense, &on(2, Some(Strategy::Paired))).unwrap_err();
    assert!(error.to_string().contains("no experts"), "{error}");
    let model = run(&dense, &on(2, None)).unwrap();
    assert!(model.need()[1].weights > 0 && model.need()[1].cache > 0, "{:?}", model.need());
    assert!(model.notes()[0].contains("cpu:0 and cpu:1 while loading (layers)"), "{:?}", model.notes());
}
