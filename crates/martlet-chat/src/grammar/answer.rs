//! A whole answer, token by token: thinking, then free text, a format, or tool calls.

use std::collections::VecDeque;
use std::sync::Arc;

use llguidance::toktrie::Recognizer;

use super::bits::Bits;
use super::compile::CompiledFormat;
use super::frame::{Call, Place, Step, advance};
use super::json::Follower;
use super::tools::{CallGrammar, Kind};
use super::{CALL, THINK_END, Vocabulary};

/// Tokens that can be taken back. Drafts are fewer.
pub const MAX_ROLLBACK: usize = 64;
/// Newlines between the closing tag of thinking and what follows; the templates of the family have two.
const MAX_GAP: u8 = 2;

/// How an answer may think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// The prompt ends inside thinking.
    pub open: bool,
    /// It does not, but the model may begin its answer with the opening tag.
    pub may_open: bool,
    /// Most tokens of thinking; then it is closed.
    pub budget: Option<usize>,
}

/// What follows the thinking. All of it absent: anything.
#[derive(Clone, Default)]
pub struct Body {
    pub format: Option<Arc<CompiledFormat>>,
    /// Tools that may be called, beside the format or instead of it.
    pub calls: Option<Arc<CallGrammar>>,
    /// There must be a call, and nothing else.
    pub required: bool,
    /// At most one call.
    pub single: bool,
}

/// What an answer must follow from its first token on.
#[derive(Clone)]
pub struct AnswerRule {
    vocabulary: Arc<Vocabulary>,
    thinking: Thinking,
    body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first token, where thinking may be opened.
    First,
    /// `tag`: bytes of the closing tag; `forced`: tokens of it that the budget has forced.
    Thinking {
        tag: u8,
        tokens: u32,
        forced: u8,
    },
    /// Behind the closing tag.
    Gap {
        newlines: u8,
    },
    /// Text; `tag`: bytes of the tag that opens a call. `closed`: there may be none.
    Free {
        tag: u8,
        closed: bool,
    },
    /// `fresh`: before its first token, where a call may come instead.
    Format {
        fresh: bool,
    },
    Call(Call),
    /// Behind a call, where only another may follow.
    Between {
        newlines: u8,
    },
}

impl AnswerRule {
    pub fn new(vocabulary: Arc<Vocabulary>, thinking: Thinking, body: Body) -> AnswerRule {
        AnswerRule { vocabulary, thinking, body }
    }

    /// The tokens that it speaks of.
    pub fn vocabulary(&self) -> &Arc<Vocabulary> {
        &self.vocabulary
    }

    /// What follows the thinking.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// At the beginning of an answer.
    pub fn start(&self) -> AnswerMatcher {
        let state = match self.thinking {
            Thinking { open: true, .. } => State::Thinking { tag: 0, tokens: 0, forced: 0 },
            Thinking { may_open: true, .. } => State::First,
            _ => self.body_start(),
        };
        let mut matcher = AnswerMatcher {
            rule: self.clone(),
            state,
            steps: VecDeque::new(),
            inner: VecDeque::new(),
            count: 0,
            broken: false,
        };
        matcher.open_inner();
        matcher
    }

    fn body_start(&self) -> State {
        match &self.body {
            Body { required: true, .. } => State::Call(Call::open()),
            Body { format: Some(_), .. } => State::Format { fresh: true },
            _ => State::Free { tag: 0, closed: false },
        }
    }

    /// Whether text may come freely after the thinking.
    fn is_free(&self) -> bool {
        self.body.format.is_none() && !self.body.required
    }

