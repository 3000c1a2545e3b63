//! Minutes of mixed load on one engine, with every answer that is looked at held against a plain engine's.
//!
//!     tools/soak.sh [MINUTES]       (30 unless told)
//!
//! Conversations with history, cancelled and late requests, all drafters' paths, a disk tier, memory that is taken and
//! given back, and caches that are cleared. Every 10 seconds a line of statistics. Ends with an error where an answer
//! differs from the plain one, where resident memory grows beyond a bound after the warm-up, or where anything is left when
//! all is done.

use martlet_engine::{DrafterChoice, Engine, EngineOptions, Event, Finish, Handle, Priority, Request};
use martlet_tests::engines::{PAGE_BYTES, disk, fledgling, greedy, plain, request, run, sampled, start};
use martlet_tests::fixtures;
use martlet_tests::random::Rng;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const LINE: Duration = Duration::from_secs(10);
/// Resident memory may grow by so much over what it was after the warm-up.
const GROWTH: u64 = 96 << 20;
const CONTEXT: usize = 1024;
const POOL: u64 = 160 * PAGE_BYTES;

/// A request on its way; its answer so far.
struct Asked {
    request: Request,
    handle: Handle,
    conversation: usize,
    tokens: Vec<u32>,
    /// Tokens after which its caller goes away.
    leaves: Option<usize>,
}

struct Soak {
    engine: Engine,
    plain: Engine,
    rng: Rng,
    prompts: Vec<Vec<u32>>,
    /// Prompts of conversations so far; those with one running are not asked again meanwhile.
    conversations: Vec<Vec<u32>>,
    running: Vec<Asked>,
    /// Answers to be compared.
    checks: VecDeque<(Request, Vec<u32>)>,
    compared: usize,
    answered: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let minutes: f64 = std::env::args().nth(1).map_or(Ok(30.0), |a| a.parse())?;
    let time = Duration::from_secs_f64(60.0 * minutes);
    let warm = (time / 4).min(Duration::from_secs(120));
    let folder = tempfile::tempdir()?;
    let mut soak = Soak::new(folder.path());
    let begun = Instant::now();
    let (mut lines, mut baseline, mut highest) = (1, None, 0);
    while begun.elapsed() < time {
        soak.round()?;
        if begun.elapsed() >= LINE * lines {
            lines += 1;
            soak.line(begun.elapsed());
        }
        if begun.elapsed() >= warm {
            let resident = resident()?;
            let base = *baseline.get_or_insert(resident);
            highest = highest.max(resident);
            if resident > base + GROWTH {
                return Err(format!("{} MiB are resident, {} after the warm-up", resident >> 20, base >> 20).into());
            }
        }
    }
    soak.end()?;
    println!("warm {} MiB, highest {} MiB: nothing is left", baseline.unwrap_or(0) >> 20, highest >> 20);
    Ok(())
}

/// Bytes of memory that the system holds for this process.
fn resident() -> Result<u64, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split_whitespace().nth(1).ok_or("/proc/self/statm has no second number")?.parse()?;
    Ok(pages * 4096)
}

impl Soak {
    fn new(dir: &std::path::Path) -> Soak {
        let checkpoint = fledgling();
        let options = EngineOptions {
            context: Some(CONTEXT),
            sequences: 6,
            prefix_cache: true,
            drafter: DrafterChoice::Auto,
            pool_bytes: Some(POOL),
            disk: Some(martlet_engine::disk::DiskOptions { bytes: 200 << 20, ..disk(dir) }),
            model_key: b"fledgling".to_vec(),
            ..plain()
        };
        let prompts: Vec<Vec<u32>> =
            fixtures::prompts().into_iter().map(|(_, p)| p).filter(|p| p.len() < 400).collect();
        Soak {
            engine: start(&checkpoint, 2, options),
            plain: start(&checkpoint, 2, EngineOptions { context: Some(CONTEXT), ..plain() }),
            rng: Rng(71),
            conversations: vec![Vec::new(); 24],
            prompts,
            running: Vec::new(),
            checks: VecDeque::new(),
            compared: 0,
            answered: 0,
        }
    }

    /// One thing after another, at random.
    fn round(&mut self) -> Result<(), String> {
        match self.rng.below(400) {
            0 => self.engine.clear_cache(),
            1..3 => self.engine.set_memory(30 * PAGE_BYTES),
            3..8 => self.engine.set_memory(u64::MAX),
            _ => {}
        }
        if self.running.len() < 10 {
            self.ask();
        }
        let at = self.rng.below(self.running.len());
        for _ in 0..1 + self.rng.below(30) {
            if self.hear(at)? {
                break;
            }
        }
        // Few of them, so that most of the time is the engine's under test.
        if self.checks.len() >= 8 {
            self.check()?;
        }
        Ok(())
    }

