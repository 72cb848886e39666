//! The engine against itself under every order of work; `goldens` holds it to the reference, `rows` to what one row is owed.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};

use proptest::prelude::*;

mod goldens;
mod rows;
mod traces;
mod wants;

use super::feed::SweepFeed;
use super::span::{Beside, SpanRows, SpanStates};
use super::*;
use crate::event::Known;
use crate::kernels::{Data, Matrix, Path as KernelPath, View, ViewMut};
use crate::learned::Learned;
use crate::model::manifest::{PANEL_BYTES, StateId, StateSpec, WeightId};
use crate::model::{self, Expert, Feed, Mix, Routing, Stream};
use crate::plan::{Allotment, FootprintSize, Foresight, Grouping, Home, Predictor, PredictorKind, StateBytes, States as Placing, Walkers};
use crate::request::{Fault, Request, RowFacts, Sampling};
use crate::scratch::Buffer;
use crate::spool::SpoolWriter;
use crate::store::{Checkpoint, Checksums, Keep, Method, PageCache, ScratchFile, Setup, StateSpace, Weights, header};
use crate::tokenizer::Channels;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Golden tensors as f32 or i32 bits, by name.
struct Golden(BTreeMap<String, (Vec<u64>, Vec<u8>)>);

impl Golden {
    fn open(folder: &Path) -> Self {
        let path = folder.join("golden.safetensors");
        let file = File::open(&path).expect("a golden file");
        let mut found = BTreeMap::new();
        header::read(&file, &mut |tensor| {
            let mut bytes = vec![0; tensor.bytes as usize];
            file.read_exact_at(&mut bytes, tensor.offset).expect("as long as its header says");
            found.insert(tensor.name.to_string(), (tensor.shape.to_vec(), bytes));
            Ok(())
        })
        .expect("a valid header");
        Golden(found)
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].1.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.0[name].1.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn prompts(&self) -> usize {
        (0..).take_while(|i| self.0.contains_key(&format!("prompt.{i}"))).count()
    }
}

struct Ticks(AtomicI64);

impl Watch for Ticks {
    fn now_us(&self) -> i64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
    fn swept(&self, _: &Tally) {}
}

/// Passes everything on and writes down who chose whom.
struct Recorder<'a> {
    inner: SweepFeed<'a>,
    routings: Vec<Routing>,
}

impl Feed for Recorder<'_> {
    fn kernels(&self) -> Kernels {
        self.inner.kernels()
    }
    fn scratch(&self) -> Scratch {
        self.inner.scratch()
    }
    fn matmul(&mut self, w: WeightId, outputs: std::ops::Range<usize>, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.inner.matmul(w, outputs, x, y)
    }
    fn panel(&mut self, w: WeightId, outputs: std::ops::Range<usize>, f: &mut dyn FnMut(Matrix<'_>)) -> Result<()> {
        self.inner.panel(w, outputs, f)
    }
    fn vector(&mut self, w: WeightId) -> Result<Buffer> {
        self.inner.vector(w)
    }
    fn mix(&mut self, state: StateId, y: &mut [f32], f: &Mix<'_>) -> Result<()> {
        self.inner.mix(state, y, f)
    }
    fn narrow(&mut self, x: &mut Stream, beside: &mut [&mut Buffer]) {
        self.inner.narrow(x, beside);
    }
    fn queue(&mut self, routing: &Routing) {
        self.inner.queue(routing);
    }
    fn experts(&mut self, routing: &Routing, z: &[f32], y: &mut [f32], f: &Expert<'_>) -> Result<()> {
        self.routings.push(routing.clone());
        self.inner.experts(routing, z, y, f)
    }
}

/// The model of a checkpoint, its weights in panels of at most `panel_bytes`.
fn open(checkpoint: &Path, panel_bytes: usize) -> Box<dyn Model> {
    let path = checkpoint.join("config.json");
    model::of_config(&std::fs::read(&path).expect("a config"), &path, panel_bytes).expect("the config is valid")
}

const TURNS: order::Turns = order::Turns { first: 0, whole_layers: false };

/// The weights of a checkpoint, read through rings of a megabyte.
fn weights(checkpoint: &Path, model: &dyn Model, keep: Keep) -> Weights {
    let checkpoint = Checkpoint::open(checkpoint, model.manifest()).expect("the checkpoint is whole");
    let checksums = Checksums::open(&Learned::nowhere("a test"), &checkpoint.pieces());
    checkpoint.read(keep, &Setup::new(1 << 20, 1 << 20), PageCache::Bypass, checksums).expect("it can be read")
}

