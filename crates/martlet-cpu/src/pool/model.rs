//! A check of `join.rs` by a scheduler that tries many orders of its threads' steps. It ends with a failure when all
//! threads wait for each other (a wake-up was lost) or an assertion fails.
//!
//!     cargo test --release -p martlet-cpu model
//!
//! The scheduler takes every atomic operation as sequentially consistent, which those of the protocol are.

#[allow(clippy::duplicate_mod)]
#[path = "join.rs"]
mod join;

/// As `sync.rs`.
mod sync {
    pub use shuttle::sync::{Arc, Mutex, MutexGuard, atomic};
    pub use shuttle::thread;

    use std::sync::Mutex as Plain;
    use std::sync::atomic::{AtomicIsize, Ordering};

    /// One look: threads park at once, which is the way with the most to go wrong.
    pub fn spin(done: &impl Fn() -> bool) -> bool {
        done()
    }

    /// Fails when it is read while it is written, or written at the same time twice. Other threads get a turn in between.
    pub struct Shielded<T> {
        value: Plain<T>,
        /// Readers; -1: one that writes.
        users: AtomicIsize,
    }

    impl<T: Copy> Shielded<T> {
        pub fn new(value: T) -> Shielded<T> {
            Shielded { value: Plain::new(value), users: AtomicIsize::new(0) }
        }

        pub unsafe fn get(&self) -> T {
            assert!(self.users.fetch_add(1, Ordering::SeqCst) >= 0, "read while it is written");
            thread::yield_now();
            self.users.fetch_sub(1, Ordering::SeqCst);
            *self.value.lock().expect("no panic under this lock")
        }

        pub unsafe fn set(&self, value: T) {
            assert_eq!(self.users.swap(-1, Ordering::SeqCst), 0, "written while it is in use");
            thread::yield_now();
            *self.value.lock().expect("no panic under this lock") = value;
            self.users.store(0, Ordering::SeqCst);
        }
    }
}

use join::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Orders that are tried of each case, half of them at random, half with few changes of thread at the worst places.
const ORDERS: usize = 20_000;

fn check(case: impl Fn() + Send + Sync + 'static) {
    let case = Arc::new(case);
    for changes in 1..=4 {
        let case = case.clone();
        shuttle::check_pct(move || case(), ORDERS / 8, changes);
    }
    shuttle::check_random(move || case(), ORDERS / 2);
}

/// Runs a job: every part once, and none after the run.
fn job(pool: &Pool, parts: usize) {
    let alive = Arc::new(AtomicBool::new(true));
    let done: Arc<Vec<AtomicUsize>> = Arc::new((0..parts).map(|_| AtomicUsize::new(0)).collect());
    let (still, count) = (alive.clone(), done.clone());
    pool.run(parts, move |part| {
        assert!(still.load(Ordering::SeqCst), "part {part} began after the run");
        shuttle::thread::yield_now();
        assert!(still.load(Ordering::SeqCst), "part {part} outlived the run");
        count[part].fetch_add(1, Ordering::SeqCst);
    });
    alive.store(false, Ordering::SeqCst);
    assert!(done.iter().all(|n| n.load(Ordering::SeqCst) == 1), "{done:?}");
}

#[test]
fn every_part_runs_once_and_no_wake_up_is_lost() {
    check(|| {
        let pool = Pool::new(3).expect("threads");
        assert_eq!(pool.threads(), 3);
        for parts in [1, 3, 2, 0] {
            job(&pool, parts);
        }
    });
}

#[test]
fn workers_that_come_late_do_no_harm() {
    check(|| {
        let pool = Pool::new(2).expect("threads");
        (0..4).for_each(|_| job(&pool, 2));
    });
}

#[test]
fn callers_take_turns() {
    check(|| {
        let pool = Arc::new(Pool::new(2).expect("threads"));
        let other = pool.clone();
        let thread = shuttle::thread::spawn(move || job(&other, 2));
        job(&pool, 3);
        thread.join().expect("the other caller");
    });
}

/// Parts that wait for each other need both threads: a worker that sleeps on would never end.
#[test]
fn sleeping_workers_are_woken() {
    check(|| {
        let pool = Pool::new(2).expect("threads");
        for _ in 0..3 {
            let meet = shuttle::sync::Barrier::new(2);
            pool.run(2, |_| {
                meet.wait();
            });
        }
    });
}
