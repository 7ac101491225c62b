//! SHA-256 (FIPS 180-4), short and slow: published digests of format data are SHA-256, and nothing else needs it.

const PRIMES: [u64; 64] = {
    let (mut primes, mut count, mut n) = ([0; 64], 0, 2_u64);
    while count < 64 {
        let mut d = 2;
        while d * d <= n && n % d != 0 {
            d += 1;
        }
        if d * d > n {
            primes[count] = n;
            count += 1;
        }
        n += 1;
    }
    primes
};

/// The first 32 fractional bits of the `n`-th root of `p`: the largest x with xⁿ ≤ p·2^(32n), modulo 2³².
fn root_bits(p: u64, n: u32) -> u32 {
    let mut x = 0_u128;
    for bit in (0..37).rev() {
        let next = x | 1 << bit;
        if next.pow(n) <= u128::from(p) << (32 * n) {
            x = next;
        }
    }
    x as u32
}

/// Lower-case hex of the SHA-256 of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let k: Vec<u32> = PRIMES.iter().map(|&p| root_bits(p, 3)).collect();
    let mut h: Vec<u32> = PRIMES[..8].iter().map(|&p| root_bits(p, 2)).collect();
    let mut message = bytes.to_vec();
    message.push(0x80);
    message.resize((bytes.len() + 9).next_multiple_of(64) - 8, 0);
    message.extend((bytes.len() as u64 * 8).to_be_bytes());
    for block in message.as_chunks::<64>().0 {
        let mut w: Vec<u32> = block.as_chunks::<4>().0.iter().map(|b| u32::from_be_bytes(*b)).collect();
        for i in 16..64 {
            let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ w[i - 15] >> 3;
            let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ w[i - 2] >> 10;
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let mut v = h.clone();
        for (k, w) in k.iter().zip(w) {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = v[4] & v[5] ^ !v[4] & v[6];
            let t1 = v[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(*k).wrapping_add(w);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = v[0] & v[1] ^ v[0] & v[2] ^ v[1] & v[2];
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(t1);
            v[0] = t1.wrapping_add(s0).wrapping_add(majority);
        }
        h.iter_mut().zip(v).for_each(|(h, v)| *h = h.wrapping_add(v));
    }
    h.iter().map(|word| format!("{word:08x}")).collect()
}
