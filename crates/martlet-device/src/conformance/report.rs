//! What the suite found: for each operation the number of checks, the first failures in full, and what was not run.

use std::fmt;

/// Failures that are shown in full for each operation.
const SHOWN: usize = 3;

#[derive(Clone, Debug, Default)]
pub struct Report {
    operations: Vec<Operation>,
}

#[derive(Clone, Debug, Default)]
struct Operation {
    name: &'static str,
    checks: usize,
    failures: usize,
    shown: Vec<String>,
    skipped: Vec<String>,
}

impl Report {
    pub fn passed(&self) -> bool {
        self.operations.iter().all(|o| o.failures == 0)
    }

    /// Operations with failures.
    pub fn failed(&self) -> Vec<&'static str> {
        self.operations.iter().filter(|o| o.failures > 0).map(|o| o.name).collect()
    }

    pub(super) fn begin(&mut self, name: &'static str) {
        self.operations.push(Operation { name, ..Operation::default() });
    }

    fn current(&mut self) -> &mut Operation {
        self.operations.last_mut().expect("an operation has begun")
    }

    pub(super) fn pass(&mut self) {
        self.current().checks += 1;
    }

    pub(super) fn fail(&mut self, case: &str, what: &str) {
        let o = self.current();
        o.checks += 1;
        o.failures += 1;
        if o.shown.len() < SHOWN {
            o.shown.push(format!("{case}: {what}"));
        }
    }

    /// Notes once what a device declares that it can not do.
    pub(super) fn skip(&mut self, case: &str, why: &str) {
        let o = self.current();
        if !o.skipped.iter().any(|s| s.ends_with(why)) {
            o.skipped.push(format!("{case}: {why}"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for o in &self.operations {
            let verdict = if o.failures == 0 { "ok" } else { "FAILED" };
            writeln!(f, "{}: {verdict}, {} of {} checks failed", o.name, o.failures, o.checks)?;
            for text in &o.shown {
                writeln!(f, "  {text}")?;
            }
            if o.failures > o.shown.len() {
                writeln!(f, "  and {} more", o.failures - o.shown.len())?;
            }
            for text in &o.skipped {
                writeln!(f, "  NOT RUN: {text}")?;
            }
        }
        Ok(())
    }
}
