//! What was measured once and is a fact from then on: it is recorded with its date, and no plan ever looks at a clock.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::drive::DiskRate;
use super::products::ProductRate;
use crate::error::{Error, Kind, Result};

const FILE: &str = "machine.json";

/// A machine's rates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// When they were measured, in seconds since 1970.
    pub measured_unix_s: u64,
    /// The processor's name.
    pub processor: String,
    /// The kernels' path.
    pub kernel: String,
    /// Threads of arithmetic.
    pub threads: usize,
    /// Whose shapes were measured.
    pub shape: String,
    /// The folder on whose disk pieces lay.
    pub scratch: PathBuf,
    /// The name of its file system.
    pub file_system: String,
    /// The disk.
    pub disk: DiskRate,
    /// Products with routed experts, by ascending rows.
    pub experts: Vec<ProductRate>,
    /// Products with the trunk, by ascending rows.
    pub trunk: Vec<ProductRate>,
    /// Which share of the threads' time the arithmetic got: below about 0.9 other programs were at work, and it is faster without them.
    pub cores_share: f64,
    /// Reading and computing at the same time.
    pub together: Together,
}

/// What is left of each rate while the other work goes on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Together {
    /// Rows of the products.
    pub rows: u32,
    /// The disk's rate; None where there is none alone.
    pub disk_bytes_per_s: Option<u64>,
    /// The experts' rate.
    pub flops_per_s: u64,
    /// The disk's rate as a part of that alone, at most 1.
    pub disk_share: f64,
    /// The arithmetic's likewise.
    pub arithmetic_share: f64,
}

impl Rates {
    /// The disk's rate beside arithmetic.
    pub fn disk_bytes_per_s(&self) -> Option<f64> {
        Some(self.disk.bytes_per_s? as f64 * self.together.disk_share)
    }

    /// The experts' rate beside reading, each with so many rows.
    pub fn expert_flops_per_s(&self, rows: f64) -> f64 {
        at(&self.experts, rows) * self.together.arithmetic_share
    }

    /// The trunk's rate beside reading.
    pub fn trunk_flops_per_s(&self, rows: f64) -> f64 {
        at(&self.trunk, rows) * self.together.arithmetic_share
    }

    /// When they were measured, as "2026-12-01 14:50 UTC".
    pub fn measured(&self) -> String {
        let time = i64::try_from(self.measured_unix_s).ok().and_then(|s| chrono::DateTime::from_timestamp(s, 0));
        time.map_or_else(|| "at an unknown time".into(), |time| time.format("%Y-%m-%d %H:%M UTC").to_string())
    }

    /// Writes them into `folder`, which is made where it is absent; whole or not at all.
    ///
    /// # Errors
    /// Storage: it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let fault = |e: std::io::Error| Error::io(Kind::Storage, "write", &folder.join(FILE), &e);
        fs::create_dir_all(folder).map_err(fault)?;
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(fault)?;
        serde_json::to_writer_pretty(&mut file, self).map_err(|e| fault(e.into()))?;
        file.write_all(b"\n").map_err(fault)?;
        file.persist(folder.join(FILE)).map(drop).map_err(|e| fault(e.error))
    }

    /// Those that were written into `folder`; None where there are none that can be understood.
    pub fn load(folder: &Path) -> Option<Rates> {
        serde_json::from_slice(&fs::read(folder.join(FILE)).ok()?).ok()
    }
}

/// The rate at `rows` rows: between two figures by the logarithm of rows, beyond them the nearest.
fn at(rates: &[ProductRate], rows: f64) -> f64 {
    let point = |rate: &ProductRate| (f64::from(rate.rows).log2(), rate.flops_per_s as f64);
    let x = rows.max(1.0).log2();
    let above = rates.partition_point(|rate| point(rate).0 < x);
    match (above.checked_sub(1).map(|i| point(&rates[i])), rates.get(above).map(point)) {
        (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0),
        (Some(only), None) | (None, Some(only)) => only.1,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::machine::drive::Pass;

    /// 1 GB/s; experts from 10 to 100 GFLOP/s, the trunk 50; half the arithmetic while reading.
    pub fn rates() -> Rates {
        let disk = DiskRate {
            bytes_per_s: Some(1_000_000_000),
            doubt: None,
            passes: vec![Pass { bytes: 1_000, us: 1 }],
            piece_bytes: 1_000,
            file_bytes: 1_000,
            direct: true,
            uring: true,
            pages_cached: Some(0),
            pages_sampled: 256,
        };
        let rate = |rows, gflops: u64| ProductRate { rows, flops_per_s: gflops * 1_000_000_000 };
        Rates {
            measured_unix_s: 1_796_136_600,
            processor: "p".into(),
            kernel: "k".into(),
            threads: 2,
            shape: "s".into(),
            scratch: "/scratch".into(),
            file_system: "ext4".into(),
            disk,
            experts: vec![rate(1, 10), rate(16, 50), rate(64, 100)],
            trunk: vec![rate(1, 50)],
            cores_share: 1.0,
            together: Together { rows: 64, disk_bytes_per_s: None, flops_per_s: 1, disk_share: 1.0, arithmetic_share: 0.5 },
        }
    }

    #[test]
    fn a_rate_between_two_is_between_them() {
        let rates = rates();
        for (rows, gflops) in [(0.5, 10.0), (1.0, 10.0), (4.0, 30.0), (16.0, 50.0), (32.0, 75.0), (64.0, 100.0), (9e9, 100.0)] {
            assert!((rates.expert_flops_per_s(rows) / 0.5e9 - gflops).abs() < 1e-6, "{rows} rows");
        }
        assert_eq!(at(&[], 3.0), 0.0);
    }

    #[test]
    fn what_was_saved_is_loaded_and_what_is_torn_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let inside = folder.path().join("a/b");
        assert_eq!(Rates::load(&inside), None);
        rates().save(&inside).expect("saved");
        assert_eq!(Rates::load(&inside), Some(rates()));
        assert_eq!(fs::read_dir(&inside).expect("a folder").count(), 1);
        fs::write(inside.join(FILE), "{").expect("written");
        assert_eq!(Rates::load(&inside), None);
        assert_eq!(rates().measured(), "2026-12-01 14:50 UTC");
    }
}
