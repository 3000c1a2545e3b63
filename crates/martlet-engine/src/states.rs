//! Sequences begin, go on from kept states, and end: who holds which pages and slots of a [`Runner`].

use crate::runner::{Held, Runner, SeqState, StepError};
use martlet_device::{Device, PAGE};

/// Pages and recurrent states of a sequence after `len` tokens. The pages are held until [`Runner::drop_kept`].
#[derive(Debug, PartialEq)]
pub struct Kept {
    pub len: usize,
    pub(crate) pages: Vec<u32>,
    /// The recurrent states as the device keeps them, of all layers.
    pub state: Vec<u8>,
}

impl Kept {
    /// Its pages, in order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }
}

impl<D: Device> Runner<D> {
    /// An empty sequence.
    pub fn open(&mut self) -> Result<SeqState, StepError> {
        let slot = self.slots.take().ok_or(StepError::Slots { total: self.slots.total() })?;
        self.cache.clear(&mut self.d, slot);
        let held = Held::from(0);
        Ok(SeqState { pages: Vec::new(), slot, len: 0, tentative: 0, placed: (0, 0), drafted: 0, held })
    }

    /// Frees what a sequence holds.
    pub fn close(&mut self, seq: SeqState) {
        seq.pages.iter().for_each(|p| self.pages.give(*p));
        self.slots.give(seq.slot);
    }

    /// Keeps what a sequence is after its tokens so far. It may go on: what it adds to the last page lies behind `len`.
    pub fn keep(&mut self, seq: &SeqState) -> Result<Kept, StepError> {
        if seq.tentative > 0 {
            return Err(StepError::Drafts("those of the last step were not settled"));
        }
        let state = self.cache.export_states(&mut self.d, seq.slot)?;
        let pages = seq.pages[..seq.len.div_ceil(PAGE)].to_vec();
        pages.iter().for_each(|p| self.pages.share(*p));
        Ok(Kept { len: seq.len, pages, state })
    }

    /// Gives up a hold on pages.
    pub fn drop_kept(&mut self, kept: Kept) {
        kept.pages.iter().for_each(|p| self.pages.give(*p));
    }

    /// A sequence that goes on from `kept`. Whole pages are shared; the last one is copied where it has room left, since
    /// every sequence writes on there.
    pub fn resume(&mut self, kept: &Kept) -> Result<SeqState, StepError> {
        let mut seq = self.open()?;
        let result = self.fill(&mut seq, kept);
        match result {
            Ok(()) => Ok(seq),
            Err(e) => {
                self.close(seq);
                Err(e)
            }
        }
    }

    fn fill(&mut self, seq: &mut SeqState, kept: &Kept) -> Result<(), StepError> {
        self.cache.import_states(&mut self.d, seq.slot, &kept.state)?;
        let whole = kept.len / PAGE;
        for page in &kept.pages[..whole] {
            self.pages.share(*page);
            seq.pages.push(*page);
        }
        if let Some(&tail) = kept.pages.get(whole) {
            let copy = self.pages.take().ok_or(StepError::Pages { total: self.pages.total() })?;
            self.cache.copy_page(&mut self.d, tail, copy);
            seq.pages.push(copy);
        }
        (seq.len, seq.held) = (kept.len, Held::from(kept.len));
        Ok(())
    }

    /// A page's bytes in all layers.
    pub fn export_page(&mut self, page: u32) -> Result<Vec<u8>, StepError> {
        Ok(self.cache.export_page(&mut self.d, page)?)
    }

    /// Takes pages for `pages` (bytes as [`Runner::export_page`] gives them), the whole prefix of `len` tokens; they are
    /// held by what is given back. Takes nothing when one is wrong, or when not enough are free.
    pub fn adopt(&mut self, len: usize, pages: &[Vec<u8>], state: Vec<u8>) -> Result<Kept, StepError> {
        if pages.len() != len.div_ceil(PAGE) || pages.len() > self.pages.free() {
            return Err(StepError::Pages { total: self.pages.total() });
        }
        let mut kept = Kept { len, pages: Vec::new(), state };
        for bytes in pages {
            kept.pages.extend(self.pages.take());
            let page = kept.pages[kept.pages.len() - 1];
            if let Err(e) = self.cache.import_page(&mut self.d, page, bytes, &self.page_sizes) {
                self.drop_kept(kept);
                return Err(e.into());
            }
        }
        Ok(kept)
    }

    /// Gives the memory of free pages back to the system.
    pub fn release_idle(&mut self) {
        for page in self.pages.drain_idle() {
            self.cache.release_page(&mut self.d, page);
        }
    }

    /// Tokens between kept states such that the states take about as much as the pages between them.
    pub(crate) fn ladder(&mut self) -> Result<usize, StepError> {
        let empty = self.open()?;
        let kept = self.keep(&empty);
        self.close(empty);
        let token = (self.page_bytes() / PAGE).max(1);
        Ok((kept?.state.len() / token).clamp(512, 8192).next_multiple_of(256))
    }

    /// Bytes of one page in all layers.
    pub fn page_bytes(&self) -> usize {
        self.page_sizes.iter().sum()
    }
}
