//! Who chose whom: what is recorded, and what the plan is told.

use super::*;
use crate::plan::{FOOTPRINT_ENTRIES, Footprint, LAST_TOKENS};
use crate::routes::NO_EXPERT;

const TINY: &str = "goldens/tiny/checkpoint";

/// What a recorder was told, by row and position.
struct Told {
    prompts: bool,
    ids: BTreeMap<(u64, u32), Vec<u16>>,
    width: usize,
    of_answers: BTreeMap<u64, u32>,
}

impl Told {
    fn new(prompts: bool, model: &dyn Model) -> Self {
        let manifest = model.manifest();
        let chosen = manifest.blocks().map(|b| b.1.chosen).max().expect("layers that route");
        Told { prompts, ids: BTreeMap::new(), width: manifest.blocks().count() * chosen, of_answers: BTreeMap::new() }
    }
}

impl super::super::Recorder for Told {
    fn wants_prompts(&self) -> bool {
        self.prompts
    }

    fn routed(&mut self, row: u64, first_position: u32, _: u32, of_answer: bool, ids: &[u16]) {
        for (position, ids) in (first_position..).zip(ids.chunks_exact(self.width)) {
            assert!(self.ids.insert((row, position), ids.to_vec()).is_none(), "row {row}, position {position} is told once");
            *self.of_answers.entry(row).or_default() += u32::from(of_answer);
        }
    }
}

fn requests() -> Vec<Request> {
    let lengths = [(23, 6), (3, 4), (40, 1), (9, 9), (30, 2), (1, 5)];
    let of = |(i, (len, max)): (usize, (u32, u32))| {
        let mut request = request(i, (0..len).map(|p| (p * 13 + i as u32) % 380).collect(), max);
        request.sampling.prompt_logprobs = i % 2 == 0;
        request
    };
    lengths.into_iter().enumerate().map(of).collect()
}

/// Runs all requests; the events and what the plan was told of each row: its prompt, its answer.
fn told(bench: &Bench, recorder: &mut Told, wave: usize, chunk: usize, threads: usize) -> (Vec<Event>, Vec<(u64, Outcome)>) {
    let watch = Ticks(AtomicI64::new(0));
    let engine = bench.engine(Kernels::detect(), &watch);
    let mut schedule = bench.schedule(Grouping::Overlap, wave, chunk, threads);
    let mut run = Run::new(&engine, &schedule).expect("a model in order");
    let (mut sink, mut outcome, mut all) = (Collected(Vec::new()), Outcome::default(), Vec::new());
    while let Some(sweep) = schedule.next(&outcome) {
        outcome = run.sweep(&sweep, &mut sink, recorder).expect("swept");
        for span in &sweep.spans {
            let of_slot = Outcome {
                ended: Vec::new(),
                read: outcome.read.iter().filter(|read| read.0 == span.slot).cloned().collect(),
                answered: outcome.answered.iter().filter(|answered| answered.0 == span.slot).cloned().collect(),
            };
            all.push((span.row, of_slot));
        }
    }
    sink.0.sort_by_key(|event| event.index);
    (sink.0, all)
}

#[test]
fn who_chose_whom_is_told_of_every_row_once() {
    let requests = requests();
    let bench = Bench::new(&fixture(TINY), &requests);
    for (prompts, wave, chunk, threads) in [(true, 6, 1000, 1), (true, 6, 1000, 2), (true, 3, 7, 1), (false, 2, 16, 2)] {
        let mut recorder = Told::new(prompts, &*bench.model);
        let (events, _) = told(&bench, &mut recorder, wave, chunk, threads);
        let mut expected = BTreeMap::new();
        for (event, request) in events.iter().zip(&requests) {
            let all = [&request.prompt[..], &event.tokens[..event.tokens.len() - 1]].concat();
            let (_, routings) = logits_of(&bench, &all);
            for position in (0..all.len()).filter(|&p| prompts || p >= request.prompt.len()) {
                let wanted = request.sampling.prompt_logprobs || position + 1 >= request.prompt.len();
                let last = bench.model.manifest().layers.len() - 1;
                let layers = bench.model.manifest().blocks().map(|(layer, _)| layer);
                let of_layer = |(routing, layer): (&Routing, usize)| {
                    let ids = routing.ids[position * routing.chosen..][..routing.chosen].iter();
                    ids.map(move |id| if layer < last || wanted { *id as u16 } else { NO_EXPERT }).collect::<Vec<_>>()
                };
                let ids: Vec<u16> = routings.iter().zip(layers).flat_map(of_layer).collect();
                expected.insert((event.index, position as u32), ids);
            }
            let answered = recorder.of_answers.get(&event.index).copied().unwrap_or(0);
            assert_eq!(answered as usize, event.tokens.len() - 1, "the last token is never computed");
        }
        assert_eq!(recorder.ids, expected, "wave {wave}, {chunk} prompt rows");
    }
}

