//! Views of models that are larger than a terminal.

use super::*;
use gantry_formats::placement::LayerPlacement;

/// A view of so many layers with 8 experts for each card; of layer 50 card 1 has nearly everything.
fn view(layers: u32, cards: usize) -> View {
    let even = (1_000_000 / cards) as u32;
    let layer = |layer: u32| {
        let ppm = |card: usize| match (layer, card) {
            (50, 1) => 900_000,
            (50, _) => (100_000 / (cards - 1)) as u32,
            _ => even,
        };
        let cells = (0..cards).map(|card| Cell { experts: 8, predicted_ppm: ppm(card), measured_ppm: None });
        let cells: Vec<Cell> = cells.collect();
        Layer {
            layer,
            experts: 8 * cards as u32,
            predicted_balance_ppm: balance(cells.iter().map(|c| c.predicted_ppm)),
            measured_balance_ppm: None,
            cards: cells,
        }
    };
    let card = |card: usize| Card {
        host: card + 1 == cards,
        budget: (card > 0).then_some(24 << 30),
        segment_bytes: 1 << 34,
        expert_bytes: 1 << 33,
        other_bytes: 1 << 32,
        kv_bytes: 1 << 30,
        experts: 8 * u64::from(layers),
        predicted_ppm: even,
        measured_ppm: None,
    };
    let place = |layer: u32| LayerPlacement {
        layer,
        cards: (0..cards as u32).map(|card| (8 * card..8 * card + 8).collect()).collect(),
    };
    View {
        file: "m.gantry".into(),
        model: "<script>alert(1)</script> & \"co\"".into(),
        target: "cuda:sm_90".into(),
        recorded: None,
        cards: (0..cards).map(card).collect(),
        layers: (0..layers).map(layer).collect(),
        counts: Vec::new(),
        tokens: None,
        hottest: vec![Hot { layer: 50, expert: 9, tokens: u64::MAX, share_ppm: 333_333, cards: vec![1, 2] }],
        map: Placement { layers: (0..layers).map(place).collect() },
        measured: None,
        warnings: vec!["few <b>tokens</b>".into()],
    }
}

#[test]
fn a_large_grid_is_cut_to_what_matters() {
    for cards in [2, 4, 5, 9, 59] {
        let view = view(94, cards);
        let text = view.text(false);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.lines().count() < 50 + cards, "{text}");
        let worst =
            text.lines().rfind(|l| l.trim_start().starts_with("50 ")).expect("the worst layer is shown");
        assert!(worst.ends_with(" 1"), "{worst}");
        let left = if cards > 6 { format!("layers and {} card", cards - 6) } else { "layers left".into() };
        assert!(text.contains(&left) && text.contains("left out"), "{text}");
        let full = view.text(true);
        assert!(full.contains("\n   93 ") && !full.contains("left out"), "{full}");
        assert!(full.lines().all(|l| l.chars().count() <= 80), "{full}");
    }
}

#[test]
fn all_cards_are_shown_in_full_some_at_a_time() {
    for cards in [6, 7, 9, 12, 59] {
        let mut view = view(52, cards);
        for layer in &mut view.layers {
            // Shares that tell a card from the others.
            layer.cards.iter_mut().zip(1..).for_each(|(cell, n)| cell.predicted_ppm = 1000 * n);
        }
        let short = view.text(false);
        assert_eq!(short.contains("card left out") || short.contains("cards left out"), cards > 6, "{short}");
        let full = view.text(true);
        assert!(full.lines().all(|l| l.chars().count() <= 80), "{full}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let titles = full.lines().map(words).filter(|w| w.starts_with(&["layer".into(), "card".into()]));
        let titles: Vec<Vec<String>> = titles.collect();
        assert_eq!(titles.len(), cards.div_ceil(6), "{full}");
        let shown: Vec<usize> = titles.iter().flatten().filter_map(|word| word.parse().ok()).collect();
        assert_eq!(shown, (0..cards).collect::<Vec<_>>(), "{full}");
        for layer in ["0", "51"] {
            let lines = full.lines().filter(|l| l.starts_with("   ") && words(l).first().unwrap() == layer);
            // Between the layer, and the balance and the fullest card.
            let shares = lines.flat_map(|l| words(l)[1..words(l).len() - 2].to_vec());
            let want: Vec<String> = (1..=cards).map(|n| format!("{}.{}", n / 10, n % 10)).collect();
            assert_eq!(shares.collect::<Vec<_>>(), want, "{full}");
        }
    }
}

#[test]
fn measured_shares_fit_too() {
    for cards in [1, 3, 4, 8] {
        let mut view = view(3, cards.max(2));
        for cell in view.layers.iter_mut().flat_map(|l| &mut l.cards) {
            (cell.measured_ppm, cell.predicted_ppm, cell.experts) = (Some(1_000_000), 1_000_000, 4096);
        }
        let size = (10_239 << 20) / 10 + 1;
        for card in &mut view.cards {
            (card.predicted_ppm, card.measured_ppm) = (499_000, Some(501_000));
            (card.other_bytes, card.expert_bytes, card.segment_bytes, card.kv_bytes) = (size, size, size, 0);
            card.budget = Some(size);
        }
        let text = view.text(false);
        assert!(text.contains("1023.9 MiB") && text.contains("49.9→50.1 %"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
        view.cards.iter_mut().for_each(|c| c.measured_ppm = Some(1_000_000));
        let text = view.text(false);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }
}

#[test]
fn the_page_stands_alone_and_its_text_is_text() {
    for (layers, cards) in [(1, 2), (94, 8), (1000, 59)] {
        let page = html::page(&view(layers.max(51), cards));
        assert!(!page.contains("<script") && !page.contains("<b>tokens") && !page.contains("http"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;co&quot;"));
        assert!(
            page.contains("prefers-color-scheme: dark") && !page.contains("NaN") && !page.contains("inf")
        );
        for tag in ["svg", "section", "table", "tr", "td", "title", "p", "div", "span", "text", "h2"] {
            let (open, close) = (
                page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count(),
                page.matches(&format!("</{tag}>")).count(),
            );
            assert_eq!(open, close, "{tag}");
        }
        // A thousand layers of 472 experts are too many cells to draw one by one.
        assert_eq!(page.contains("<h2>Experts</h2>"), layers < 1000);
        assert!(page.len() < 8 << 20, "{} bytes", page.len());
    }
}

#[test]
fn balance_is_the_mean_over_the_largest() {
    assert_eq!(balance([500_000u32, 500_000].into_iter()), 1_000_000);
    assert_eq!(balance([750_000u32, 250_000].into_iter()), 666_666);
    assert_eq!(balance([0u32, 0].into_iter()), 1_000_000);
}
