//! What one row is owed: its place in a draw, its own stops, the order in which its experts are summed, its share of the scratch.

use super::*;
use crate::kernels::Data;
use crate::sample;

const TINY: &str = "goldens/tiny/checkpoint";

/// Prompts of 1, 23 and 40 ids.
fn prompts() -> [Vec<u32>; 3] {
    [vec![5], (0..23).map(|i| i * 13 % 380).collect(), (0..40).map(|i| i * 7 % 384).collect()]
}

#[test]
fn a_token_is_drawn_at_its_own_position() {
    let requests: Vec<_> = prompts().into_iter().enumerate().map(|(i, p)| request(i, p, 8)).collect();
    let drawn: Vec<_> = requests.into_iter().map(|r| Request { sampling: Sampling { temperature: 1.4, ..r.sampling }, ..r }).collect();
    let bench = Bench::new(&fixture(TINY), &drawn);
    let (events, _) = bench.run(Kernels::detect(), 2, Grouping::Input, 3, 16);
    let (vocab, mut scratch) = (bench.model.manifest().vocab, sample::Scratch::default());
    for (event, request) in events.iter().zip(&drawn) {
        let all = [&request.prompt[..], &event.tokens].concat();
        let (logits, _) = logits_of(&bench, &all);
        for (n, &token) in event.tokens.iter().enumerate() {
            let position = request.prompt.len() + n;
            let row = &logits[(position - 1) * vocab..position * vocab];
            let expected = sample::draw(row, &mut scratch, &request.sampling, &request.id, position as u32);
            assert_eq!(Some(token), expected, "{}, token {n}", request.id);
        }
    }
}

#[test]
fn stops_see_the_answer_and_not_the_prompt() {
    let words = Words::new(512);
    for prompt in prompts() {
        let run = |stop: Vec<String>, stop_token_ids: Vec<u32>| {
            let plain = request(0, prompt.clone(), 6);
            let sampling = Sampling { stop, stop_token_ids, ..plain.sampling };
            let bench = Bench { words: Some(words.clone()), ..Bench::new(&fixture(TINY), &[Request { sampling, ..plain }]) };
            bench.run(Kernels::detect(), 1, Grouping::Input, 1, 10).0.remove(0)
        };
        let free = run(Vec::new(), Vec::new());
        assert_eq!((free.tokens.len(), &free.end), (6, &End::Length));
        let word = |id: u32| words.word(id);
        let last = *prompt.last().expect("a prompt has tokens");
        assert!(!free.tokens.contains(&last), "the prompt's last token tells nothing if the answer holds it");
        assert_eq!(run(Vec::new(), vec![last]), free);
        assert_eq!(run(vec![word(last)], Vec::new()), free);
        assert_eq!(run(vec![word(last) + &word(free.tokens[0])], Vec::new()), free, "no stop begins in the prompt");
        let stopped = run(vec![word(free.tokens[0]) + &word(free.tokens[1])], Vec::new());
        assert!(stopped.tokens == free.tokens[..2] && matches!(stopped.end, End::StopString(_)), "{stopped:?}");
    }
}

#[test]
fn experts_are_summed_in_ascending_id() {
    let watch = Ticks(AtomicI64::new(0));
    let bench = Bench::new(&fixture(TINY), &[]);
    let blocks = bench.model.manifest().layers[1].blocks.clone().expect("layer 1 routes");
    // In this order alone the sum of the first three is 1.
    let values: [(u32, f32); 6] = [(2, 1e8), (7, -1e8), (19, 1.0), (20, 0.0), (21, 0.0), (22, 0.0)];
    let block = |expert| bench.store.take(crate::store::Piece::Block { layer: 1, expert }).expect("read");
    let known: Vec<_> = values.iter().map(|&(id, value)| (block(id), value)).collect();
    // Some rows choose the three, the others fill the sweep, so that the three are computed apart or side by side.
    for (blocks_in_flight, rows, choosing) in [(1, 1, 1), (4, 3, 3), (1, 9, 1), (2, 9, 1), (3, 9, 1), (5, 9, 2)] {
        let engine = Engine { blocks_in_flight, ..bench.engine(Kernels::detect(), &watch) };
        let mut states = vec![Vec::new(); rows];
        let spans = states
            .iter_mut()
            .enumerate()
            .map(|(r, kept)| {
                let states = SpanStates { slot: r, positions: 0..1, from: Home::Nowhere, home: Home::Memory, kept, held: Vec::new() };
                SpanRows { rows: r..r + 1, first: 0, ids: vec![0], of_answer: false, states }
            })
            .collect();
        let mut feed = SweepFeed::new(&engine, spans, Vec::new(), TURNS, Beside { bytes: 1 << 20, records: 0 });
        feed.enter(1);
        let ids = [[19, 2, 7].repeat(choosing), [21, 22, 20].repeat(rows - choosing)].concat();
        let routing = Routing { ids, weights: vec![1.0; 3 * rows], chosen: 3 };
        let z: Vec<f32> = (0..rows * blocks.width).map(|i| (i / blocks.width) as f32).collect();
        let mut y = vec![0.0; z.len()];
        feed.experts(&routing, &z, &mut y, &|block, z, out| {
            let Data::Mxfp4 { packed, .. } = block.parts[0].data else { panic!("blocks are MXFP4") };
            let (_, value) = known.iter().find(|(lease, _)| lease.part(0) == packed).expect("a chosen one");
            out.iter_mut().zip(z).for_each(|(out, z)| *out = value * (z + 1.0));
        })
        .expect("computed");
        for (r, row) in y.chunks_exact(blocks.width).enumerate() {
            let expected = if r < choosing { (r + 1) as f32 } else { 0.0 };
            assert!(row.iter().all(|&v| v == expected), "{blocks_in_flight} in flight, row {r} of {rows}: {row:?}");
        }
        assert_eq!((feed.used.pairs, feed.used.loads()), (3 * rows as u64, if rows > choosing { 6 } else { 3 }));
    }
}

