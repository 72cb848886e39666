//! Random weights by counter: the bytes of a tensor depend on seed, name and place alone, so they are the same on any number of threads, and in
//! any number of files. 22 GB must come as fast as a disk takes them, so a normal number is a look-up by sixteen random bits.

use std::collections::HashMap;

/// What a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Normally distributed numbers, as f32 or bf16.
    Normal { mean: f32, std: f32 },
    /// Codes of four bits, all alike likely.
    Codes,
    /// Scales of MXFP4: powers of two about this biased exponent.
    Scales { about: u8 },
}

/// Root mean square of MXFP4's codes times that of the scales about their middle: 2.93 * 1.25.
const CODES_RMS: f32 = 3.66;
/// What a scale adds to the middle one, by two random bits.
const SPREAD: [u8; 4] = [0, 1, 1, 2];
const BIAS: f32 = 127.0;
/// Numbers in the table of the normal distribution: one for each value of sixteen bits.
const NORMALS: usize = 1 << 16;

impl Fill {
    /// Scales with which a matrix of `cols` columns neither grows nor shrinks what goes through it.
    pub fn scales(cols: usize) -> Fill {
        Fill::Scales { about: (BIAS - (CODES_RMS * (cols as f32).sqrt()).log2()).round() as u8 }
    }

    fn table(self) -> Option<[u32; 2]> {
        match self {
            Fill::Normal { mean, std } => Some([mean.to_bits(), std.to_bits()]),
            _ => None,
        }
    }
}

/// The random numbers of one seed.
pub struct Values {
    seed: u64,
    /// Sums of twelve uniform numbers, less their mean: as good as normal, and never beyond 6.
    normals: Vec<f32>,
    /// The same as bf16, by mean and standard deviation.
    tables: HashMap<[u32; 2], Vec<u16>>,
}

/// One tensor's numbers.
pub struct Tensor<'a> {
    key: u64,
    fill: Fill,
    wide: bool,
    table: &'a [u16],
}

impl Values {
    pub fn new(seed: u64) -> Self {
        let uniform = |i: usize| (mix(i as u64) >> 40) as f32 / (1u32 << 24) as f32;
        let normals = (0..NORMALS).map(|i| (0..12).map(|j| uniform(12 * i + j)).sum::<f32>() - 6.0).collect();
        Values { seed, normals, tables: HashMap::new() }
    }

    /// Makes ready for `fill`.
    pub fn prepare(&mut self, fill: Fill) {
        if let (Some(name), Fill::Normal { mean, std }) = (fill.table(), fill) {
            let normals = &self.normals;
            self.tables.entry(name).or_insert_with(|| normals.iter().map(|z| bf16(mean + std * z)).collect());
        }
    }

    /// The numbers of the tensor `name`, for whose `fill` [`Values::prepare`] has been called; f32 if `wide`, else of two bytes.
    pub fn of(&self, name: &str, fill: Fill, wide: bool) -> Tensor<'_> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes()).update(name.as_bytes());
        let key = u64::from_le_bytes(*hasher.finalize().as_bytes().first_chunk().expect("32 bytes"));
        let table = fill.table().map_or(&[][..], |name| &self.tables[&name]);
        Tensor { key, fill, wide, table }
    }
}

impl Tensor<'_> {
    /// Writes the tensor's bytes from byte `from` on.
    pub fn write(&self, from: u64, mut out: &mut [u8]) {
        let mut word = from / 8;
        let inside = (from % 8) as usize;
        if inside > 0 {
            let (head, rest) = out.split_at_mut(out.len().min(8 - inside));
            head.copy_from_slice(&self.word(word)[inside..inside + head.len()]);
            (out, word) = (rest, word + 1);
        }
        let (words, tail) = out.as_chunks_mut::<8>();
        for (i, bytes) in (word..).zip(words.iter_mut()) {
            *bytes = self.word(i);
        }
        tail.copy_from_slice(&self.word(word + words.len() as u64)[..tail.len()]);
    }

    /// Eight bytes.
    #[inline]
    fn word(&self, i: u64) -> [u8; 8] {
        let random = mix(self.key.wrapping_add(i));
        let number = |at: u32| self.table[(random >> (16 * at)) as usize % NORMALS];
        match self.fill {
            Fill::Codes => random.to_le_bytes(),
            Fill::Scales { about } => random.to_le_bytes().map(|b| (about - 1).saturating_add(SPREAD[usize::from(b % 4)])),
            Fill::Normal { .. } if self.wide => {
                let wide = |at| u64::from(number(at)) << 16;
                (wide(0) | wide(1) << 32).to_le_bytes()
            }
            Fill::Normal { .. } => {
                let pair = |at| u64::from(number(at)) | u64::from(number(at + 1)) << 16;
                (pair(0) | pair(2) << 32).to_le_bytes()
            }
        }
    }
}

/// The nearest bf16, ties upwards.
fn bf16(x: f32) -> u16 {
    (x.to_bits().wrapping_add(0x8000) >> 16) as u16
}

/// Sixty-four random bits for each counter: the finaliser of SplitMix64.
#[inline]
fn mix(counter: u64) -> u64 {
    let x = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILLS: [(Fill, bool); 4] = [
        (Fill::Normal { mean: -4.0, std: 1.0 }, true),
        (Fill::Normal { mean: 0.0, std: 0.125 }, false),
        (Fill::Codes, false),
        (Fill::Scales { about: 120 }, false),
    ];

    #[test]
    fn any_cut_gives_the_same_bytes() {
        let mut values = Values::new(1);
        for (fill, wide) in FILLS {
            values.prepare(fill);
            let tensor = values.of("a", fill, wide);
            let mut whole = [0; 61];
            tensor.write(0, &mut whole);
            for (from, to) in (0..=61).flat_map(|from| (from..=61).map(move |to| (from, to))) {
                let mut part = vec![0; to - from];
                tensor.write(from as u64, &mut part);
                assert_eq!(part, whole[from..to], "{fill:?} from {from} to {to}");
            }
        }
    }

    #[test]
    fn a_product_neither_grows_nor_shrinks() {
        const COLS: usize = 3584;
        let mut values = Values::new(1);
        let fill = Fill::Normal { mean: 0.0, std: 1.0 / (COLS as f32).sqrt() };
        values.prepare(fill);
        let mut bytes = vec![0; 1 << 20];
        values.of("a", fill, false).write(0, &mut bytes);
        let dense: Vec<f32> = bytes.chunks(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect();
        let (mut codes, mut scales) = (vec![0; 1 << 20], vec![0; 1 << 16]);
        values.of("b", Fill::Codes, false).write(0, &mut codes);
        values.of("c", Fill::scales(COLS), false).write(0, &mut scales);
        let exact = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let value = |i: usize| {
            let code = codes[i / 2] >> (4 * (i % 2)) & 15;
            let sign = if code < 8 { 1.0 } else { -1.0 };
            sign * exact[usize::from(code % 8)] * (f32::from(scales[i / 32]) - BIAS).exp2()
        };
        for w in [dense, (0..1 << 21).map(value).collect()] {
            let mean = w.iter().sum::<f32>() / w.len() as f32;
            let gain = (w.iter().map(|x| x * x).sum::<f32>() / w.len() as f32 * COLS as f32).sqrt();
            assert!((0.7..1.4).contains(&gain) && mean.abs() < 1e-4, "mean {mean}, gain {gain}");
        }
    }
}
