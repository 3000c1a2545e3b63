//! Random changes of bytes, the same in every run, for the tests of parsers. The fuzz targets look deeper.

pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn below(&mut self, n: usize) -> usize {
        // The upper half of a linear congruential generator: plenty for choosing places.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// One to four changes: a byte, a cut, a piece doubled, removed or taken from elsewhere, a telling fragment put in.
    pub fn mutate(&mut self, seed: &[u8]) -> Vec<u8> {
        const FRAGMENTS: [&[u8]; 12] = [
            b"\"",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b"-1",
            b"1e999",
            b"18446744073709551615",
            b"\"__metadata__\":",
            b"../",
            b"\\u0000",
        ];
        let mut bytes = seed.to_vec();
        for _ in 0..1 + self.below(4) {
            let (i, j) = (self.below(bytes.len() + 1), self.below(bytes.len() + 1));
            let (a, b) = (i.min(j), i.max(j).min(i.min(j) + 40));
            match self.below(6) {
                0 if i < bytes.len() => bytes[i] = self.below(256) as u8,
                1 => bytes.truncate(i),
                2 => drop(bytes.drain(a..b)),
                3 => {
                    let piece = bytes[a..b].to_vec();
                    let at = self.below(bytes.len() + 1);
                    bytes.splice(at..at, piece);
                }
                4 if i < bytes.len() => bytes[i] = b"0123456789"[self.below(10)],
                _ => {
                    let fragment = FRAGMENTS[self.below(FRAGMENTS.len())];
                    bytes.splice(i..i, fragment.iter().copied());
                }
            }
        }
        bytes
    }
}
