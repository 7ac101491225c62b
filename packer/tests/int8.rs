//! Int8 planes: every level against the scalar definition, what is exact, and the way back.

use gantry_formats::block::{GgmlType, dequantize, fp16};
use gantry_formats::layout::{Layout, Order, Scales};
use gantry_packer::fragment;
use gantry_packer::int8::{self, Form};
use gantry_packer::q8_0::{self, Stats};
use gantry_packer::simd::Level;
use gantry_packer::{PackError, finite};

/// xorshift64*: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(2_685_821_657_736_338_717) >> 32) as u32
    }

    /// Values of random bits with exponent fields from `exponents`, in the plain float `ty`.
    fn floats(&mut self, ty: GgmlType, n: usize, exponents: std::ops::Range<u32>) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..n {
            let exponent = exponents.start + self.next() % (exponents.end - exponents.start);
            let x = f32::from_bits(self.next() & 0x807f_ffff | exponent << 23);
            match ty {
                GgmlType::F32 => out.extend(x.to_le_bytes()),
                GgmlType::F16 => out.extend(fp16::f32_to_f16(x).to_le_bytes()),
                _ => out.extend(fp16::f32_to_bf16(x).to_le_bytes()),
            }
        }
        out
    }

    /// Blocks of any bytes whose scales are numbers that Q8_0 can hold.
    fn blocks(&mut self, ty: GgmlType, n: usize) -> Vec<u8> {
        let size = ty.block_bytes() as usize;
        let mut out: Vec<u8> = (0..n * size).map(|_| self.next() as u8).collect();
        for block in out.chunks_mut(size) {
            if matches!(ty, GgmlType::Q8_0 | GgmlType::Q4_0 | GgmlType::Q5_0 | GgmlType::IQ4_NL) {
                block[1] &= 0xbb;
            } else {
                block.iter_mut().for_each(|b| *b &= 0x2f);
            }
        }
        out
    }
}

type Planes = (Vec<u8>, Vec<u8>, Stats);

fn packed(level: Level, form: Form, ty: GgmlType, src: &[u8]) -> Result<Planes, PackError> {
    let (quants, scales) = form.plane_bytes()?;
    let (mut quants, mut scales) = (vec![0xee; quants], vec![0xee; scales]);
    let stats = int8::quantize_at(level, form, ty, src, &mut quants, &mut scales)?;
    Ok((quants, scales, stats))
}

/// The planes by definition: one value after another, then [`Order::offset`].
fn oracle(form: Form, ty: GgmlType, src: &[u8]) -> Planes {
    let Form { order, scales, rows, cols } = form;
    let mut x = vec![0.0; rows * cols];
    dequantize(ty, src, &mut x).expect("whole blocks");
    let mut stats = Stats::default();
    let (mut natural, mut quants) = (Vec::new(), vec![0_u8; rows * cols]);
    match scales {
        Scales::Channel => {
            for (x, quants) in x.chunks(cols).zip(quants.chunks_mut(cols)) {
                let amax = x.iter().fold(0.0_f32, |amax, v| amax.max(v.abs()));
                let d = amax / 127.0;
                let id = if d == 0.0 || (1.0 / d).is_infinite() { 0.0 } else { 1.0 / d };
                let mut error = 0.0_f32;
                for (q, &v) in quants.iter_mut().zip(x) {
                    let rounded = (v * id).round();
                    *q = rounded as i8 as u8;
                    error = error.max((v - d * rounded).abs());
                }
                natural.extend(d.to_le_bytes());
                stats.merge(&Stats {
                    blocks: 1,
                    lost: u64::from(amax > 0.0 && quants.iter().all(|q| *q == 0)),
                    subnormal: u64::from(d > 0.0 && d < f32::MIN_POSITIVE),
                    max_abs_error: error,
                    max_rel_error: if amax > 0.0 { error / amax } else { 0.0 },
                });
            }
        }
        Scales::Block32 => {
            natural = vec![0; rows * cols / 16];
            stats = q8_0::quantize_at(Level::PORTABLE, ty, src, &mut quants, &mut natural).expect("numbers");
        }
    }
    let layout = Layout::i8(order, scales).expect("taken");
    let (n, k) = layout.padded(rows as u64, cols as u64).expect("small");
    let planes = layout.planes(rows as u64, cols as u64).expect("tiles");
    let mut out = (vec![0; planes[0].bytes as usize], vec![0; planes[1].bytes as usize], stats);
    for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
        out.0[order.offset(r as u64, c as u64, n, k) as usize] = quants[r * cols + c];
    }
    let (from, to) = (natural.len() / rows.max(1), out.1.len() / (n as usize).max(1));
    for r in 0..rows {
        out.1[r * to..][..from].copy_from_slice(&natural[r * from..][..from]);
    }
    out
}

