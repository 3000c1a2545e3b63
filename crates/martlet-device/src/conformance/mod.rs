//! The conformance suite: one function per operation, taking any device.
//!
//! Two questions are asked of every operation, on random inputs of awkward shapes (below, at and above tiles, pages and
//! blocks):
//! - *Is it right?* Results are compared with the reference device within a [`Tolerance`].
//! - *Does it keep the law?* The device is compared with itself, byte for byte: rows alone and among others, sequences
//!   cut in any way, drafts and `gdn_commit` against plain rows, states and pages moved by copy or through bytes, fused
//!   operations against the primitives they are made of.
//!
//! A device's test file is three lines:
//!
//! ```
//! use martlet_device::{conformance, reference::Reference};
//! conformance::run(&Reference::new, &conformance::Options::new(conformance::Tolerance::EXACT).only(&["rope"]));
//! ```
//!
//! [`run_against`] compares two devices: with [`Tolerance::EXACT`] it shows that one thread is as good as many, or one
//! instruction set as another.

mod add;
mod attention;
mod combine;
mod embed;
mod experts_forward;
mod fused;
mod gated_rms_norm;
mod gather;
mod gdn;
mod gdn_gates;
mod head_l2_norm;
mod head_rms_norm;
mod kv;
mod matmul;
mod matrices;
mod random;
mod report;
mod rms_norm;
mod rope;
mod route;
mod rows;
mod sample;
mod sequences;
mod shapes;
mod sigmoid_gate;
mod silu_mul;
#[cfg(test)]
mod tests;

pub use matrices::{RandomMatrix, schemes};
pub use random::Random;
pub use report::Report;
pub use shapes::{Shape, on_edge_shapes};

use crate::reference::Reference;
use crate::{Device, DeviceError};

/// How far a device may be from the one it is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of each value; where a sum cancels, of the magnitudes that were summed.
    pub relative: f32,
    /// For values so small that relative precision is lost.
    pub absolute: f32,
    /// The device rounds activations to 127 steps of the largest magnitude of each row and group
    /// ([`martlet_tensor::Scheme::activation_group`]) before products with quantised matrices that are not exact. Then a
    /// product may differ by the sum of |w| d / 2 over its groups, d being the step; inputs that lie on the steps get no
    /// such allowance.
    pub int8_activations: bool,
}

impl Tolerance {
    /// Every bit.
    pub const EXACT: Tolerance = Tolerance { relative: 0.0, absolute: 0.0, int8_activations: false };

    /// f32 arithmetic in another order: 256 additions lose at most 256 * 2^-24 of the magnitudes summed, elementary
    /// functions a few units in the last place.
    pub const ROUNDING: Tolerance = Tolerance { relative: 2e-5, absolute: 1e-30, int8_activations: false };

    /// [`Tolerance::ROUNDING`] with activations of 8 bits.
    pub const INT8_ACTIVATIONS: Tolerance = Tolerance { int8_activations: true, ..Tolerance::ROUNDING };
}

/// What to run, and how strictly.
#[derive(Clone, Debug)]
pub struct Options {
    pub tolerance: Tolerance,
    /// Of all random inputs.
    pub seed: u64,
    /// Names of operations; empty: all.
    pub only: Vec<String>,
}

impl Options {
    pub fn new(tolerance: Tolerance) -> Options {
        Options { tolerance, seed: 1, only: Vec::new() }
    }

    pub fn only(mut self, operations: &[&str]) -> Options {
        self.only = operations.iter().map(|o| o.to_string()).collect();
        self
    }
}

/// Runs the suite on a device against the reference. Panics with a report when anything failed.
pub fn run<D: Device>(make: &dyn Fn() -> D, options: &Options) {
    run_against(make, &Reference::new, options);
}

/// Runs the suite on a device against another device. Panics with a report when anything failed.
pub fn run_against<D: Device, R: Device>(make: &dyn Fn() -> D, other: &dyn Fn() -> R, options: &Options) {
    let report = check(make, other, options);
    println!("{report}");
    assert!(report.passed(), "the device does not conform:\n{report}");
}

