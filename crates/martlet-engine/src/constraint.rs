//! What an answer must follow: a grammar, a schema, a list of choices. The engine knows only which tokens may come next.

/// A rule for answers, to be followed from the first token on.
pub trait Rule: Send + Sync + std::fmt::Debug {
    /// The rule at the beginning of an answer.
    fn start(&self) -> Box<dyn Constraint>;
}

/// A rule in the midst of one answer. Runs on the engine's thread: every call should take microseconds.
pub trait Constraint: Send {
    /// Tokens that may come next, one bit each, least significant first; `None`: all.
    fn mask(&mut self) -> Option<Vec<u32>>;

    /// Whether `token` may come next: its bit of the mask, without the work for the others. Where a token can be drawn before
    /// it is known what is allowed, only this is asked as long as the model does what it should.
    fn allows(&mut self, token: u32) -> bool;

    /// Goes on behind `token`, which was allowed.
    fn advance(&mut self, token: u32);

    /// Takes back the last `tokens` calls of [`Constraint::advance`].
    fn rollback(&mut self, tokens: usize);
}
