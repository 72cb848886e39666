//! Which processor is it, and how much of it may this process use?

use std::fs::read_to_string;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Instruction sets that decide how fast the arithmetic is, by the names that the system gives them.
const SETS: [&str; 12] = [
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
];

/// The processor as this process sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Processor {
    /// As it calls itself; "unknown" where the system does not say.
    pub name: String,
    /// What it has of the instruction sets that matter here.
    pub instruction_sets: Vec<&'static str>,
    /// Processors of the host.
    pub cores_host: usize,
    /// Threads that this process may run at once, limits of affinity and control groups included.
    pub cores: usize,
}

impl Processor {
    /// Asks the system.
    pub fn look() -> Processor {
        Self::of(&read_to_string("/proc/cpuinfo").unwrap_or_default(), super::threads())
    }

    fn of(cpuinfo: &str, cores: usize) -> Processor {
        let values = |name: &'static str| {
            cpuinfo
                .lines()
                .filter_map(move |line| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()))
        };
        let flags: Vec<&str> = values("flags").next().unwrap_or_default().split_whitespace().collect();
        Processor {
            name: values("model name").next().unwrap_or("unknown").to_owned(),
            instruction_sets: SETS.into_iter().filter(|set| flags.contains(set)).collect(),
            cores_host: values("processor").count().max(cores),
            cores,
        }
    }
}

/// Measures which share of some threads' time this process really got: the rest went to other programs, or was not used.
pub struct Share {
    began: Instant,
    used: Duration,
}

impl Share {
    /// From now on.
    pub fn begin() -> Self {
        Share { began: Instant::now(), used: used() }
    }

    /// Up to now, of `threads` threads; at most 1.
    pub fn end(&self, threads: usize) -> f64 {
        let whole = self.began.elapsed().as_secs_f64() * threads as f64;
        (used().saturating_sub(self.used).as_secs_f64() / whole.max(1e-9)).min(1.0)
    }
}

/// Processor time that this process has had.
fn used() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_read_from_what_the_system_says() {
        let text =
            "processor\t: 0\nmodel name\t: A: fast one\nflags\t\t: fpu avx2 fma avx512f_x amx_bf16\n\nprocessor\t: 1\nflags\t: fpu\n";
        let seen = Processor::of(text, 1);
        assert_eq!((seen.name.as_str(), seen.cores_host, seen.cores), ("A: fast one", 2, 1));
        assert_eq!(seen.instruction_sets, ["avx2", "fma", "amx_bf16"]);
        let share = Share::begin();
        std::thread::sleep(Duration::from_millis(50));
        assert!((0.0..=1.0).contains(&share.end(1000)));
        let silent = Processor::of("", 3);
        assert_eq!((silent.name.as_str(), silent.cores_host), ("unknown", 3));
    }
}
