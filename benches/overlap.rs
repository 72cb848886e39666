//! What grouping saves on routing that a job has recorded (`plan.keep_routing = true`), by every predictor, without the model:
//!
//!     cargo run --release --example overlap -- OUT [--wave N]... [--seen N]
//!
//! Prints Markdown tables: expert loads a token, and the share of what perfect knowledge saves. Of `--seen N` requests, the first ones,
//! the predictors have learned before; the others are replayed.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a bench prints what it measures

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use nightshift::plan::{
    Allotment, FOOTPRINT_ENTRIES, Footprint, FootprintSize, Foresight, Grouping, Known, Loads, Predictor, PredictorKind, Routed, Schedule,
    StateBytes, Table, TableShape, Wave, compare, footprint, loads, order, prompt_use,
};
use nightshift::request::RowFacts;
use nightshift::routes::{NO_EXPERT, Routes, Widths};
use nightshift::spool::Spool;

#[derive(Parser)]
struct Args {
    /// The job's folder.
    out: PathBuf,
    /// Sequences that decode together.
    #[arg(long, default_values_t = [4, 8, 16, 32, 64])]
    wave: Vec<usize>,
    /// Requests that predictors have learned before.
    #[arg(long, default_value_t = 0)]
    seen: usize,
    /// Waves begin and end together: nobody is admitted to a wave that has begun.
    #[arg(long)]
    together: bool,
    /// Places that must be free before sequences are admitted that wait.
    #[arg(long, default_value_t = 1)]
    cohort: usize,
    /// Shows what the learned predictor expects of waves of so many beside what they load.
    #[arg(long)]
    plot: Option<usize>,
    /// Prompt rows of a sweep.
    #[arg(long, default_value_t = 2048)]
    rows: usize,
}

/// The requests behind the first ones.
struct Behind<'a>(&'a Routes, usize);