fn forms(rows: usize, cols: usize) -> impl Iterator<Item = Form> {
    let forms = Order::ALL.into_iter().flat_map(move |order| {
        [Scales::Channel, Scales::Block32].map(|scales| Form { order, scales, rows, cols })
    });
    forms.filter(move |form| {
        form.order.takes(form.scales) && (form.scales == Scales::Channel || cols.is_multiple_of(32))
    })
}

#[track_caller]
fn check(form: Form, ty: GgmlType, src: &[u8]) {
    let want = oracle(form, ty, src);
    for level in Level::available() {
        let got = packed(level, form, ty, src).expect("numbers");
        let what = format!("{ty} {form:?} {}", level.name());
        assert_eq!(got.0.iter().zip(&want.0).position(|(a, b)| a != b), None, "{what}: quants");
        assert_eq!(got.1.iter().zip(&want.1).position(|(a, b)| a != b), None, "{what}: scales");
        assert_eq!(got.2, want.2, "{what}");
    }
}

#[test]
fn floats_in_every_order() {
    let mut random = Random(1);
    for (rows, cols) in
        [(1, 32), (17, 96), (16, 64), (33, 2080), (5, 4128), (3, 45), (18, 1), (21, 512), (5, 16_640)]
    {
        for ty in [GgmlType::BF16, GgmlType::F16, GgmlType::F32] {
            let src = random.floats(ty, rows * cols, 110..130);
            for form in forms(rows, cols) {
                check(form, ty, &src);
            }
        }
    }
}

#[test]
fn channels_of_every_size() {
    let mut random = Random(2);
    for exponents in [0..1, 0..3, 0..40, 90..110, 126..130, 1..255, 250..255] {
        for cols in [1, 31, 32, 33, 100, 2048, 2049] {
            let src = random.floats(GgmlType::F32, 16 * cols, exponents.clone());
            check(
                Form { order: Order::Vnni16, scales: Scales::Channel, rows: 16, cols },
                GgmlType::F32,
                &src,
            );
            let bf16: Vec<u8> = src.chunks(4).flat_map(|b| [b[2], b[3]]).collect();
            check(
                Form { order: Order::NvA32, scales: Scales::Channel, rows: 16, cols },
                GgmlType::BF16,
                &bf16,
            );
        }
    }
}

#[test]
fn the_largest_errors_among_many_rows() {
    // Errors that cannot be larger than those of rows before are not looked for: which rows have them must not matter.
    let rows = 200;
    for (cols, seed, step) in [(160, 3, 0), (256, 4, 1), (160, 5, -1), (256, 6, 3), (256, 7, -7), (512, 8, 0)]
    {
        let mut random = Random(seed);
        let mut src = Vec::new();
        for row in 0..rows {
            // Values in a narrow range, whose scale goes up or down from row to row, some rows alike but for signs.
            let exponent = (127 + step * row / 30) as u32;
            src.extend(random.floats(GgmlType::BF16, cols as usize, exponent - 6..exponent + 1));
            if row % 5 == 0 {
                let last: Vec<u8> = src[src.len() - 2 * cols as usize..].iter().map(|b| b ^ 0x80).collect();
                src.truncate(src.len() - last.len());
                src.extend(last);
            }
        }
        for scales in [Scales::Channel, Scales::Block32] {
            for order in [Order::Vnni16, Order::NvA32] {
                let form = Form { order, scales, rows: rows as usize, cols: cols as usize };
                check(form, GgmlType::BF16, &src);
            }
        }
    }
}

