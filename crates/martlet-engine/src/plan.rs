//! What a model takes of a number of bytes, and what is left for sequences: reckoned from its config alone.

use crate::draft::{self, DrafterChoice};
use crate::engine::{EngineOptions, LEAST_CONTEXT, fit_context, page_bytes, step_size};
use crate::events::{EngineError, mib};
use martlet_device::{KvScheme, PAGE};
use martlet_model::{ModelSpec, scratch_bytes};

/// Where the memory of an engine goes. All sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// For everything; `None` where nobody knows how much there is.
    pub memory: Option<u64>,
    pub weights: u64,
    /// Slots for experts that are read from disk; 0: all weights are in memory.
    pub experts: u64,
    /// Buffers of the largest step.
    pub scratch: u64,
    pub sequences: usize,
    /// Recurrent states of one sequence, and rows that its draft head has not seen.
    pub state: u64,
    pub kv: KvScheme,
    /// Keys and values of [`PAGE`] tokens in all layers.
    pub page: u64,
    /// Left for keys, values and kept states.
    pub pool: Option<u64>,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Tokens that the model was made for.
    pub model_context: usize,
    /// Most prompt tokens of a step: as asked for, or less where its buffers would take more than a quarter of what
    /// the weights leave.
    pub prefill_chunk: usize,
}

impl Plan {
    /// Shares out `memory` bytes; `drafts`: the checkpoint has a draft head; `state`: bytes of one sequence's recurrent
    /// states on the device. Of `options` the sizes count, not the pool. An error where not even a sequence of 256
    /// tokens fits, or not the context that was asked for.
    pub fn new(
        spec: &ModelSpec,
        drafts: bool,
        weights: u64,
        state: u64,
        memory: Option<u64>,
        options: &EngineOptions,
    ) -> Result<Plan, EngineError> {
        let mut options = EngineOptions { sequences: options.sequences.max(1), ..options.clone() };
        options.prefill_chunk = options.prefill_chunk.clamp(1, options.context.unwrap_or(spec.context).max(1));
        let room = memory.map_or(u64::MAX, |m| m.saturating_sub(weights) / 4);
        while options.prefill_chunk > 1 && step_bytes(spec, &options) > room {
            options.prefill_chunk /= 2;
        }
        let mut plan = Plan {
            memory,
            weights,
            experts: 0,
            scratch: step_bytes(spec, &options),
            sequences: options.sequences,
            state: state.saturating_add(held_bytes(spec, drafts, &options)),
            kv: options.kv,
            page: page_bytes(spec, drafts, options.kv),
            pool: None,
            context: 0,
            model_context: spec.context,
            prefill_chunk: options.prefill_chunk,
        };
        let least = LEAST_CONTEXT.min(spec.context.max(1)).div_ceil(PAGE) as u64 * plan.page;
        if let Some(memory) = memory {
            let needed = plan.fixed().saturating_add(least);
            if needed > memory {
                return Err(EngineError::Room { needed, memory, parts: plan.parts(least) });
            }
            plan.pool = Some(memory - plan.fixed());
        }
        options.pool_bytes = plan.pool;
        plan.context = fit_context(spec, drafts, &options)?;
        Ok(plan)
    }

    /// Gives `bytes` of what is left to slots for experts; the context shrinks with it.
    pub fn with_experts(
        mut self,
        spec: &ModelSpec,
        drafts: bool,
        bytes: u64,
        options: &EngineOptions,
    ) -> Result<Plan, EngineError> {
        self.experts = bytes;
        self.pool = self.pool.map(|pool| pool.saturating_sub(bytes));
        let options = EngineOptions { pool_bytes: self.pool, prefill_chunk: self.prefill_chunk, ..options.clone() };
        self.context = fit_context(spec, drafts, &options)?;
        Ok(self)
    }

    /// What is taken whatever the sequences hold: weights, buffers, recurrent states.
    pub fn fixed(&self) -> u64 {
        self.weights.saturating_add(self.experts).saturating_add(self.scratch).saturating_add(self.states())
    }

