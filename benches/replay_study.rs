//! What grouping can save: `cargo run --release --example replay_study`, or with files of recorded routing as arguments, how skewed they are.
//!
//! Nobody has published how the largest model's experts differ between texts, so this draws texts whose skew and persistence are those of the
//! recordings, and turns the one knob that they do not tell: how much texts differ. Waves are replayed step by step; distinct blocks are counted.

use std::io::{self, Write};

use clap::Parser;
use nightshift::plan::{Footprint, order};
use rayon::prelude::*;

#[path = "routing/mod.rs"]
mod routing;
#[path = "routing/skew.rs"]
mod skew;
use routing::{Draw, EXPERTS, LAYERS, Tokens};

/// Tokens of a prompt that a prediction is made from.
const PROMPT: usize = 24;
/// Tokens of an answer.
const ANSWER: usize = 16;
/// Random orders that the saving is measured against.
const DRAWS: u64 = 3;

/// Replays synthetic routing of the largest model's shape, or prints how skewed recorded routing is.
#[derive(Parser)]
struct Args {
    /// Recorded routing of single texts: a JSON line a token, `layers` holding each layer's chosen experts.
    traces: Vec<std::path::PathBuf>,
    /// How many texts.
    #[arg(long, default_value_t = 2_048)]
    texts: usize,
    /// How much of what stays through a text is not common to all: a list in [0, 1].
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.1, 0.3, 0.6])]
    differ: Vec<f32>,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let mut out = io::stdout();
    for path in &args.traces {
        let trace = skew::Trace::read(path)?;
        writeln!(out, "{}: {}", path.display(), trace.skew())?;
    }
    if !args.traces.is_empty() {
        return Ok(());
    }
    let long = routing::texts(1, 300, 0.3, 9).remove(0);
    writeln!(out, "a drawn text: {}", skew::Trace::of(&long).skew())?;
    for differ in &args.differ {
        study(&mut out, args.texts, *differ)?;
    }
    Ok(())
}

/// One table: what waves of each size load, and what two orders save.
fn study(out: &mut impl Write, count: usize, differ: f32) -> io::Result<()> {
    let texts = routing::texts(count, PROMPT + ANSWER, differ, 1);
    let footprints =
        |tokens: std::ops::Range<usize>| -> Vec<Footprint> { texts.par_iter().map(|text| text.footprint(tokens.clone())).collect() };
    let (prompts, answers) = (footprints(0..PROMPT), footprints(PROMPT..PROMPT + ANSWER));
    let likeness = likeness(&texts);
    writeln!(out, "\ntexts differ by {differ}: a prompt's shares and its answer's correlate by {likeness:.2} about the mean")?;
    writeln!(out, "| wave | blocks a token, random | sd of a draw | by the prompt | by the answer itself |\n|---|---|---|---|---|")?;
    for wave in (1..=10).map(|power| 1 << power).filter(|wave| *wave * 2 <= count) {
        let random: Vec<f64> = (0..DRAWS).map(|seed| loads(&texts, &shuffled(count, seed), wave)).collect();
        let mean = random.iter().sum::<f64>() / DRAWS as f64;
        let deviation = (random.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / (DRAWS - 1) as f64).sqrt() / mean;
        let saving = |by: &[Footprint]| {
            let all: Vec<&Footprint> = by.iter().collect();
            100.0 * (1.0 - loads(&texts, &order(&all, &[], wave), wave) / mean)
        };
        let (predicted, perfect) = (saving(&prompts), saving(&answers));
        writeln!(out, "| {wave} | {mean:.1} | {:.2} % | {predicted:.1} % | {perfect:.1} % |", 100.0 * deviation)?;
    }
    Ok(())
}

/// Distinct blocks that a token of an answer loads when each `wave` consecutive texts of an order advance together.
fn loads(texts: &[Tokens], order: &[u32], wave: usize) -> f64 {
    let of_wave = |members: &[u32]| {
        let mut seen = vec![0u32; LAYERS * EXPERTS];
        let mut count = 0u64;
        for step in 0..ANSWER {
            for block in members.iter().flat_map(|i| texts[*i as usize].blocks(PROMPT + step)) {
                count += u64::from(seen[block] != step as u32 + 1);
                seen[block] = step as u32 + 1;
            }
        }
        count
    };
    order.par_chunks(wave).map(of_wave).sum::<u64>() as f64 / (ANSWER * order.len()) as f64
}

fn shuffled(count: usize, seed: u64) -> Vec<u32> {
    let mut draw = Draw::of(seed + 1_000);
    let mut order: Vec<u32> = (0..count as u32).collect();
    for at in (1..count).rev() {
        order.swap(at, draw.below(at + 1));
    }
    order
}

/// Correlation of prompts' shares with answers', each less its mean over texts, over 256 texts.
fn likeness(texts: &[Tokens]) -> f64 {
    let texts = &texts[..texts.len().min(256)];
    let centred = |tokens: std::ops::Range<usize>| -> Vec<Vec<f32>> {
        let mut all: Vec<Vec<f32>> = texts.iter().map(|text| text.shares(tokens.clone())).collect();
        for block in 0..LAYERS * EXPERTS {
            let mean = all.iter().map(|shares| shares[block]).sum::<f32>() / all.len() as f32;
            all.iter_mut().for_each(|shares| shares[block] -= mean);
        }
        all
    };
    let (prompts, answers) = (centred(0..PROMPT), centred(PROMPT..PROMPT + ANSWER));
    let product =
        |a: &[Vec<f32>], b: &[Vec<f32>]| -> f64 { a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| f64::from(a * b)).sum() };
    product(&prompts, &answers) / (product(&prompts, &prompts) * product(&answers, &answers)).sqrt()
}
