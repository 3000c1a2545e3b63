//! The conformance suite: one function per operation, taking any device and comparing it with the reference.