#[test]
fn a_scale_that_is_no_number_is_refused_by_tensor() {
    let (from, copy) = (fixture(TINY), tempfile::tempdir().expect("a folder"));
    for entry in std::fs::read_dir(&from).expect("the fixture").map(|e| e.expect("an entry")) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copied");
    }
    let mut places = Vec::new();
    for path in std::fs::read_dir(copy.path()).expect("the copy").map(|e| e.expect("an entry").path()) {
        if path.extension().is_some_and(|e| e == "safetensors") {
            header::read(&File::open(&path).expect("a shard"), &mut |tensor| {
                let scales = tensor.name.contains("layers.5.") && tensor.name.ends_with("w2.weight_scale");
                places.extend(scales.then(|| (path.clone(), tensor.offset + tensor.bytes - 1, tensor.name.to_string())));
                Ok(())
            })
            .expect("a valid header");
        }
    }
    assert_eq!(places.len(), 24);
    for (path, offset, _) in &places {
        std::fs::OpenOptions::new().write(true).open(path).expect("a shard").write_all_at(&[255], *offset).expect("written");
    }
    let bench = Bench::new(copy.path(), &[request(0, vec![1, 2, 3], 1)]);
    let error = bench.try_run(&Scratch::default(), Kernels::detect(), 1, Grouping::Input, 1, 10).expect_err("refused");
    assert_eq!(error.kind, crate::error::Kind::Refused);
    assert!(places.iter().any(|(_, _, name)| error.to_string().contains(name)), "{error}");
}

#[test]
fn panels_of_any_size_give_the_same_bits() {
    for folder in goldens() {
        let golden = Golden::open(&folder);
        let requests: Vec<_> = (0..4).map(|i| request(i, golden.ids(&format!("prompt.{i}")), 3)).collect();
        let mut bench = Bench::new(&folder.join("checkpoint"), &requests);
        let whole = bits(&bench.run(Kernels::detect(), 2, Grouping::Input, 4, 50).0);
        let panels = |bench: &Bench| bench.model.manifest().weights.iter().map(|w| w.panels()).sum::<usize>();
        let fewest = panels(&bench);
        for panel_bytes in [3 << 10, 12 << 10] {
            bench.model = open(&folder.join("checkpoint"), panel_bytes);
            bench.store = weights(&folder.join("checkpoint"), &*bench.model, Keep::default());
            assert!(panels(&bench) > fewest + 20, "{} panels instead of {fewest}", panels(&bench));
            assert_eq!(bits(&bench.run(Kernels::detect(), 2, Grouping::Input, 4, 50).0), whole, "{} {panel_bytes}", folder.display());
        }
    }
}

#[test]
fn scratch_stays_within_what_the_manifest_says_of_a_row() {
    for (folder, panel_bytes) in goldens().into_iter().flat_map(|f| [(f.clone(), 12 << 10), (f, 32 << 20)]) {
        let checkpoint = folder.join("checkpoint");
        let requests: Vec<_> = (0..3).map(|i| request(i, (0..300).map(|p| (p * 7 + i as u32) % 250).collect(), 1)).collect();
        let mut bench = Bench::new(&checkpoint, &requests);
        bench.model = open(&checkpoint, panel_bytes);
        bench.store = weights(&checkpoint, &*bench.model, Keep::default());
        let m = bench.model.manifest();
        let scratch = Scratch::default();
        bench.run_with(&scratch, Kernels::detect(), 2, Grouping::Input, 3, 900);
        let experts = m.blocks().map(|(_, b)| 2 * b.width + b.inner).max().unwrap_or(0);
        let head = m.stream_width + 3 * m.hidden + model::nn::VOCABULARY_GRID;
        let a_row = m.stream_width + (m.row_scratch + experts).max(head);
        let vectors = m.weights.iter().filter(|w| w.panels() == 1).map(|w| if w.shape.len() == 2 { 0 } else { w.rows() * w.cols() });
        let allowed = (900 * a_row * 11 / 10 + vectors.max().unwrap_or(0) * 4) as u64 * 4;
        assert!(scratch.peak_bytes() <= allowed, "{}: {} of {allowed}", folder.display(), scratch.peak_bytes());
    }
}