impl Routed for Behind<'_> {
    fn widths(&self) -> Widths {
        self.0.widths()
    }
    fn requests(&self) -> usize {
        self.0.requests() - self.1
    }
    fn answer(&self, request: u64) -> &[u16] {
        self.0.answer(request + self.1 as u64)
    }
    fn prompt(&self, request: u64) -> &[u16] {
        self.0.prompt(request + self.1 as u64)
    }
    fn next(&self, request: u64) -> Option<u32> {
        self.0.next(request + self.1 as u64)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> nightshift::error::Result<()> {
    let state = args.out.join("state");
    let spool = Spool::open(&state)?;
    let routes = Routes::load(&state, spool.rows() as usize, u64::MAX)?;
    let routed = Behind(&routes, args.seen.min(routes.requests()));
    let table = table(&routes, &spool, routed.1)?;
    let tables: Vec<Footprint> = (0..routed.requests())
        .map(|i| Ok(table.predict(&spool.get((i + routed.1) as u64)?.prompt, FOOTPRINT_ENTRIES)))
        .collect::<nightshift::error::Result<_>>()?;
    let tables: Arc<[Footprint]> = if table.is_empty() { Arc::default() } else { tables.into() };
    if let Some(wave) = args.plot {
        plot(&routed, wave);
        return Ok(());
    }
    println!(
        "{} requests, predictors have seen {} before; loads a token, and in brackets the share of what perfect knowledge saves\n",
        routed.requests(),
        routed.1
    );
    println!("| wave | random (sd) | input | prefill | table | learned | probe | auto | perfect | all at once |\n|{}", "---|".repeat(10));
    for &wave in &args.wave {
        if args.together { line_together(&routed, &tables, wave) } else { line(args, &routed, &tables, wave) }
    }
    Ok(())
}

/// The predictors that are compared.
fn predictors(routed: &Behind<'_>) -> Vec<Predictor> {
    let widths = routed.widths();
    let size = FootprintSize { blocks: widths.layers * widths.experts, most: FOOTPRINT_ENTRIES };
    let kinds = [
        PredictorKind::Prefill,
        PredictorKind::Table,
        PredictorKind::Learned,
        PredictorKind::Probe { blocks: widths.experts * widths.layers.div_ceil(8) },
        PredictorKind::Auto,
    ];
    let taught = |kind| {
        let mut predictor = Predictor::new(kind, size);
        for i in 0..routed.1 as u64 {
            let prompt = prompt_use(widths, routed.0.prompt(i), routed.0.next(i));
            let answer = routed.0.answer(i);
            predictor.learn(
                &Known { prompt: Some(&prompt), table: None },
                &footprint(widths, answer),
                (answer.len() / widths.row()) as u32,
            );
        }
        predictor
    };
    kinds.into_iter().map(taught).collect()
}

/// As `line`, for waves that nobody joins later: each predictor says once what it expects of everybody.
fn line_together(routed: &Behind<'_>, tables: &Arc<[Footprint]>, wave: usize) {
    let (widths, count) = (routed.widths(), routed.requests());
    let loads = |order: &[u32]| -> f64 { order.chunks(wave).map(|wave| loads_together(routed, wave)).sum::<u64>() as f64 };
    let rows = (0..count as u64).map(|i| routed.answer(i).len() / widths.row()).sum::<usize>() as f64;
    let drawn: Vec<f64> = (1..=20u64).map(|seed| loads(&shuffled(count as u32, seed))).collect();
    let random = drawn.iter().sum::<f64>() / 20.0;
    let sd = (drawn.iter().map(|x| (x - random).powi(2)).sum::<f64>() / 19.0).sqrt();
    let by = |footprints: &[Footprint]| loads(&order(&footprints.iter().collect::<Vec<_>>(), &[], wave));
    let perfect = by(&(0..count as u64).map(|i| footprint(widths, routed.answer(i))).collect::<Vec<_>>());
    let shown = |found: f64| format!("{:.2} ({:.0} %)", found / rows, 100.0 * (random - found) / (random - perfect));
    let input: Vec<u32> = (0..count as u32).collect();
    print!("| {wave} | {:.2} ({:.2}) | {} |", random / rows, sd / rows, shown(loads(&input)));
    for predictor in predictors(routed) {
        let of = |i: usize| {
            let prompt = prompt_use(widths, routed.prompt(i as u64), routed.next(i as u64));
            predictor.predict(&Known { prompt: Some(&prompt), table: tables.get(i) })
        };
        print!(" {} |", shown(by(&(0..count).map(of).collect::<Vec<_>>())));
    }
    println!(" {:.2} | {:.2} |", perfect / rows, loads_together(routed, &input) as f64 / rows);
}

/// Expected unions beside what the middle rows of the waves' answers load, in ten bands of as many waves: random waves and grouped ones together.
fn plot(routed: &Behind<'_>, wave: usize) {
    const BANDS: usize = 10;
    let widths = routed.widths();
    let predictor = predictors(routed).into_iter().find(|predictor| predictor.name() == "learned").expect("one of them");
    let of = |i: u64| predictor.predict(&Known { prompt: Some(&prompt_use(widths, routed.prompt(i), routed.next(i))), table: None });
    let expected: Vec<Footprint> = (0..routed.requests() as u64).map(of).collect();
    let grouped = order(&expected.iter().collect::<Vec<_>>(), &[], wave);
    let mut waves = Vec::new();
    for order in [shuffled(expected.len() as u32, 1), grouped] {
        for wave in order.chunks_exact(wave) {
            let mut union = Wave::default();
            wave.iter().for_each(|&i| union.add(&expected[i as usize]));
            let answers: Vec<&[u16]> = wave.iter().map(|&i| routed.answer(u64::from(i))).filter(|answer| !answer.is_empty()).collect();
            waves.push((union.union(), middle_loads(widths, &answers)));
        }
    }
    waves.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("| expected union | loaded in a sweep, mean | |\n|---|---|---|");
    for band in waves.chunks(waves.len().div_ceil(BANDS)) {
        let mean = |of: &dyn Fn(&(f32, u64)) -> f64| band.iter().map(of).sum::<f64>() / band.len() as f64;
        let (expected, loaded) = (mean(&|w| f64::from(w.0)), mean(&|w| w.1 as f64));
        println!("| {expected:.0} | {loaded:.0} | {} |", "#".repeat((loaded / 5.0) as usize));
    }
}

/// Distinct blocks of some answers' middle rows.
fn middle_loads(widths: Widths, answers: &[&[u16]]) -> u64 {
    let mut used = std::collections::BTreeSet::new();
    for answer in answers {
        let rows = answer.len() / widths.row();
        for (layer, ids) in answer.chunks_exact(widths.row()).nth(rows / 2).unwrap_or(&[]).chunks_exact(widths.chosen as usize).enumerate()
        {
            used.extend(ids.iter().filter(|id| **id != NO_EXPERT).map(|id| (layer, *id)));
        }
    }
    used.len() as u64
}

/// Expert loads of requests that go through together, a token each at a time.
fn loads_together(routed: &Behind<'_>, wave: &[u32]) -> u64 {
    let widths = routed.widths();
    let answers: Vec<&[u16]> = wave.iter().map(|&i| routed.answer(u64::from(i))).collect();
    let steps = answers.iter().map(|answer| answer.len() / widths.row()).max().unwrap_or(0);
    let mut loads = 0;
    for step in 0..steps {
        let mut used = vec![false; (widths.layers * widths.experts) as usize];
        for row in answers.iter().filter_map(|answer| answer.chunks_exact(widths.row()).nth(step)) {
            for (layer, ids) in row.chunks_exact(widths.chosen as usize).enumerate() {
                ids.iter().filter(|id| **id != NO_EXPERT).for_each(|&id| used[layer * widths.experts as usize + usize::from(id)] = true);
            }
        }
        loads += used.iter().filter(|used| **used).count() as u64;
    }
    loads
}

/// 0 to `count` in an order of its own for each seed.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..count).collect();
    all.sort_by_cached_key(|i| blake3::hash(&[u64::from(*i).to_le_bytes(), seed.to_le_bytes()].concat()).as_bytes().to_owned());
    all
}

