use super::*;
use xxhash_rust::xxh3::xxh3_64;

/// Large enough for pieces of several parts.
const SLOT: usize = 3 << 20;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

/// A file, and pieces of it: (offset, bytes).
fn file(dir: &tempfile::TempDir, len: usize) -> (PathBuf, Vec<u8>) {
    let (path, bytes) = (dir.path().join("experts.bin"), bytes(len));
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

fn piece(ticket: u64, content: &[u8], offset: usize, bytes: usize) -> Piece {
    Piece { ticket, offset: offset as u64, bytes, xxh3: Some(xxh3_64(&content[offset..offset + bytes])) }
}

/// A reader of each way that this system has.
fn readers(path: &Path, threads: usize) -> Vec<Reader> {
    let readers = vec![Reader::with_threads(path, threads).unwrap(), Reader::open(path, threads).unwrap()];
    readers.iter().for_each(|r| eprintln!("{}, direct reads: {}", r.way(), r.is_direct()));
    readers
}

#[test]
fn pieces_come_whole_in_any_number() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(&dir, 9 << 20);
    for mut reader in [1, 3, 16].into_iter().flat_map(|threads| readers(&path, threads)) {
        let lens = [1, 4096, 4097, 100_000, PART, PART + 1, 2 * PART + 5, SLOT - 7, SLOT];
        let pieces: Vec<Piece> = lens
            .iter()
            .enumerate()
            .map(|(i, len)| piece(i as u64, &content, i * 700 * 1024 / 4096 * 4096, *len))
            .collect();
        let mut slots = Slot::many(pieces.len(), SLOT).unwrap();
        for round in 0..3 {
            slots.iter_mut().for_each(|s| s.fill(round));
            for (p, slot) in pieces.iter().zip(slots.drain(..)) {
                reader.submit(*p, slot);
            }
            for _ in &pieces {
                let done = reader.wait();
                done.result.unwrap();
                let Piece { offset, bytes, .. } = pieces[done.ticket as usize];
                assert!(done.slot[..bytes] == content[offset as usize..][..bytes], "piece {}", done.ticket);
                slots.push(done.slot);
            }
            assert!(reader.poll().is_none());
        }
        let busy = reader.busy();
        assert!(busy > Duration::ZERO && busy == reader.busy(), "nothing is in flight any more");
    }
}

#[test]
fn a_slower_disk_gives_the_same_pieces_later() {
    const PIECES: usize = 6;
    const LEN: usize = 500_000;
    /// Bytes a second: the pieces take 60 ms.
    const RATE: u64 = 50_000_000;
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(&dir, 4 << 20);
    for mut reader in readers(&path, 4) {
        reader.limit(RATE);
        for _ in 0..2 {
            // What is not asked for while nobody reads is not given later.
            std::thread::sleep(Duration::from_millis(5));
            let started = Instant::now();
            for (i, slot) in Slot::many(PIECES, SLOT).unwrap().into_iter().enumerate() {
                reader.submit(piece(i as u64, &content, i * 4096, LEN), slot);
            }
            for n in 1..=PIECES as u64 {
                let done = reader.wait();
                done.result.unwrap();
                assert!(done.slot[..LEN] == content[done.ticket as usize * 4096..][..LEN]);
                assert!(
                    started.elapsed() >= Duration::from_secs_f64((n * LEN as u64) as f64 / RATE as f64),
                    "piece {n}"
                );
            }
            assert!(reader.poll().is_none());
        }
        assert!(reader.busy() >= Duration::from_millis(120));
    }
}

#[test]
fn a_reader_can_be_dropped_while_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(&dir, 4 << 20);
    for mut reader in readers(&path, 4) {
        // More parts than the system takes at a time.
        for (i, slot) in Slot::many(40, SLOT).unwrap().into_iter().enumerate() {
            reader.submit(piece(i as u64, &content, i * 4096, SLOT), slot);
        }
        reader.wait().result.unwrap();
    }
}

