//! Stop strings in a stream of text.

/// Watches text for stop strings. What it gives out, and where it stops, depends on the text alone and not on how it
/// was cut into pieces: the answer ends at the first place where any stop string is complete, and is cut before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What is certain after a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matched {
    pub text: String,
    /// The stop string that came; nothing follows it.
    pub stop: Option<String>,
}

impl StopMatcher {
    /// `stops`: none of them empty.
    pub fn new(stops: Vec<String>) -> StopMatcher {
        StopMatcher { stops, held: String::new() }
    }

    pub fn push(&mut self, piece: &str) -> Matched {
        self.held.push_str(piece);
        if let Some((start, stop)) = self.first_match() {
            let text = self.held[..start].to_string();
            self.held.clear();
            return Matched { text, stop: Some(stop) };
        }
        let certain = self.held.len() - self.beginning_of_a_stop();
        Matched { text: self.held.drain(..certain).collect(), stop: None }
    }

    /// Ends the stream: what was held back is text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that is complete first; of those that end at one place, the one that begins first.
    fn first_match(&self) -> Option<(usize, String)> {
        // A search prepares the whole string that it looks for, which may be megabytes.
        let possible = self.stops.iter().filter(|s| s.len() <= self.held.len());
        let found = possible.filter_map(|s| self.held.find(s.as_str()).map(|start| (start + s.len(), start, s)));
        found.min_by_key(|(end, start, _)| (*end, *start)).map(|(_, start, s)| (start, s.clone()))
    }

    /// Bytes at the end of the held text with which a stop string may begin.
    fn beginning_of_a_stop(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        let mut tails = (from..self.held.len()).filter_map(|at| self.held.get(at..));
        tails.find(|tail| self.stops.iter().any(|s| s.starts_with(*tail))).map_or(0, str::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `text` cut at every set of places; the result must be the same each time.
    fn check(stops: &[&str], text: &str, expected: &str, expected_stop: Option<&str>) {
        let places: Vec<usize> = text.char_indices().map(|(i, _)| i).skip(1).collect();
        for mask in 0..1u32 << places.len() {
            let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
            let (mut out, mut stop, mut from) = (String::new(), None, 0);
            let cuts = places.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).map(|(_, at)| *at);
            for to in cuts.chain([text.len()]) {
                let matched = matcher.push(&text[from..to]);
                out += &matched.text;
                from = to;
                stop = matched.stop;
                if stop.is_some() {
                    break;
                }
            }
            if stop.is_none() {
                out += &matcher.finish();
            }
            assert_eq!(
                (out.as_str(), stop.as_deref()),
                (expected, expected_stop),
                "{stops:?} in {text:?}, cuts {mask:b}"
            );
        }
    }

    #[test]
    fn the_answer_ends_before_the_stop_string_however_it_is_cut() {
        check(&["beta gamma"], "alpha beta gamma", "alpha ", Some("beta gamma"));
        check(&["gamma"], "alpha beta", "alpha beta", None);
        check(&["aab"], "aaaab!", "aa", Some("aab"));
        check(&["abcdX", "bc"], "zabcdX", "za", Some("bc"));
        check(&["bc", "abc"], "zabc", "z", Some("abc"));
        check(&["\n\n"], "one\ntwo\n", "one\ntwo\n", None);
        check(&["日本"], "今日、日本", "今日、", Some("日本"));
        check(&[], "all of it", "all of it", None);
    }

    #[test]
    fn only_what_may_begin_a_stop_string_is_held_back() {
        let mut matcher = StopMatcher::new(vec!["END".into()]);
        assert_eq!(matcher.push("some text E").text, "some text ");
        assert_eq!(matcher.push("N").text, "");
        assert_eq!(matcher.push("d").text, "ENd");
    }
}