/// A model opened for a test, and a spool of the requests given.
struct Bench {
    model: Box<dyn Model>,
    store: Weights,
    spool: Spool,
    rows: Vec<RowFacts>,
    words: Option<Words>,
    parking: Parking,
    folder: tempfile::TempDir,
}

/// Where states lie, how many may have begun beside those that decode, how many are read at once, and how often a state is written whole.
#[derive(Clone, Copy)]
struct Parking {
    states: Placing,
    more: usize,
    refill: usize,
    /// How many places must be free before others decode.
    cohort: usize,
    whole_every: u32,
}

const IN_MEMORY: Parking = Parking { states: Placing::Memory, more: 0, refill: 1, cohort: 1, whole_every: 1 };

impl Bench {
    fn new(checkpoint: &Path, requests: &[Request]) -> Self {
        let model = open(checkpoint, PANEL_BYTES);
        let store = weights(checkpoint, &*model, Keep::default());
        let folder = tempfile::tempdir().expect("a folder");
        let mut spool = SpoolWriter::create(folder.path()).expect("a spool");
        requests.iter().for_each(|r| spool.push(r).expect("written"));
        let rows = requests.iter().map(RowFacts::of).collect();
        Bench { model, store, spool: spool.finish().expect("closed"), rows, words: None, parking: IN_MEMORY, folder }
    }

    fn engine<'a>(&'a self, kernels: Kernels, watch: &'a Ticks) -> Engine<'a> {
        Engine {
            model: &*self.model,
            store: &self.store,
            states: None,
            kernels,
            scratch: Scratch::default(),
            blocks_in_flight: 5,
            spool: &self.spool,
            vocabulary: self.words.as_ref().map(|words| words as &dyn Vocabulary),
            watch,
        }
    }

    /// The order of work, by so many walkers.
    fn schedule(&self, grouping: Grouping, wave: usize, prefill_rows: usize, walkers: usize) -> Schedule {
        let model = self.model.manifest();
        let (fixed, a_token) = (model.fixed_floats() as u64 * 4, model.token_floats() as u64 * 4);
        let state = StateBytes { fixed, a_token, ..StateBytes::default() };
        let allotment = Allotment {
            refill: self.parking.refill,
            cohort: self.parking.cohort,
            states: self.parking.states,
            walkers: Walkers { most: walkers, rows: 4 },
            ..Allotment::bare(wave, wave + self.parking.more, prefill_rows)
        };
        let schedule = Schedule::new(self.rows.clone(), grouping, allotment, state);
        if grouping != Grouping::Overlap {
            return schedule;
        }
        let blocks = self.model.manifest().blocks().map(|(_, blocks)| blocks.count as u32).sum();
        let predictor = Predictor::new(PredictorKind::Auto, FootprintSize { blocks, most: 4096 });
        schedule.by_overlap(Foresight::Predicted { predictor, tables: std::sync::Arc::default() })
    }

    /// All events, by row, and the tally.
    fn run(&self, kernels: Kernels, threads: usize, grouping: Grouping, wave: usize, prefill_rows: usize) -> (Vec<Event>, Tally) {
        self.run_with(&Scratch::default(), kernels, threads, grouping, wave, prefill_rows)
    }

    fn run_with(
        &self,
        scratch: &Scratch,
        kernels: Kernels,
        threads: usize,
        grouping: Grouping,
        wave: usize,
        prefill_rows: usize,
    ) -> (Vec<Event>, Tally) {
        self.try_run(scratch, kernels, threads, grouping, wave, prefill_rows).expect("the run ends")
    }

    fn try_run(
        &self,
        scratch: &Scratch,
        kernels: Kernels,
        threads: usize,
        grouping: Grouping,
        wave: usize,
        prefill_rows: usize,
    ) -> Result<(Vec<Event>, Tally)> {
        let watch = Ticks(AtomicI64::new(0));
        let mut plan = self.schedule(grouping, wave, prefill_rows, threads);
        let mut sink = Collected(Vec::new());
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let space = StateSpace {
            slots: (wave + self.parking.more) as u32,
            positions: self.rows.iter().map(RowFacts::positions_max).max().unwrap_or(1) as u32,
            whole_every: self.parking.whole_every,
            ring_bytes: 1 << 20,
            write_bytes: 1 << 18,
        };
        let on_disk = (self.parking.states != Placing::Memory)
            .then(|| ScratchFile::open(self.folder.path(), &self.model.manifest().states, &space, PageCache::Bypass).expect("room"));
        let states = on_disk.as_ref().map(|states| states as &dyn States);
        let engine = Engine { scratch: scratch.clone(), states, ..self.engine(kernels, &watch) };
        let tally = pool.install(|| run(&mut plan, &engine, &mut sink, &mut ()))?;
        sink.0.sort_by_key(|e| e.index);
        Ok((sink.0, tally))
    }
}

