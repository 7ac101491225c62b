//! Tables that stay in their file while a model runs.

use super::models::Made;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_runtime::{Container, ModelOptions};
use std::fs::OpenOptions;

/// A file that shrinks, or is written to, is an error and no signal, and nothing is made of what it has now.
#[test]
fn a_file_that_changes_under_a_running_model_is_noticed() {
    let options = ModelOptions { context: Some(64), ..ModelOptions::default() };
    for shrinks in [true, false] {
        let made = Made::new("qwen4exp-tiny", &["ple.layers=[1]"]);
        let model = made.load(&options);
        let mut session = model.session().expect("a session");
        let prompt: Vec<u32> = (3..40).collect();
        session.prefill(&prompt).expect("logits");
        session.decode(7).expect("logits");
        let file = OpenOptions::new().write(true).open(made.container()).expect("the container");
        let bytes = file.metadata().expect("a file").len();
        // A later time of change, whatever the clock's steps are.
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.set_len(if shrinks { bytes / 2 } else { bytes + 1 }).expect("another length");
        for tokens in [&[9][..], &prompt] {
            let error = session.prefill(tokens).expect_err("a file that was changed");
            assert_eq!(error.exit(), Exit::Integrity, "{error}");
            assert!(error.to_string().contains("its file was changed since"), "{error}");
            assert_eq!(session.position(), 0, "half of a run is left");
        }
    }
}

/// Rows that several threads read, and one, are the same.
#[test]
fn prompts_and_single_tokens_look_up_the_same_rows() {
    let made = Made::new("qwen4exp-tiny", &["ple.layers=[1]"]);
    assert!(Container::open(&made.container()).is_ok());
    let options = |batch| ModelOptions { context: Some(64), batch, ..ModelOptions::default() };
    let tokens: Vec<u32> = (0..31).map(|i| 3 + i * i % 200).collect();
    let logits = |batch| {
        let model = made.load(&options(batch));
        let mut session = model.session().expect("a session");
        let mut all = Vec::new();
        session
            .prefill_all(&tokens, &mut |rows| all.extend(rows.iter().map(|v| v.to_bits())))
            .expect("logits");
        all
    };
    assert!(logits(1) == logits(31), "batches of 1 and 31 differ");
}
