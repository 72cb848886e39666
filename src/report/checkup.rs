//! A machine in words: what there is, and of each bad state what to do.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::{DiskRate, Memory, Place, Processor, Rates};
use crate::units::show_bytes;

/// Below this the largest models cannot run.
const LITTLE_MEMORY: u64 = 3 << 30;
/// Below this a disk fills in a night.
const LITTLE_ROOM: u64 = 5_000_000_000;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Checkup {
    /// The processor.
    pub processor: Processor,
    /// The kernels' path that `auto` takes.
    pub kernel: &'static str,
    /// Memory.
    pub memory: Memory,
    /// What a job takes by default.
    pub job_memory_bytes: u64,
    /// Why io_uring cannot be used, if so.
    pub io_uring_fault: Option<String>,
    /// The current folder.
    pub work: Place,
    /// The checkpoint's folder.
    pub model: Option<Place>,
    /// Its largest shard.
    pub shard_bytes: Option<u64>,
    /// The rate at which that was read.
    pub disk: Option<DiskRate>,
    /// What an earlier rehearsal measured.
    pub rates: Option<Rates>,
}

/// The same, with advice.
#[derive(Serialize)]
pub struct Record<'a> {
    #[serde(flatten)]
    checkup: &'a Checkup,
    advice: Vec<String>,
}

impl Checkup {
    /// For scripts.
    pub fn for_scripts(&self) -> Record<'_> {
        Record { checkup: self, advice: self.advice() }
    }

    /// For a person.
    pub fn words(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| writeln!(text, "{name:<18}{value}").expect("a string takes text");
        let p = &self.processor;
        line("processor", p.name.clone());
        line("instruction sets", if p.instruction_sets.is_empty() { "none that help".into() } else { p.instruction_sets.join(" ") });
        line("kernel", format!("{} (engine.kernel = \"auto\")", self.kernel));
        line("threads", format!("{} of {} processors", p.cores, p.cores_host));
        line(
            "memory",
            format!("{} on the host, {} available", show_bytes(self.memory.host_bytes), show_bytes(self.memory.host_available_bytes)),
        );
        for group in &self.memory.groups {
            let (folder, used) = (group.folder.display(), show_bytes(group.used_bytes));
            let cache = show_bytes(group.cache_bytes);
            match (group.limit_bytes, group.left_bytes()) {
                (Some(limit), Some(left)) => {
                    line(
                        "  control group",
                        format!("{folder}: limit {}, {used} used, {cache} of it file cache, {} left", show_bytes(limit), show_bytes(left)),
                    );
                }
                _ => line("  control group", format!("{folder}: no limit, {used} used, {cache} of it file cache")),
            }
        }
        line("  for a job", format!("{} by default (engine.memory)", show_bytes(self.job_memory_bytes)));
        line("io_uring", if self.io_uring_fault.is_none() { "allowed".into() } else { "not allowed".into() });
        line("work folder", place(&self.work));
        if let Some(model) = &self.model {
            line("model", place(model));
            line("  disk rate", self.rate());
        }
        if let Some(rates) = &self.rates {
            let rate = rates.disk.bytes_per_s.map_or_else(|| "no disk rate".into(), |rate| format!("{}/s of disk", show_bytes(rate)));
            line("rehearsed", format!("{}, {} in {}: {rate}", rates.measured(), rates.shape, rates.scratch.display()));
        }
        for advice in self.advice() {
            line("advice", advice);
        }
        text
    }

    fn rate(&self) -> String {
        match (&self.disk, self.shard_bytes) {
            (Some(DiskRate { bytes_per_s: Some(rate), passes, .. }), Some(bytes)) => {
                let read = passes.iter().map(|pass| pass.bytes).sum();
                format!("{}/s, past the page cache ({} read of a shard of {})", show_bytes(*rate), show_bytes(read), show_bytes(bytes))
            }
            (Some(DiskRate { doubt, .. }), _) => format!("not measured: {}", doubt.as_deref().unwrap_or("nothing could be read")),
            (None, Some(bytes)) => format!("not measured: the largest shard has only {}", show_bytes(bytes)),
            (None, None) => "not measured: there is no .safetensors file".into(),
        }
    }

    fn advice(&self) -> Vec<String> {
        let mut advice = Vec::new();
        if self.kernel == "scalar" {
            advice.push(
                "this processor has neither AVX2 nor AVX-512, so arithmetic is many times slower; take another machine for large jobs"
                    .into(),
            );
        }
        if self.job_memory_bytes < LITTLE_MEMORY {
            let groups = self.memory.groups.iter().filter_map(|group| Some((group.left_bytes()?, group)));
            let whose = match groups.min_by_key(|(left, _)| *left) {
                Some((left, group)) if left < self.memory.host_available_bytes => {
                    format!("raise the limit of the control group {}", group.folder.display())
                }
                _ => "stop other programs".into(),
            };
            let memory = show_bytes(self.job_memory_bytes);
            advice.push(format!("a job gets {memory}, and the largest models need {}; {whose}", show_bytes(LITTLE_MEMORY)));
        }
        if let Some(fault) = &self.io_uring_fault {
            advice.push(format!(
                "{fault}; reads go by threads, which is as fast on most disks; a container allows it by its seccomp profile"
            ));
        }
        let direct = |place: &&Place| place.direct == Some(false);
        for place in [Some(&self.work), self.model.as_ref()].into_iter().flatten().filter(direct) {
            let (folder, kind) = (place.folder.display(), &place.file_system);
            advice.push(format!(
                "reads in {folder} go through the page cache, since {kind} refuses O_DIRECT; keep the model on ext4, xfs or btrfs"
            ));
        }
        if self.work.direct.is_none() {
            advice.push(format!("nothing can be written in {}; give output.path a folder elsewhere", self.work.folder.display()));
        }
        if self.work.free_bytes < LITTLE_ROOM {
            let (folder, free) = (self.work.folder.display(), show_bytes(self.work.free_bytes));
            advice.push(format!("only {free} are free in {folder}; free some before a long job, or give output.path a folder elsewhere"));
        }
        advice
    }
}