/// Every id is a word of its own, and none is markup.
#[derive(Clone)]
struct Words(Vec<String>, Channels);

impl Words {
    fn new(count: u32) -> Self {
        let none = u32::MAX;
        let channels = Channels {
            thinking_open: vec![none],
            thinking_close: vec![none],
            response_open: vec![none],
            response_end: none,
            ends: Vec::new(),
        };
        Words((0..count).map(|id| format!("<{id}>")).collect(), channels)
    }

    fn word(&self, id: u32) -> String {
        self.0[id as usize].clone()
    }
}

impl Vocabulary for Words {
    fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.get(id as usize).map(String::as_bytes)
    }
    fn channels(&self) -> &Channels {
        &self.1
    }
}

struct Collected(Vec<Event>);

impl Sink for Collected {
    fn advanced(&mut self, _: u64, _: &Known) -> Result<()> {
        Ok(())
    }

    fn swept(&mut self) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, event: Event, stamp: Stamp) -> Result<()> {
        assert_eq!(event.tokens.len(), stamp.token_us.len());
        self.0.push(event);
        Ok(())
    }
}

fn request(index: usize, prompt: Vec<u32>, max_tokens: u32) -> Request {
    let sampling =
        Sampling { temperature: 0.0, max_tokens, logprobs: true, prompt_logprobs: true, ignore_eos: true, ..Sampling::default() };
    Request { index: index as u64, id: format!("r{index}"), prompt, truncated_tokens: 0, sampling, fault: None }
}

/// Logits [rows, vocab] of a whole prompt in one sweep, and the routing of each layer that routes.
fn logits_of(bench: &Bench, prompt: &[u32]) -> (Vec<f32>, Vec<Routing>) {
    let watch = Ticks(AtomicI64::new(0));
    let engine = bench.engine(Kernels::detect(), &watch);
    let manifest = bench.model.manifest();
    let mut states: Vec<Vec<f32>> = (manifest.states.iter())
        .map(|s| match *s {
            StateSpec::Fixed { floats, .. } => vec![0.0; floats],
            StateSpec::Appended(n) => vec![0.0; n * prompt.len()],
        })
        .collect();
    let mut stream = Stream { data: engine.scratch.take(prompt.len() * manifest.stream_width), width: manifest.stream_width };
    for (row, &id) in stream.data.chunks_exact_mut(manifest.stream_width).zip(prompt) {
        let mut stored = vec![0; manifest.hidden * bench.store.element(manifest.embedding).bytes()];
        bench.store.row(manifest.embedding, id as usize, &mut stored).expect("an embedding");
        Matrix { rows: 1, cols: manifest.hidden, data: Data::Bf16(&stored) }.decode(&mut row[..manifest.hidden]);
    }
    let positions = 0..prompt.len() as u32;
    let states = SpanStates { slot: 0, positions, from: Home::Nowhere, home: Home::Memory, kept: &mut states, held: Vec::new() };
    let spans = vec![SpanRows { rows: 0..prompt.len(), first: 0, ids: prompt.to_vec(), of_answer: false, states }];
    let wanted = (0..prompt.len()).collect();
    let mut feed =
        Recorder { inner: SweepFeed::new(&engine, spans, wanted, TURNS, Beside { bytes: 1 << 20, records: 0 }), routings: Vec::new() };
    for layer in 0..manifest.layers.len() {
        feed.inner.enter(layer);
        bench.model.layer(layer, &mut stream, &mut feed).expect("a layer");
    }
    let mut logits = vec![0.0; prompt.len() * manifest.vocab];
    let mut keep = |range: std::ops::Range<usize>, slice: &[f32]| {
        for (row, part) in logits.chunks_exact_mut(manifest.vocab).zip(slice.chunks_exact(range.len())) {
            row[range.clone()].copy_from_slice(part);
        }
    };
    bench.model.head(&stream, &mut feed, &mut keep).expect("the head");
    (logits, feed.routings)
}

/// The folders of goldens, by name.
fn goldens() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixture("goldens")).expect("a folder of goldens");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders
}

