//! One step over many sequences: any number of rows of each.

use crate::pages::{Numbers, Pages};
use martlet_device::sampling::{SampleRow, Sampled};
use martlet_device::{Batch, Device, DeviceError, KvScheme, PAGE, Routes, SeqRows};
use martlet_model::{Cache, ExpertProvider, MAX_DRAFTS, Model, ModelError, ModelSpec, Scratch};

/// A model on a device, with the state of its sequences. Owned by one thread.
pub struct Runner<D: Device> {
    pub(crate) d: D,
    pub(crate) model: Model<D>,
    experts: Box<dyn ExpertProvider<D> + Send>,
    pub(crate) cache: Cache<D>,
    scratch: Scratch<D>,
    /// The residual stream, [rows, hidden].
    x: D::Buffer,
    /// Hidden states for the draft head, [rows, hidden].
    hidden: D::Buffer,
    pub(crate) pages: Pages,
    pub(crate) slots: Numbers,
    /// Bytes of one page in each attention layer.
    pub(crate) page_sizes: Vec<usize>,
    /// The latest step, for drafts that read its rows.
    latest: Batch,
    max_rows: usize,
    max_outputs: usize,
}

/// What a sequence holds. Give it back with [`Runner::close`].
#[derive(Debug)]
pub struct SeqState {
    pub(crate) pages: Vec<u32>,
    pub(crate) slot: u32,
    /// Rows computed and kept so far.
    pub(crate) len: usize,
    /// Rows after `len` that await [`Runner::commit`].
    pub(crate) tentative: usize,
    /// Its rows of the latest step: index of the first in the sequence, and its row in the batch.
    pub(crate) placed: (usize, usize),
    /// Its last output row of the latest draft.
    pub(crate) drafted: usize,
    /// Rows that the draft head has not seen.
    pub(crate) held: Held,
}

/// What the draft head will read of rows whose keys and values it has not got: most answers end before drafts would pay
/// for them. Kept by the host, since it is seldom read.
#[derive(Debug)]
pub(crate) struct Held {
    /// Index of the first row; the head has seen all before it.
    pub start: usize,
    /// [rows, hidden], as the last layer left them.
    values: Vec<f32>,
}

impl Held {
    pub fn from(start: usize) -> Held {
        Held { start, values: Vec::new() }
    }
}

impl SeqState {
    /// Tokens computed so far, tentative ones not counted.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its pages, in order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Its slot in the recurrent layers.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

/// The rows of one sequence in a step.
pub struct SeqInput<'a> {
    pub seq: &'a mut SeqState,
    pub tokens: &'a [u32],
    /// How many of the last tokens are drafts, to be settled by [`Runner::commit`] before the next step.
    pub tentative: usize,
    /// How many of the last rows' logits are wanted.
    pub outputs: usize,
}

/// The rows of one sequence in a step of the draft head.
pub struct DraftInput<'a> {
    pub seq: &'a mut SeqState,
    /// Index of the first row: where its hidden state was computed. With [`Hidden::Step`] the sequence had this row and
    /// those after it in the latest step; with [`Hidden::Held`] it is the first of those that are held.
    pub start: usize,
    /// The token after each row.
    pub tokens: &'a [u32],
    /// How many of the last rows' logits are wanted.
    pub outputs: usize,
}

/// Where the draft head's hidden states come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    Step,
    Held,
    Drafted,
}

/// Called with (layer, residual stream [rows, hidden], choices of its router).
pub type Trace<'a> = &'a mut dyn FnMut(usize, Vec<f32>, Option<Routes>);

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error("no page is free: all {total} pages of {PAGE} tokens hold sequences")]
    Pages { total: usize },
    #[error("no sequence can be opened: all {total} are in use")]
    Slots { total: usize },
    #[error("a step of {rows} rows and {outputs} outputs: this engine was started for {max_rows} and {max_outputs}")]
    Size { rows: usize, outputs: usize, max_rows: usize, max_outputs: usize },
    #[error("drafts: {0}")]
    Drafts(&'static str),
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl From<DeviceError> for StepError {
    fn from(e: DeviceError) -> Self {
        StepError::Model(e.into())
    }
}

/// How much a runner holds.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    pub kv: KvScheme,
    /// Pages of [`PAGE`] tokens over all sequences, each rounded up to whole pages.
    pub pages: usize,
    pub sequences: usize,
    /// Rows of one step, and how many of them may have logits.
    pub rows: usize,
    pub outputs: usize,
}

