use super::*;

#[test]
fn the_reference_conforms_to_itself() {
    run(&Reference::new, &Options::new(Tolerance::EXACT));
}