#[test]
fn of_two_faults_the_first_row_s_is_named() {
    let (rows, cols) = (20, 256);
    for level in Level::available() {
        for (first, second) in [((1, 90), (2, 3)), ((4, 95), (5, 0)), ((0, 7), (3, 6)), ((17, 1), (18, 0))] {
            let mut src = Random(8).floats(GgmlType::BF16, rows * cols, 110..120);
            for (row, col) in [first, second] {
                let at = row * cols + col;
                src[2 * at..2 * at + 2].copy_from_slice(&0x7f80_u16.to_le_bytes());
            }
            for scales in [Scales::Channel, Scales::Block32] {
                let form = Form { order: Order::Vnni16, scales, rows, cols };
                let error = packed(level, form, GgmlType::BF16, &src).expect_err("an infinity").to_string();
                assert_eq!(error, format!("element {} inf", first.0 * cols + first.1), "{}", level.name());
            }
        }
    }
}

#[test]
fn channels_by_hand() {
    let row = |x: &[f32]| {
        let src: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
        let form = Form { order: Order::NMajor, scales: Scales::Channel, rows: 1, cols: x.len() };
        let all =
            Level::available().into_iter().map(|l| packed(l, form, GgmlType::F32, &src).expect("numbers"));
        let all: Vec<Planes> = all.collect();
        assert!(all.iter().all(|planes| *planes == all[0]));
        let quants: Vec<i8> = all[0].0[..x.len()].iter().map(|b| *b as i8).collect();
        let scale = f32::from_le_bytes([all[0].1[0], all[0].1[1], all[0].1[2], all[0].1[3]]);
        (quants, scale, all[0].2)
    };
    assert_eq!(row(&[127.0, 0.5, -0.5, 1.5, 2.5, -2.5, -126.5]).0, [127, 1, -1, 2, 3, -3, -127]);
    assert_eq!(row(&[0.0, -0.0]), (vec![0, 0], 0.0, Stats { blocks: 1, ..Stats::default() }));
    // x · (1/d) is not x/d: BF16 0x3F96 and 0x3F16, and 0x3F90 and 0x3F10.
    assert_eq!(row(&[1.171_875, 0.585_937_5]).0, [127, 63]);
    assert_eq!(row(&[1.125, 0.5625]).0, [127, 64]);
    // 1/d overflows: no quant, no NaN, and the row counts as lost.
    let tiny = f32::from_bits(0x02fe_0000);
    let (quants, scale, stats) = row(&[tiny, -tiny]);
    assert_eq!((quants, scale), (vec![0, 0], tiny / 127.0));
    assert_eq!((stats.lost, stats.max_abs_error, stats.max_rel_error), (1, tiny, 1.0));
    let (quants, _, stats) = row(&[f32::MAX, f32::MIN]);
    assert_eq!((quants, stats.lost), (vec![127, -127], 0));
}

#[test]
fn other_types_by_channel_go_through_f32() {
    let mut random = Random(3);
    for &ty in GgmlType::ALL.iter().filter(|ty| ty.is_quantized()) {
        for (rows, cols) in [(3, 256), (17, 2304)] {
            let src = random.blocks(ty, rows * cols / ty.block_len() as usize);
            check(Form { order: Order::NvA64, scales: Scales::Channel, rows, cols }, ty, &src);
        }
    }
    for &ty in GgmlType::ALL.iter().filter(|ty| !ty.is_quantized() && !ty.is_plain_float()) {
        let src: Vec<u8> = (0..48 * ty.block_bytes()).map(|_| random.next() as u8 & 0x2f).collect();
        check(Form { order: Order::Rdna4, scales: Scales::Channel, rows: 3, cols: 16 }, ty, &src);
    }
}

#[test]
fn other_types_by_block_are_q8_0s() {
    let mut random = Random(4);
    let exact = [GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL];
    for &ty in GgmlType::ALL.iter().filter(|ty| ty.is_quantized() && !exact.contains(ty)) {
        let src = random.blocks(ty, 5 * 2304 / ty.block_len() as usize);
        check(Form { order: Order::Slot16, scales: Scales::Block32, rows: 5, cols: 2304 }, ty, &src);
    }
}