/// Tokens and the bits of all log-probabilities.
fn bits(events: &[Event]) -> Vec<(Vec<u32>, Vec<u32>, Vec<u32>)> {
    let raw = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    events.iter().map(|e| (e.tokens.clone(), raw(&e.logprobs), raw(&e.prompt_logprobs))).collect()
}

/// Every path with the settings that it is tried under: threads, wave, chunk. The scalar path is slow and shares its walk with
/// the others, so that one setting with many cuts is enough for it.
fn settings() -> Vec<(Kernels, (usize, usize, usize))> {
    const TRIED: [(usize, usize, usize); 5] = [(2, 2, 3), (2, 4, 1000), (1, 1, 1000), (2, 4, 1), (1, 3, 16)];
    let of = |path: KernelPath| {
        let tried = if path == KernelPath::Scalar { &TRIED[..1] } else { &TRIED[..] };
        Kernels::with(path).into_iter().flat_map(move |kernels| tried.iter().map(move |&t| (kernels, t)))
    };
    [KernelPath::Scalar, KernelPath::Avx2, KernelPath::Avx512].into_iter().flat_map(of).collect()
}

#[test]
fn waves_chunks_threads_and_kernels_do_not_change_a_bit() {
    for folder in goldens() {
        let golden = Golden::open(&folder);
        let requests: Vec<_> = (0..4).map(|i| request(i, golden.ids(&format!("prompt.{i}")), 6)).collect();
        let bench = Bench::new(&folder.join("checkpoint"), &requests);
        let expected = bits(&bench.run(Kernels::detect(), 1, Grouping::Input, 4, 1000).0);
        for (kernels, (threads, wave, chunk)) in settings() {
            let (events, _) = bench.run(kernels, threads, Grouping::Input, wave, chunk);
            assert_eq!(bits(&events), expected, "{} {} {threads} {wave} {chunk}", folder.display(), kernels.path().name());
        }
    }
}

#[test]
fn states_on_disk_do_not_change_a_bit() {
    for folder in goldens() {
        let golden = Golden::open(&folder);
        let requests: Vec<_> = (0..4).map(|i| request(i, golden.ids(&format!("prompt.{i}")), 6 + i as u32)).collect();
        let mut bench = Bench::new(&folder.join("checkpoint"), &requests);
        let expected = bits(&bench.run(Kernels::detect(), 1, Grouping::Input, 4, 1000).0);
        for (states, whole_every) in [(Placing::Parked, 1), (Placing::Parked, 3), (Placing::Passing, 1), (Placing::Passing, 3)] {
            bench.parking = Parking { states, more: 2, refill: 2, cohort: 1, whole_every };
            for (threads, wave, chunk) in [(2, 2, 7), (1, 1, 1000), (2, 4, 1)] {
                let (events, tally) = bench.run(Kernels::detect(), threads, Grouping::Input, wave, chunk);
                assert_eq!(bits(&events), expected, "{} {states:?} {whole_every} {threads} {wave} {chunk}", folder.display());
                let went = tally.states.read_bytes > 0 && tally.states.written_bytes > 0;
                assert!(went || wave == 4 && states == Placing::Parked, "states go to disk unless all have a place in memory");
            }
        }
    }
}

#[test]
fn a_place_on_disk_serves_one_sequence_after_another() {
    let requests: Vec<_> = (0..6).map(|i| request(i, (0..9 + i as u32).map(|p| p * 7 % 380).collect(), 4)).collect();
    let mut bench = Bench::new(&fixture("goldens/tiny/checkpoint"), &requests);
    let expected = bits(&bench.run(Kernels::detect(), 1, Grouping::Input, 6, 1000).0);
    for states in [Placing::Parked, Placing::Passing] {
        bench.parking = Parking { states, more: 1, refill: 4, cohort: 1, whole_every: 2 };
        for grouping in [Grouping::Input, Grouping::Overlap] {
            assert_eq!(bits(&bench.run(Kernels::detect(), 1, grouping, 1, 1000).0), expected, "{states:?} {grouping:?}");
        }
    }
}