    /// The state behind one more byte of text; `None`: the byte may not come.
    fn step(&self, state: State, byte: u8) -> Option<State> {
        match state {
            State::First => self.step(self.body_start(), byte),
            State::Thinking { tag, tokens, forced } => {
                let tag = advance(THINK_END, tag, byte);
                Some(match tag as usize == THINK_END.len() {
                    true if self.is_free() => self.body_start(),
                    true => State::Gap { newlines: 0 },
                    false => State::Thinking { tag, tokens, forced },
                })
            }
            State::Gap { newlines } if byte == b'\n' && newlines < MAX_GAP => {
                Some(State::Gap { newlines: newlines + 1 })
            }
            State::Gap { .. } => self.step(self.body_start(), byte),
            State::Free { closed, tag } => {
                let Some(calls) = &self.body.calls else { return Some(state) };
                let tag = advance(CALL, tag, byte);
                match tag as usize == CALL.len() {
                    true if closed => None,
                    true => Some(State::Call(Call::opened(calls))),
                    false => Some(State::Free { tag, closed }),
                }
            }
            // A format begins with a token; what else may begin here is a call.
            State::Format { fresh: true } if self.body.calls.is_some() => self.step(State::Call(Call::open()), byte),
            State::Format { .. } => None,
            State::Call(call) => match call.step(self.body.calls.as_ref()?, byte) {
                Step::On(call) => Some(State::Call(call)),
                Step::Closed => Some(match self.is_free() {
                    true => State::Free { tag: 0, closed: self.body.single },
                    false => State::Between { newlines: 0 },
                }),
                Step::Refused => None,
            },
            State::Between { newlines } => match byte {
                b'\n' if newlines < MAX_GAP => Some(State::Between { newlines: newlines + 1 }),
                b'<' if !self.body.single => self.step(State::Call(Call::open()), byte),
                _ => None,
            },
        }
    }

    /// The state behind the bytes of a token.
    fn run(&self, state: State, token: u32) -> Option<State> {
        let state = match state {
            State::Call(Call { place: Place::Json { parameter, closing, .. }, .. }) => {
                state.with_place(Place::Json { parameter, fresh: false, closing })
            }
            State::Call(Call { place: Place::Arguments { .. }, .. }) => {
                state.with_place(Place::Arguments { fresh: false })
            }
            other => other,
        };
        self.vocabulary.bytes(token).iter().try_fold(state, |state, byte| self.step(state, *byte))
    }
}

impl State {
    fn with_place(self, place: Place) -> State {
        match self {
            State::Call(call) => State::Call(Call { place, ..call }),
            other => other,
        }
    }

    /// Whether what llguidance follows begins here.
    fn begins_json(self) -> bool {
        let State::Call(call) = self else { return false };
        matches!(call.place, Place::Json { fresh: true, .. } | Place::Arguments { fresh: true })
    }

    /// Whether llguidance follows the text here.
    fn is_inner(self) -> bool {
        match self {
            State::Format { .. } => true,
            State::Call(call) => matches!(call.place, Place::Json { .. } | Place::Arguments { .. }),
            _ => false,
        }
    }
}

/// A rule in the midst of one answer.
pub struct AnswerMatcher {
    rule: AnswerRule,
    state: State,
    /// What the latest tokens came from, the latest last.
    steps: VecDeque<Taken>,
    /// What llguidance follows, the innermost last; those that ended are kept as long as they may be come back to.
    inner: VecDeque<Inner>,
    /// Tokens so far.
    count: usize,
    /// llguidance gave up: nothing is allowed any more.
    broken: bool,
}

struct Taken {
    before: State,
    /// The innermost follower took the token too.
    by_inner: bool,
    /// A follower began behind the token.
    began: bool,
}

struct Inner {
    follower: Follower,
    /// The number of tokens with which it ended.
    ended: Option<usize>,
}

/// What a token leads to.
struct Next {
    state: State,
    by_inner: bool,
}

