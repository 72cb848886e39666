//! The largest model's shape, and numbers that depend on a seed alone.

/// Its layers that have experts.
pub const LAYERS: usize = 92;
/// Experts a layer.
pub const EXPERTS: usize = 896;
/// Entries of a footprint: 1.5 KB.
pub const ENTRIES: usize = 375;

/// One number after another.
pub struct Draw(u64);

impl Draw {
    pub fn of(seed: u64) -> Self {
        Draw(seed.wrapping_mul(0xD129_0D3F_6B7A_5C95))
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (((self.bits() >> 32) * n as u64) >> 32) as usize
    }
}
