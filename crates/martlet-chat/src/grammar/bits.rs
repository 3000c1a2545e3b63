//! Sets of tokens, in the form in which samplers read masks.

/// One bit for each token, least significant first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits(Vec<u32>);

impl Bits {
    pub fn none(size: usize) -> Bits {
        Bits(vec![0; size.div_ceil(32)])
    }

    pub fn all(size: usize) -> Bits {
        let mut bits = Bits(vec![u32::MAX; size.div_ceil(32)]);
        (size..size.next_multiple_of(32)).for_each(|t| bits.clear(t as u32));
        bits
    }

    /// The first `size` bits of a longer set.
    pub fn of(words: &[u32], size: usize) -> Bits {
        let mut bits = Bits::all(size);
        bits.0.iter_mut().zip(words.iter().chain(std::iter::repeat(&0))).for_each(|(b, w)| *b &= w);
        bits
    }

    pub fn has(&self, token: u32) -> bool {
        self.0.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    }

    pub fn set(&mut self, token: u32) {
        if let Some(word) = self.0.get_mut(token as usize / 32) {
            *word |= 1 << (token % 32);
        }
    }

    pub fn clear(&mut self, token: u32) {
        if let Some(word) = self.0.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }

    pub fn put(&mut self, token: u32, allowed: bool) {
        if allowed { self.set(token) } else { self.clear(token) }
    }

    pub fn add(&mut self, other: &Bits) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }

    /// The tokens that are in both, ascending.
    pub fn common(&self, other: &Bits) -> impl Iterator<Item = u32> {
        let words = self.0.iter().zip(&other.0).map(|(a, b)| a & b);
        words
            .zip((0..).step_by(32))
            .filter(|(word, _)| *word != 0)
            .flat_map(|(word, first)| (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit))
    }

    pub fn into_words(self) -> Vec<u32> {
        self.0
    }
}
