//! Fixtures, random checkpoints and the byte comparison that the tests of several crates share.
