//! What a caller may ask of sampling, checked once.

use martlet_device::sampling::SampleParams;

/// Sampling as asked for; `None` leaves a value to the defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub seed: Option<u64>,
}

/// A value that sampling can not work with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}: it must be {expected}")]
pub struct ParamError {
    pub name: &'static str,
    pub value: f32,
    pub expected: &'static str,
}

impl Sampling {
    /// `self` where it says something, `defaults` elsewhere.
    pub fn or(&self, defaults: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.or(defaults.temperature),
            top_k: self.top_k.or(defaults.top_k),
            top_p: self.top_p.or(defaults.top_p),
            min_p: self.min_p.or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(defaults.frequency_penalty),
            seed: self.seed.or(defaults.seed),
        }
    }

    /// The parameters of the sampler: neutral where nothing is said, a fresh seed where none is given.
    pub fn resolve(&self) -> Result<SampleParams, ParamError> {
        let check = |name, value: Option<f32>, neutral: f32, expected, ok: fn(f32) -> bool| {
            let value = value.unwrap_or(neutral);
            if ok(value) { Ok(value) } else { Err(ParamError { name, value, expected }) }
        };
        let any = "a number from -100 to 100";
        let within = |x: f32| (-100.0..=100.0).contains(&x);
        Ok(SampleParams {
            temperature: check("temperature", self.temperature, 1.0, "from 0 (greedy) to 100", |x| {
                (0.0..=100.0).contains(&x)
            })?,
            top_k: self.top_k.unwrap_or(0),
            top_p: check("top_p", self.top_p, 1.0, "above 0 and at most 1", |x| x > 0.0 && x <= 1.0)?,
            min_p: check("min_p", self.min_p, 0.0, "from 0 to 1", |x| (0.0..=1.0).contains(&x))?,
            repetition_penalty: check(
                "repetition_penalty",
                self.repetition_penalty,
                1.0,
                "above 0, at most 100",
                |x| x > 0.0 && x <= 100.0,
            )?,
            presence_penalty: check("presence_penalty", self.presence_penalty, 0.0, any, within)?,
            frequency_penalty: check("frequency_penalty", self.frequency_penalty, 0.0, any, within)?,
            seed: self.seed.unwrap_or_else(fresh_seed),
            choice: 0,
        })
    }
}

/// A seed that differs from call to call; it is reported with the answer, so that any run can be repeated.
fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // The standard library seeds its hash tables from the system's entropy.
    RandomState::new().hash_one(std::time::SystemTime::now()) >> 11 // at most 2^53: JSON readers keep it exactly
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let bad = |s: Sampling| s.resolve().unwrap_err().to_string();
        assert!(bad(Sampling { temperature: Some(-1.0), ..Default::default() }).contains("temperature is -1"));
        assert!(bad(Sampling { top_p: Some(0.0), ..Default::default() }).contains("top_p"));
        assert!(bad(Sampling { min_p: Some(f32::NAN), ..Default::default() }).contains("min_p"));
        let neutral = Sampling::default().resolve().unwrap();
        assert_eq!((neutral.temperature, neutral.top_k, neutral.top_p), (1.0, 0, 1.0));
    }

    #[test]
    fn what_is_asked_for_wins_over_defaults() {
        let defaults = Sampling { temperature: Some(0.6), top_k: Some(20), ..Default::default() };
        let asked = Sampling { temperature: Some(0.0), ..Default::default() }.or(&defaults);
        assert_eq!((asked.temperature, asked.top_k), (Some(0.0), Some(20)));
    }
}
