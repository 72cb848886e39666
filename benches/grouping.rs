//! What grouping costs: `cargo run --release --example grouping -- REQUESTS WAVE`.
//!
//! Footprints of the largest model's shape, made in a moment: half of a footprint's entries are its topic's, a quarter are common, a quarter its own.

use std::io::Write;
use std::time::Instant;

use clap::Parser;
use nightshift::plan::{Footprint, Wave, order};
use rayon::prelude::*;

#[path = "routing/draw.rs"]
mod draw;
use draw::{Draw, ENTRIES, EXPERTS, LAYERS};

/// Measures the time and the memory of putting requests in order.
#[derive(Parser)]
struct Args {
    /// How many requests.
    requests: usize,
    /// Requests a wave.
    wave: usize,
    /// Topics that requests have.
    #[arg(long, default_value_t = 500)]
    topics: usize,
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let footprints: Vec<Footprint> = (0..args.requests).into_par_iter().map(|nth| footprint(nth, args.topics)).collect();
    let tokens: Vec<u32> = (0..args.requests).map(|nth| Draw::of(!(nth as u64)).below(300) as u32 + 1).collect();
    let all: Vec<&Footprint> = footprints.iter().collect();
    let before = peak_megabytes();
    let start = Instant::now();
    let order = order(&all, &tokens, args.wave);
    let seconds = start.elapsed().as_secs_f64();
    let after = peak_megabytes();
    let input: Vec<u32> = (0..args.requests as u32).collect();
    writeln!(
        std::io::stdout(),
        "{} requests in waves of {}: {seconds:.2} s, peak {after} MB ({before} MB before planning); expected blocks a request: {:.1} in order of input, {:.1} grouped",
        args.requests,
        args.wave,
        blocks_a_request(&all, &input, args.wave),
        blocks_a_request(&all, &order, args.wave)
    )
}

/// Of at most 300 waves, evenly taken.
fn blocks_a_request(footprints: &[&Footprint], order: &[u32], size: usize) -> f32 {
    let waves: Vec<&[u32]> = order.chunks(size).step_by(order.len().div_ceil(size * 300).max(1)).collect();
    let requests: usize = waves.iter().map(|members| members.len()).sum();
    let union = |members: &&[u32]| {
        let mut wave = Wave::default();
        members.iter().for_each(|i| wave.add(footprints[*i as usize]));
        wave.union()
    };
    waves.par_iter().map(union).sum::<f32>() / requests as f32
}

fn footprint(nth: usize, topics: usize) -> Footprint {
    let mut draw = Draw::of(nth as u64);
    let topic = Draw::of(1 << 40 | draw.below(topics) as u64).bits();
    let mut uses: Vec<(u32, f32)> = Vec::with_capacity(ENTRIES + ENTRIES / 4);
    while uses.len() < ENTRIES + ENTRIES / 5 {
        // The lower of two draws is taken, so that a list's first blocks are its favourites.
        let (list, from) = match draw.below(4) {
            0 | 1 => (topic, 1_500),
            2 => (0, 2_000),
            _ => (1, LAYERS * EXPERTS),
        };
        let place = draw.below(from).min(draw.below(from)) as u64;
        let block = Draw::of(list ^ place << 20).below(LAYERS * EXPERTS) as u32;
        let unit = |draw: &mut Draw| draw.below(1 << 20) as f32 / (1 << 20) as f32;
        uses.push((block, 0.1 + 0.5 * unit(&mut draw) * unit(&mut draw)));
    }
    uses.sort_unstable_by_key(|u| u.0);
    uses.dedup_by_key(|u| u.0);
    Footprint::of(uses, ENTRIES)
}

/// The most memory that this process has held.
fn peak_megabytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|text| text.trim().strip_suffix(" kB"))
        .and_then(|text| text.trim().parse::<u64>().ok())
        .map_or(0, |kb| kb * 1024 / 1_000_000)
}
