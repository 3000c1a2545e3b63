//! Which experts routers chose, step by step: what policies are compared on.

use martlet_device::Routes;
use std::collections::HashSet;

/// Choices that are kept at most: some 128 MiB.
const MOST: usize = 1 << 26;

/// The choices of a layer's rows in one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub layer: u32,
    pub rows: u32,
    /// rows x chosen experts.
    pub experts: Vec<u16>,
}

/// Choices in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    pub choices: Vec<Choice>,
    kept: usize,
}

impl Trace {
    /// Adds the choices of a layer's rows; nothing once there are too many.
    pub fn add(&mut self, layer: usize, routes: &Routes) {
        let rows = (routes.experts.len() / routes.chosen.max(1)) as u32;
        if self.kept + routes.experts.len() > MOST {
            return;
        }
        self.kept += routes.experts.len();
        // No model has more than 65,536 experts in a layer.
        let experts = routes.experts.iter().map(|e| u16::try_from(*e).unwrap_or(u16::MAX)).collect();
        self.choices.push(Choice { layer: layer as u32, rows, experts });
    }

    /// Steps of one row: the tokens of answers.
    pub fn tokens(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().filter(|c| c.rows == 1)
    }

    /// Of all choices of answers, the share that fell on the `top` experts of their layer that were chosen most.
    pub fn top_share(&self, top: usize) -> f64 {
        let layers = self.tokens().map(|c| c.layer as usize + 1).max().unwrap_or(0);
        let mut counts = vec![Vec::new(); layers];
        for c in self.tokens() {
            let of = &mut counts[c.layer as usize];
            for &e in &c.experts {
                of.resize(of.len().max(e as usize + 1), 0u64);
                of[e as usize] += 1;
            }
        }
        counts.iter_mut().for_each(|of| of.sort_unstable_by(|a, b| b.cmp(a)));
        let all: u64 = counts.iter().flatten().sum();
        let first: u64 = counts.iter().flat_map(|of| of.iter().take(top)).sum();
        first as f64 / all.max(1) as f64
    }

    /// Of all choices of answers, the share that the token before made in the same layer.
    pub fn reused(&self) -> f64 {
        let layers = self.tokens().map(|c| c.layer as usize + 1).max().unwrap_or(0);
        let mut last: Vec<Option<HashSet<u16>>> = vec![None; layers];
        let (mut again, mut all) = (0usize, 0usize);
        for c in self.tokens() {
            let now: HashSet<u16> = c.experts.iter().copied().collect();
            if let Some(before) = &last[c.layer as usize] {
                again += now.intersection(before).count();
                all += now.len();
            }
            last[c.layer as usize] = Some(now);
        }
        again as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(chosen: usize, experts: &[u32]) -> Routes {
        Routes { chosen, experts: experts.to_vec(), weights: vec![0.0; experts.len()] }
    }

    #[test]
    fn shares_are_of_answers_alone() {
        let mut trace = Trace::default();
        trace.add(0, &routes(2, &[5, 6, 7, 8]));
        assert_eq!((trace.choices[0].rows, trace.tokens().count(), trace.reused()), (2, 0, 0.0));
        for experts in [[0, 1], [0, 2], [2, 3], [0, 2]] {
            trace.add(1, &routes(2, &experts));
        }
        trace.add(0, &routes(2, &[0, 1]));
        // Layer 1: 0 and 2 three times of eight; layer 0: one of two.
        assert_eq!(trace.top_share(1), 4.0 / 10.0);
        assert_eq!(trace.top_share(2), 8.0 / 10.0);
        assert_eq!(trace.reused(), 3.0 / 6.0);
    }
}
