mod anchors;
mod damage;

use super::samples::Sample;
use super::{ArchError, Architecture, Finding, Hparams, Resolved, check, find, supported};

/// Names and shapes of a model that has all that it must have and nothing else.
type Tensors = Vec<(String, Vec<u64>)>;

fn table(sample: &Sample) -> &'static Architecture {
    find(sample.arch).expect("an architecture with a table")
}

/// What the table asks for, of a model that merges nothing and has its MTP blocks.
fn complete(sample: &Sample) -> Tensors {
    let has = |name: &str| name.ends_with("nextn.eh_proj.weight");
    let model = Resolved::read(table(sample), &Hparams::read(sample), sample, has);
    assert_eq!(model.errors, [], "{}", sample.arch);
    let none = |_: &str| false;
    let required = model.expected().filter(|t| model.is_required(t, none));
    let shape = |t: &super::Expected| {
        let dims = model.shape(t.rule, t.block.unwrap_or(0)).into_iter();
        dims.collect::<Option<Vec<u64>>>().expect("every size is known")
    };
    required.map(|t| (t.name.clone(), shape(&t))).collect()
}

fn findings(sample: &Sample, tensors: &[(String, Vec<u64>)]) -> Vec<Finding> {
    let list = tensors.iter().map(|(name, dims)| (name.as_str(), dims.as_slice()));
    check(table(sample), &Hparams::read(sample), sample, list)
}

#[test]
fn a_later_version_is_refused() {
    assert_eq!(supported("qwen4exp", 1).map(|a| a.name), Ok("qwen4exp"));
    // What no table was there for, was checked against none.
    assert_eq!(supported("llama", 0).map(|a| a.name), Ok("llama"));
    let newer = supported("llama", 2).unwrap_err();
    assert_eq!(newer, ArchError::Newer { name: "llama".into(), found: 2, known: 1 });
    assert!(newer.to_string().contains("convert the source again"), "{newer}");
    assert!(matches!(supported("mamba", 1), Err(ArchError::Unknown { .. })));
}

#[test]
fn names_of_tables_and_of_their_rows_are_unique() {
    for arch in super::ARCHITECTURES {
        assert_eq!(super::ARCHITECTURES.iter().filter(|a| a.name == arch.name).count(), 1);
        for rule in arch.rules() {
            let same = |r: &&super::TensorRule| r.name == rule.name && r.in_blocks() == rule.in_blocks();
            assert_eq!(arch.rules().filter(same).count(), 1, "{} {}", arch.name, rule.name);
        }
    }
}

/// Writes down which keys are asked for.
struct Asked<'a>(&'a Sample, std::cell::RefCell<std::collections::BTreeSet<String>>);

impl Asked<'_> {
    fn note(&self, key: &str) -> &Sample {
        self.1.borrow_mut().insert(key.into());
        self.0
    }
}

impl super::Metadata for Asked<'_> {
    fn u64(&self, key: &str) -> Option<u64> {
        self.note(key).u64(key)
    }
    fn f64(&self, key: &str) -> Option<f64> {
        self.note(key).f64(key)
    }
    fn bool(&self, key: &str) -> Option<bool> {
        self.note(key).bool(key)
    }
    fn text(&self, key: &str) -> Option<String> {
        self.note(key).text(key)
    }
    fn array_len(&self, key: &str) -> Option<u64> {
        self.note(key).array_len(key)
    }
    fn u64_array(&self, key: &str) -> Option<Vec<u64>> {
        self.note(key).u64_array(key)
    }
    fn f64_array(&self, key: &str) -> Option<Vec<f64>> {
        self.note(key).f64_array(key)
    }
}

