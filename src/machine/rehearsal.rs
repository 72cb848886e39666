//! What would a model do here that nobody has downloaded? Its shapes are known, so its pieces can be read and multiplied without it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rayon::ThreadPoolBuilder;
use serde::Serialize;

use super::drive::Drive;
use super::place::Place;
use super::processor::{Processor, Share};
use super::products::{self, Experts, Products, Trunk};
use super::rates::{Rates, Together};
use super::synthetic::{self, Fill};
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::model::manifest::{Manifest, Part, PartFormat};
use crate::units::show_bytes;

/// Passes over the scratch file, and the longest of them.
const PASSES: u64 = 3;
const PASS_MAX: Duration = Duration::from_secs(12);
/// Rows of the products that go on while the disk is read.
const ROWS_TOGETHER: u32 = 64;

/// The shapes of a model's pieces, and what a row of it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// What a person calls it.
    pub name: String,
    /// The matrices of its largest block.
    pub parts: Vec<Part>,
    /// That block's stored tensors.
    pub tensors: Vec<(usize, Fill)>,
    /// Outputs and columns of a panel of the trunk's largest matrix.
    pub panel: (usize, usize),
    /// Operations a row.
    pub cost: Cost,
}

/// Operations of products with weights, a row; attention and what else grows with a sequence's length are not among them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cost {
    /// All layers' weights but experts.
    pub trunk_flops: u64,
    /// The head.
    pub head_flops: u64,
    /// A layer with routed experts each: experts, experts a row, operations of one.
    pub layers: Vec<(u64, u64, u64)>,
}

impl Shape {
    /// The shapes of `manifest`, which a person calls `name`.
    ///
    /// # Errors
    /// Refused: it has no routed experts.
    pub fn of(name: &str, manifest: &Manifest) -> Result<Shape> {
        let product = |rows: usize, cols: usize| 2 * (rows * cols) as u64;
        let Some((_, largest)) = manifest.blocks().max_by_key(|(_, blocks)| blocks.bytes()) else {
            return Err(Error::refused(format!("{name} has no routed experts, so there is nothing to rehearse")));
        };
        let in_layers = manifest.layers.last().map_or(0, |layer| layer.weights.end) as usize;
        let trunk = &manifest.weights[..in_layers];
        let widest = trunk.iter().max_by_key(|w| w.rows() * w.cols()).unwrap_or(manifest.weight(manifest.head));
        let stored = largest.tensors();
        let fills = largest.parts.iter().flat_map(|part| match part.format {
            PartFormat::Mxfp4 => [Fill::Codes, Fill::Scales],
        });
        let head = manifest.weight(manifest.head);
        Ok(Shape {
            name: name.into(),
            tensors: stored.iter().zip(fills).map(|(t, fill)| (t.shape[0] * t.shape[1], fill)).collect(),
            parts: largest.parts.clone(),
            panel: (widest.panel(0).len(), widest.cols()),
            cost: Cost {
                trunk_flops: trunk.iter().map(|w| product(w.rows(), w.cols())).sum(),
                head_flops: product(head.rows(), head.cols()),
                layers: manifest
                    .blocks()
                    .map(|(_, b)| (b.count as u64, b.chosen as u64, b.parts.iter().map(|p| product(p.rows, p.cols)).sum()))
                    .collect(),
            },
        })
    }
}

/// What to measure with.
pub struct Means<'a> {
    /// The folder on whose disk the model would lie.
    pub scratch: &'a Path,
    /// Bytes of blocks that are written there.
    pub scratch_bytes: u64,
    /// The arithmetic.
    pub kernels: Kernels,
    /// Its threads.
    pub threads: usize,
    /// Experts computed at the same time.
    pub side_by_side: usize,
}