fn place(place: &Place) -> String {
    let direct = match place.direct {
        Some(true) => "O_DIRECT works",
        Some(false) => "no O_DIRECT",
        None => "O_DIRECT not tried",
    };
    format!("{}: {}, {direct}, {} free", place.folder.display(), place.file_system, show_bytes(place.free_bytes))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::machine::Group;

    fn good() -> Checkup {
        let place = Place { folder: PathBuf::from("/w"), file_system: "ext4".into(), free_bytes: 1 << 40, direct: Some(true) };
        Checkup {
            processor: Processor { name: "P".into(), instruction_sets: vec!["avx2"], cores_host: 4, cores: 2 },
            kernel: "avx2",
            memory: Memory { host_bytes: 64 << 30, host_available_bytes: 32 << 30, groups: Vec::new() },
            job_memory_bytes: 25 << 30,
            io_uring_fault: None,
            work: place,
            model: None,
            shard_bytes: None,
            disk: None,
            rates: None,
        }
    }

    #[test]
    fn a_good_machine_needs_no_advice_and_each_bad_state_has_some() {
        assert!(good().advice().is_empty());
        type Spoil = fn(&mut Checkup);
        let bad: [(&str, Spoil); 6] = [
            ("AVX2", |c| c.kernel = "scalar"),
            ("stop other programs", |c| c.job_memory_bytes = 1 << 30),
            ("seccomp", |c| c.io_uring_fault = Some("io_uring is not allowed here".into())),
            ("ext4, xfs or btrfs", |c| c.work.direct = Some(false)),
            ("output.path", |c| c.work.direct = None),
            ("free some", |c| c.work.free_bytes = 1),
        ];
        for (said, spoil) in bad {
            let mut checkup = good();
            spoil(&mut checkup);
            let advice = checkup.advice();
            assert!(advice.len() == 1 && advice[0].contains(said), "{advice:?}");
            assert!(checkup.words().contains(said));
        }
        let mut tight = good();
        let group = Group { folder: "/g".into(), limit_bytes: Some(2 << 30), used_bytes: 1 << 30, cache_bytes: 0 };
        (tight.memory.groups, tight.job_memory_bytes) = (vec![group], 1 << 29);
        assert!(tight.advice()[0].contains("/g"), "the group to blame is named: {:?}", tight.advice());
        assert!(tight.words().contains("limit 2.15 GB, 1.07 GB used"), "{}", tight.words());
    }
}
