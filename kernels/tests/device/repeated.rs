//! Kernels that add in more than one group, or look back: the same bits each time.

use crate::launch::{on_a_card, repeating};
use crate::{attention, experts, recurrent};

#[test]
fn a_thousand_repetitions_have_the_same_bits() {
    let card = on_a_card();
    // Where groups run one after the other there is little to find.
    let seen = repeating(if card { 1000 } else { 2 }, || {
        attention::dense_attention_of_every_shape();
        attention::by_instructions();
        experts::routes_of_every_kind();
        recurrent::delta_nets_over_batches_of_two_sequences();
    });
    if seen.is_empty() {
        return eprintln!("not run: there is no device");
    }
    let mut wanted = vec!["gantry_attention_f32", "gantry_attention_f16", "gantry_attention_i8"];
    wanted.extend(["gantry_attention_combine", "gantry_route", "gantry_delta_prepare", "gantry_delta_net"]);
    if card {
        wanted.extend(["gantry_attend_f16_128_4", "gantry_attend_i8_256_8", "gantry_attend_join"]);
        wanted.extend(["gantry_attend_tiles_f16_128", "gantry_attend_tiles_i8_64"]);
    }
    for kernel in wanted {
        assert!(seen.iter().any(|name| name == kernel), "{kernel} was not repeated: {seen:?}");
    }
}