/// What reading `bytes` bytes at `offset` gives, and that the reader works afterwards.
fn failure(reader: &mut Reader, p: Piece) -> String {
    reader.submit(p, Slot::many(1, SLOT).unwrap().remove(0));
    reader.wait().result.unwrap_err().to_string()
}

#[test]
fn damage_is_told_with_file_and_offset_and_the_reader_goes_on() {
    for way in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (path, content) = file(&dir, 4 << 20);
        damage(&path, content, readers(&path, 4).remove(way));
    }
}

fn damage(path: &Path, mut content: Vec<u8>, mut reader: Reader) {
    let (good, bad) = (piece(0, &content, 0, SLOT), piece(1, &content, 1 << 20, SLOT));
    let works = |reader: &mut Reader, content: &[u8]| {
        reader.submit(good, Slot::many(1, SLOT).unwrap().remove(0));
        let done = reader.wait();
        done.result.unwrap();
        assert!(done.slot[..SLOT] == content[..SLOT]);
    };
    works(&mut reader, &content);
    // A flipped bit, in the file's last byte.
    content[(4 << 20) - 1] ^= 16;
    std::fs::write(path, &content).unwrap();
    let text = failure(&mut reader, bad);
    assert!(text.contains("experts.bin") && text.contains("at byte 1048576") && text.contains("xxh3"), "{text}");
    works(&mut reader, &content);
    // A cut file: at a block's border, and inside one.
    for end in [(4 << 20) - 8192, (4 << 20) - 5] {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(end).unwrap();
        let text = failure(&mut reader, bad);
        assert!(text.contains("experts.bin") && text.contains("at byte 1048576"), "{text}");
        assert!(text.contains(&format!("ends at byte {end}")), "{text}");
        works(&mut reader, &content);
        std::fs::write(path, &content).unwrap();
    }
    // Another file under the same name: the one that was opened is read on.
    let other = path.with_file_name("new");
    std::fs::write(&other, b"other").unwrap();
    std::fs::rename(&other, path).unwrap();
    works(&mut reader, &content);
}

#[test]
fn the_last_block_need_not_be_full() {
    let dir = tempfile::tempdir().unwrap();
    let (path, content) = file(&dir, (1 << 20) + 77);
    for mut reader in readers(&path, 2) {
        reader.submit(piece(0, &content, 4096, (1 << 20) + 77 - 4096), Slot::many(1, SLOT).unwrap().remove(0));
        reader.wait().result.unwrap();
    }
}

#[test]
fn what_can_not_be_opened_or_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = |path: &Path| Reader::open(path, 1).err().unwrap().to_string();
    assert!(text(&dir.path().join("none")).contains("none"));
    assert!(text(dir.path()).contains(&dir.path().display().to_string()));
    // A descriptor that can not be read stands for a disk that fails.
    let (path, content) = file(&dir, 1 << 20);
    let file = || std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let opened = || Arc::new(Opened { path: path.clone(), file: file(), direct: false });
    let mut failing = vec![Reader::threads(opened(), 1).unwrap()];
    #[cfg(target_os = "linux")]
    if let Ok(ring) = ring::Ring::new(opened()) {
        failing.push(Reader { file: opened(), way: Way::Ring(Box::new(ring)), throttle: None });
    }
    for mut reader in failing {
        let text = failure(&mut reader, piece(0, &content, 8192, 5000));
        assert!(text.contains("experts.bin") && text.contains("5000 bytes at byte 8192 failed"), "{text}");
    }
}

#[test]
fn a_disk_has_a_speed() {
    let dir = tempfile::tempdir().unwrap();
    let (path, _) = file(&dir, 2 << 20);
    let read = speed(&path, 100_000, 4, 1 << 20).unwrap();
    assert!(read.bytes == 1_000_000 && read.bytes_per_second() > 0.0, "{read:?}");
    assert!(speed(&path, 16 << 20, 4, 1).is_ok(), "pieces larger than the file");
    assert!(speed(dir.path(), 4096, 1, 4096).is_err());
}