#[test]
fn every_key_that_is_read_is_known() {
    for mut sample in super::samples::all() {
        // So that all of its numbers are read.
        sample.set("rope.scaling.type", super::samples::Value::Text("yarn"));
        let (arch, asked) = (table(&sample), Asked(&sample, Default::default()));
        let has = |name: &str| name.ends_with("nextn.eh_proj.weight");
        Resolved::read(arch, &Hparams::read(&sample), &asked, has);
        let known = arch.keys();
        let prefix = format!("{}.", arch.name);
        let mut asked = asked.1.into_inner();
        asked.extend(arch.required_keys.iter().map(|key| format!("{prefix}{key}")));
        assert!(asked.len() > 10, "{asked:?}");
        for key in asked {
            let name = key.strip_prefix(&prefix).expect("a key of the architecture");
            assert!(known.contains(&name), "{key} is read, and not among {known:?}");
        }
        for key in sample.keys.keys().filter_map(|key| key.strip_prefix(&prefix)) {
            assert!(known.contains(&key), "{}: {key} of the sample", arch.name);
        }
        assert!(!known.contains(&"attention.head_cuont"));
    }
}

#[test]
fn a_block_keeps_what_its_layer_needs() {
    let state = |sample: &Sample, context| {
        let has = |name: &str| name.ends_with("nextn.eh_proj.weight");
        let model = Resolved::read(table(sample), &Hparams::read(sample), sample, has);
        (0..5)
            .map(|n| model.state(n, context).expect("known"))
            .map(|s| (s.cache, s.exact))
            .collect::<Vec<_>>()
    };
    // Delta nets: 6 states of 24 × 24, 4 inputs of (2·2 + 6)·24 channels; the n-gram block 3·3 inputs of 3 streams of
    // 64; attention: 3 heads of keys and values of 36, and, where top_k is exceeded, a key of 44 for each
    // 4 positions and for those of two blocks and a batch.
    let linear = 6 * 24 * 24 + 4 * 240;
    let full = 3 * 72 * 1000;
    let want = [(0, linear), (0, linear + 9 * 192), (full, 44 * (250 + 2 * 4 + 128)), (0, linear), (full, 0)];
    assert_eq!(state(&super::samples::qwen4exp(), 1000), want);
    assert_eq!(state(&super::samples::qwen4exp(), 32)[2], (3 * 72 * 32, 0));
    // A window of 32 with room for a batch, in keys of 40; entries for 4 and 128 positions; rows of values and scores
    // of two blocks, twice as wide where blocks overlap; an index key of 24 for each entry with its own rows.
    let window = 40 * (2 * 32 + 128);
    let rows = 2 * 2 * 4 + 128;
    let four = (window + 40 * 250, 2 * 2 * 40 * rows + 24 * (250 + 4 * rows));
    let many = (window + 40 * 7, 2 * 40 * (2 * 128 + 128));
    assert_eq!(
        state(&super::samples::deepseek4(), 1000),
        [(window, 0), four, many, (window, 0), (window, 0)]
    );
    // One latent of 48 and 16 rotated values; an index key in the blocks that choose for themselves.
    let latent = 64 * 1000;
    let own = (latent, 24 * 1000);
    assert_eq!(state(&super::samples::glm_dsa(), 1000)[..3], [own, own, (latent, 0)]);
}

#[test]
fn int8_has_a_scale_for_each_row() {
    let state = |sample: &Sample, block| {
        let model = Resolved::read(table(sample), &Hparams::read(sample), sample, |_| false);
        model.state(block, 1000).expect("known")
    };
    // Keys and values of 3 heads; one latent; a window of 32 with room for a batch, and entries for 4 positions.
    let full = state(&super::samples::qwen4exp(), 4);
    assert_eq!(
        (full.rows, full.bytes(1, 2)),
        (2 * 3 * 1000, 3 * 72 * 1000 + 2 * 2 * 3 * 1000 + 4 * full.exact)
    );
    assert_eq!(full.bytes(4, 0), 4 * (full.cache + full.exact));
    assert_eq!(state(&super::samples::glm_dsa(), 2).rows, 1000);
    assert_eq!(state(&super::samples::deepseek4(), 1).rows, 2 * 32 + 128 + 250);
}