/// The footprint of some rows by definition: of a layer's rows whose choice is known, the share that chose each block.
fn by_definition(bench: &Bench, rows: &[&Vec<u16>]) -> Footprint {
    let (mut uses, mut first) = (Vec::new(), 0);
    for (at, (_, blocks)) in bench.model.manifest().blocks().enumerate() {
        let of_layer = |row: &&Vec<u16>| row[at * blocks.chosen..][..blocks.chosen].to_vec();
        let known: Vec<Vec<u16>> = rows.iter().map(of_layer).filter(|ids| ids[0] != NO_EXPERT).collect();
        for expert in 0..blocks.count {
            let chose = known.iter().filter(|ids| ids.contains(&(expert as u16))).count();
            if chose > 0 {
                uses.push(((first + expert) as u32, chose as f32 / known.len() as f32));
            }
        }
        first += blocks.count;
    }
    Footprint::of(uses, FOOTPRINT_ENTRIES)
}

#[test]
fn the_plan_is_told_what_prompts_and_answers_used() {
    let requests = requests();
    let bench = Bench::new(&fixture(TINY), &requests);
    for (wave, chunk, threads) in [(6, 1000, 1), (3, 7, 1), (2, 16, 2)] {
        let mut recorder = Told::new(true, &*bench.model);
        let (events, outcomes) = told(&bench, &mut recorder, wave, chunk, threads);
        for (event, request) in events.iter().zip(&requests) {
            let prompt_len = request.prompt.len();
            let rows = |positions: std::ops::Range<usize>| -> Vec<&Vec<u16>> {
                positions.map(|position| &recorder.ids[&(event.index, position as u32)]).collect()
            };
            let of_row = || outcomes.iter().filter(|(row, _)| *row == event.index).map(|(_, outcome)| outcome);
            let read: Vec<_> = of_row().flat_map(|outcome| &outcome.read).map(|read| &read.1).collect();
            let answered: Vec<_> = of_row().flat_map(|outcome| &outcome.answered).map(|answered| &answered.1).collect();
            if event.tokens.len() == 1 {
                assert!(read.is_empty() && answered.is_empty(), "it does not go on");
                continue;
            }
            assert_eq!((read.len(), answered.len()), (1, 1), "once");
            assert_eq!(read[0].all, by_definition(&bench, &rows(0..prompt_len)));
            assert_eq!(read[0].last, by_definition(&bench, &rows(prompt_len.saturating_sub(LAST_TOKENS)..prompt_len)));
            assert_eq!(*answered[0], by_definition(&bench, &rows(prompt_len..prompt_len + event.tokens.len() - 1)));
        }
    }
}

impl plan::Routed for Vec<Vec<u16>> {
    fn widths(&self) -> crate::routes::Widths {
        routing_widths(open(&fixture(TINY), PANEL_BYTES).manifest())
    }
    fn requests(&self) -> usize {
        self.len()
    }
    fn answer(&self, request: u64) -> &[u16] {
        &self[request as usize]
    }
    fn prompt(&self, _: u64) -> &[u16] {
        &[]
    }
    fn next(&self, _: u64) -> Option<u32> {
        None
    }
}

#[test]
fn a_replay_loads_what_the_run_has_loaded() {
    let requests = requests();
    let bench = Bench::new(&fixture(TINY), &requests);
    for (grouping, wave, chunk) in
        [(Grouping::Input, 2, 50), (Grouping::Length, 2, 16), (Grouping::Random, 3, 9), (Grouping::Input, 6, 1000)]
    {
        let watch = Ticks(AtomicI64::new(0));
        let (mut sink, mut recorder) = (Collected(Vec::new()), Told::new(false, &*bench.model));
        let mut schedule = bench.schedule(grouping, wave, chunk, 1);
        let tally = run(&mut schedule, &bench.engine(Kernels::detect(), &watch), &mut sink, &mut recorder).expect("the run ends");
        let answer = |row| recorder.ids.range((row, 0)..(row + 1, 0)).flat_map(|(_, ids)| ids.iter().copied()).collect();
        let answers: Vec<Vec<u16>> = (0..requests.len() as u64).map(answer).collect();
        let own = plan::loads(schedule.afresh(requests.len(), None), &answers);
        assert_eq!((own.loads, own.rows), (tally.answer_expert_loads, tally.answer_rows), "{grouping:?} {wave} {chunk}");
        assert_eq!(plan::lower_bound(&answers).rows, own.rows);
        assert!(plan::lower_bound(&answers).loads <= own.loads && own.loads > 0);
    }
}
