//! From rates to hours: how long does so much reading and multiplying take, and which of the two bounds it?
//!
//! Both go on at the same time, so a sweep takes the longer of the two. Experts are multiplied at the rate of the rows that one of them
//! gets, which is far below the sweep's rows: at 16 of 896 experts a row, 64 rows give an expert 2.

use serde::Serialize;

use super::rates::Rates;
use super::rehearsal::Cost;

/// Sweeps that are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Passes through all layers.
    pub sweeps: u64,
    /// Rows of all of them.
    pub rows: u64,
    /// Of these, rows that want logits.
    pub logits: u64,
    /// Bytes read for them.
    pub bytes: u64,
}

/// What bounds some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Reading takes longer.
    Disk,
    /// Multiplying takes longer.
    Arithmetic,
}

/// How long some work takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// Passes through all layers.
    pub sweeps: u64,
    /// Rows of all of them, a token each.
    pub tokens: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds of reading.
    pub disk_s: f64,
    /// Seconds of products with weights.
    pub arithmetic_s: f64,
    /// Seconds of both at the same time.
    pub seconds: f64,
    /// Seconds a token.
    pub seconds_a_token: f64,
    /// Bytes a token.
    pub bytes_a_token: u64,
    /// What bounds them.
    pub bound: Bound,
}

impl Estimate {
    /// Of `work` at these rates; None where the disk has no rate.
    pub fn of(work: &Work, cost: &Cost, rates: &Rates) -> Option<Estimate> {
        let disk_s = work.bytes as f64 / rates.disk_bytes_per_s()?;
        let arithmetic_s = arithmetic_s(work, cost, rates);
        let bound = if disk_s >= arithmetic_s { Bound::Disk } else { Bound::Arithmetic };
        Some(Estimate {
            sweeps: work.sweeps,
            tokens: work.rows,
            bytes: work.bytes,
            disk_s,
            arithmetic_s,
            seconds: disk_s.max(arithmetic_s),
            seconds_a_token: disk_s.max(arithmetic_s) / work.rows.max(1) as f64,
            bytes_a_token: work.bytes / work.rows.max(1),
            bound,
        })
    }
}

fn arithmetic_s(work: &Work, cost: &Cost, rates: &Rates) -> f64 {
    if work.sweeps == 0 || work.rows == 0 {
        return 0.0;
    }
    let (rows, logits, sweeps) = (work.rows as f64, work.logits as f64, work.sweeps as f64);
    let a_sweep = rows / sweeps;
    let trunk = rows * cost.trunk_flops as f64 / rates.trunk_flops_per_s(a_sweep);
    let head = logits * cost.head_flops as f64 / rates.trunk_flops_per_s(logits / sweeps);
    let experts = cost.layers.iter().map(|&(count, chosen, flops)| {
        let touched = count as f64 * (1.0 - (1.0 - chosen as f64 / count as f64).powf(a_sweep));
        rows * chosen as f64 * flops as f64 / rates.expert_flops_per_s(a_sweep * chosen as f64 / touched)
    });
    trunk + head + experts.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::rates::tests::rates;

    #[test]
    fn the_longer_of_disk_and_arithmetic_bounds() {
        // One row a sweep: an expert gets one row, at 5 GFLOP/s beside reading; the trunk 25.
        let cost = Cost { trunk_flops: 25_000_000_000, head_flops: 0, layers: vec![(8, 2, 5_000_000_000)] };
        let work = Work { sweeps: 10, rows: 10, logits: 0, bytes: 5_000_000_000 };
        let estimate = Estimate::of(&work, &cost, &rates()).expect("the disk has a rate");
        assert_eq!((estimate.disk_s, estimate.bound), (5.0, Bound::Arithmetic));
        assert!((estimate.seconds - 10.0 * (1.0 + 2.0)).abs() < 1e-6, "{estimate:?}");
        let more = Work { bytes: 50_000_000_000, ..work };
        let estimate = Estimate::of(&more, &cost, &rates()).expect("the disk has a rate");
        assert_eq!((estimate.seconds, estimate.bound), (50.0, Bound::Disk));
        let mut doubted = rates();
        doubted.disk.bytes_per_s = None;
        assert_eq!(Estimate::of(&work, &cost, &doubted), None);
        let nothing = Work { sweeps: 0, rows: 0, logits: 0, bytes: 0 };
        assert_eq!(Estimate::of(&nothing, &cost, &rates()).expect("no work takes no time").seconds, 0.0);
    }
}
