//! What goes to which card by budgets: whatever is taken is within them, and whatever is said to fit does.

use gantry_formats::container::Alignment;
use gantry_formats::placement::{
    CardShortage, CardSpec, Demand, Fill, Fit, Held, LayerExperts, Misfit, PlacementError, Resident,
    Strategy, cards_text, longest_context, parse_cards,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;
use std::collections::BTreeMap;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A model and what lies beside it, with its own lists.
#[derive(Clone, Debug)]
struct Model {
    alignment: Alignment,
    tensors: Vec<Resident>,
    copies: Vec<Resident>,
    experts: Vec<LayerExperts>,
    states: BTreeMap<u32, u64>,
    scratch: Vec<u64>,
    reserve: u64,
}

impl Model {
    fn on<'a>(&'a self, cards: &'a [CardSpec], strategy: Strategy, fill: Fill) -> Demand<'a> {
        Demand {
            alignment: self.alignment,
            tensors: &self.tensors,
            copies: &self.copies,
            experts: &self.experts,
            states: &self.states,
            scratch: &self.scratch,
            reserve: self.reserve,
            cards,
            strategy,
            fill,
        }
    }
}

fn cards(budgets: &[Option<u64>]) -> Vec<CardSpec> {
    budgets.iter().map(|bytes| CardSpec { host: false, bytes: *bytes }).collect()
}

/// What each card holds, reckoned apart from the module: an offset after the other.
fn held(demand: &Demand<'_>, fit: &Fit) -> Vec<Held> {
    let up = |n: u64, align: u32| n.next_multiple_of(align.into());
    let Alignment { segment, blob, tensor } = demand.alignment;
    let of = |card: usize| {
        let here = |t: &&Resident| fit.home(t.layer, t.head) == card;
        let mut at = demand.tensors.iter().filter(here).fold(0, |at, t| up(at, tensor) + t.bytes);
        for (own, of) in fit.experts.layers.iter().zip(demand.experts) {
            let count = own.cards[card].len() as u64;
            at = if count > 0 { up(at, blob) + count * of.bytes } else { at };
        }
        at = demand.copies.iter().filter(here).fold(at, |at, t| up(at, tensor) + t.bytes);
        let states = demand.states.iter().filter(|(layer, _)| fit.home(Some(**layer), false) == card);
        let scratch = demand.scratch.get(card).copied().unwrap_or(0);
        Held {
            segment: up(at, segment),
            states: states.map(|(_, n)| n).sum(),
            scratch,
            reserve: demand.reserve,
        }
    };
    (0..demand.cards.len()).map(of).collect()
}

/// A model of four layers of 1 MiB with 8 experts of 256 KiB each.
fn plain() -> Model {
    let tensor = |layer, bytes| Resident { layer, head: false, bytes };
    Model {
        alignment: Alignment::default(),
        tensors: (0..4)
            .map(|layer| tensor(Some(layer), MIB))
            .chain([tensor(None, 3 * MIB), Resident { layer: None, head: true, bytes: MIB }])
            .collect(),
        copies: Vec::new(),
        experts: (0..4)
            .map(|layer| LayerExperts { layer, experts: 8, bytes: 256 * KIB, counts: Vec::new() })
            .collect(),
        states: (0..4).map(|layer| (layer, 100)).collect(),
        scratch: vec![1000, 500],
        reserve: 10,
    }
}

#[test]
fn experts_go_where_there_is_room_and_all_else_to_the_first_card() {
    let model = plain();
    let specs = cards(&[Some(12 * MIB + 1410), Some(6 * MIB)]);
    let fit = model.on(&specs, Strategy::Paired, Fill::Share).fit().unwrap();
    assert_eq!(fit.held.iter().map(|held| held.segment / MIB).collect::<Vec<_>>(), [12, 4]);
    assert_eq!((fit.held[0].states, fit.held[1].states), (400, 0));
    assert_eq!(fit.held[1].total(), 4 * MIB + 510);
    assert!([(None, false), (None, true), (Some(3), false)].into_iter().all(|(l, h)| fit.home(l, h) == 0));
    assert_eq!(fit.usable, [Some(4 * MIB), Some(4 * MIB)]);
    // A byte less leaves a whole segment alignment less.
    let specs = cards(&[Some(12 * MIB + 1409), Some(6 * MIB)]);
    let demand = model.on(&specs, Strategy::Paired, Fill::Share);
    assert_eq!(demand.fit(), Err(Misfit::Short));
    let enough = demand.enough().unwrap();
    assert!(enough.short.iter().any(|short| *short > 0), "{enough:?}");
    assert!(model.on(&enough.cards, Strategy::Paired, Fill::Share).fit().is_ok());
}

#[test]
fn whole_layers_are_within_budgets_that_just_hold_them() {
    let model = plain();
    let of = |specs: &[CardSpec]| model.on(specs, Strategy::Layers, Fill::Share).fit();
    let fit = of(&cards(&[None, None])).unwrap();
    let homes = |fit: &Fit| (0..4).map(|layer| fit.home(Some(layer), false)).collect::<Vec<_>>();
    assert_eq!((homes(&fit), fit.home(None, true), fit.home(None, false)), (vec![0, 0, 1, 1], 1, 0));
    // Tensors of 5 MiB and experts of 4 end on 10; 3 and 4 on 8.
    let just: Vec<Option<u64>> = fit.held.iter().map(|held| Some(held.total())).collect();
    assert_eq!(just, [Some(10 * MIB + 1210), Some(8 * MIB + 710)]);
    assert_eq!(of(&cards(&just)).map(|fit| homes(&fit)), Ok(vec![0, 0, 1, 1]));
    let less = [just[0].map(|n| n - 1), just[1]];
    assert_eq!(of(&cards(&less)), Err(Misfit::Short));
    let few = of(&cards(&[None; 5])).unwrap_err();
    assert_eq!(few, Misfit::Never(PlacementError::FewLayers { cards: 5, layers: 4 }));
}

#[test]
fn what_is_beside_counts_on_every_card() {
    let model = Model { reserve: 0, scratch: vec![0, 3 * MIB], ..plain() };
    for strategy in [Strategy::Paired, Strategy::Layers] {
        let specs = cards(&[None, Some(2 * MIB)]);
        let demand = model.on(&specs, strategy, Fill::Share);
        assert_eq!(demand.fit(), Err(Misfit::Short), "{strategy}");
        let enough = demand.enough().unwrap();
        assert!(enough.cards[0].bytes.is_none() && enough.cards[1].bytes >= Some(3 * MIB), "{enough:?}");
        let said = CardShortage::of(&demand, "card ", Some(128), None).unwrap().to_string();
        assert!(said.contains("card 1           0.0        0.0        3.0        2.0 "), "{said}");
    }
}

#[test]
fn sums_beyond_64_bits_are_refused() {
    let mut model = plain();
    model.tensors[0].bytes = u64::MAX - 5;
    for strategy in [Strategy::Paired, Strategy::Layers] {
        let specs = cards(&[Some(MIB), None]);
        let demand = model.on(&specs, strategy, Fill::Share);
        let overflow = PlacementError::Overflow { what: "bytes of a card".into() };
        assert_eq!(demand.fit(), Err(Misfit::Never(overflow)), "{strategy}");
        assert!(demand.enough().is_err());
    }
}

fn models() -> impl Generate<Value = Model> {
    let bytes = || prop_oneof![3 => 0u64..3000, 1 => 0u64..(3 * MIB)];
    let tensors = |most| {
        let layer = prop_oneof![4 => (0u32..6).prop_map(|n| (Some(n), false)), 1 => any::<bool>().prop_map(|h| (None, h))];
        let tensor = (layer, bytes()).prop_map(|((layer, head), bytes)| Resident { layer, head, bytes });
        prop::collection::vec(tensor, 0..most)
    };
    let alignment = prop_oneof![
        Just(Alignment::default()),
        Just(Alignment { segment: 1024, blob: 64, tensor: 32 }),
        Just(Alignment { segment: 4096, blob: 4096, tensor: 16 }),
    ];
    let experts = prop::collection::btree_map(0u32..6, (0u32..9, 0u64..400, 0u64..100), 0..5);
    let states = prop::collection::btree_map(0u32..7, bytes(), 0..7);
    let scratch = prop::collection::vec(bytes(), 0..5);
    let parts = (alignment, tensors(20), tensors(4), experts, states);
    (parts, scratch, prop_oneof![Just(0u64), 0u64..5000]).prop_map(
        |((alignment, tensors, copies, experts, states), scratch, reserve)| {
            let layer = |(layer, (experts, units, seed)): (u32, (u32, u64, u64))| LayerExperts {
                layer,
                experts,
                bytes: units * u64::from(alignment.blob),
                counts: (0..u64::from(experts)).map(|e| (e * 7919 + seed * 104_729) % 1000).collect(),
            };
            let experts = experts.into_iter().map(layer).collect();
            Model { alignment, tensors, copies, experts, states, scratch, reserve }
        },
    )
}

fn rules() -> impl Generate<Value = (Strategy, Fill)> {
    let strategies = prop_oneof![
        3 => Just(Strategy::Layers),
        2 => Just(Strategy::Paired),
        1 => Just(Strategy::Balanced),
        1 => (1u32..5).prop_map(Strategy::Replicate),
    ];
    (strategies, prop_oneof![Just(Fill::Share), Just(Fill::First)])
}

/// Budgets as parts of all that there is, in thousandths.
fn parts() -> impl Generate<Value = Vec<Option<u64>>> {
    prop::collection::vec(prop_oneof![1 => Just(None), 5 => (0u64..900).prop_map(Some)], 1..5)
}

fn check(demand: &Demand<'_>, fit: &Fit) -> Result<(), TestCaseError> {
    prop_assert_eq!(&fit.held, &held(demand, fit));
    for (held, card) in fit.held.iter().zip(demand.cards) {
        prop_assert!(card.bytes.is_none_or(|budget| held.total() <= budget), "{:?} on {}", held, card);
    }
    let unlimited = vec![None; demand.cards.len()];
    prop_assert_eq!(fit.experts.check(demand.experts, demand.cards.len(), &unlimited), Ok(()));
    if demand.whole_layers() {
        for own in &fit.experts.layers {
            let home = fit.home(Some(own.layer), false);
            let elsewhere = own.cards.iter().enumerate().any(|(card, e)| card != home && !e.is_empty());
            prop_assert!(!elsewhere, "layer {} is cut", own.layer);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn what_is_taken_is_within_the_budgets_and_what_is_said_to_fit_does(
        model in models(), (strategy, fill) in rules(), parts in parts(),
    ) {
        let unlimited = cards(&vec![None; parts.len()]);
        let all = match model.on(&unlimited, strategy, fill).fit() {
            Ok(fit) => fit,
            Err(error) => {
                prop_assert!(matches!(error, Misfit::Never(PlacementError::FewLayers { .. })), "{error:?}");
                return Ok(());
            }
        };
        check(&model.on(&unlimited, strategy, fill), &all)?;
        let whole: u64 = all.held.iter().map(Held::total).sum();
        let budget = |part: &Option<u64>| part.map(|part| (whole * part / 1000).max(1));
        let specs = cards(&parts.iter().map(budget).collect::<Vec<_>>());
        let demand = model.on(&specs, strategy, fill);
        let fit = demand.fit();
        let enough = demand.enough().unwrap();
        prop_assert_eq!(parse_cards(&cards_text(&enough.cards)), Ok(enough.cards.clone()));
        for (asked, enough) in specs.iter().zip(&enough.cards) {
            prop_assert!(enough.bytes >= asked.bytes && enough.bytes.is_none() == asked.bytes.is_none());
        }
        if let Ok(fit) = fit {
            prop_assert_eq!(&enough.cards, &specs);
            return check(&demand, &fit);
        }
        prop_assert_eq!(fit, Err(Misfit::Short));
        prop_assert!(enough.short.iter().any(|short| *short > 0));
        let demand = model.on(&enough.cards, strategy, fill);
        let fit = demand.fit();
        prop_assert!(fit.is_ok(), "{} was said to fit", cards_text(&enough.cards));
        check(&demand, &fit.unwrap())?;
        // Nor is it much more than what it takes.
        let asked: u64 = enough.short.iter().sum();
        let gaps = model.experts.iter().map(|l| l.bytes).max().unwrap_or(0).max(model.alignment.segment.into());
        let most = whole + 3 * gaps * specs.len() as u64 + model.copies.iter().map(|t| t.bytes + 64).sum::<u64>();
        prop_assert!(asked <= most, "{asked} of {whole} are asked for");
    }

    #[test]
    fn whole_layers_fit_what_they_take(model in models(), parts in parts()) {
        let unlimited = cards(&vec![None; parts.len()]);
        if let Ok(fit) = model.on(&unlimited, Strategy::Layers, Fill::Share).fit() {
            let just: Vec<_> = fit.held.iter().map(|held| Some(held.total())).collect();
            let specs = cards(&just);
            let demand = model.on(&specs, Strategy::Layers, Fill::Share);
            let again = demand.fit();
            prop_assert!(again.is_ok());
            check(&demand, &again.unwrap())?;
        }
    }

    #[test]
    fn a_context_that_is_said_to_fit_does(
        model in models(), (strategy, fill) in rules(), parts in parts(), context in 2u64..5000,
    ) {
        let at = |context: u64| Model {
            states: model.states.iter().map(|(layer, bytes)| (*layer, bytes % 900 * context)).collect(),
            scratch: model.scratch.iter().map(|bytes| bytes + context).collect(),
            ..model.clone()
        };
        let unlimited = cards(&vec![None; parts.len()]);
        let full = at(context);
        let Ok(all) = full.on(&unlimited, strategy, fill).fit() else { return Ok(()) };
        let whole: u64 = all.held.iter().map(Held::total).sum();
        let specs = cards(&parts.iter().map(|p| p.map(|p| whole * p / 500 + 1)).collect::<Vec<_>>());
        let fits = |context: u64| at(context).on(&specs, strategy, fill).fit().is_ok();
        if let Some(longest) = longest_context(1, context, fits) {
            prop_assert!((1..context).contains(&longest) && fits(longest));
        }
    }
}