#[test]
fn generated_logprobs_equal_prompt_logprobs_bit_for_bit() {
    for name in ["goldens/tiny/checkpoint", "goldens/odd/checkpoint", "demo-model"] {
        let prompts: Vec<Vec<u32>> = vec![vec![5], (0..23).map(|i| i * 13 % 380).collect(), (0..70).map(|i| i * 7 % 384).collect()];
        let mut requests: Vec<_> = prompts.iter().enumerate().map(|(i, p)| request(i, p.clone(), 20)).collect();
        // One that draws: its log-probabilities are those before temperature.
        requests[1].sampling.temperature = 1.3;
        let (made, _) = Bench::new(&fixture(name), &requests).run(Kernels::detect(), 2, Grouping::Input, 3, 40);
        let given = made.iter().enumerate().map(|(i, e)| request(i, [&prompts[i][..], &e.tokens].concat(), 0));
        let (scored, _) = Bench::new(&fixture(name), &given.collect::<Vec<_>>()).run(Kernels::detect(), 2, Grouping::Input, 3, 7);
        for (made, scored) in made.iter().zip(&scored) {
            let joined = [&made.prompt_logprobs[..], &made.logprobs].concat();
            assert_eq!(joined.len(), scored.prompt_logprobs.len());
            let raw = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(raw(&joined), raw(&scored.prompt_logprobs), "{name}, row {}", made.index);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn any_schedule_gives_the_same_bits(
        seeds in prop::collection::vec((1usize..40, 0u32..9, any::<u32>(), any::<bool>()), 2..9),
        wave in 1usize..9,
        chunk in 1usize..70,
        threads in 1usize..3,
        kept in (0u64..400, 0u64..250),
        parking in (prop::sample::select(vec![Placing::Memory, Placing::Parked, Placing::Passing]), 0usize..9, 1usize..9, 1usize..9, 1u32..6),
        reading in (1usize..9, 12usize..20, prop::sample::select(vec![Method::Uring, Method::Threads]), any::<bool>()),
        grouping in prop::sample::select(vec![Grouping::Input, Grouping::Length, Grouping::Random, Grouping::Overlap]),
    ) {
        let requests: Vec<_> = seeds.iter().enumerate().map(|(i, &(len, max, seed, drawn))| {
            let mut r = request(i, (0..len as u32).map(|p| seed.wrapping_mul(2 * p + 1) % 512).collect(), max);
            r.sampling.temperature = if drawn { 0.9 } else { 0.0 };
            r
        }).collect();
        let checkpoint = fixture("goldens/tiny/checkpoint");
        let solo: Vec<Event> = requests.iter().map(|r| {
            let alone = Request { index: 0, ..r.clone() };
            let (mut events, _) = Bench::new(&checkpoint, &[alone]).run(Kernels::detect(), 1, Grouping::Input, 1, 1000);
            events.remove(0)
        }).collect();
        let mut bench = Bench::new(&checkpoint, &requests);
        let (depth, log_chunk, method, direct) = reading;
        let opened = Checkpoint::open(&checkpoint, bench.model.manifest()).expect("the checkpoint is whole");
        let setup = Setup { method: Some(method), depth, chunk_bytes: 1 << log_chunk, ..Setup::new(1 << 19, 1 << 18) };
        let cache = if direct { PageCache::Bypass } else { PageCache::Use };
        let keep = Keep { panels: kept.0, blocks: kept.1 };
        // Where io_uring is not allowed, threads read.
        let checksums = Checksums::open(&Learned::nowhere("a test"), &opened.pieces());
        let opened = opened.read(keep, &setup, cache, checksums);
        bench.store = match opened {
            Err(_) if method == Method::Uring => weights(&checkpoint, &*bench.model, keep),
            opened => opened.expect("it can be read"),
        };
        let (states, more, refill, cohort, whole_every) = parking;
        bench.parking = Parking { states, more, refill, cohort, whole_every };
        let (events, tally) = bench.run(Kernels::detect(), threads, grouping, wave, chunk);
        prop_assert_eq!(bits(&events), bits(&solo));
        prop_assert_eq!(tally.rows_done, requests.len() as u64);
        prop_assert_eq!(tally.completion_tokens, events.iter().map(|e| e.tokens.len() as u64).sum::<u64>());
    }
}

#[test]
fn faulty_and_idle_rows_end_without_computing() {
    let mut faulty = request(1, Vec::new(), 5);
    faulty.fault = Some(Fault::new("empty_prompt", "no token"));
    let mut idle = request(2, vec![1, 2, 3], 0);
    idle.sampling.prompt_logprobs = false;
    let bench = Bench::new(&fixture("goldens/tiny/checkpoint"), &[request(0, vec![7], 1), faulty, idle]);
    let (events, tally) = bench.run(Kernels::detect(), 1, Grouping::Input, 2, 10);
    assert_eq!(events.iter().map(|e| e.tokens.len()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(matches!(&events[1].end, End::Failed(fault) if fault.code == "empty_prompt"));
    assert_eq!(events[2].end, End::Length);
    assert_eq!((tally.sweeps, tally.rows_done, tally.rows_failed), (1, 3, 1));
}
