//! Bytes a second at which the reader brings blocks, by both ways of reading: `cargo bench --bench reading -- FOLDER [DEPTH MIB]...`
//!
//! A file of 4 GB in FOLDER holds blocks of 17,547,264 bytes, which are taken in random order, directly, ten times by each way, interleaved. The
//! file is deleted afterwards. Each pair after the folder is another depth and size of reads to try. Where fio is installed, it reads blocks of the
//! same size from the same file between the runs, at several queue depths, and each way is compared with the best of them.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nightshift::store::{Catalogue, DirectIo, Disk, Files, Method, PageCache, Piece, Place, Reader, Setup};

const BLOCK_BYTES: usize = 17_547_264;
const BLOCKS: u32 = 228;
const RUNS: u64 = 10;
/// A header's worth, so that no block begins at a multiple of anything.
const FIRST: u64 = 81_928;
const RING_BYTES: usize = 16 * (BLOCK_BYTES + 8_192);

struct Blocks;

impl Catalogue for Blocks {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        let Piece::Block { expert, .. } = piece else { return Vec::new() };
        vec![(Place { file: 0, offset: FIRST + u64::from(expert) * BLOCK_BYTES as u64 }, BLOCK_BYTES)]
    }

    fn name(&self, piece: Piece, _: usize) -> String {
        format!("{piece:?}")
    }
}

/// Bytes that no disk can shorten.
fn write(path: &Path) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut noise = vec![0; BLOCK_BYTES];
    file.write_all(&noise[..FIRST as usize])?;
    for block in 0..u64::from(BLOCKS) {
        blake3::Hasher::new().update(&block.to_le_bytes()).finalize_xof().fill(&mut noise);
        file.write_all(&noise)?;
    }
    file.sync_all()
}

/// Blocks in an order that `run` decides.
fn order(run: u64) -> Vec<Piece> {
    let mut experts: Vec<u32> = (0..BLOCKS).collect();
    experts.sort_by_key(|&e| *blake3::hash(&[run, u64::from(e)].map(u64::to_le_bytes).concat()).as_bytes());
    experts.into_iter().map(|expert| Piece::Block { layer: 0, expert }).collect()
}

/// One pass over the file: GB/s, and processor seconds a GB.
fn pass(path: &Path, setup: &Setup, run: u64) -> (f64, f64) {
    let files = Files::new(vec![File::open(path).expect("written just now")], vec![path.to_owned()], PageCache::Bypass).expect("opens");
    assert_eq!(files.direct(), DirectIo::All, "this file system takes no direct reads: the figure would be that of memory");
    let reader = Reader::open(Arc::new(files), Arc::new(Blocks), setup).expect("opens");
    let pieces = order(run);
    let warm = reader.take(pieces[0]).expect("reads");
    drop(warm);
    let (before, cpu) = (reader.counters(), processor_seconds());
    let started = Instant::now();
    reader.want(0, &pieces);
    for &piece in &pieces {
        drop(reader.take(piece).expect("reads"));
    }
    let (seconds, after) = (started.elapsed().as_secs_f64(), reader.counters());
    let gigabytes = (after.block_bytes - before.block_bytes) as f64 / 1e9;
    (gigabytes / seconds, (processor_seconds() - cpu) / gigabytes)
}

/// Queue depths that fio tries.
const FIO_DEPTHS: [usize; 4] = [1, 2, 4, 8];

/// GB/s that fio gets from the same file, directly, in blocks of the same size, at its best depth; None where there is no fio.
fn fio(path: &Path) -> Option<f64> {
    let rate = |depth: usize| {
        let mut fio = std::process::Command::new("fio");
        fio.args(["--minimal", "--name=r", "--direct=1", "--rw=randread", "--ioengine=io_uring", "--io_size=2g", "--readonly"]);
        fio.arg(format!("--filename={}", path.display())).arg(format!("--bs={BLOCK_BYTES}")).arg(format!("--iodepth={depth}"));
        let said = String::from_utf8(fio.output().ok()?.stdout).ok()?;
        Some(said.split(';').nth(6)?.parse::<f64>().ok()? * 1024.0 / 1e9) // KiB a second
    };
    FIO_DEPTHS.into_iter().filter_map(rate).max_by(f64::total_cmp)
}

/// The middle of some numbers, the least and the most.
fn spread(mut numbers: Vec<f64>) -> (f64, f64, f64) {
    numbers.sort_by(f64::total_cmp);
    (numbers[numbers.len() / 2], numbers[0], numbers[numbers.len() - 1])
}

/// What this process has used so far, in user and system time.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name in brackets").split_whitespace().collect();
    (fields[11].parse::<f64>().expect("ticks") + fields[12].parse::<f64>().expect("ticks")) / 100.0
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let Some(folder) = args.first() else { return Ok(()) };
    let numbers: Vec<usize> = args[1..].iter().map(|a| a.parse().expect("DEPTH MIB, whole numbers")).collect();
    let mut shapes: Vec<(usize, usize)> = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1] << 20)).collect();
    if shapes.is_empty() {
        let chosen = Setup::new(0, 0);
        shapes.push((chosen.depth, chosen.chunk_bytes));
    }
    let path = Path::new(folder).join("nightshift-reading");
    write(&path)?;
    let ways: Vec<(usize, usize, Method)> =
        shapes.iter().flat_map(|&(depth, bytes)| [Method::Uring, Method::Threads].map(|method| (depth, bytes, method))).collect();
    let mut rates = vec![Vec::new(); ways.len()];
    let mut fios = Vec::new();
    for run in 0..RUNS {
        fios.extend(fio(&path));
        for (i, &(depth, chunk_bytes, method)) in ways.iter().enumerate() {
            let setup = Setup { method: Some(method), depth, chunk_bytes, ..Setup::new(0, RING_BYTES) };
            rates[i].push(pass(&path, &setup, run));
        }
    }
    std::fs::remove_file(&path)?;
    let mut out = std::io::stdout().lock();
    for (&(depth, bytes, method), rates) in ways.iter().zip(&rates) {
        let cpu = rates.iter().map(|r| r.1).sum::<f64>() / rates.len() as f64;
        let (middle, least, most) = spread(rates.iter().map(|r| r.0).collect());
        let mib = bytes >> 20;
        writeln!(out, "{method:?} depth {depth} of {mib} MiB: {middle:.2} GB/s ({least:.2} to {most:.2}), {cpu:.3} processor s/GB")?;
        if fios.len() == rates.len() {
            let (middle, least, most) = spread(rates.iter().zip(&fios).map(|(rate, fio)| rate.0 / fio).collect());
            writeln!(out, "  beside fio at its best depth of the same round: {middle:.2} ({least:.2} to {most:.2})")?;
        }
    }
    if !fios.is_empty() {
        let (middle, least, most) = spread(fios);
        writeln!(out, "fio at its best depth: {middle:.2} GB/s ({least:.2} to {most:.2})")?;
    }
    Ok(())
}
