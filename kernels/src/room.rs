//! What CUDA kernels are launched with beside their arguments.

/// Bytes of shared memory that a kernel has to be launched with, beside what it has by itself.
pub fn room(kernel: &str) -> u32 {
    match kernel {
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
}