fn line(args: &Args, routed: &Behind<'_>, tables: &Arc<[Footprint]>, wave: usize) {
    let plain = schedule(routed, [wave, args.rows, args.cohort], Grouping::Input);
    let compared = compare(&plain, routed);
    let rows = compared.rows as f64;
    let most = compared.random - compared.perfect as f64;
    let shown = |found: Loads| format!("{:.2} ({:.0} %)", found.loads as f64 / rows, 100.0 * (compared.random - found.loads as f64) / most);
    print!("| {wave} | {:.2} ({:.2}) | {} |", compared.random / rows, compared.random_sd / rows, shown(loads(plain, routed)));
    for predictor in predictors(routed) {
        let foresight = Foresight::Predicted { predictor, tables: Arc::clone(tables) };
        print!(" {} |", shown(loads(schedule(routed, [wave, args.rows, args.cohort], Grouping::Overlap).by_overlap(foresight), routed)));
    }
    println!(" {:.2} | {:.2} |", compared.perfect as f64 / rows, compared.lower_bound as f64 / rows);
}

/// All requests may wait in memory, and nothing streams: the order alone is at stake.
fn schedule(routed: &Behind<'_>, [wave, prefill_rows, cohort]: [usize; 3], grouping: Grouping) -> Schedule {
    let row = routed.widths().row();
    let facts = |i: usize| RowFacts {
        prompt_tokens: (routed.prompt(i as u64).len() / row) as u32,
        max_tokens: (routed.answer(i as u64).len() / row) as u32 + 1,
        faulty: false,
        drawn: false,
        prompt_logprobs: false,
    };
    let rows: Vec<RowFacts> = (0..routed.requests()).map(facts).collect();
    let allotment = Allotment { cohort, ..Allotment::bare(wave, rows.len(), prefill_rows) };
    Schedule::new(rows, grouping, allotment, StateBytes::default())
}

/// What the tokens of the first prompts use.
fn table(routes: &Routes, spool: &Spool, seen: usize) -> nightshift::error::Result<Table> {
    let widths = routes.widths();
    let vocab = (0..spool.rows()).map(|i| Ok(spool.get(i)?.prompt.into_iter().max().unwrap_or(0)));
    let vocab = vocab.collect::<nightshift::error::Result<Vec<u32>>>()?.into_iter().max().unwrap_or(0) + 1;
    let mut table = Table::new(TableShape { vocab, layers: widths.layers, experts: widths.experts as u16, chosen: widths.chosen as u16 });
    let layers: Vec<u32> = table.layers().collect();
    for i in 0..seen as u64 {
        for (token, row) in spool.get(i)?.prompt.into_iter().zip(routes.prompt(i).chunks_exact(widths.row())) {
            for &layer in &layers {
                let experts = &row[layer as usize * widths.chosen as usize..][..widths.chosen as usize];
                if experts[0] != NO_EXPERT {
                    table.learn(token, layer, experts);
                }
            }
        }
    }
    Ok(table)
}
