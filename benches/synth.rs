//! A checkpoint of random weights in the released layout: `cargo run --release --example synth -- --shape kimi-k3 --layers 4 --experts 224 OUT`.
//!
//! Nobody can test on 1.56 TB. Four layers with 224 experts at the real widths are 22 GB and ask the same of disk, memory and arithmetic, a layer
//! at a time; `--headers-only` makes the whole model's index and plan testable without its weights.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nightshift::error::{Error, Result};
use nightshift::model;
use nightshift::units::{show_bytes, show_count};

#[path = "synth/mod.rs"]
mod synth;

/// Writes a checkpoint of random weights in the released layout; it has no tokenizer, so its rows are `prompt_token_ids`.
#[derive(Parser)]
struct Args {
    /// A published shape (kimi-k3) or the path of a config.json.
    #[arg(long, value_name = "NAME|PATH")]
    shape: String,
    /// Only the first N layers.
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Only N experts a layer.
    #[arg(long, value_name = "N")]
    experts: Option<usize>,
    /// How many files; by default one for each 16 GB.
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    /// Another seed gives other weights.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Right headers and right sizes, but the weights are holes: they take no room and read as zeros.
    #[arg(long)]
    headers_only: bool,
    /// A folder that is empty or not there yet.
    #[arg(value_name = "OUT")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match make(&args) {
        Ok(said) => {
            let _ = std::io::stdout().write_all(said.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "synth: {error}");
            ExitCode::from(error.kind.exit_code())
        }
    }
}

fn make(args: &Args) -> Result<String> {
    let config = match model::shape(&args.shape) {
        Some(config) => config.to_string(),
        None => std::fs::read_to_string(&args.shape).map_err(|e| {
            let names = model::SHAPES.map(|(name, _)| name).join(", ");
            Error::usage(format!("--shape is neither a published shape ({names}) nor a file: {}: {e}", args.shape))
        })?,
    };
    let config = synth::config::reduced(&config, args.layers, args.experts)?;
    let wanted = synth::Wanted { config, shards: args.shards, seed: args.seed, headers_only: args.headers_only };
    let made = synth::write(&wanted, &args.out)?;
    let holes = if args.headers_only { ", its weights being holes" } else { "" };
    Ok(format!(
        "{}: {} tensors, {} in {} files{holes}\n",
        args.out.display(),
        show_count(made.tensors),
        show_bytes(made.bytes),
        show_count(made.files)
    ))
}
