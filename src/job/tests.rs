use super::*;
use crate::error::Kind;

const LEAST: &str = "[model]\npath = 'm'\n[input]\npath = 'd.jsonl'\n[output]\npath = 'out'\n";

fn parse(text: &str, sets: &[&str]) -> Result<Job> {
    let overrides: Vec<Override> = sets.iter().map(|set| Override::set(set).expect("KEY=VALUE")).collect();
    Job::parse(text, "jobs/a.toml", Path::new("jobs"), &overrides)
}

fn with(set: &str) -> Result<Job> {
    parse(LEAST, &[set])
}

#[test]
fn a_job_that_sets_the_least_has_the_documented_defaults() {
    let job = parse(LEAST, &[]).expect("complete");
    assert_eq!(job.model, Path::new("jobs/m"));
    assert_eq!(job.input.paths, [Path::new("jobs/d.jsonl")]);
    assert_eq!(job.output, OutputSection { path: "jobs/out".into(), rows_per_part: 10_000 });
    assert_eq!(job.sampling, Sampling::default());
    assert_eq!((job.grouping, job.input.on_bad_line, job.input.thinking), (None, OnBadLine::Refuse, false));
    let unset = EngineSection {
        memory_bytes: None,
        threads: None,
        wave: None,
        prefill_rows: None,
        resident_bytes: None,
        direct_io: true,
        kernel: None,
        cache: None,
        predict: Predict::Auto,
        states: None,
        scratch: None,
        scratch_write_limit_bytes: None,
    };
    assert_eq!(job.engine, unset);
}

#[test]
fn every_key_reaches_its_place() {
    let text = "
        [model]\npath = '/models/m'
        [input]\npath = ['a.jsonl', '/b/*.parquet']\nid = 'name'\ntemplate = '{{ text }}'\nsystem = 'Be brief.'\nthinking = true
        on_bad_line = 'row'\nmax_prompt_tokens = 2_000.0\ntruncate = 'left'
        [sampling]\ntemperature = 0\ntop_p = 0.9\ntop_k = -1\nmin_p = 0.1\nseed = -5\nmax_tokens = 0\nstop = ['a', 'b']\nstop_token_ids = [3, 4]
        logprobs = 1\nprompt_logprobs = true\nignore_eos = true
        [engine]\nmemory = '8GiB'\nthreads = 2\nwave = 16\nprefill_rows = 512\nresident = 0\ndirect_io = false\nkernel = 'avx2'\nprecision = 'f32'
        cache = '../learned'
predict = 'learned'
states = 'parked'
scratch = '../states'
scratch_write_limit = '5GiB'
        [plan]\ngrouping = 'length'\nkeep_routing = true
        [output]\npath = '../out'\nkeep = ['section', 'b']\nrows_per_part = 7";
    let job = parse(text, &[]).expect("all known");
    let expected = Job {
        model: "/models/m".into(),
        input: InputSection {
            paths: vec!["jobs/a.jsonl".into(), "/b/*.parquet".into()],
            id: Some("name".into()),
            template: Some("{{ text }}".into()),
            system: Some("Be brief.".into()),
            thinking: true,
            on_bad_line: OnBadLine::Row,
            max_prompt_tokens: Some(2_000),
            truncate: Some(Side::Left),
            keep: vec!["section".into(), "b".into()],
        },
        sampling: Sampling {
            temperature: 0.0,
            top_p: 0.9,
            top_k: 0,
            min_p: 0.1,
            seed: -5,
            max_tokens: 0,
            stop: vec!["a".into(), "b".into()],
            stop_token_ids: vec![3, 4],
            logprobs: true,
            prompt_logprobs: true,
            ignore_eos: true,
        },
        engine: EngineSection {
            memory_bytes: Some(8 << 30),
            threads: Some(2),
            wave: Some(16),
            prefill_rows: Some(512),
            resident_bytes: Some(0),
            direct_io: false,
            kernel: Some(KernelName::Avx2),
            cache: Some("jobs/../learned".into()),
            predict: Predict::Learned,
            states: Some(States::Parked),
            scratch: Some("jobs/../states".into()),
            scratch_write_limit_bytes: Some(5 << 30),
        },
        grouping: Some(Grouping::Length),
        keep_routing: true,
        output: OutputSection { path: "jobs/../out".into(), rows_per_part: 7 },
    };
    assert_eq!(job, expected);
}

