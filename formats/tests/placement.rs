//! Placing experts: the cases that public runs and papers give, and the rules that hold for any model and any cards.

use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::placement::{
    Fill, LayerExperts, LayerPlacement, Placement, PlacementError, Report, Request, Strategy, place,
    place_by_budget, report,
};
use proptest::prelude::*;
use proptest::strategy::Strategy as Generate;

const ALL: [Strategy; 4] =
    [Strategy::Paired, Strategy::Balanced, Strategy::Replicate(1), Strategy::Replicate(5)];

fn layer(layer: u32, bytes: u64, counts: &[u64]) -> LayerExperts {
    LayerExperts { layer, experts: counts.len() as u32, bytes, counts: counts.to_vec() }
}

fn unknown(layers: u32, experts: u32, bytes: u64) -> Vec<LayerExperts> {
    (0..layers).map(|layer| LayerExperts { layer, experts, bytes, counts: vec![] }).collect()
}

fn placed(
    layers: &[LayerExperts],
    usable: &[Option<u64>],
    strategy: Strategy,
) -> Result<Placement, PlacementError> {
    place(&Request { layers, usable, strategy, fill: Fill::Share })
}

fn tokens(layer: &LayerExperts) -> Vec<u64> {
    if layer.counts.iter().all(|n| *n == 0) { vec![1; layer.experts as usize] } else { layer.counts.clone() }
}

/// A token in units that up to 16 copies share without a rest.
const UNIT: u128 = 720_720;

/// The largest load of a card.
fn largest(own: &LayerPlacement, layer: &LayerExperts) -> u128 {
    let tokens = tokens(layer);
    let weight = |e: &u32| u128::from(tokens[*e as usize]) * UNIT / own.holders(*e).count() as u128;
    own.cards.iter().map(|card| card.iter().map(weight).sum()).max().unwrap()
}

/// Experts by card of the first layer.
fn sizes(placement: &Placement) -> Vec<usize> {
    placement.layers[0].cards.iter().map(Vec::len).collect()
}

/// Tokens that fall as 1 / rank^exponent, in an order that depends on `seed`.
fn zipf(experts: u32, exponent: f64, seed: u64) -> Vec<u64> {
    let mut counts: Vec<u64> =
        (1..=experts).map(|rank| (1e7 / f64::from(rank).powf(exponent)) as u64).collect();
    let mut state = seed;
    for i in (1..counts.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        counts.swap(i, (state >> 33) as usize % (i + 1));
    }
    counts
}

#[test]
fn two_cards_are_dealt_in_pairs() {
    let counts: Vec<u64> = (0..512u64).map(|e| e * 7919 % 513).collect();
    let model = [layer(3, 1, &counts)];
    let own = placed(&model, &[None, None], Strategy::Paired).unwrap();
    let mut order: Vec<u32> = (0..512).collect();
    order.sort_by_key(|e| (std::cmp::Reverse(counts[*e as usize]), *e));
    for (i, expert) in order.into_iter().enumerate() {
        let card = usize::from((i % 2 == 1) ^ (i / 2 % 2 == 1));
        assert_eq!(own.layers[0].holders(expert).collect::<Vec<_>>(), [card], "rank {i}");
    }
}

#[test]
fn a_public_run_held_283_and_229_of_512_experts() {
    let model = unknown(48, 512, 4096);
    let fits = |experts: u64| Some(experts * 48 * 4096);
    let usable = [fits(283), fits(300)];
    let first = Request { layers: &model, usable: &usable, strategy: Strategy::Paired, fill: Fill::First };
    assert_eq!(sizes(&place(&first).unwrap()), [283, 229]);
    // Two equal cards, of which one has room for 229.
    let usable = [fits(300), fits(229)];
    let share = Request { layers: &model, usable: &usable, strategy: Strategy::Paired, fill: Fill::Share };
    assert_eq!(sizes(&place_by_budget(&share, &[Some(24 << 30); 2]).unwrap()), [283, 229]);
}

