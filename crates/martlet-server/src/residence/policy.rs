//! Who is let in, and when the resident model makes room: a function of what is asked for and of the time.
//!
//! Requests are let in in their order, but for one thing: after a model has been loaded, those for it go first for a
//! while, its *tenure*, so that clients of two models who ask in turn do not have all the time spent on loading. A tenure
//! is so many times as long as the loading took, and ends: then the oldest request's model has its turn, once the
//! requests that run have ended.

use std::time::{Duration, Instant};

/// Of the time that two models share whose clients keep them busy, about a fifth goes into loading.
const TENURE: u32 = 4;
const SHORTEST: Duration = Duration::from_millis(250);
/// However long loading takes, nobody waits longer for others to begin.
const LONGEST: Duration = Duration::from_secs(60);
/// Within its tenure, a model without work waits a little for its client's next request.
const LINGER: u32 = 8;

/// What there is to know of the resident model.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    pub loaded: Instant,
    /// What loading it took.
    pub load_time: Duration,
    /// Requests that run.
    pub running: usize,
    /// Since when there are none.
    pub idle: Instant,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Let all in that wait for the resident model.
    Admit,
    /// Load what the oldest request waits for.
    Switch,
    /// Look again when something changes, or at this time.
    Wait(Option<Instant>),
}

impl Resident {
    fn tenure_ends(&self) -> Instant {
        self.loaded + (self.load_time * TENURE).clamp(SHORTEST, LONGEST)
    }

    /// Whether a request for this model may begin at once; `others`: some wait for other models.
    pub fn is_open(&self, others: bool, now: Instant) -> bool {
        !others || now < self.tenure_ends()
    }

    /// The next step; `own` and `others` wait for this model, and for others.
    pub fn next(&self, own: bool, others: bool, now: Instant) -> Step {
        if own && self.is_open(others, now) {
            return Step::Admit;
        }
        if !others || self.running > 0 {
            // The end of the last request, or another request, is a change.
            return Step::Wait(None);
        }
        let linger = (self.load_time / LINGER).clamp(SHORTEST / LINGER, LONGEST / LINGER);
        match self.tenure_ends().min(self.idle + linger) {
            until if now < until => Step::Wait(Some(until)),
            _ => Step::Switch,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loaded in a second, with so many requests.
    fn resident(running: usize) -> (Resident, impl Fn(u64) -> Instant) {
        let start = Instant::now();
        let at = move |ms| start + Duration::from_millis(ms);
        (Resident { loaded: start, load_time: Duration::from_secs(1), running, idle: start }, at)
    }

    #[test]
    fn alone_a_model_takes_all_that_comes() {
        let (resident, at) = resident(3);
        assert!(resident.is_open(false, at(1_000_000)));
        assert_eq!(resident.next(true, false, at(1_000_000)), Step::Admit);
        assert_eq!(resident.next(false, false, at(1_000_000)), Step::Wait(None));
    }

    #[test]
    fn its_requests_go_first_until_its_tenure_ends() {
        let (busy, at) = resident(1);
        assert!(busy.is_open(true, at(3999)) && !busy.is_open(true, at(4000)));
        assert_eq!(busy.next(true, true, at(3999)), Step::Admit);
        assert_eq!(busy.next(true, true, at(4000)), Step::Wait(None), "what runs may end");
        let (free, at) = resident(0);
        assert_eq!(free.next(true, true, at(4000)), Step::Switch, "though more wait for it");
    }

    #[test]
    fn a_model_without_work_lingers_and_goes() {
        let (free, at) = resident(0);
        assert_eq!(free.next(false, true, at(100)), Step::Wait(Some(at(125))));
        assert_eq!(free.next(false, true, at(125)), Step::Switch);
        let late = Resident { idle: at(5000), ..free };
        assert_eq!(late.next(false, true, at(5000)), Step::Switch, "not after its tenure");
    }

    #[test]
    fn tenures_are_bounded() {
        let (resident, at) = resident(1);
        let slow = Resident { load_time: Duration::from_secs(600), ..resident };
        assert!(slow.is_open(true, at(59_999)) && !slow.is_open(true, at(60_000)));
        let quick = Resident { load_time: Duration::ZERO, ..resident };
        assert!(quick.is_open(true, at(249)) && !quick.is_open(true, at(250)));
    }
}
