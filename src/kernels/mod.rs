//! What is the arithmetic, and why does it not depend on who computes it?
//!
//! Answers must be bit-identical whatever the batch, threads, point of interruption or machine, so every output
//! element has ONE order of summation. A product with a matrix sums chains of 128 columns (`matmul`), a score of attention
//! is one chain (`attend`), a norm's sum uses sixteen lanes joined by a fixed tree. Sixteen lanes are one AVX-512 register,
//! two AVX2 registers, or sixteen scalars, so the three paths differ in speed alone (a core's peak here is 240 GFLOP/s: see
//! benches/matmul.rs).
//!
//! An instruction set is an implementation of `Lanes`, a format a decoder of sixteen columns or sixteen rows, an operation
//! one generic body. [`Kernels`] picks the set once a call. Nothing here allocates per call, flushes subnormals, or knows a model.
#![allow(unsafe_code)] // Entering a function compiled for an instruction set that the machine was found to have.

mod attend;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod conv;
mod delta;
mod fold;
mod lanes;
pub mod math;
mod matmul;
mod matrix;
mod norm;
mod pairs;
mod parallel;
mod pointwise;
mod scratch;
mod tile;
mod transposed;
mod view;

pub use attend::Attention;
pub use delta::{Delta, Replay};
pub use fold::Folded;
pub use matrix::{Data, Matrix, mxfp4_has_nan};
pub use parallel::spread;
pub use tile::ORDER;
pub use view::{Steps, View, ViewMut};

use lanes::{Lanes, Portable};

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// One number at a time: the definition.
    Scalar,
    /// Eight lanes with fused multiply-add.
    Avx2,
    /// Sixteen lanes.
    Avx512,
}

impl Path {
    /// As the job file and the summary write it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Scalar => "scalar",
            Path::Avx2 => "avx2",
            Path::Avx512 => "avx512",
        }
    }
}

/// All arithmetic, by one instruction set that this machine has.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    path: Path,
}

/// Work written once for all instruction sets. `run` and all it calls must be inlined (`#[inline(always)]`, no closures that
/// compute), or the compiler would build it without the set's instructions.
trait Operation {
    type Output;
    fn run<L: Lanes>(self) -> Self::Output;
}

impl Kernels {
    /// The widest instruction set of this machine.
    pub fn detect() -> Kernels {
        [Path::Avx512, Path::Avx2].into_iter().find_map(Kernels::with).unwrap_or(Kernels { path: Path::Scalar })
    }

    /// A chosen instruction set; None when this machine lacks it.
    pub fn with(path: Path) -> Option<Kernels> {
        has(path).then_some(Kernels { path })
    }

    /// The instruction set in use.
    pub fn path(&self) -> Path {
        self.path
    }

    /// Runs an operation compiled for this instruction set.
    #[cfg(target_arch = "x86_64")]
    fn run<O: Operation>(&self, operation: O) -> O::Output {
        #[target_feature(enable = "avx2,fma")]
        fn avx2<O: Operation>(operation: O) -> O::Output {
            operation.run::<avx2::Avx2>()
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
        fn avx512<O: Operation>(operation: O) -> O::Output {
            operation.run::<avx512::Avx512>()
        }
        match self.path {
            Path::Scalar => operation.run::<Portable>(),
            // SAFETY: a `Kernels` of this path is only made when the machine has these features.
            Path::Avx2 => unsafe { avx2(operation) },
            // SAFETY: as above.
            Path::Avx512 => unsafe { avx512(operation) },
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn run<O: Operation>(&self, operation: O) -> O::Output {
        operation.run::<Portable>()
    }
}

#[cfg(target_arch = "x86_64")]
fn has(path: Path) -> bool {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    match path {
        Path::Scalar => true,
        Path::Avx2 => avx2,
        Path::Avx512 => {
            avx2 && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has(path: Path) -> bool {
    path == Path::Scalar
}

#[cfg(test)]
mod tests;
