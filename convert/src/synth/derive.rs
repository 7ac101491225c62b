//! Keys that follow from others, where a specification leaves them out.

use super::random;
use super::spec::Spec;
use gantry_formats::gguf::{OwnedArray, OwnedValue};

/// No key of GGUF: how many rows a table of n-grams has, about.
pub(super) const PLE_ROWS: &str = "ple.rows";

/// Fills in what is not there.
pub(super) fn fill(spec: &mut Spec, seed: u64) -> Result<(), String> {
    let rows = spec.keys.remove(PLE_ROWS).map_or(Some(4096), |rows| rows.view().as_u64());
    let put = |spec: &mut Spec, key: &str, value: Option<OwnedValue>| {
        if let Some(value) = value {
            spec.keys.entry(key.into()).or_insert(value);
        }
    };
    if spec.keys.contains_key("ssm.state_size") {
        let heads = spec.number("ssm.time_step_rank");
        let inner = spec.number("ssm.state_size").zip(heads).and_then(|(dim, heads)| dim.checked_mul(heads));
        put(spec, "ssm.inner_size", inner.and_then(|n| u32::try_from(n).ok()).map(OwnedValue::U32));
    }
    if spec.arch.name == "deepseek4" {
        put(spec, "attention.compress_ratios", deepseek4_ratios(spec));
    }
    if spec.keys.contains_key("ple.layers") {
        let ngram = spec.number("ple.ngram_size").filter(|n| (2..=64).contains(n));
        let per_ngram = spec.number("ple.heads_per_ngram").filter(|n| (1..=64).contains(n));
        let embd = spec.number("embedding_length");
        let (Some(ngram), Some(per_ngram), Some(embd)) = (ngram, per_ngram, embd) else {
            return Err("ple.layers needs ple.ngram_size, ple.heads_per_ngram and embedding_length".into());
        };
        let heads = (ngram - 1) * per_ngram;
        let most = i32::MAX as u64;
        let least = rows.map(|rows| rows / heads).filter(|n| (2..most / heads / 2).contains(n));
        let least = least.ok_or_else(|| {
            format!("{PLE_ROWS} must be a number between {} and {}", 2 * heads, most / 2 - heads)
        })?;
        let vocabs: Vec<u64> = (least..).filter(|&n| is_prime(n)).take(heads as usize).collect();
        let offsets = vocabs.iter().scan(0, |end, n| {
            *end += n;
            Some(*end - n)
        });
        let offsets: Vec<u64> = offsets.collect();
        let vocab = spec.number("vocab_size").unwrap_or(1).max(1);
        let layer = spec.keys["ple.layers"].view().as_array().and_then(|list| list.get(0)?.as_u64());
        let multipliers = (0..ngram).map(|i| multiplier(seed, layer.unwrap_or(0), i, vocab));
        let multipliers: Vec<u64> = multipliers.collect();
        let row = u32::try_from(embd / heads).ok().map(OwnedValue::U32);
        put(spec, "embedding_length_per_layer_input", row);
        put(spec, "ple.layer_multipliers", Some(OwnedArray::new(multipliers).into()));
        put(spec, "ple.head_offsets", Some(OwnedArray::new(offsets).into()));
        put(spec, "ple.head_vocab_sizes", Some(OwnedArray::new(vocabs).into()));
    }
    Ok(())
}

/// As published: two layers that see a window alone, then by 4 and by 128 in turn; MTP blocks see the window.
fn deepseek4_ratios(spec: &Spec) -> Option<OwnedValue> {
    let blocks = spec.number("block_count").filter(|&n| n <= super::header::MAX_BLOCKS)?;
    let layers = blocks.saturating_sub(spec.number("nextn_predict_layers").unwrap_or(0));
    let of = |i: u64| match i {
        i if i < 2 || i >= layers => 0,
        i if i % 2 == 0 => 4u32,
        _ => 128,
    };
    Some(OwnedArray::new((0..blocks).map(of)).into())
}

/// An odd factor small enough that its product with a token stays below 2^63.
fn multiplier(seed: u64, layer: u64, i: u64, vocab: u64) -> u64 {
    let half = ((i64::MAX as u64) / vocab / 2).max(1);
    let place = seed.wrapping_add(layer.wrapping_mul(10_007));
    2 * (random::at(place, i) % half) + 1
}

fn is_prime(n: u64) -> bool {
    n >= 2 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primes() {
        let list: Vec<u64> = (0..30).filter(|&n| is_prime(n)).collect();
        assert_eq!(list, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]);
        assert!(is_prime(20_000_003) && !is_prime(20_000_001));
    }

    #[test]
    fn products_with_tokens_stay_positive() {
        for vocab in [1, 512, 248_320] {
            for i in 0..3 {
                let m = multiplier(9, 1, i, vocab);
                assert!(m % 2 == 1 && m.checked_mul(vocab - 1).is_some_and(|p| p <= i64::MAX as u64));
            }
        }
    }
}