    /// Recurrent states of all sequences.
    pub fn states(&self) -> u64 {
        self.state.saturating_mul(self.sequences as u64)
    }

    /// Keys and values of `tokens` tokens, in whole pages.
    pub fn kv_bytes(&self, tokens: usize) -> u64 {
        self.page.saturating_mul(tokens.div_ceil(PAGE) as u64)
    }

    fn parts(&self, least: u64) -> String {
        let [weights, scratch, states, kv] = [self.weights, self.scratch, self.states(), least].map(mib);
        format!("{weights} of weights, {scratch} of buffers, {states} of states, {kv} of keys and values at the least")
    }
}

/// Rows of one sequence that wait for its draft head.
fn held_bytes(spec: &ModelSpec, drafts: bool, options: &EngineOptions) -> u64 {
    let drafts = drafts && matches!(options.drafter, DrafterChoice::Auto | DrafterChoice::Mtp);
    if drafts { draft::held_bytes(spec.hidden, options.prefill_chunk) } else { 0 }
}

/// Buffers of the largest step: those of the layers, the residual stream, and the hidden states for the draft head.
fn step_bytes(spec: &ModelSpec, options: &EngineOptions) -> u64 {
    let (rows, outputs) = step_size(options);
    let streams = (8 * spec.hidden as u64).saturating_mul(rows as u64);
    scratch_bytes(spec, rows, outputs).saturating_add(streams)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One attention layer of 128 values a token (256 bytes in f16).
    fn spec() -> ModelSpec {
        let config = serde_json::json!({
            "model_type": "qwen3_5", "vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 64,
            "layer_types": ["full_attention"], "max_position_embeddings": 4096
        });
        martlet_model::read_config(&config).unwrap()
    }

    fn plan(memory: Option<u64>, options: EngineOptions) -> Result<Plan, EngineError> {
        Plan::new(&spec(), false, 1 << 20, 1000, memory, &options)
    }

    #[test]
    fn the_parts_add_up_to_the_memory() {
        let options = EngineOptions { sequences: 3, ..EngineOptions::default() };
        let plan = plan(Some(8 << 20), options).unwrap();
        assert_eq!((plan.weights, plan.states(), plan.page), (1 << 20, 3000, 64 * 256));
        assert_eq!(plan.fixed() + plan.pool.unwrap(), 8 << 20);
        assert_eq!((plan.context, plan.prefill_chunk), (4096, 256));
        assert_eq!((plan.kv_bytes(1), plan.kv_bytes(64), plan.kv_bytes(65)), (64 * 256, 64 * 256, 2 * 64 * 256));
    }

    #[test]
    fn little_memory_means_a_short_context_and_then_an_error_with_both_numbers() {
        let least = 4 * 64 * 256;
        let small = EngineOptions { prefill_chunk: 1, drafter: crate::DrafterChoice::None, ..EngineOptions::default() };
        let fixed = plan(None, small.clone()).unwrap().fixed();
        let fits = plan(Some(fixed + least), small.clone()).unwrap();
        assert_eq!((fits.context, fits.pool), (256, Some(least)));
        let error = plan(Some(fixed + least - 1), small.clone()).unwrap_err();
        let EngineError::Room { needed, memory, .. } = &error else { panic!("{error}") };
        assert_eq!((*needed, *memory), (fixed + least, fixed + least - 1));
        assert!(error.to_string().contains("1.0 MiB of weights"), "{error}");
        let asked = EngineOptions { context: Some(257), ..small };
        assert!(plan(Some(fixed + least), asked).unwrap_err().to_string().contains("the longest that fits is 256"));
    }

    #[test]
    fn a_step_takes_no_more_than_a_quarter_of_what_weights_leave() {
        let large = EngineOptions { prefill_chunk: usize::MAX, ..EngineOptions::default() };
        assert_eq!(plan(None, large.clone()).unwrap().prefill_chunk, 4096);
        let plan = plan(Some(9 << 20), large).unwrap();
        assert!(plan.prefill_chunk < 4096 && plan.scratch <= 2 << 20, "{plan:?}");
        assert!(2 * plan.scratch > 1 << 20, "{plan:?}");
    }
}