#[test]
fn small_integer_blocks_are_exact_both_ways() {
    let mut random = Random(5);
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL] {
        for (rows, cols) in [(1, 32), (17, 96), (16, 2080), (33, 160)] {
            let src = random.blocks(ty, rows * cols / 32);
            let mut values = vec![0.0; rows * cols];
            dequantize(ty, &src, &mut values).expect("whole blocks");
            for form in forms(rows, cols).filter(|form| form.scales == Scales::Block32) {
                let first = packed(Level::PORTABLE, form, ty, &src).expect("numbers");
                for level in Level::available() {
                    let planes = packed(level, form, ty, &src).expect("numbers");
                    assert!(planes == first, "{ty} {form:?} {}", level.name());
                    let (quants, scales, stats) = planes;
                    assert_eq!((stats.blocks, stats.max_abs_error), ((rows * cols / 32) as u64, 0.0));
                    let mut back = vec![0xee; src.len()];
                    int8::to_blocks_at(level, form, ty, &quants, &scales, &mut back).expect("its own type");
                    assert!(back == src, "{ty} {form:?} {}", level.name());
                    let mut got = vec![f32::NAN; values.len()];
                    int8::dequantize_at(level, form, &quants, &scales, &mut got).expect("lengths fit");
                    let same = got.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{ty} {form:?} {}", level.name());
                }
            }
        }
    }
}

#[test]
fn channels_read_back_as_weight_times_scale() {
    let (rows, cols) = (19, 2085);
    let src = Random(6).floats(GgmlType::F32, rows * cols, 110..130);
    for form in forms(rows, cols) {
        for level in Level::available() {
            let (quants, scales, stats) = packed(level, form, GgmlType::F32, &src).expect("numbers");
            let mut values = vec![f32::NAN; rows * cols];
            int8::dequantize_at(level, form, &quants, &scales, &mut values).expect("lengths fit");
            let mut natural = vec![0; rows * cols];
            fragment::unpermute_at(level, form.order, rows, cols, &quants, &mut natural)
                .expect("lengths fit");
            let mut worst = 0.0_f32;
            for (i, value) in values.iter().enumerate() {
                let d = f32::from_le_bytes(*scales[i / cols * 4..].first_chunk().expect("a scale"));
                assert_eq!(value.to_bits(), (f32::from(natural[i] as i8) * d).to_bits());
                let x = f32::from_le_bytes(*src[i * 4..].first_chunk().expect("a value"));
                worst = worst.max((x - value).abs());
            }
            assert_eq!(worst, stats.max_abs_error);
        }
    }
}

#[test]
fn a_block_that_cannot_hold_a_weight_is_named() {
    let form = Form { order: Order::Vnni8, scales: Scales::Block32, rows: 2, cols: 96 };
    let mut src = vec![0; 6 * 34];
    src[4 * 34 + 2 + 7] = 100;
    let (quants, scales, _) = packed(Level::PORTABLE, form, GgmlType::Q8_0, &src).expect("numbers");
    let back = |ty: GgmlType| {
        let mut out = vec![0; 6 * ty.block_bytes() as usize];
        int8::to_blocks(form, ty, &quants, &scales, &mut out).map_err(|e| e.to_string())
    };
    for ty in [GgmlType::Q4_0, GgmlType::Q5_0] {
        let message =
            format!("element 135 is 100, which no {ty} block holds: the matrix was not packed from {ty}");
        assert_eq!(back(ty), Err(message));
    }
    // 0 is no level of IQ4_NL.
    assert!(
        back(GgmlType::IQ4_NL).is_err_and(|e| e.starts_with("element 0 is 0, which no IQ4_NL block holds"))
    );
    assert_eq!(back(GgmlType::Q8_0), Ok(()));
    assert!(back(GgmlType::Q4_1).is_err_and(|e| e.contains("does not go back to Q4_1")));
}