/// Writes synthetic blocks, reads them, multiplies, does both at once. `note` hears what goes on.
///
/// # Errors
/// Refused: too little room in the folder. Storage: writing or reading fails.
pub fn rehearse(shape: &Shape, means: &Means<'_>, note: &mut dyn FnMut(&str)) -> Result<Rates> {
    let pool = ThreadPoolBuilder::new().num_threads(means.threads).build();
    let pool = pool.map_err(|e| Error::refused(format!("cannot start {} threads: {e}", means.threads)))?;
    note(&format!("writing {} of synthetic blocks", show_bytes(means.scratch_bytes)));
    let drive = pool.install(|| synthetic::write(means.scratch, &shape.tensors, means.scratch_bytes))?;
    note(&format!("reading them {PASSES} times in random order"));
    let disk = drive.rate(PASSES, PASS_MAX, &synthetic::check)?;
    note("multiplying experts and trunk");
    let (experts, trunk) = pool.install(|| {
        let experts = Experts::new(means.kernels, &shape.parts, &shape.tensors, means.side_by_side);
        (experts, Trunk::new(means.kernels, shape.panel.0, shape.panel.1))
    });
    let share = Share::begin();
    let [expert_rates, trunk_rates] = [&experts as &dyn Products, &trunk].map(|products| pool.install(|| products::rates(products)));
    let cores_share = share.end(means.threads);
    note("both at once");
    let alone = expert_rates.iter().rfind(|rate| rate.rows <= ROWS_TOGETHER).map_or(0, |rate| rate.flops_per_s);
    let (read, flops_per_s) = pool.install(|| both(&drive, &experts))?;
    let share = |together: u64, alone: u64| if alone == 0 { 1.0 } else { (together as f64 / alone as f64).clamp(0.01, 1.0) };
    Ok(Rates {
        measured_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        processor: Processor::look().name,
        kernel: means.kernels.path().name().into(),
        threads: means.threads,
        shape: shape.name.clone(),
        scratch: means.scratch.canonicalize().unwrap_or_else(|_| means.scratch.to_path_buf()),
        file_system: Place::work(means.scratch)?.file_system,
        together: Together {
            rows: ROWS_TOGETHER,
            disk_bytes_per_s: disk.bytes_per_s.map(|_| read),
            flops_per_s,
            disk_share: disk.bytes_per_s.map_or(1.0, |alone| share(read, alone)),
            arithmetic_share: share(flops_per_s, alone),
        },
        cores_share,
        disk,
        experts: expert_rates,
        trunk: trunk_rates,
    })
}

/// One pass over the disk while experts are multiplied: bytes a second, operations a second.
fn both(drive: &Drive, experts: &dyn Products) -> Result<(u64, u64)> {
    drive.drop_pages();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| drive.pass(PASSES, PASS_MAX, &synthetic::check));
        let flops_per_s = products::sustained(experts, ROWS_TOGETHER as usize, &|_| !reading.is_finished());
        let read = reading.join().map_err(|_| Error::storage("a thread that reads has failed; this is a fault of the program"))??;
        Ok((read.rate(), flops_per_s))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{self, manifest::PANEL_BYTES};

    #[test]
    fn the_published_shape_has_its_published_sizes() {
        let (name, config) = model::SHAPES[0];
        let model = model::of_config(config.as_bytes(), Path::new("config.json"), PANEL_BYTES).expect("a model");
        let shape = Shape::of(name, model.manifest()).expect("it has experts");
        assert_eq!(shape.tensors.iter().map(|t| t.0).sum::<usize>(), 17_547_264);
        assert_eq!(shape.tensors.iter().filter(|t| t.1 == Fill::Scales).map(|t| t.0).sum::<usize>() * 32, 3 * 3072 * 3584);
        // "about 104 G weights" are active for a token; the head is one of them.
        let experts: u64 = shape.cost.layers.iter().map(|(_, chosen, flops)| chosen * flops).sum();
        let active = (shape.cost.trunk_flops + shape.cost.head_flops + experts) / 2;
        assert!((102_000_000_000..106_000_000_000).contains(&active), "{active}");
    }
}