    /// A conversation's next turn, or its beginning.
    fn ask(&mut self) {
        let free = |c: &usize| self.running.iter().all(|a| a.conversation != *c);
        let free: Vec<usize> = (0..self.conversations.len()).filter(free).collect();
        let conversation = free[self.rng.below(free.len())];
        let rng = &mut self.rng;
        let more = self.prompts[rng.below(self.prompts.len())].clone();
        let prompt = &mut self.conversations[conversation];
        if prompt.len() + more.len() + 64 > CONTEXT || rng.below(12) == 0 {
            prompt.clear();
        }
        prompt.extend(more);
        let sampling = if rng.below(2) == 0 { greedy() } else { sampled(rng.bits() >> 20) };
        let late = (rng.below(16) == 0).then(|| Duration::from_millis(rng.below(400) as u64));
        let request = Request {
            priority: if rng.below(4) == 0 { Priority::Background } else { Priority::Interactive },
            deadline: late.map(|late| Instant::now() + late),
            ..request(prompt, sampling, 60)
        };
        let leaves = (rng.below(6) == 0).then(|| rng.below(30));
        let handle = self.engine.submit(request.clone()).unwrap_or_else(|e| panic!("{e}"));
        self.running.push(Asked { request, handle, conversation, tokens: Vec::new(), leaves });
    }

    /// Takes in one event of a running request; true for its last one.
    fn hear(&mut self, at: usize) -> Result<bool, String> {
        let asked = &mut self.running[at];
        if asked.leaves.is_some_and(|n| asked.tokens.len() >= n) {
            asked.handle.cancel();
        }
        match asked.handle.next() {
            Event::Prefill { .. } => Ok(false),
            Event::Token(token) | Event::End(token) => {
                asked.tokens.push(token.id);
                Ok(false)
            }
            Event::Finished { reason, .. } => {
                let Asked { request, conversation, tokens, .. } = self.running.swap_remove(at);
                self.conversations[conversation].extend(&tokens);
                self.answered += 1;
                let whole = matches!(reason, Finish::Stop(_) | Finish::Length);
                if self.rng.below(if whole { 12 } else { 4 }) == 0 {
                    self.checks.push_back((request, tokens));
                }
                Ok(true)
            }
            Event::Failed(e) => Err(format!("a request failed: {e}")),
        }
    }

    /// Compares an answer, or what there is of it, with the plain one.
    fn check(&mut self) -> Result<(), String> {
        let Some((request, tokens)) = self.checks.pop_front() else { return Ok(()) };
        if tokens.is_empty() {
            return Ok(());
        }
        let wanted = Request { deadline: None, max_tokens: Some(tokens.len()), ..request };
        let expected = run(&self.plain, wanted).0.tokens;
        self.compared += 1;
        if tokens == expected { Ok(()) } else { Err(format!("an answer differs:\n{tokens:?}\n{expected:?}")) }
    }

    fn line(&self, time: Duration) {
        let s = self.engine.stats();
        let resident = resident().unwrap_or(0) >> 20;
        println!(
            "{:5.0} s  {resident} MiB resident  {} answered, {} compared  running {} waiting {} preempted {}  pages {} of {}  \
             kept {} ({} MiB), hits {} memory {} disk, {} evicted  drafts {}/{} head {}/{} look-up",
            time.as_secs_f64(),
            self.answered,
            self.compared,
            s.running,
            s.waiting,
            s.preempted,
            s.pages,
            s.pages_limit,
            s.cache.entries,
            s.cache.state_bytes >> 20,
            s.cache.memory_hits,
            s.cache.disk_hits,
            s.cache.evicted,
            s.mtp.accepted,
            s.mtp.drafted,
            s.suffix.accepted,
            s.suffix.drafted,
        );
    }

    /// Hears everybody out; then nothing may be left.
    fn end(&mut self) -> Result<(), String> {
        self.engine.set_memory(u64::MAX);
        while !self.running.is_empty() {
            while !self.hear(0)? {}
        }
        while !self.checks.is_empty() {
            self.check()?;
        }
        self.engine.clear_cache();
        for _ in 0..1000 {
            let s = self.engine.stats();
            if (s.running, s.waiting, s.pages, s.cache.entries) == (0, 0, 0, 0) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("something is left: {:?}", self.engine.stats()))
    }
}
