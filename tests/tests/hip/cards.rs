//! Two cards, whose kernels wait for each other.

use super::machine::{Machine, computes, kernels};
use super::models::{exact, experts, split};
use super::text::on_card;
use gantry_tests::{golden_tokens, nmse, same_bits};

fn two() -> Machine {
    Machine::new().set("CARDS", 2)
}

/// Longer than a busy machine keeps a thread from running.
const PATIENT: [&str; 2] = ["--card-timeout", "120"];

fn on_two(container: &std::path::Path, tokens: &[u32], more: &[&str]) -> Vec<f32> {
    on_card(&two(), container, "hip:0,1", tokens, &[&PATIENT, more].concat())
}

#[test]
fn experts_on_two_cards_say_what_one_says() {
    if !computes() {
        return;
    }
    let tokens = golden_tokens(20, 512);
    let one = on_card(&Machine::new(), experts(), "hip:0", &tokens, &["--batch", "8"]);
    for more in [&["--batch", "8"][..], &["--batch", "1"], &["--batch", "8", "--ep-verify"]] {
        assert!(same_bits(&one, &on_two(split(), &tokens, more)), "{more:?}");
    }
    let layers = ["--batch", "8", "--placement", "layers", "--cards", "2"];
    assert!(same_bits(&one, &on_two(experts(), &tokens, &layers)), "by layers");
}

#[test]
fn bard_on_two_cards_says_what_it_says_on_one() {
    if !computes() {
        return;
    }
    let tokens = [305, 11, 198, 613, 699, 329, 335, 13, 297, 573, 379, 25];
    let one = on_card(&Machine::new(), exact(), "hip:0", &tokens, &[]);
    for placement in ["paired", "layers"] {
        let both = on_two(exact(), &tokens, &["--placement", placement, "--cards", "2"]);
        assert!(same_bits(&one, &both), "{placement}");
    }
}

/// The host's processor computes the experts that the card has no room for: words and flags of the ways between them are in
/// pinned memory. Its sums have another order.
#[test]
fn a_card_in_the_hosts_memory_computes_experts_beside() {
    if !computes() {
        return;
    }
    let tokens = golden_tokens(12, 512);
    let one = on_card(&Machine::new(), experts(), "hip:0", &tokens, &["--batch", "4"]);
    let budgets = ["--cards", "16MiB,cpu:1GiB", "--fill", "first"];
    let more = [&["--batch", "4"], &PATIENT[..], &budgets].concat();
    let both = on_card(&Machine::new(), experts(), "hip:0,cpu", &tokens, &more);
    let error = nmse(&both, &one);
    println!("beside the host: NMSE {error:.2e}");
    assert!(error <= 1e-10, "{error:e}");
    let seen = Machine::new().write(experts(), "hip:0,cpu", &[&PATIENT[..], &budgets].concat());
    seen.shows(&[]);
    let host = seen.err.lines().find(|line| line.trim_start().starts_with("card 1: "));
    assert!(host.is_some_and(|line| line.contains("MiB")), "the host has no experts: {}", seen.err);
}

#[test]
fn recorded_runs_of_two_cards_go_on() {
    if !computes() {
        return;
    }
    let model = split().to_str().expect("UTF-8");
    let args = ["bench", model, "-p", "0", "-n", "3", "-r", "1", "--threads", "2", "--device", "hip:0,hip:1"];
    let seen = two().run(&[&args[..], &PATIENT].concat());
    seen.shows(&[]);
    assert_eq!(seen.log.called["hipStreamBeginCapture"], 2, "both cards are recorded");
    assert!(seen.log.called["hipGraphLaunch"] >= 6, "{:?}", seen.log.called);
}

#[test]
fn cards_that_do_not_reach_each_other_are_refused() {
    if kernels() {
        let machine = Machine::idle().set("CARDS", 2).set("PEERS", 0);
        let words = ["hip:0 does not reach the memory of hip:1", "Infinity Fabric or one PCIe switch"];
        machine.load(split(), "hip:0,1", &["--verify", "index"]).shows(&[]);
        machine.write(split(), "hip:0,1", &[]).fails(5, &words);
    }
}

#[test]
fn cards_that_reach_each_other_already_are_taken() {
    if computes() {
        let machine = two().set("FAIL", "hipDeviceEnablePeerAccess:2=704");
        // It said so without doing it, so that the stand-in finds an address that is not within reach.
        let seen = machine.write(split(), "hip:0,1", &["--card-timeout", "2"]);
        assert_eq!(seen.code, Some(1), "{}", seen.err);
        assert!(seen.err.contains("hipErrorIllegalAddress (700)"), "{}", seen.err);
    }
}

#[test]
fn a_card_that_is_lost_ends_the_run() {
    if !computes() {
        return;
    }
    // In the middle of a run: loading takes fewer launches.
    for turn in [60, 90] {
        let one = Machine::new().set("LOST", turn).write(experts(), "hip:0", &[]);
        one.fails(1, &["error: hip:0: ", "hipErrorLaunchFailure (719)"]);
        let args = ["--greedy", "--card-timeout", "5"];
        two().set("LOST", turn).write(split(), "hip:0,1", &args).fails(1, &["error: ", "hip:"]);
    }
}
