//! Real files on every file system there is here, by every way of reading.

use std::path::PathBuf;

use super::super::super::disk::{Files, PageCache};
use super::*;

/// Files as they lie on disk: three shards, the last one's end being aligned to nothing.
fn written(folder: &Path) -> Vec<PathBuf> {
    let write = |file: u32| {
        let path = folder.join(format!("shard-{file}"));
        std::fs::write(&path, (0..FILE_BYTES + 77).map(|at| byte(file, at)).collect::<Vec<_>>()).expect("writes");
        path
    };
    (0..3).map(write).collect()
}

fn on_files(paths: &[PathBuf], cache: PageCache, method: Method, places: &Arc<Places>) -> Option<(Reader, DirectIo)> {
    let files = paths.iter().map(|path| std::fs::File::open(path).expect("opens")).collect();
    let files = Files::new(files, paths.to_vec(), cache).expect("opens");
    let direct = files.direct();
    let setup = Setup { method: Some(method), chunk_bytes: 50_000, ..Setup::new(1 << 20, 1 << 20) };
    match Reader::open(Arc::new(files), Arc::clone(places) as _, &setup) {
        Ok(reader) => Some((reader, direct)),
        Err(e) => {
            assert!(e.message.contains("io_uring is not allowed"), "{e}");
            None
        }
    }
}

fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().expect("a folder")];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    folders
}

fn every_way() -> Vec<(PageCache, Method)> {
    let caches = [PageCache::Bypass, PageCache::Use];
    caches.into_iter().flat_map(|cache| [(cache, Method::Uring), (cache, Method::Threads)]).collect()
}

#[test]
fn every_way_of_reading_gives_the_files_bytes_on_every_file_system() {
    let end = FILE_BYTES + 77;
    let at = |file, offset, len: usize| (Place { file, offset }, len);
    let extents = [vec![at(0, 5, 200_000)], vec![at(1, end - 1, 1), at(2, end - 70_000, 70_000)], vec![at(0, 513, 1), at(1, 0, 513)]];
    let places = Arc::new(Places([block(0), block(1), panel(2)].into_iter().zip(extents).collect()));
    for folder in folders() {
        let paths = written(folder.path());
        for (cache, method) in every_way() {
            let Some((reader, direct)) = on_files(&paths, cache, method, &places) else { continue };
            assert!(cache == PageCache::Bypass || direct == DirectIo::None);
            assert_eq!(reader.method(), method);
            for turn in 0..3 {
                reader.want(turn, &[block(0), panel(2)]);
                for piece in [block(0), block(1), panel(2)] {
                    places.check(piece, &reader.take(piece).expect("reads"));
                }
            }
            let mut row = [0; 1_000];
            reader.copy(Place { file: 1, offset: end - 1_000 }, &mut row).expect("reads");
            assert!(row.iter().zip(end - 1_000..).all(|(&b, at)| b == byte(1, at)));
            let seen = reader.counters();
            assert!(seen.panel_bytes >= 3 * 514 + 1_000 && seen.block_bytes >= 3 * 270_001, "{seen:?}");
            assert!(seen.busy > Duration::ZERO && seen.waited > Duration::ZERO);
        }
    }
}

#[test]
fn a_shard_cut_short_after_it_was_indexed_is_told() {
    let places = Arc::new(Places([(block(0), vec![(Place { file: 1, offset: 200_000 }, 90_000)])].into()));
    for folder in folders() {
        for (cache, method) in every_way() {
            let paths = written(folder.path());
            let Some((reader, _)) = on_files(&paths, cache, method, &places) else { continue };
            let shard = std::fs::File::options().write(true).open(&paths[1]).expect("opens");
            shard.set_len(250_123).expect("cuts");
            let error = reader.take(block(0)).map(|_| ()).expect_err("the end is missing");
            assert_eq!(error.kind, Kind::Storage);
            for part in ["shard-1", "expert: 0", "byte 250123", "shrunk"] {
                assert!(error.message.contains(part), "{part}: {error}");
            }
            let copied = reader.copy(Place { file: 1, offset: 250_000 }, &mut [0; 200]).expect_err("the end is missing");
            assert_eq!(copied.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
