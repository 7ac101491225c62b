//! What CUDA kernels are launched with beside their arguments.

/// Bytes of shared memory that a kernel has to be launched with, beside what it has by itself; on a card that has less, as many
/// as there are.
pub fn room(kernel: &str) -> u32 {
    match kernel {
        "gantry_decode_bf16_4" => 196_624,
        "gantry_decode_bf16_8" => 198_656,
        "gantry_decode_bf16_16" => 167_936,
        "gantry_tiles_bf16" | "gantry_tiles_experts_bf16" => 65_536,
        _ if !kernel.starts_with("gantry_warpgroups_") => 0,
        _ if kernel.ends_with("_64") => 148_064,
        _ if kernel.ends_with("_128") => 197_728,
        _ => 198_720,
    }
}

#[cfg(test)]
mod tests {
    use super::room;

    #[test]
    fn kernels_are_launched_with_the_room_that_they_take() {
        let text = include_str!("../cuda/gemm_warpgroups.cu");
        let calls = text.lines().filter_map(|line| line.strip_prefix("RESIDENT(gantry_"));
        let mut kernels = 0;
        for call in calls {
            let mut parts = call.split(", ");
            let name = format!("gantry_{}", parts.next().expect("a name"));
            let bytes: u32 = parts.next().expect("bytes").parse().expect("a number");
            assert_eq!(room(&name), bytes, "{name}");
            kernels += 1;
        }
        assert!(kernels >= 6, "{kernels} kernels");
        assert_eq!(room("gantry_tiles_i8_block32"), 0);
    }

    #[test]
    fn kernels_for_bf16_have_the_room_that_their_sources_state() {
        let text = include_str!("../cuda/decode_bf16.cu");
        let calls = text.lines().filter_map(|line| line.strip_prefix("DECODE_BF16("));
        let mut kernels = 0;
        for call in calls {
            let mut parts = call.split(", ");
            let name = parts.next().expect("a name");
            let bytes: u32 = parts.next().expect("bytes").parse().expect("a number");
            assert_eq!(room(name), bytes, "{name}");
            kernels += 1;
        }
        assert!(kernels == 3, "{kernels} kernels");
        let tiles = include_str!("../cuda/tile_bf16.cuh");
        assert!(tiles.contains(&format!("constexpr uint ROOM = {};", room("gantry_tiles_bf16"))));
    }
}
