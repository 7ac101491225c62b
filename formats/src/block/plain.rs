//! Plain numbers: one value per block.

use super::fp16;

pub(super) fn f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(super) fn f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = fp16::f16_to_f32(u16::from_le_bytes(*block));
}

pub(super) fn bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = fp16::bf16_to_f32(u16::from_le_bytes(*block));
}

pub(super) fn f64(block: &[u8; 8], out: &mut [f32; 1]) {
    out[0] = f64::from_le_bytes(*block) as f32;
}

pub(super) fn i8(block: &[u8; 1], out: &mut [f32; 1]) {
    out[0] = f32::from(i8::from_le_bytes(*block));
}

pub(super) fn i16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f32::from(i16::from_le_bytes(*block));
}

pub(super) fn i32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = i32::from_le_bytes(*block) as f32;
}

pub(super) fn i64(block: &[u8; 8], out: &mut [f32; 1]) {
    out[0] = i64::from_le_bytes(*block) as f32;
}
