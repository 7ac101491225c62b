//! What CUDA kernels are launched with beside their arguments.

/// Shared memory that a kernel is launched with, beside what it has by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u32,
    /// Whether it makes do with as many as there are, on a card that has less.
    pub or_less: bool,
}

impl Room {
    /// Bytes on a card where a group may have `most` beside what the kernel has by itself; more, where it needs more.
    pub fn on(self, most: u32) -> u32 {
        if self.or_less { self.bytes.min(most) } else { self.bytes }
    }
}

/// What a kernel is launched with.
pub fn room(kernel: &str) -> Room {
    let bytes = match kernel {
        "gantry_decode_bf16_4" => 196_624,
        "gantry_decode_bf16_8" => 198_656,
        "gantry_decode_bf16_16" => 167_936,
        "gantry_tiles_bf16" | "gantry_tiles_experts_bf16" => 65_536,
        _ if !kernel.starts_with("gantry_warpgroups_") => 0,
        _ if kernel.ends_with("_64") => 148_064,
        _ if kernel.ends_with("_128") => 197_728,
        _ => 198_720,
    };
    Room { bytes, or_less: kernel.ends_with("_bf16") || kernel.contains("_bf16_") }
}

#[cfg(test)]
mod tests {
    use super::{Room, room};

    #[test]
    fn kernels_are_launched_with_the_room_that_they_take() {
        let text = include_str!("../cuda/gemm_warpgroups.cu");
        let calls = text.lines().filter_map(|line| line.strip_prefix("RESIDENT(gantry_"));
        let mut kernels = 0;
        for call in calls {
            let mut parts = call.split(", ");
            let name = format!("gantry_{}", parts.next().expect("a name"));
            let bytes: u32 = parts.next().expect("bytes").parse().expect("a number");
            assert_eq!(room(&name), Room { bytes, or_less: false }, "{name}");
            kernels += 1;
        }
        assert!(kernels >= 6, "{kernels} kernels");
        assert_eq!(room("gantry_tiles_i8_block32"), Room::default());
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
            assert_eq!(room(name), Room { bytes, or_less: true }, "{name}");
            kernels += 1;
        }
        assert!(kernels == 3, "{kernels} kernels");
        let tiles = include_str!("../cuda/tile_bf16.cuh");
        assert!(tiles.contains(&format!("constexpr uint ROOM = {};", room("gantry_tiles_bf16").bytes)));
    }
}