#[test]
fn faults_are_named_where_they_are() {
    let at = |form: Form, ty: GgmlType, src: &[u8]| {
        let faults: Vec<_> =
            Level::available().into_iter().map(|level| packed(level, form, ty, src)).collect();
        assert!(faults.iter().all(|fault| fault == &faults[0]));
        faults[0].clone().expect_err("refused").to_string()
    };
    let (rows, cols) = (40, 2112);
    for form in forms(rows, cols) {
        let mut src = vec![0_u8; rows * cols * 2];
        let element = 37 * cols + 2050;
        src[2 * element..][..2].copy_from_slice(&[0x80, 0xff]);
        assert_eq!(at(form, GgmlType::BF16, &src), format!("element {element} -inf"));
        assert!(finite::check_finite(GgmlType::BF16, &src).is_err());
        for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL, GgmlType::Q4_1] {
            let size = ty.block_bytes() as usize;
            let mut src = vec![0_u8; rows * cols / 32 * size];
            let block = 21 * (cols / 32) + 65;
            src[block * size..][..2].copy_from_slice(&[0, 0x7e]);
            assert_eq!(at(form, ty, &src), format!("block {block} scale nan"), "{ty} {form:?}");
        }
    }
    // Each scale is a number, and a product is none.
    let mut src = vec![0_u8; 2 * 292];
    src[292..][..4].copy_from_slice(&f32::MAX.to_le_bytes());
    src[292 + 4 + 9] = 100;
    let form = Form { order: Order::NvA32, scales: Scales::Channel, rows: 1, cols: 512 };
    assert_eq!(at(form, GgmlType::Q8_K, &src), "element 265 inf");
    let overflow = [0xfe_u8, 0x4a].repeat(32);
    let form = Form { order: Order::NvA32, scales: Scales::Block32, rows: 1, cols: 32 };
    assert_eq!(at(form, GgmlType::BF16, &overflow), "element 0: 8323072/127 does not fit fp16");
}

#[test]
fn forms_that_are_none() {
    let form = |order, scales, rows, cols| {
        Form { order, scales, rows, cols }.plane_bytes().map_err(|e| e.to_string())
    };
    assert_eq!(form(Order::Slot16, Scales::Block32, 17, 96), Ok((32 * 128, 32 * 8)));
    assert_eq!(form(Order::Slot16, Scales::Channel, 17, 33), Ok((32 * 64, 32 * 4)));
    assert_eq!(
        form(Order::Ck16, Scales::Block32, 1, 64),
        Err("i8.frag.ck16 does not take scales per block32: one instruction sums over two blocks of 32"
            .into())
    );
    assert_eq!(
        form(Order::NvA32, Scales::Block32, 1, 48),
        Err("rows of 48 columns are no whole number of blocks of 32".into())
    );
    assert_eq!(form(Order::NvA32, Scales::Channel, 1, 131_071), Ok((16 * 131_072, 64)));
    assert!(
        form(Order::NvA32, Scales::Channel, 1, 131_072).is_err_and(|e| e.contains("above 131071 an int32"))
    );
    assert!(form(Order::NvA32, Scales::Block32, 1, 131_072).is_ok());
    assert!(form(Order::NvA32, Scales::Block32, usize::MAX, 32).is_err());
    let form = Form { order: Order::NvA32, scales: Scales::Channel, rows: 2, cols: 32 };
    let q = |ty, n: usize, q: usize, s: usize| {
        let (mut quants, mut scales) = (vec![0; q], vec![0; s]);
        int8::quantize(form, ty, &vec![0; n], &mut quants, &mut scales).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(q(GgmlType::BF16, 128, 512, 64), Ok(()));
    assert_eq!(q(GgmlType::BF16, 126, 512, 64), Err("source: 126 where 128 are needed".into()));
    assert_eq!(q(GgmlType::BF16, 128, 511, 64), Err("quants: 511 where 512 are needed".into()));
    assert_eq!(q(GgmlType::BF16, 128, 512, 8), Err("scales: 8 where 64 are needed".into()));
    let ragged = "rows of 32 columns are no whole number of blocks of 256";
    assert_eq!(q(GgmlType::Q6_K, 210, 512, 64), Err(ragged.into()));
}