#[test]
fn what_is_missing_is_named_with_an_example() {
    for (key, part) in [
        ("model.path", "`path = \"models/demo\"` under [model], or give --model"),
        ("input.path", "`path = \"docs/*.jsonl\"` under [input], or give --input"),
        ("output.path", "`path = \"out\"` under [output], or give --output"),
    ] {
        let section = key.split('.').next().expect("a section");
        let text = LEAST.replace(&format!("[{section}]\npath"), &format!("[{section}]\n#"));
        let error = parse(&text, &[]).expect_err("incomplete");
        assert_eq!((error.kind, error.message), (Kind::Usage, format!("jobs/a.toml: `{key}` is missing: write {part}")));
    }
}

#[test]
fn paths_of_the_command_line_start_from_the_current_folder() {
    let overrides =
        [Override::flag("--model", "model.path", "3"), Override::flags("--input", "input.path", &["a.jsonl".into(), "b[1].jsonl".into()])];
    let job = Job::parse(LEAST, "jobs/a.toml", Path::new("jobs"), &overrides).expect("complete");
    assert_eq!(job.model, Path::new("3"));
    assert_eq!(job.input.paths, [Path::new("a.jsonl"), Path::new("b[1].jsonl")]);
    assert_eq!(job.output.path, Path::new("jobs/out"));
}

#[test]
fn values_out_of_range_or_of_another_type_name_the_key() {
    let wrong = [
        "model.path=3",
        "model.path=",
        "input.path=[]",
        "input.path=['a', 3]",
        "input.path=['']",
        "input.id=",
        "input.template=3",
        "input.thinking=yes",
        "input.on_bad_line=skip",
        "input.max_prompt_tokens=0",
        "input.truncate=middle",
        "sampling.temperature=-0.1",
        "sampling.temperature=nan",
        "sampling.temperature=inf",
        "sampling.temperature=1e39",
        "sampling.temperature=warm",
        "sampling.top_p=0",
        "sampling.top_p=1.1",
        "sampling.top_k=-2",
        "sampling.top_k=1.5",
        "sampling.min_p=-0.1",
        "sampling.min_p=1.5",
        "sampling.seed=x",
        "sampling.seed='5'",
        "sampling.max_tokens=-1",
        "sampling.max_tokens=4.5",
        "sampling.max_tokens=1e30",
        "sampling.max_tokens=4294967296",
        "sampling.stop=",
        "sampling.stop=['']",
        "sampling.stop=[1]",
        "sampling.stop_token_ids=[-1]",
        "sampling.stop_token_ids=3",
        "sampling.logprobs=5",
        "sampling.ignore_eos=1",
        "engine.memory=lots",
        "engine.memory=0",
        "engine.memory=-1",
        "engine.memory=1.5",
        "engine.threads=0",
        "engine.threads=100000",
        "engine.wave=0",
        "engine.prefill_rows=0",
        "engine.resident=-1",
        "engine.kernel=sse2",
        "engine.precision=f16",
        "plan.grouping=best",
        "output.path=",
        "output.keep=['a', 'a']",
        "output.rows_per_part=0",
        "sampling.seed=99999999999999999999",
        "sampling.seed=2026-01-01",
        "engine.memory={a = 1}",
    ];
    for set in wrong {
        let error = with(set).expect_err(set);
        let key = set.split_once('=').expect("KEY=VALUE").0;
        assert_eq!(error.kind, Kind::Usage, "{set}");
        assert!(error.message.starts_with(&format!("--set {set}: `{key}` ")), "{}", error.message);
        assert!(!error.message.contains('\n'), "{}", error.message);
    }
    let line = parse(&LEAST.replace("[output]", "[sampling]\ntop_p = 2\n[output]"), &[]).expect_err("out of range");
    assert_eq!(line.message, "jobs/a.toml line 6: `sampling.top_p` must be a number above 0 and at most 1, not 2");
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for set in ["engine.precision=bf16", "engine.kernel=amx", "engine.kernel=avx512bf16"] {
        let error = with(set).expect_err(set);
        assert!(error.message.contains("is not built in this version; use \""), "{}", error.message);
    }
    for set in ["sampling.structured_outputs={choice = ['a']}", "sampling.structured_outputs.json=x"] {
        assert!(with(set).expect_err(set).message.contains("is not built in this version"), "{set}");
    }
    assert_eq!(with("engine.kernel=auto").expect("a choice").engine.kernel, None);
}

#[test]
fn sets_may_be_sizes_lists_and_stop_strings() {
    assert_eq!(with("engine.memory=1.5GB").expect("a size").engine.memory_bytes, Some(1_500_000_000));
    assert_eq!(with("engine.memory=4096").expect("a size").engine.memory_bytes, Some(4_096));
    assert_eq!(with("sampling.stop=\n").expect("a text").sampling.stop, ["\n"]);
    assert_eq!(with("sampling.stop=[]").expect("none").sampling.stop, Vec::<String>::new());
    assert_eq!(with("sampling.top_k=99999999999").expect("all").sampling.top_k, u32::MAX);
}
