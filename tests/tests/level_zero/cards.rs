//! Two cards, whose kernels wait for each other.

use super::machine::{Machine, computes, loader};
use super::models::{experts, split};
use super::text::on_card;
use gantry_tests::{golden_tokens, same_bits};

fn two() -> Machine {
    Machine::new().set("CARDS", 2)
}

#[test]
fn experts_on_two_cards_say_what_one_says() {
    if !computes() {
        return;
    }
    let tokens = golden_tokens(10, 512);
    let one = on_card(&Machine::new(), experts(), "level-zero:0", &tokens, &["--batch", "8"]);
    for more in [&["--batch", "8"][..], &["--batch", "1"], &["--batch", "8", "--ep-verify"]] {
        let both = on_card(&two(), split(), "level-zero:0,1", &tokens, more);
        assert!(same_bits(&one, &both), "{more:?}");
    }
    let layers = ["--batch", "8", "--placement", "layers", "--cards", "2"];
    assert!(same_bits(&one, &on_card(&two(), experts(), "level-zero:0,1", &tokens, &layers)), "by layers");
}

#[test]
fn recorded_runs_of_two_cards_go_on() {
    if computes() {
        let seen = two().record(split(), "level-zero:0,1");
        seen.shows(&[]);
        assert_eq!(seen.log.called["zeCommandQueueExecuteCommandLists"] % 2, 0, "{:?}", seen.log.called);
    }
}

#[test]
fn cards_that_do_not_reach_each_other_are_refused() {
    if loader() {
        let machine = Machine::idle().set("CARDS", 2).set("PEERS", 0);
        let words = ["level-zero:0 does not reach the memory of level-zero:1", "Xe Link or one PCIe switch"];
        machine.write(split(), "level-zero:0,1", &[]).fails(5, &words);
    }
}

#[test]
fn a_card_that_is_lost_ends_the_run() {
    if !computes() {
        return;
    }
    // In the middle of a run: loading takes fewer launches.
    for turn in [60, 90] {
        let machine = two().set("LOST", turn);
        let args = ["--greedy", "--card-timeout", "2"];
        machine.write(split(), "level-zero:0,1", &args).fails(1, &["error: ", "level-zero:"]);
        let one = Machine::new().set("LOST", turn).write(experts(), "level-zero:0", &[]);
        one.fails(1, &["level-zero:0: ", "ZE_RESULT_ERROR_DEVICE_LOST (1879048193)"]);
    }
}
