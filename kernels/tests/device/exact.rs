//! Division and square root by whole numbers (`exact.h`), which kernels have where a driver's own may be rounded otherwise, beside
//! this processor's: the same bits for every kind of number, and when the native ones are worse than OpenCL allows.

use crate::launch::{Device, Value, required};
use crate::opencl::{OpenCl, alone};
use crate::random::Rng;

/// Members of a group.
const GROUP: usize = 64;

/// Values at a time.
const MANY: usize = 1 << 20;

/// The kernels, with guesses that are off by so many ulp; `None` where there is no device.
fn device(off: i32) -> Option<OpenCl> {
    let source = format!(
        "#include \"portable.h\"
        #define GUESS_INVERSE(x) as_float(as_int(1.0f / (x)) + ({off} * 4))
        #define GUESS_ROOT(x) as_float(as_int(sqrt(x)) + ({off}))
        #include \"exact.h\"
        KERNEL({GROUP}) divide(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *y) {{
            const uint i = GROUP_X * {GROUP} + LID;
            y[i] = exact_div(a[i], b[i]);
        }}
        KERNEL({GROUP}) root(GLOBAL const float *a, GLOBAL float *y) {{
            const uint i = GROUP_X * {GROUP} + LID;
            y[i] = exact_sqrt(a[i]);
        }}"
    );
    let device = OpenCl::of_source(&source);
    if let Err(why) = &device {
        assert!(!required(), "no OpenCL device: {why}");
        eprintln!("division was not run, there is no OpenCL device: {why}");
    }
    device.ok()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// What a kernel gives for these.
fn run(device: &OpenCl, kernel: &str, inputs: &[&[f32]]) -> Vec<f32> {
    let n = inputs[0].len();
    assert!(n % GROUP == 0, "{n} values");
    let mut y = vec![0xa5u8; 4 * n];
    let buffers: Vec<_> = inputs.iter().map(|values| device.buffer(&bytes(values))).collect();
    let out = device.buffer(&y);
    let args: Vec<_> = buffers.iter().chain([&out]).map(Value::Buffer).collect();
    device.run(kernel, ([n / GROUP, 1, 1], None), &args);
    device.bytes(&out, &mut y);
    y.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect()
}

#[track_caller]
fn check(y: &[f32], truth: impl Iterator<Item = f32>, what: impl Fn(usize) -> String) {
    for (i, (y, truth)) in y.iter().zip(truth).enumerate() {
        let same = y.to_bits() == truth.to_bits() || y.is_nan() && truth.is_nan();
        assert!(same, "{}: {y:e} ({:08x}) for {truth:e} ({:08x})", what(i), y.to_bits(), truth.to_bits());
    }
}

#[track_caller]
fn check_div(device: &OpenCl, a: &[f32], b: &[f32]) {
    let y = run(device, "divide", &[a, b]);
    check(&y, a.iter().zip(b).map(|(a, b)| a / b), |i| format!("{:e} / {:e}", a[i], b[i]));
}

#[track_caller]
fn check_root(device: &OpenCl, a: &[f32]) {
    let y = run(device, "root", &[a]);
    check(&y, a.iter().map(|a| a.sqrt()), |i| format!("root of {:e}", a[i]));
}

/// Numbers at borders: of exponents, of what is subnormal, infinite, no number, and those beside each.
fn borders() -> Vec<f32> {
    let near = [0x0000_0000u32, 0x0040_0000, 0x0080_0000, 0x0100_0000, 0x0c00_0000, 0x3f00_0000, 0x3f80_0000];
    let far = [0x4000_0000u32, 0x4040_0000, 0x4b00_0000, 0x7e80_0000, 0x7f00_0000, 0x7f80_0000, 0x7fc0_0000];
    let around = |bits: u32| (-4i32..=4).map(move |d| bits.wrapping_add_signed(d) & 0x7fff_ffff);
    let all = near.into_iter().chain(far).flat_map(around);
    all.flat_map(|bits| [bits, bits | 0x8000_0000]).map(f32::from_bits).collect()
}

#[test]
fn division_has_the_bits_of_the_processor() {
    let _alone = alone();
    let Some(device) = device(0) else { return };
    let borders = borders();
    let (mut a, mut b): (Vec<f32>, Vec<f32>) =
        borders.iter().flat_map(|a| borders.iter().map(move |b| (*a, *b))).unzip();
    a.resize(a.len().next_multiple_of(GROUP), 1.0);
    b.resize(a.len(), 1.0);
    check_div(&device, &a, &b);
    let mut rng = Rng(1);
    let float = |rng: &mut Rng| f32::from_bits(rng.next() as u32);
    for round in 0..4 {
        // Any bits; quotients below what is normal; of one exponent; of few bits, which end exactly or half way.
        let mut pair = || match round {
            0 => (float(&mut rng), float(&mut rng)),
            1 => {
                let exponent = 1 + rng.below(160) as u32;
                let lower = rng.below(exponent as usize) as u32;
                let mut of =
                    |exponent: u32| f32::from_bits(rng.next() as u32 & 0x807f_ffff | (exponent << 23));
                (of(lower), of(exponent + 94))
            }
            2 => (1.0 + rng.unit().abs(), 1.0 + rng.unit().abs()),
            _ => {
                let b = (1 + rng.below(1 << 12)) as f32 * f32::powi(2.0, rng.below(60) as i32);
                ((1 + rng.below(1 << 13)) as f32 * f32::powi(2.0, rng.below(60) as i32 - 140), b)
            }
        };
        let (a, b): (Vec<f32>, Vec<f32>) = (0..MANY).map(|_| pair()).unzip();
        check_div(&device, &a, &b);
    }
}

#[test]
fn roots_have_the_bits_of_the_processor() {
    let _alone = alone();
    let Some(device) = device(0) else { return };
    let mut values = borders();
    values.resize(values.len().next_multiple_of(GROUP), 1.0);
    check_root(&device, &values);
    let mut rng = Rng(2);
    let any: Vec<f32> = (0..MANY).map(|_| f32::from_bits(rng.next() as u32)).collect();
    check_root(&device, &any);
    // Every mantissa of both kinds of exponents comes up somewhere; subnormal ones; squares and what is beside them.
    for first in [0x3f80_0000u32, 0x4000_0000] {
        for part in 0..8 {
            let all = (0..MANY as u32).map(|i| f32::from_bits(first + (part << 20) + i));
            check_root(&device, &all.collect::<Vec<_>>());
        }
    }
    let small: Vec<f32> = (0..MANY).map(|_| f32::from_bits(rng.next() as u32 & 0x00ff_ffff)).collect();
    check_root(&device, &small);
    let squares =
        (0..MANY).map(|i| f32::from_bits(((i as u32 / 3 + 1) as f32).powi(2).to_bits() + i as u32 % 3 - 1));
    check_root(&device, &squares.collect::<Vec<_>>());
}

#[test]
fn guesses_may_be_worse_than_opencl_allows() {
    let _alone = alone();
    for off in [-7, -3, 3, 7] {
        let Some(device) = device(off) else { return };
        let mut rng = Rng(3);
        let mut float = || f32::from_bits(rng.next() as u32);
        let (a, b): (Vec<f32>, Vec<f32>) = (0..MANY).map(|_| (float(), float())).unzip();
        check_div(&device, &a, &b);
        check_root(&device, &a);
    }
}