/// As [`run_against`], and leaves the judgement to the caller.
pub fn check<D: Device, R: Device>(make: &dyn Fn() -> D, other: &dyn Fn() -> R, options: &Options) -> Report {
    let mut s = Suite { make, other, options, report: Report::default() };
    let operations: [(&str, Operation<D, R>); 23] = [
        ("embed", embed::embed),
        ("rms_norm", rms_norm::rms_norm),
        ("matmul", matmul::matmul),
        ("add", add::add),
        ("head_rms_norm", head_rms_norm::head_rms_norm),
        ("head_l2_norm", head_l2_norm::head_l2_norm),
        ("rope", rope::rope),
        ("kv", kv::kv),
        ("attention", attention::attention),
        ("sigmoid_gate", sigmoid_gate::sigmoid_gate),
        ("gdn_gates", gdn_gates::gdn_gates),
        ("gdn", gdn::gdn),
        ("gated_rms_norm", gated_rms_norm::gated_rms_norm),
        ("silu_mul", silu_mul::silu_mul),
        ("route", route::route),
        ("experts_forward", experts_forward::experts_forward),
        ("combine", combine::combine),
        ("gather", gather::gather),
        ("project", fused::project),
        ("norm_project", fused::norm_project),
        ("project_add", fused::project_add),
        ("qk_norm_rope_append", fused::qk_norm_rope_append),
        ("sample", sample::sample),
    ];
    for name in &options.only {
        assert!(operations.iter().any(|o| o.0 == name), "no operation is called {name}");
    }
    for (name, operation) in operations {
        if options.only.is_empty() || options.only.iter().any(|o| o == name) {
            s.report.begin(name);
            operation(&mut s);
        }
    }
    s.report
}

/// The checks of one operation.
type Operation<D, R> = fn(&mut Suite<'_, D, R>);

/// One run of the suite: what the functions of the operations work with.
struct Suite<'a, D, R> {
    make: &'a dyn Fn() -> D,
    other: &'a dyn Fn() -> R,
    options: &'a Options,
    report: Report,
}

impl<D: Device, R: Device> Suite<'_, D, R> {
    fn tolerance(&self) -> Tolerance {
        self.options.tolerance
    }

    /// Random numbers for one case.
    fn random(&self, case: u64) -> Random {
        Random::new(self.options.seed ^ (case << 32))
    }

    /// The value, or a note that the device can not do it, or a failure.
    fn done<T>(&mut self, case: &str, result: Result<T, DeviceError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(e @ DeviceError::Unsupported { .. }) => self.report.skip(case, &e.to_string()),
            Err(e) => self.report.fail(case, &e.to_string()),
        }
        None
    }

    /// Values that may differ by `allowed`, one for each.
    fn near(&mut self, case: &str, got: &[f32], want: &[f32], allowed: &[f32]) {
        let within = |i: usize| got[i].to_bits() == want[i].to_bits() || (got[i] - want[i]).abs() <= allowed[i];
        self.compare(case, got, want, within, |i| format!(", more than {} away", allowed[i]));
    }

    /// Values that must be the same, bit for bit.
    fn same(&mut self, case: &str, got: &[f32], want: &[f32]) {
        let same = |i: usize| got[i].to_bits() == want[i].to_bits();
        self.compare(case, got, want, same, |i| format!(" (bits {:08x}, {:08x})", got[i].to_bits(), want[i].to_bits()));
    }

    fn compare(
        &mut self,
        case: &str,
        got: &[f32],
        want: &[f32],
        good: impl Fn(usize) -> bool,
        detail: impl Fn(usize) -> String,
    ) {
        if got.len() != want.len() {
            self.report.fail(case, &format!("{} values, expected {}", got.len(), want.len()));
            return;
        }
        let bad: Vec<usize> = (0..got.len()).filter(|&i| !good(i)).collect();
        match bad.first() {
            None => self.report.pass(),
            Some(&i) => {
                let text = format!("value {i} is {:e}, expected {:e}{}", got[i], want[i], detail(i));
                self.report.fail(case, &format!("{} of {} values differ; {text}", bad.len(), got.len()));
            }
        }
    }

    /// Something that must hold.
    fn holds(&mut self, case: &str, good: bool, what: &str) {
        if good { self.report.pass() } else { self.report.fail(case, what) }
    }
}
