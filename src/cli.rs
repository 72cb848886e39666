//! What can be typed? The command line, and what of it goes over the job file.
//!
//! A flag is another way to write a key of the job, so that a flag and a file cannot mean different things.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::error::Result;
use crate::job::Override;

const EXAMPLES: &str = "\
Examples:
  nightshift run pipelines/classify.toml
  nightshift run pipelines/classify.toml --memory 8GiB --set sampling.max_tokens=20
  nightshift run --model models/demo --input 'docs/*.jsonl' --output out --set 'input.template={{ text }}'
  nightshift plan pipelines/classify.toml --json
  nightshift plan pipelines/classify.toml --explain
  nightshift verify models/demo
  nightshift doctor models/demo

Exit codes:
  0 all rows succeeded; 1 some rows errored; 2 usage or job file; 3 input, model or budget refused before work;
  4 the output folder is not empty; 5 storage failed during work.
  verify: 0 no fault found; 3 faults; 5 something could not be read";

/// Overnight batch jobs over mixture-of-experts models far larger than memory, on one CPU machine.
#[derive(Debug, Parser)]
#[command(name = "nightshift", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer all rows of a job and write them as Parquet.
    Run(JobArgs),
    /// Show what would run: rows, tokens, sweeps, bytes, the memory ledger; runs nothing.
    Plan(PlanArgs),
    /// Read a model once, say what is wrong with it, and remember its checksums.
    Verify(VerifyArgs),
    /// Say what this machine is and can do: instruction sets, memory, disks; with --shape, how long a model would take here.
    Doctor(DoctorArgs),
}

/// A job: a file, flags over it, or flags alone.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// The job file; without it --model, --input and --output say what to do.
    #[arg(value_name = "JOB.toml")]
    pub job: Option<PathBuf>,
    /// Set a key of the job, over its file: --set engine.memory=8GiB. VALUE is a TOML value, else the bare text.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The checkpoint's folder (model.path).
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<String>,
    /// An input file or glob pattern; may be given again (input.path).
    #[arg(long, value_name = "PATH")]
    pub input: Vec<String>,
    /// The folder for answers (output.path).
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<String>,
    /// Most memory to use, as in 8GiB (engine.memory).
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Threads of arithmetic (engine.threads).
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub threads: Option<u32>,
    /// auto, scalar, avx2 or avx512 (engine.kernel).
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
}

/// `nightshift plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The job to plan.
    #[command(flatten)]
    pub job: JobArgs,
    /// Show who would run together, what that is expected to save and how sure that is, and which requests fit nowhere.
    #[arg(long)]
    pub explain: bool,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `nightshift verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The checkpoint's folder.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The folder for what is learned of models; the user's cache folder where it is not given (engine.cache).
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `nightshift doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A checkpoint's folder: its disk is looked at, and read from for a few seconds.
    #[arg(value_name = "MODEL", conflicts_with = "shape")]
    pub model: Option<PathBuf>,
    /// Rehearse a model that is not here: a published shape, or the path of a config.json.
    #[arg(long, value_name = "NAME|PATH", requires = "scratch")]
    pub shape: Option<String>,
    /// A folder on the disk that would hold the model; 4 GB are written there and gone at the end.
    #[arg(long, value_name = "FOLDER", requires = "shape")]
    pub scratch: Option<PathBuf>,
    /// Most memory that the job would use, as in 8GiB; by default what a job takes.
    #[arg(long, value_name = "SIZE", requires = "shape", allow_hyphen_values = true)]
    pub memory: Option<String>,
    /// Rows of the job.
    #[arg(long, value_name = "N", requires = "shape", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rows: u32,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", requires = "shape", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub prompt_tokens: u32,
    /// New tokens of each row.
    #[arg(long, value_name = "N", requires = "shape", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub new_tokens: u32,
    /// How much is written to the scratch folder; less than twice the caches on the way tells nothing.
    #[arg(long, value_name = "SIZE", requires = "shape", hide = true)]
    pub scratch_bytes: Option<String>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl JobArgs {
    /// What goes over the job file, in order: each --set, then the flags.
    ///
    /// # Errors
    /// Usage: a --set without `=`.
    pub fn overrides(&self) -> Result<Vec<Override>> {
        let mut overrides = self.set.iter().map(|set| Override::set(set)).collect::<Result<Vec<Override>>>()?;
        let texts = [
            ("--model", "model.path", &self.model),
            ("--output", "output.path", &self.output),
            ("--memory", "engine.memory", &self.memory),
            ("--kernel", "engine.kernel", &self.kernel),
        ];
        overrides.extend(texts.iter().filter_map(|(flag, key, value)| Some(Override::flag(flag, key, value.as_deref()?))));
        overrides.extend(self.threads.map(|n| Override::count("--threads", "engine.threads", n)));
        if !self.input.is_empty() {
            overrides.push(Override::flags("--input", "input.path", &self.input));
        }
        Ok(overrides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Job, KernelName};
    use clap::CommandFactory;
    use std::path::Path;

    fn run(args: &[&str]) -> JobArgs {
        match Cli::try_parse_from([&["nightshift", "run"], args].concat()).expect("a command").command {
            Command::Run(args) => args,
            _ => panic!("run was asked for"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_alone_make_a_job() {
        let args = run(&[
            "--model",
            "m",
            "--input",
            "a.jsonl",
            "--input",
            "1",
            "--output",
            "o",
            "--memory",
            "8GiB",
            "--threads",
            "2",
            "--kernel",
            "avx2",
        ]);
        let job = Job::parse("", "the command line", Path::new(""), &args.overrides().expect("well formed")).expect("complete");
        assert_eq!((job.model, job.output.path), ("m".into(), "o".into()));
        assert_eq!(job.input.paths, [Path::new("a.jsonl"), Path::new("1")]);
        assert_eq!((job.engine.memory_bytes, job.engine.threads, job.engine.kernel), (Some(8 << 30), Some(2), Some(KernelName::Avx2)));
    }

    #[test]
    fn a_flag_wins_over_a_set_and_a_set_over_the_file() {
        let args = run(&["a.toml", "--memory", "3", "--set", "engine.memory=2", "--set", "engine.wave=5"]);
        assert_eq!(args.job.as_deref(), Some(Path::new("a.toml")));
        let text = "model.path='m'\ninput.path='i'\noutput.path='o'\n[engine]\nmemory=1\nwave=1\nthreads=1";
        let engine = Job::parse(text, "a.toml", Path::new(""), &args.overrides().expect("well formed")).expect("complete").engine;
        assert_eq!((engine.memory_bytes, engine.wave, engine.threads), (Some(3), Some(5), Some(1)));
    }

    #[test]
    fn what_cannot_be_understood_is_usage() {
        for args in [
            &["run", "a.toml", "b.toml"][..],
            &["run", "--threads", "x"],
            &["run", "--memroy", "1"],
            &["runs"],
            &["doctor", "--shape", "x"],
            &["doctor", "--memory", "1"],
            &[],
        ] {
            let error = Cli::try_parse_from([&["nightshift"], args].concat()).expect_err("not a command");
            assert_eq!(error.exit_code(), 2, "{args:?}");
        }
        assert!(run(&["--set", "engine.memory"]).overrides().is_err());
    }
}
