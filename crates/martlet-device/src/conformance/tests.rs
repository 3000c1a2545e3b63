//! The suite against devices that are known to be right, and against devices with one planted fault each.

mod faulty;

use super::*;
use faulty::{Fault, Faulty};

fn failed(operation: &'static str, fault: Fault, only: &[&str], tolerance: Tolerance) -> Vec<&'static str> {
    let make = || Faulty::new(operation, fault);
    check(&make, &Reference::new, &Options::new(tolerance).only(only)).failed()
}

#[test]
fn the_reference_conforms_to_itself() {
    run(&Reference::new, &Options::new(Tolerance::EXACT));
}

#[test]
fn wrong_values_are_found() {
    for operation in faulty::COMPUTING {
        let only = faulty::home(operation);
        let found = failed(operation, Fault::Wrong, &[only], Tolerance::INT8_ACTIVATIONS);
        assert_eq!(found, [only], "{operation} is wrong");
    }
}

/// The last bit of one value is within any tolerance; that it changes with the rows beside it is what counts.
#[test]
fn a_bit_that_depends_on_company_is_found() {
    for operation in faulty::COMPUTING {
        let only = faulty::home(operation);
        let found = failed(operation, Fault::Company, &[only], Tolerance::ROUNDING);
        assert_eq!(found, [only], "{operation} depends on company");
    }
}

#[test]
fn work_on_states_and_pages_that_is_not_done_is_found() {
    for (operation, only) in [
        ("gdn_commit", "gdn"),
        ("delta_clear", "gdn"),
        ("delta_copy", "gdn"),
        ("delta_import", "gdn"),
        ("kv_clear", "kv"),
        ("kv_release", "kv"),
        ("kv_copy", "kv"),
        ("kv_import", "kv"),
        ("kv_append", "attention"),
    ] {
        let found = failed(operation, Fault::Omitted, &[only], Tolerance::ROUNDING);
        assert_eq!(found, [only], "{operation} does nothing");
    }
}

/// Activations of 8 bits stay within their own bound, and are noticed where they are not declared.
#[test]
fn quantised_activations_are_judged_by_their_own_bound() {
    let only = ["matmul", "project", "norm_project", "project_add"];
    let found = |tolerance| failed("", Fault::QuantisedActivations, &only, tolerance);
    assert_eq!(found(Tolerance::INT8_ACTIVATIONS), [""; 0]);
    assert!(found(Tolerance::ROUNDING).contains(&"matmul"));
}

#[test]
fn what_a_device_can_not_do_is_said() {
    let make = || Faulty::new("kv", Fault::Unsupported);
    let report = check(&make, &Reference::new, &Options::new(Tolerance::EXACT).only(&["kv", "attention"]));
    assert!(report.passed());
    assert!(report.to_string().contains("NOT RUN"), "{report}");
}

#[test]
fn reports_show_three_failures_and_count_the_rest() {
    let mut report = Report::default();
    report.begin("rope");
    report.pass();
    (0..5).for_each(|i| report.fail(&format!("case {i}"), "wrong"));
    let text = report.to_string();
    assert_eq!(report.failed(), ["rope"]);
    assert!(text.contains("5 of 6") && text.contains("case 2") && !text.contains("case 3"), "{text}");
    assert!(text.contains("and 2 more"), "{text}");
}
