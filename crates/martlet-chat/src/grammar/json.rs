//! What llguidance follows, and the white space of JSON, which it can only bound for all places alike: a model that may
//! write blanks between a key and its colon sometimes does.

use std::collections::VecDeque;

use llguidance::Matcher;

use super::Vocabulary;
use super::answer::MAX_ROLLBACK;
use super::bits::Bits;

/// Blanks of an indent for each level of nesting; a tab is as many.
const INDENT: u32 = 8;

/// A grammar in the midst of a text. Regular expressions and Lark grammars say all about white space themselves.
pub(super) struct Follower {
    matcher: Matcher,
    /// For JSON: the place behind the latest token, and behind those that may be taken back, the latest last.
    places: Option<VecDeque<Place>>,
}

impl Follower {
    pub fn new(matcher: Matcher) -> Follower {
        Follower { matcher, places: None }
    }

    pub fn of_json(matcher: Matcher) -> Follower {
        Follower { matcher, places: Some(VecDeque::from([Place::default()])) }
    }

    /// Another one at the same place. What it learns of the grammar on its way stays with it, so that no answer depends on
    /// what was asked before.
    pub fn fork(&self) -> Follower {
        Follower { matcher: self.matcher.deep_clone(), places: self.places.clone() }
    }

    pub fn may_end(&mut self) -> bool {
        self.matcher.is_accepting().unwrap_or(false)
    }

    pub fn allows(&mut self, token: u32, vocabulary: &Vocabulary) -> bool {
        self.place().is_none_or(|place| place.run(vocabulary.bytes(token)).is_some())
            && !self.matcher.is_stopped()
            && self.matcher.validate_tokens(&[token]).is_ok_and(|n| n == 1)
    }

    /// `None`: llguidance gave up.
    pub fn mask(&mut self, vocabulary: &Vocabulary) -> Option<Bits> {
        let mut mask = Bits::of(self.matcher.compute_mask_or_eos().ok()?.as_slice(), vocabulary.size());
        if let Some(place) = self.place() {
            let doubtful = if place.is_in_text() { &vocabulary.with_quoted_blank } else { &vocabulary.with_blank };
            let refused = mask.common(doubtful).filter(|t| place.run(vocabulary.bytes(*t)).is_none());
            refused.collect::<Vec<u32>>().into_iter().for_each(|t| mask.clear(t));
        }
        Some(mask)
    }

    /// Takes a token that is allowed; `false`: llguidance gave up.
    pub fn advance(&mut self, token: u32, vocabulary: &Vocabulary) -> bool {
        if let Some(places) = &mut self.places {
            let next = places.back().and_then(|place| place.run(vocabulary.bytes(token)));
            places.extend(next);
            if places.len() > MAX_ROLLBACK + 1 {
                places.pop_front();
            }
        }
        self.matcher.consume_token(token).is_ok()
    }

    /// Takes back the last token; `false`: llguidance gave up.
    pub fn step_back(&mut self) -> bool {
        let held = self.places.as_mut().is_none_or(|places| places.pop_back().is_some());
        held && self.matcher.rollback(1).is_ok()
    }

    fn place(&self) -> Option<Place> {
        self.places.as_ref()?.back().copied()
    }
}

/// A place in a JSON text, as far as white space depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    behind: Behind,
    /// Open brackets.
    depth: u32,
    /// One bit for each open bracket, the innermost first: it is an object's. Those outside the last 64 count as arrays'.
    objects: u64,
    /// Width of the white space just before.
    blanks: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Behind {
    /// A bracket, a comma, or a part of a value.
    #[default]
    Other,
    Key,
    Colon,
    /// A part of a string.
    Text {
        key: bool,
    },
    /// A backslash in one.
    Escape {
        key: bool,
    },
}

impl Place {
    fn run(self, bytes: &[u8]) -> Option<Place> {
        bytes.iter().try_fold(self, |place, byte| place.step(*byte))
    }

    fn is_in_text(self) -> bool {
        matches!(self.behind, Behind::Text { .. } | Behind::Escape { .. })
    }

    /// Behind one more byte of a text that is JSON; `None`: it is white space that may not come.
    fn step(self, byte: u8) -> Option<Place> {
        let behind = |behind| Some(Place { behind, blanks: 0, ..self });
        match (self.behind, byte) {
            (Behind::Text { key }, b'\\') => behind(Behind::Escape { key }),
            (Behind::Text { key }, b'"') => behind(if key { Behind::Key } else { Behind::Other }),
            (Behind::Text { .. }, _) => Some(self),
            (Behind::Escape { key }, _) => behind(Behind::Text { key }),
            (_, b' ' | b'\t' | b'\r' | b'\n') => self.blank(byte),
            (at, b'"') => behind(Behind::Text { key: at != Behind::Colon && self.objects & 1 == 1 }),
            (_, b':') => behind(Behind::Colon),
            (_, b'{' | b'[') => Some(Place {
                behind: Behind::Other,
                depth: self.depth.saturating_add(1),
                objects: self.objects << 1 | u64::from(byte == b'{'),
                blanks: 0,
            }),
            (_, b'}' | b']') => Some(Place {
                behind: Behind::Other,
                depth: self.depth.saturating_sub(1),
                objects: self.objects >> 1,
                blanks: 0,
            }),
            _ => behind(Behind::Other),
        }
    }

    /// None behind a key, one blank behind a colon, and elsewhere, after the one newline that llguidance lets pass, an
    /// indent. Around the whole value it is not JSON's.
    fn blank(self, byte: u8) -> Option<Place> {
        let width = match byte {
            b' ' => 1,
            b'\t' => INDENT,
            _ => 0,
        };
        let blanks = self.blanks + width;
        let allowed = match self.behind {
            Behind::Key => false,
            Behind::Colon => byte == b' ' && blanks == 1,
            _ => self.depth == 0 || blanks <= INDENT.saturating_mul(self.depth),
        };
        allowed.then_some(Place { blanks, ..self })
    }
}

#[cfg(test)]
mod tests;
