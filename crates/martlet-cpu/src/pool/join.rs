//! The fork and the join: how a job gets to the workers, and how its caller knows that it is over.
//!
//! `model.rs` compiles this file a second time, with a scheduler in the place of the system's.

use super::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use super::sync::thread::{self, JoinHandle, Thread};
use super::sync::{Arc, Mutex, MutexGuard, Shielded, spin};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

type Job = dyn Fn(usize) + Sync;

/// `threads - 1` workers and the caller.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a run: jobs come one at a time.
    turn: Mutex<()>,
}

struct Shared {
    /// Number of the job (high half), whether it takes workers still ([`OPEN`]), and how many have entered it.
    gate: AtomicU64,
    /// The present job and its number of parts. Written by the caller while no worker is inside, read by workers that
    /// have entered.
    job: Shielded<Option<(*const Job, usize)>>,
    /// The next part to be taken.
    next: AtomicUsize,
    /// Workers that have entered the present job and left it.
    done: AtomicUsize,
    stop: AtomicBool,
    sleeping: Vec<AtomicBool>,
    caller_sleeps: AtomicBool,
    caller: Mutex<Option<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: u64 = 1 << 31;

/// The number of the job.
fn number(gate: u64) -> u64 {
    gate >> 32
}

// SAFETY: `job` is the only member that is not Sync by itself. It is written only by the thread that holds `turn`, and
// only while no worker is inside; opening the gate and the counting of `done` order it before and after every read.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure, and is used only while the caller that owns it waits.
unsafe impl Send for Shared {}

/// Poison means that a job panicked; the data under these locks is whole all the same.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `done`: spins, then yields, then calls `park`, which returns when it may be time to look again.
fn wait(done: impl Fn() -> bool, park: impl Fn()) {
    if spin(&done) {
        return;
    }
    while !done() {
        park();
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let fresh = || number(self.gate.load(Ordering::SeqCst)) != seen;
            wait(fresh, || {
                // The flag goes up before the last look: either this thread sees the new job, or the caller the flag.
                self.sleeping[index].store(true, Ordering::SeqCst);
                if !fresh() {
                    thread::park();
                }
                self.sleeping[index].store(false, Ordering::SeqCst);
            });
            // The number first: the end is announced by another number, so whoever has seen that sees `stop` too, and
            // never waits for one more.
            seen = number(self.gate.load(Ordering::SeqCst));
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter(seen) {
                // SAFETY: the worker has entered, so the caller that stored the job waits for `done` to count it.
                unsafe { self.take_parts() };
                self.done.fetch_add(1, Ordering::SeqCst);
                if self.caller_sleeps.load(Ordering::SeqCst)
                    && let Some(caller) = lock(&self.caller).as_ref()
                {
                    caller.unpark();
                }
            }
        }
    }

    /// Enters job `wanted`, if it is the present one and still open.
    fn enter(&self, wanted: u64) -> bool {
        let more = |gate| (number(gate) == wanted && gate & OPEN != 0).then_some(gate + 1);
        self.gate.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    /// Does parts of the job until there are none left. A panic is kept for the caller.
    ///
    /// # Safety
    /// The job and the closure behind it must stay as they are during the call.
    unsafe fn take_parts(&self) {
        // SAFETY: nobody writes the job now, as the caller of this function promises.
        let Some((job, parts)) = (unsafe { self.job.get() }) else { return };
        // SAFETY: the closure is alive, as the caller of this function promises.
        let job = unsafe { &*job };
        let all = || {
            loop {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                job(part);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            // The rest of the job is of no use to anyone.
            self.next.store(parts, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller's included; at least 1.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let others = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: Shielded::new(None),
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleeping: (0..others).map(|_| AtomicBool::new(false)).collect(),
            caller_sleeps: AtomicBool::new(false),
            caller: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(others), turn: Mutex::new(()) };
        for index in 0..others {
            let shared = pool.shared.clone();
            let name = format!("martlet-cpu-{}", index + 1);
            // On failure the pool is dropped, which ends the workers so far.
            pool.workers.push(thread::Builder::new().name(name).spawn(move || shared.work(index))?);
        }
        Ok(pool)
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)` to `f(parts - 1)`, each once, on any threads. Returns when all have returned. A panic of any of them
    /// is raised here, after all threads have left. `f` must not call the pool.
    pub fn run<F: Fn(usize) + Sync>(&self, parts: usize, f: F) {
        if self.workers.is_empty() {
            return (0..parts).for_each(f);
        }
        let _turn = lock(&self.turn);
        let s = &*self.shared;
        let job: *const (dyn Fn(usize) + Sync + '_) = &f;
        // SAFETY: the lifetime is erased only for the time of this call, which does not return or unwind before every
        // worker that entered has left. No worker is inside now: the last call saw to that.
        unsafe { s.job.set(Some((std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job), parts))) };
        s.next.store(0, Ordering::SeqCst);
        s.done.store(0, Ordering::SeqCst);
        let next = number(s.gate.load(Ordering::SeqCst)) + 1;
        s.gate.store(next << 32 | OPEN, Ordering::SeqCst);
        for (sleeping, worker) in s.sleeping.iter().zip(&self.workers) {
            if sleeping.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        // SAFETY: the job is this call's own.
        unsafe { s.take_parts() };
        let entered = (s.gate.fetch_and(!OPEN, Ordering::SeqCst) & (OPEN - 1)) as usize;
        let done = || s.done.load(Ordering::SeqCst) == entered;
        wait(done, || {
            *lock(&s.caller) = Some(thread::current());
            s.caller_sleeps.store(true, Ordering::SeqCst);
            if !done() {
                thread::park();
            }
            s.caller_sleeps.store(false, Ordering::SeqCst);
        });
        let panic = lock(&s.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.gate.fetch_add(1 << 32, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}
