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