impl AnswerMatcher {
    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        match self.state {
            State::Thinking { .. } => self.rule.is_free() && !self.is_out_of_budget(),
            // Some forms take an empty answer.
            State::First | State::Gap { .. } | State::Format { .. } if self.uses_inner() => {
                self.follower().is_some_and(Follower::may_end)
            }
            State::First | State::Free { .. } => self.rule.is_free(),
            State::Gap { .. } | State::Format { .. } | State::Call(_) => false,
            State::Between { .. } => true,
        }
    }

    /// Whether `token` may come next: the bit of [`AnswerMatcher::mask`], but found in microseconds.
    pub fn allows(&mut self, token: u32) -> bool {
        if token as usize >= self.rule.vocabulary.size() {
            return self.mask().is_none();
        }
        if self.is_free_of(token) {
            return true;
        }
        if self.rule.vocabulary.ends().contains(&token) {
            return self.may_end();
        }
        self.next(token).is_some()
    }

    /// Tokens that may come next, one bit each, least significant first; `None`: all.
    pub fn mask(&mut self) -> Option<Vec<u32>> {
        let vocabulary = self.rule.vocabulary.clone();
        let mut mask = match self.state {
            _ if self.broken => Bits::none(vocabulary.size()),
            State::Thinking { forced, .. } if self.is_out_of_budget() => {
                let mut only = Bits::none(vocabulary.size());
                vocabulary.think_end.get(forced as usize).into_iter().for_each(|t| only.set(*t));
                return Some(only.into_words());
            }
            State::Thinking { .. } | State::Free { .. } => return self.free_mask(),
            State::First if self.rule.is_free() => return self.free_mask(),
            State::Call(Call { place: Place::Text(_), .. }) => self.without_refused(vocabulary.text.clone()),
            State::Call(_) if self.state.is_inner() => {
                let inner = self.inner_mask();
                self.without_refused(inner)
            }
            State::Format { fresh } => {
                let mut mask = self.inner_mask();
                if fresh && self.rule.body.calls.is_some() {
                    mask.add(&self.walk());
                }
                mask
            }
            State::First | State::Gap { .. } if self.rule.body.format.is_some() && !self.rule.body.required => {
                let mut mask = self.inner_mask();
                mask.add(&self.walk());
                mask
            }
            State::First | State::Gap { .. } | State::Call(_) | State::Between { .. } => self.walk(),
        };
        if self.state == State::First {
            vocabulary.think.into_iter().for_each(|t| mask.set(t));
        }
        let may_end = !self.broken && self.may_end();
        vocabulary.ends().iter().for_each(|t| mask.put(*t, may_end));
        Some(mask.into_words())
    }

    /// Goes on behind `token`, which is allowed. Tokens that end the answer change nothing.
    pub fn advance(&mut self, token: u32) {
        let before = self.state;
        let next = if self.rule.vocabulary.ends().contains(&token) { None } else { self.next(token) };
        let Next { state, by_inner } = next.unwrap_or(Next { state: before, by_inner: false });
        self.state = match state {
            State::Thinking { tag, tokens, forced } => {
                let forced = forced + u8::from(self.is_out_of_budget());
                // The opening tag is no thinking.
                let tokens = if before == State::First { 0 } else { tokens.saturating_add(1) };
                State::Thinking { tag, tokens, forced }
            }
            other => other,
        };
        self.count += 1;
        if by_inner {
            self.consume(token);
        }
        let count = self.count;
        if self.state.begins_json() || !self.uses_inner() {
            self.inner.back_mut().filter(|i| i.ended.is_none()).into_iter().for_each(|i| i.ended = Some(count));
        }
        let held = self.inner.len();
        self.open_inner();
        self.steps.push_back(Taken { before, by_inner, began: self.inner.len() > held });
        if self.steps.len() > MAX_ROLLBACK {
            self.steps.pop_front();
            let gone = |i: &Inner| i.ended.is_some_and(|at| at + MAX_ROLLBACK < count);
            while self.inner.front().is_some_and(gone) {
                self.inner.pop_front();
            }
        }
    }

    /// Has llguidance take a token. A JSON value in a call ends where its grammar does.
    fn consume(&mut self, token: u32) {
        let vocabulary = self.rule.vocabulary.clone();
        let Some(follower) = self.follower() else { return };
        let consumed = follower.advance(token, &vocabulary);
        let ended = consumed && follower.may_end();
        self.broken |= !consumed;
        if let State::Call(call) = self.state
            && ended
        {
            self.state = State::Call(call.behind_json());
        }
    }

    /// Whether the latest follower is, or may be, what the text follows.
    fn uses_inner(&self) -> bool {
        match self.state {
            State::First | State::Gap { .. } => self.rule.body.format.is_some() && !self.rule.body.required,
            state => state.is_inner(),
        }
    }

    /// Takes back the last `tokens` tokens, at most [`MAX_ROLLBACK`].
    pub fn rollback(&mut self, tokens: usize) {
        for _ in 0..tokens {
            let Some(Taken { before, by_inner, began }) = self.steps.pop_back() else {
                self.broken = true;
                return;
            };
            if began {
                self.inner.pop_back();
            }
            if let Some(inner) = self.inner.back_mut() {
                if inner.ended == Some(self.count) {
                    inner.ended = None;
                }
                self.broken |= by_inner && !inner.follower.step_back();
            }
            self.state = before;
            self.count -= 1;
        }
    }

    /// What `token`, which ends no answer, leads to.
    fn next(&mut self, token: u32) -> Option<Next> {
        if self.broken {
            return None;
        }
        let plain = |state| Next { state, by_inner: false };
        match self.state {
            State::First if self.rule.vocabulary.think == Some(token) => {
                return Some(plain(State::Thinking { tag: 0, tokens: 0, forced: 0 }));
            }
            State::Thinking { forced, .. } if self.is_out_of_budget() => {
                let due = self.rule.vocabulary.think_end.get(forced as usize);
                return self.rule.run(self.state, token).filter(|_| due == Some(&token)).map(plain);
            }
            State::Thinking { .. } | State::Free { .. } => return self.rule.run(self.state, token).map(plain),
            State::First if self.rule.is_free() => return self.rule.run(self.state, token).map(plain),
            _ if !self.rule.vocabulary.text.has(token) => return None,
            _ => {}
        }
        let starts_format = self.rule.body.format.is_some() && !self.rule.body.required;
        match self.state {
            State::Format { fresh } => match self.inner_allows(token) {
                true => Some(Next { state: State::Format { fresh: false }, by_inner: true }),
                false if fresh => self.rule.run(self.state, token).map(plain),
                false => None,
            },
            State::First | State::Gap { .. } if starts_format => match self.rule.run(self.state, token) {
                Some(state) => Some(plain(state)),
                None => {
                    self.inner_allows(token).then_some(Next { state: State::Format { fresh: false }, by_inner: true })
                }
            },
            state if state.is_inner() => {
                let next = self.rule.run(state, token)?;
                self.inner_allows(token).then_some(Next { state: next, by_inner: true })
            }
            state => self.rule.run(state, token).map(plain),
        }
    }

    /// Where text is free a token is allowed unless it ends the answer too early, or completes a tag and does not go on
    /// as it must.
    fn is_free_of(&self, token: u32) -> bool {
        match self.state {
            _ if self.broken => false,
            State::Thinking { .. } if self.is_out_of_budget() => false,
            State::First if !self.rule.is_free() => false,
            State::First | State::Thinking { .. } | State::Free { .. } => {
                !self.rule.vocabulary.ends().contains(&token) && self.rule.run(self.state, token).is_some()
            }
            _ => false,
        }
    }

    /// The mask where text is free.
    fn free_mask(&mut self) -> Option<Vec<u32>> {
        let vocabulary = self.rule.vocabulary.clone();
        let candidates = match self.state {
            State::Thinking { tag: 0, .. } => &vocabulary.with_think_end,
            State::First | State::Free { tag: 0, .. } => &vocabulary.with_call,
            _ => &vocabulary.closers,
        };
        let mut refused: Vec<u32> =
            candidates.iter().copied().filter(|t| self.rule.run(self.state, *t).is_none()).collect();
        if !self.may_end() {
            refused.extend(vocabulary.ends());
        }
        if refused.is_empty() {
            return None;
        }
        let mut mask = vocabulary.all.clone();
        refused.iter().for_each(|t| mask.clear(*t));
        Some(mask.into_words())
    }

    /// `mask` without the tokens that complete a tag and do not go on as they must.
    fn without_refused(&self, mut mask: Bits) -> Bits {
        let vocabulary = &self.rule.vocabulary;
        let candidates = match self.state {
            State::Call(Call { place: Place::Text(closing) | Place::Json { closing, .. }, .. })
                if closing.is_none() =>
            {
                &vocabulary.with_parameter_end
            }
            _ => &vocabulary.closers,
        };
        let refused = candidates.iter().filter(|t| mask.has(**t) && self.rule.run(self.state, **t).is_none());
        refused.copied().collect::<Vec<u32>>().into_iter().for_each(|t| mask.clear(t));
        mask
    }

    /// The mask by the bytes alone.
    fn walk(&self) -> Bits {
        let vocabulary = &self.rule.vocabulary;
        let mut found = vocabulary.trie().alloc_token_set();
        let mut walk = Walk { rule: &self.rule, states: vec![self.state] };
        vocabulary.trie().add_bias(&mut walk, &mut found, &[]);
        let mut mask = Bits::of(found.as_slice(), vocabulary.size());
        let added = vocabulary.added.iter().filter(|t| self.rule.run(self.state, **t).is_some());
        added.for_each(|t| mask.set(*t));
        mask
    }

    /// The budget for thinking is used up.
    fn is_out_of_budget(&self) -> bool {
        let State::Thinking { tokens, .. } = self.state else { return false };
        self.rule.thinking.budget.is_some_and(|budget| tokens as usize >= budget)
    }

    fn follower(&mut self) -> Option<&mut Follower> {
        self.inner.back_mut().map(|inner| &mut inner.follower)
    }

    fn inner_allows(&mut self, token: u32) -> bool {
        // Markup is no text of a format.
        if self.rule.vocabulary.added.contains(&token) {
            return false;
        }
        let vocabulary = self.rule.vocabulary.clone();
        self.follower().is_some_and(|follower| follower.allows(token, &vocabulary))
    }

    fn inner_mask(&mut self) -> Bits {
        let vocabulary = self.rule.vocabulary.clone();
        let mask = self.follower().and_then(|follower| follower.mask(&vocabulary));
        self.broken |= mask.is_none();
        mask.unwrap_or_else(|| Bits::none(vocabulary.size()))
    }

    /// Begins what llguidance is to follow from here.
    fn open_inner(&mut self) {
        let body = &self.rule.body;
        let held = self.inner.back().is_some_and(|inner| inner.ended.is_none());
        let begun = match (self.state, &body.calls) {
            // The gap before a format has its mask too.
            (State::First | State::Gap { .. } | State::Format { .. }, _) if !held && !body.required => {
                body.format.as_ref().map(|format| Some(format.follower()))
            }
            (State::Call(call), Some(calls)) => match call.place {
                Place::Json { parameter, fresh: true, .. } => {
                    match &call.tool(calls).parameters[parameter as usize].kind {
                        Kind::Json(json) => Some(calls.follower(json)),
                        _ => None,
                    }
                }
                Place::Arguments { fresh: true } => {
                    call.tool(calls).arguments.as_ref().map(|json| calls.follower(json))
                }
                _ => None,
            },
            _ => None,
        };
        match begun {
            None => {}
            Some(Some(follower)) => self.inner.push_back(Inner { follower, ended: None }),
            Some(None) => self.broken = true,
        }
    }
}

/// Finds the tokens that may come by their bytes.
struct Walk<'a> {
    rule: &'a AnswerRule,
    states: Vec<State>,
}

impl Recognizer for Walk<'_> {
    fn pop_bytes(&mut self, bytes: usize) {
        self.states.truncate(self.states.len() - bytes);
    }

    fn collapse(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    fn trie_finished(&mut self) {
        self.states.truncate(1);
    }

    fn try_push_byte(&mut self, byte: u8) -> bool {
        let next = self.states.last().and_then(|state| self.rule.step(*state, byte));
        self.states.extend(next);
        next.is_some()
    }
}