#[test]
fn numbers_that_do_not_divide_place_too() {
    let place = |experts, cards: usize| {
        let model = unknown(5, experts, 10);
        for strategy in ALL {
            placed(&model, &vec![None; cards], strategy).unwrap();
        }
        sizes(&placed(&model, &vec![None; cards], Strategy::Paired).unwrap())
    };
    assert_eq!(place(256, 3), [85, 85, 86]);
    assert_eq!(place(128, 6), [21, 21, 21, 21, 22, 22]);
    assert_eq!(place(4, 8), [1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(place(1, 2), [1, 0]);
    assert_eq!(place(7, 1), [7]);
    assert_eq!(place(0, 2), [0, 0]);
    let model = unknown(5, 512, 10);
    let unequal = [Some(24 << 30), Some(16 << 30)];
    assert_eq!(sizes(&placed(&model, &unequal, Strategy::Paired).unwrap()), [307, 205]);
}

#[test]
fn one_card_holds_everything_and_has_no_copies() {
    let model = [layer(0, 10, &[5, 1, 9]), layer(2, 20, &[0, 0, 0, 0])];
    for strategy in ALL.into_iter().chain([Strategy::Layers]) {
        let own = placed(&model, &[Some(110)], strategy).unwrap();
        assert_eq!(own.layers[0].cards, [[0, 1, 2]]);
        assert_eq!(own.layers[1].cards, [[0, 1, 2, 3]]);
        let short = placed(&model, &[Some(109)], strategy);
        assert!(matches!(short, Err(PlacementError::Short { card: Some(0), short: 1.., .. })), "{short:?}");
    }
}

#[test]
fn layers_keep_their_experts_together() {
    let model = unknown(6, 8, 10);
    let own = placed(&model, &[Some(320), Some(160)], Strategy::Layers).unwrap();
    let all: Vec<u32> = (0..8).collect();
    for (i, layer) in own.layers.iter().enumerate() {
        assert_eq!(layer.cards[usize::from(i >= 4)], all);
    }
    assert!(matches!(placed(&model, &[None; 7], Strategy::Layers), Err(PlacementError::FewLayers { .. })));
}

#[test]
fn copies_reach_what_is_possible_in_the_published_case() {
    // EPLB has 232 here, a published improvement 205.
    let model = [layer(0, 10, &[600, 560, 120, 120, 20, 10, 10, 10])];
    let own = placed(&model, &[Some(20); 8], Strategy::Replicate(8)).unwrap();
    assert!(largest(&own.layers[0], &model[0]) * 3 <= 590 * UNIT, "{own:?}");
    let held: usize = sizes(&own).iter().sum();
    assert!(held <= 16);
    let Report { layers, copies, bytes, share_ppm, .. } = report(&own, &model);
    let top = layers[0].load.iter().copied().fold(0.0, f64::max);
    assert!(top <= 196.7, "{top}");
    assert_eq!(layers[0].balance_ppm, 921_610, "1450 ÷ 8 over 196⅔");
    assert_eq!(copies.iter().map(|c| c.cards.len() - 1).sum::<usize>(), held - 8);
    assert!(bytes.iter().all(|bytes| *bytes <= 20));
    assert_eq!(share_ppm, layers[0].share_ppm);
}

#[test]
fn fewer_copies_are_made_where_fewer_fit() {
    let model = [layer(0, 10, &[90, 10, 10, 10]), layer(1, 10, &[40, 30, 30, 20])];
    // Room for two of each layer on each card, and on each for one more of either.
    let own = placed(&model, &[Some(50), Some(50)], Strategy::Replicate(9)).unwrap();
    assert_eq!(own.layers[0].cards.iter().map(Vec::len).sum::<usize>(), 6);
    assert_eq!(own.layers[0].holders(0).count(), 2);
    assert_eq!(largest(&own.layers[0], &model[0]), 60 * UNIT);
    let own = placed(&model, &[Some(40), Some(40)], Strategy::Replicate(9)).unwrap();
    assert!(report(&own, &model).copies.is_empty());
}

#[test]
fn balanced_is_within_a_fiftieth_of_the_mean() {
    for cards in 2..=8usize {
        let mut reached = 0;
        for exponent in [0.8, 0.9, 1.0, 1.1, 1.2] {
            let model: Vec<_> =
                (0..48).map(|i| layer(i, 1, &zipf(512, exponent, u64::from(i) + 1))).collect();
            let own = placed(&model, &vec![None; cards], Strategy::Balanced).unwrap();
            // As much room as a quarter more than equal shares.
            let tight = vec![Some(48 * 640 / cards as u64); cards];
            let tight = placed(&model, &tight, Strategy::Balanced).unwrap();
            for ((own, tight), model) in own.layers.iter().zip(&tight.layers).zip(&model) {
                let whole = u128::from(model.counts.iter().sum::<u64>()) * UNIT;
                let within = |load: u128| load * cards as u128 * 100 <= whole * 102;
                if within(u128::from(*model.counts.iter().max().unwrap()) * UNIT) {
                    assert!(within(largest(own, model)), "{cards} cards, exponent {exponent}");
                    assert!(within(largest(tight, model)), "{cards} cards, exponent {exponent}, tight");
                    reached += 1;
                }
            }
        }
        assert!(reached >= 48 * 2, "{cards} cards: {reached}");
    }
}

#[test]
fn copies_balance_what_moves_cannot() {
    // The hottest of 512 experts has more than a card's share.
    let model: Vec<_> = (0..4).map(|i| layer(i, 1, &zipf(512, 1.2, u64::from(i) + 1))).collect();
    let usable = vec![Some(4 * 72); 8];
    let without = report(&placed(&model, &usable, Strategy::Balanced).unwrap(), &model);
    let with = report(&placed(&model, &usable, Strategy::Replicate(64)).unwrap(), &model);
    let worst = |r: &Report| r.layers[r.worst.unwrap()].balance_ppm;
    assert!(worst(&without) < 600_000 && worst(&with) > 980_000, "{} {}", worst(&without), worst(&with));
}

#[test]
fn what_cannot_be_computed_with_is_refused() {
    let refused = |layer: LayerExperts| placed(&[layer], &[None, None], Strategy::Balanced).unwrap_err();
    let wrong = LayerExperts { layer: 4, experts: 3, bytes: 1, counts: vec![1, 2] };
    let error = refused(wrong);
    assert_eq!(error.to_string(), "layer 4: token counts of 2 experts, expected those of 3");
    assert_eq!(error.exit(), Exit::Input);
    let many = LayerExperts { layer: 4, experts: 16_385, bytes: 1, counts: vec![] };
    assert_eq!(refused(many).to_string(), "layer 4: 16385 experts, expected at most 16384");
    placed(&[unknown(1, 5_000, 1)[0].clone()], &[None, None], Strategy::Paired).expect("many, yet sound");
    assert!(matches!(refused(layer(0, 1, &[u64::MAX, 1])), PlacementError::Overflow { .. }));
    assert!(matches!(refused(layer(0, u64::MAX, &[1, 1])), PlacementError::Overflow { .. }));
    let model = unknown(1, 2, 1);
    assert_eq!(placed(&model, &[], Strategy::Paired), Err(PlacementError::Cards { found: 0 }));
    assert_eq!(placed(&model, &[None; 60], Strategy::Layers), Err(PlacementError::Cards { found: 60 }));
    let request =
        Request { layers: &model, usable: &[None, None], strategy: Strategy::Paired, fill: Fill::Share };
    let budgets = PlacementError::Budgets { found: 1, expected: 2 };
    assert_eq!(place_by_budget(&request, &[None]), Err(budgets));
    // The largest counts that are taken.
    let own = placed(&[layer(0, 1, &[u64::MAX - 9, 2, 7])], &[None; 59], Strategy::Replicate(200)).unwrap();
    assert_eq!(own.layers[0].holders(0).count(), 32);
}

#[test]
fn what_is_short_exits_as_resources() {
    let mib = 1u64 << 20;
    let error =
        placed(&unknown(2, 8, 10 * mib), &[Some(80 * mib), Some(40 * mib)], Strategy::Balanced).unwrap_err();
    assert_eq!(error.exit(), Exit::Resources);
    let said = "all cards together: 160.0 MiB to hold, 120.0 MiB usable, 40.0 MiB short; with 100.0 MiB, 60.0 MiB usable";
    assert_eq!(error.to_string(), format!("{said} it would fit"));
}

#[test]
fn a_report_says_loads_shares_and_the_worst_layer() {
    let model = [layer(0, 100, &[4, 3, 2, 1]), layer(5, 10, &[8, 1, 1, 0]), layer(6, 1, &[])];
    let place =
        |layer, cards: [&[u32]; 2]| LayerPlacement { layer, cards: cards.map(<[u32]>::to_vec).to_vec() };
    let own = Placement {
        layers: vec![place(0, [&[0, 3], &[1, 2]]), place(5, [&[0, 3], &[0, 1, 2]]), place(6, [&[], &[]])],
    };
    let r = report(&own, &model);
    assert_eq!(r.layers[0].load, [5.0, 5.0]);
    assert_eq!(r.layers[0].balance_ppm, 1_000_000);
    assert_eq!(r.layers[1].load, [4.0, 6.0]);
    assert_eq!(r.layers[1].share_ppm, [400_000, 600_000]);
    assert_eq!(r.layers[1].balance_ppm, 833_333);
    assert_eq!(r.layers[2].balance_ppm, 1_000_000, "without experts nothing is unequal");
    assert_eq!(r.worst, Some(1));
    assert_eq!(r.bytes, [220, 230]);
    assert_eq!(r.copies.len(), 1);
    assert_eq!((r.copies[0].layer, r.copies[0].expert, &r.copies[0].cards[..]), (5, 0, &[0, 1][..]));
    let two = Placement { layers: own.layers[..2].to_vec() };
    assert_eq!(report(&two, &model[..2]).share_ppm, [450_000, 550_000]);
    assert_eq!(report(&Placement { layers: vec![] }, &[]).worst, None);
}

/// The least largest load of any placement without copies that has at most `rooms` experts on each card.
fn least(tokens: &[u64], rooms: &[usize]) -> u64 {
    let n = rooms.len();
    let all = (0..n.pow(tokens.len() as u32)).filter_map(|mut code| {
        let (mut loads, mut left) = (vec![0; n], rooms.to_vec());
        for count in tokens {
            let card = code % n;
            code /= n;
            left[card] = left[card].checked_sub(1)?;
            loads[card] += count;
        }
        loads.into_iter().max()
    });
    all.min().unwrap()
}

/// Experts, bytes and counts of each layer; usable bytes of each card; whether cards are filled in order; copies.
type Model = (Vec<(u32, u64, Vec<u64>)>, Vec<Option<u64>>, bool, u32);

fn models() -> impl Generate<Value = Model> {
    let one = (0usize..12, 1u64..40).prop_flat_map(|(experts, bytes)| {
        let counts = prop_oneof![
            1 => Just(vec![]),
            4 => prop::collection::vec(0u64..1000, experts),
            1 => prop::collection::vec(prop_oneof![Just(0u64), Just(7), 0u64..1 << 50], experts),
        ];
        (Just(experts as u32), Just(bytes), counts)
    });
    let usable = prop::collection::vec(prop_oneof![1 => Just(None), 4 => (0u64..800).prop_map(Some)], 1..7);
    (prop::collection::vec(one, 0..5), usable, any::<bool>(), 0u32..9)
}

proptest! {
    #[test]
    fn every_placement_is_total_and_within_its_bytes((parts, usable, first, extra) in models()) {
        let model: Vec<_> = parts
            .into_iter()
            .zip(0..)
            .map(|((experts, bytes, counts), layer)| LayerExperts { layer, experts, bytes, counts })
            .collect();
        let fill = if first { Fill::First } else { Fill::Share };
        let of = |strategy, usable: &[Option<u64>]| place(&Request { layers: &model, usable, strategy, fill });
        let all = [Strategy::Paired, Strategy::Balanced, Strategy::Replicate(extra)].map(|s| of(s, &usable));
        let needs: u64 = model.iter().map(|l| u64::from(l.experts) * l.bytes).sum();
        let gaps = usable.len() as u64 * model.iter().map(|l| l.bytes).max().unwrap_or(0);
        if let Err(error) = &all[0] {
            // Only what lacks less than an expert on each card may fit and be refused, and what is asked for fits.
            let PlacementError::Short { enough, short, .. } = error else { panic!("{error:?}") };
            prop_assert!(*short > 0);
            let has = usable.iter().try_fold(0, |sum, bytes| bytes.map(|b| sum + b));
            prop_assert!(has.is_some_and(|has| has < needs + gaps));
            let enough: Vec<_> = enough.iter().map(|bytes| Some(*bytes)).collect();
            for strategy in [Strategy::Paired, Strategy::Balanced, Strategy::Replicate(extra)] {
                prop_assert!(of(strategy, &enough).is_ok());
            }
            prop_assert!(all.iter().all(Result::is_err));
            return Ok(());
        }
        let [paired, balanced, replicated] = all.map(Result::unwrap);
        for own in [&paired, &balanced, &replicated] {
            prop_assert_eq!(own.check(&model, usable.len(), &usable), Ok(()));
        }
        for (i, layer) in model.iter().enumerate() {
            let held = |own: &Placement| own.layers[i].cards.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!((held(&paired), held(&balanced)), (layer.experts as usize, layer.experts as usize));
            prop_assert!(held(&replicated) <= (layer.experts + extra) as usize);
            let load = |own: &Placement| largest(&own.layers[i], layer);
            prop_assert!(load(&balanced) <= load(&paired));
            prop_assert!(load(&replicated) * 1000 <= load(&balanced) * 1001);
        }
        prop_assert_eq!(of(Strategy::Replicate(extra), &usable), Ok(replicated.clone()));
        for own in [&paired, &balanced, &replicated] {
            let r = report(own, &model);
            prop_assert!(r.layers.iter().all(|l| l.balance_ppm <= 1_000_000));
            let worst = r.worst.map(|i| r.layers[i].balance_ppm);
            prop_assert_eq!(worst, r.layers.iter().map(|l| l.balance_ppm).min());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Graham's bound for the longest processing time first, which moves and swaps only lower.
    #[test]
    fn balanced_is_near_the_least_possible(counts in prop::collection::vec(1u64..60, 1..8), cards in 1usize..4) {
        let model = [layer(0, 1, &counts)];
        let own = placed(&model, &vec![None; cards], Strategy::Balanced).unwrap();
        let best = u128::from(least(&counts, &vec![counts.len(); cards])) * UNIT;
        let n = cards as u128;
        prop_assert!(largest(&own.layers[0], &model[0]) * 3 * n <= best * (4 * n - 1));
    }

    /// Where rooms are tight, Graham's bound does not hold as it stands; of 800000 such layers none was beyond 5/4.
    #[test]
    fn balanced_is_near_the_least_possible_where_rooms_are_tight(
        counts in prop::collection::vec(1u64..60, 1..8), shares in prop::collection::vec(0u64..5, 1..4), more in 0u64..3,
    ) {
        let n = shares.len();
        let lack = (counts.len() as u64).saturating_sub(shares.iter().sum());
        let rooms: Vec<u64> = shares.iter().map(|s| s + lack.div_ceil(n as u64) + more).collect();
        let model = [layer(0, 1, &counts)];
        let usable: Vec<_> = rooms.iter().map(|n| Some(*n)).collect();
        let own = placed(&model, &usable, Strategy::Balanced).unwrap();
        let rooms: Vec<usize> = rooms.iter().map(|n| *n as usize).collect();
        let best = u128::from(least(&counts, &rooms)) * UNIT;
        prop_assert!(largest(&own.layers[0], &model[0]) * 3 <= best * 4);
    }
}