impl<D: Device> Runner<D> {
    pub fn new(
        d: D,
        model: Model<D>,
        experts: Box<dyn ExpertProvider<D> + Send>,
        capacity: Capacity,
    ) -> Result<Runner<D>, StepError> {
        let Capacity { kv, pages, sequences, rows, outputs } = capacity;
        let drafts = model.mtp.is_some();
        Ok(Runner {
            cache: Cache::new(&d, &model.spec, drafts, kv, pages, sequences)?,
            scratch: Scratch::new(&d, &model.spec, rows, outputs)?,
            x: d.buffer(rows, model.spec.hidden)?,
            hidden: d.buffer(rows, model.spec.hidden)?,
            pages: Pages::new(pages),
            slots: Numbers::new(sequences),
            page_sizes: model.spec.page_bytes(drafts, kv),
            latest: Batch::default(),
            max_rows: rows,
            max_outputs: outputs,
            d,
            model,
            experts,
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.model.spec
    }

    pub fn device(&mut self) -> &mut D {
        &mut self.d
    }

    /// The caches, for tests that look at states.
    pub fn parts(&mut self) -> (&mut D, &mut Cache<D>) {
        (&mut self.d, &mut self.cache)
    }

    /// Whether the checkpoint has a draft head.
    pub fn has_mtp(&self) -> bool {
        self.model.mtp.is_some()
    }

    pub fn max_outputs(&self) -> usize {
        self.max_outputs
    }

    pub fn max_rows(&self) -> usize {
        self.max_rows
    }

    /// Runs the rows of all inputs through the model. Logits of the wanted rows lie in the order of the inputs until the
    /// next step: [`Runner::logits`], [`Runner::sample`].
    pub fn step(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<(), StepError> {
        self.traced_step(inputs, None)
    }

    /// A step that shows each layer: `trace(layer, residual stream after it, its router's choices)`. Layer by layer the
    /// same work as [`Runner::step`], to compare with another implementation.
    pub fn traced_step(&mut self, inputs: &mut [SeqInput<'_>], trace: Option<Trace<'_>>) -> Result<(), StepError> {
        let batch = self.prepare(inputs)?;
        let b = self.d.batch(&batch, self.model.spec.vocabulary)?;
        self.model.embed(&mut self.d, &b, &mut self.x);
        let Runner { d, model, cache, scratch, x, experts, .. } = self;
        let layers = model.spec.layers.len();
        match trace {
            None => model.layers(d, 0..layers, x, &b, cache, scratch, experts.as_mut())?,
            Some(trace) => {
                for layer in 0..layers {
                    model.layers(d, layer..layer + 1, x, &b, cache, scratch, experts.as_mut())?;
                    let routed = model.spec.layers[layer].mlp.route().is_some();
                    let routes = if routed { Some(d.read_routes(&scratch.routes, &b)?) } else { None };
                    trace(layer, d.read(x, batch.rows())?, routes);
                }
            }
        }
        if !batch.outputs.is_empty() {
            model.head(d, x, &b, scratch);
        }
        d.wait()?;
        for (input, (first, seq)) in inputs.iter_mut().zip(batch.iter_seqs()) {
            input.seq.placed = (seq.start, first);
            input.seq.len += input.tokens.len() - input.tentative;
            input.seq.tentative = input.tentative;
        }
        self.latest = batch;
        Ok(())
    }

    /// Keeps the first `accepted` drafts of the latest step, and forgets the others.
    pub fn commit(&mut self, seq: &mut SeqState, accepted: usize) -> Result<(), StepError> {
        if accepted > seq.tentative {
            return Err(StepError::Drafts("more were accepted than there are"));
        }
        self.cache.commit(&mut self.d, seq.slot, accepted);
        seq.len += accepted;
        seq.tentative = 0;
        Ok(())
    }

    /// Runs the draft head; tokens are those that follow each row. With [`Hidden::Step`] the rows are rows of the latest
    /// step, with [`Hidden::Held`] rows that [`Runner::hold`] has kept, with [`Hidden::Drafted`] one row for each sequence:
    /// its last output row of the latest draft (a deeper draft; sequences stand in the same order, and some may be left
    /// out). Logits of the wanted rows lie in their order until the next draft: [`Runner::draft_logits`],
    /// [`Runner::sample_drafts`].
    pub fn draft(&mut self, inputs: &mut [DraftInput<'_>], hidden: Hidden) -> Result<(), StepError> {
        let batch = self.prepare_draft(inputs)?;
        let b = match hidden {
            Hidden::Step => self.take_hidden(inputs, &batch)?,
            Hidden::Held => self.take_held(inputs, &batch)?,
            Hidden::Drafted => {
                let outputs = inputs.iter().map(|i| i.seq.drafted as u32).collect();
                let picked = self.d.batch(&Batch { outputs, ..self.latest.clone() }, self.model.spec.vocabulary)?;
                self.d.gather(&self.scratch.output, &picked, &mut self.hidden);
                self.d.batch(&batch, self.model.spec.vocabulary)?
            }
        };
        let Runner { d, model, cache, scratch, experts, hidden, .. } = self;
        model.draft(d, hidden, &b, cache, scratch, experts.as_mut())?;
        d.wait()?;
        let mut outputs = 0;
        for input in inputs {
            outputs += input.outputs;
            input.seq.drafted = outputs.saturating_sub(1);
        }
        Ok(())
    }

    /// Gives the draft head the keys and values of rows that are held, without drafting; their `outputs` are 0.
    pub(crate) fn draft_append(&mut self, inputs: &mut [DraftInput<'_>]) -> Result<(), StepError> {
        let batch = self.prepare_draft(inputs)?;
        let b = self.take_held(inputs, &batch)?;
        self.append(&b)
    }

    /// The same with rows of the latest step, none before which is held. What the step left stays as it is.
    pub(crate) fn draft_append_step(&mut self, inputs: &mut [DraftInput<'_>]) -> Result<(), StepError> {
        let batch = self.prepare_draft(inputs)?;
        let b = self.take_hidden(inputs, &batch)?;
        inputs.iter_mut().for_each(|i| i.seq.held = Held::from(i.start + i.tokens.len()));
        self.append(&b)
    }

    fn append(&mut self, b: &D::Batch) -> Result<(), StepError> {
        let Runner { d, model, cache, scratch, hidden, .. } = self;
        model.draft_append(d, hidden, b, cache, scratch);
        Ok(d.wait()?)
    }

    /// Puts what the draft head reads of the latest step into `hidden`; gives `batch` on the device.
    fn take_hidden(&mut self, inputs: &[DraftInput<'_>], batch: &Batch) -> Result<D::Batch, StepError> {
        let rows = inputs.iter().flat_map(|i| {
            let (start, row) = i.seq.placed;
            (i.start - start..i.start - start + i.tokens.len()).map(move |r| (row + r) as u32)
        });
        let picked = Batch { outputs: rows.collect(), ..self.latest.clone() };
        let vocabulary = self.model.spec.vocabulary;
        let (picked, b) = (self.d.batch(&picked, vocabulary)?, self.d.batch(batch, vocabulary)?);
        let Runner { d, model, scratch, x, hidden, .. } = self;
        model.draft_input(d, x, &picked, &b, scratch, hidden);
        Ok(b)
    }

    /// Holds what the draft head reads of the rows of the latest step that it has not seen, up to each sequence's end.
    pub(crate) fn hold(&mut self, seqs: &mut [&mut SeqState]) -> Result<(), StepError> {
        let width = self.model.spec.hidden;
        let x = self.d.read(&self.x, self.latest.rows())?;
        for seq in seqs {
            let (start, row) = seq.placed;
            let from = seq.held.start + seq.held.values.len() / width;
            if from < start {
                return Err(StepError::Drafts("rows that do not follow those that are held"));
            }
            let rows = row + from - start..row + seq.len - start;
            seq.held.values.extend_from_slice(&x[rows.start * width..rows.end * width]);
        }
        Ok(())
    }

    /// Puts what the draft head reads of held rows into `hidden`, and holds them no longer; gives `batch` on the device. The
    /// rows of the latest step make room for them.
    fn take_held(&mut self, inputs: &mut [DraftInput<'_>], batch: &Batch) -> Result<D::Batch, StepError> {
        let width = self.model.spec.hidden;
        let mut values = Vec::with_capacity(batch.rows() * width);
        for DraftInput { seq: SeqState { held, .. }, start, tokens, .. } in inputs {
            let len = tokens.len() * width;
            if held.start != *start || held.values.len() < len {
                return Err(StepError::Drafts("rows that are not held"));
            }
            values.extend(held.values.drain(..len));
            held.start += tokens.len();
        }
        self.d.write(&mut self.x, 0, &values)?;
        let picked = Batch { outputs: (0..batch.rows() as u32).collect(), ..batch.clone() };
        let vocabulary = self.model.spec.vocabulary;
        let (picked, b) = (self.d.batch(&picked, vocabulary)?, self.d.batch(batch, vocabulary)?);
        let Runner { d, model, scratch, x, hidden, .. } = self;
        model.draft_input(d, x, &picked, &b, scratch, hidden);
        Ok(b)
    }

    /// The first `outputs` rows of logits of the latest step, [outputs, vocabulary].
    pub fn logits(&mut self, outputs: usize) -> Result<Vec<f32>, StepError> {
        Ok(self.d.read(&self.scratch.logits, outputs)?)
    }

    /// The first `outputs` rows of logits of the latest draft, [outputs, tokens that are drafted among].
    pub fn draft_logits(&mut self, outputs: usize) -> Result<Vec<f32>, StepError> {
        Ok(self.d.read(&self.scratch.draft_logits, outputs)?)
    }

    /// One token for each output row of the latest draft.
    pub fn sample_drafts(&mut self, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, StepError> {
        Ok(self.d.sample(&self.scratch.draft_logits, rows)?)
    }

    /// One token for each output row of the latest step.
    pub fn sample(&mut self, rows: &[SampleRow<'_>]) -> Result<Vec<Sampled>, StepError> {
        Ok(self.d.sample(&self.scratch.logits, rows)?)
    }

    /// The batch of a step; takes the pages that it needs.
    fn prepare(&mut self, inputs: &mut [SeqInput<'_>]) -> Result<Batch, StepError> {
        let mut batch = Batch::default();
        for input in inputs.iter_mut() {
            if input.tentative > input.tokens.len().min(MAX_DRAFTS) {
                return Err(StepError::Drafts("more than there are tokens, or than a state can hold"));
            }
            if input.seq.tentative > 0 {
                return Err(StepError::Drafts("those of the last step were not settled"));
            }
            self.take_pages(input.seq, input.seq.len + input.tokens.len())?;
            let seq = &*input.seq;
            add_rows(&mut batch, seq, seq.len, input.tokens, input.tentative, input.outputs);
        }
        self.finish(batch)
    }

    fn prepare_draft(&mut self, inputs: &mut [DraftInput<'_>]) -> Result<Batch, StepError> {
        let mut batch = Batch::default();
        for input in inputs {
            self.take_pages(input.seq, input.start + input.tokens.len())?;
            add_rows(&mut batch, input.seq, input.start, input.tokens, 0, input.outputs);
        }
        self.finish(batch)
    }

    fn finish(&self, mut batch: Batch) -> Result<Batch, StepError> {
        let (rows, outputs) = (batch.rows(), batch.outputs.len());
        if rows > self.max_rows || outputs > self.max_outputs {
            let (max_rows, max_outputs) = (self.max_rows, self.max_outputs);
            return Err(StepError::Size { rows, outputs, max_rows, max_outputs });
        }
        let positions = batch.seqs.iter().flat_map(|s| (s.start..s.start + s.rows).map(|p| [p as u32; 3]));
        batch.rope = self.model.spec.rope.table(positions);
        Ok(batch)
    }

    /// Makes sure that `seq` has pages for `tokens` tokens; takes nothing when they are not there.
    pub(crate) fn take_pages(&mut self, seq: &mut SeqState, tokens: usize) -> Result<(), StepError> {
        let needed = tokens.div_ceil(PAGE);
        if needed > seq.pages.len() + self.pages.free() {
            return Err(StepError::Pages { total: self.pages.total() });
        }
        while seq.pages.len() < needed {
            seq.pages.extend(self.pages.take());
        }
        Ok(())
    }
}

fn add_rows(batch: &mut Batch, seq: &SeqState, start: usize, tokens: &[u32], tentative: usize, outputs: usize) {
    let first = batch.rows();
    batch.tokens.extend(tokens);
    let end = batch.rows();
    batch.outputs.extend((end.saturating_sub(outputs).max(first)..end).map(|r| r as u32));
    batch.seqs.push(SeqRows {
        rows: tokens.len(),
        start,
        certain: tokens.len() - tentative,
        pages: seq.pages.clone(),
        state: seq.slot,
    });
}
