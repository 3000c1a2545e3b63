//! The batch descriptor: everything that changes from step to step.

use crate::spec::PAGE;

/// One step: rows (tokens) of any number of sequences. A device copies it into its own memory, so that operations
/// recorded once (a CUDA graph, say) can be run again over another batch of the same size class.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// The sequences; their rows follow each other in this order and cover all of `tokens`.
    pub seqs: Vec<SeqRows>,
    /// Rotation of each row.
    pub rope: Rope,
    /// Rows whose hidden state is wanted at the end (for logits), ascending.
    pub outputs: Vec<u32>,
}

/// The rows of one sequence in a [`Batch`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqRows {
    pub rows: usize,
    /// Tokens of the sequence before its first row here: row i stands at index `start + i`.
    pub start: usize,
    /// The first `certain` rows belong to the sequence for good; the others are drafts that `gdn_commit` settles.
    pub certain: usize,
    /// Page numbers, one for each [`PAGE`] tokens from index 0 on; the same number is used in every layer's KV cache.
    pub pages: Vec<u32>,
    /// Slot of the sequence in every recurrent layer's state.
    pub state: u32,
}

/// Cosines and sines of each row's rotation, [rows, half]: made once a step by the model, shared by all layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rope {
    /// Pairs that rotate: half of the rotary width. Dimension i < half turns with dimension i + half.
    pub half: usize,
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

/// A batch that contradicts itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("the sequences hold {seqs} rows, the batch {tokens}")]
    Rows { seqs: usize, tokens: usize },
    #[error("sequence {seq}: {certain} certain rows of {rows}")]
    Certain { seq: usize, certain: usize, rows: usize },
    #[error("sequence {seq}: {tokens} tokens need {needed} pages, {pages} given")]
    Pages { seq: usize, tokens: usize, needed: usize, pages: usize },
    #[error("rope tables hold {cos} cosines and {sin} sines for {rows} rows of {half}")]
    Rope { cos: usize, sin: usize, rows: usize, half: usize },
    #[error("output row {row} of {rows}, or not ascending")]
    Output { row: u32, rows: usize },
    #[error("slot {slot} is given to two sequences")]
    Slot { slot: u32 },
}

impl Batch {
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Checks what operations rely on. Devices call it when they take a batch.
    pub fn check(&self) -> Result<(), BatchError> {
        let rows = self.rows();
        let held = self.seqs.iter().map(|s| s.rows).sum();
        if held != rows {
            return Err(BatchError::Rows { seqs: held, tokens: rows });
        }
        for (i, s) in self.seqs.iter().enumerate() {
            if s.certain > s.rows {
                return Err(BatchError::Certain { seq: i, certain: s.certain, rows: s.rows });
            }
            let (tokens, pages) = (s.start + s.rows, s.pages.len());
            let needed = tokens.div_ceil(PAGE);
            if pages < needed {
                return Err(BatchError::Pages { seq: i, tokens, needed, pages });
            }
            if self.seqs[..i].iter().any(|o| o.state == s.state) {
                return Err(BatchError::Slot { slot: s.state });
            }
        }
        let Rope { half, cos, sin } = &self.rope;
        if cos.len() != rows * half || sin.len() != rows * half {
            return Err(BatchError::Rope { cos: cos.len(), sin: sin.len(), rows, half: *half });
        }
        let mut next = 0;
        for &row in &self.outputs {
            if row < next || row as usize >= rows {
                return Err(BatchError::Output { row, rows });
            }
            next = row + 1;
        }
        Ok(())
    }

    /// Each sequence with its first row in the batch.
    pub fn iter_seqs(&self) -> impl Iterator<Item = (usize, &SeqRows)> {
        self.seqs.iter().scan(0, |first, s| {
            let at = *first;
            *first += s.rows;
            Some((at, s))
        })
    }
}
