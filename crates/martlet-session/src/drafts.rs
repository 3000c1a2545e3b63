//! Whether a checkpoint's draft head works, and how it wants its input.

use crate::device::{DeviceKind, OnDevice, with_device};
use crate::{ModelSource, OpenError, Options, SessionError};
use martlet_device::Device;
use martlet_engine::{Capacity, MtpReport, Runner, check_mtp};
use martlet_model::Model;
use martlet_weights::{Checkpoint, Layout};

/// Acceptance under each input convention and each reading of the head's norms.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DraftCheck {
    /// Whether the head's norms were read as value - 1.
    pub norm_shift: bool,
    /// Drafts that were right, under one convention of the head's input.
    pub report: MtpReport,
}

/// Lets the model go on from `prompt` for `tokens` tokens, and counts how often the head's first draft is the model's
/// own greedy token: under each convention, and for the MLX layout (where both are found in the wild) with the norms
/// read as value - 1 and as they are. Best first.
pub fn check_drafts(
    source: &ModelSource,
    options: &Options,
    prompt: &[u32],
    tokens: usize,
) -> Result<Vec<DraftCheck>, SessionError> {
    let check = || {
        let mut checkpoint = source.checkpoint()?;
        if !checkpoint.has("mtp.fc.weight") {
            return Err(OpenError::NoDrafts);
        }
        let usual = checkpoint.mtp_norm_shift();
        let shifts = if checkpoint.layout() == Layout::Mlx { vec![usual, !usual] } else { vec![usual] };
        let mut checks = Vec::new();
        for norm_shift in shifts {
            checkpoint.set_mtp_norm_shift(norm_shift);
            let check = Check { checkpoint: &checkpoint, device: options.device, prompt, tokens };
            let reports = with_device(options, check)?;
            checks.extend(reports.into_iter().map(|report| DraftCheck { norm_shift, report }));
        }
        checks.sort_by_key(|c| std::cmp::Reverse(c.report.accepted));
        Ok(checks)
    };
    check().map_err(|e| e.of(&source.name()))
}

struct Check<'a> {
    checkpoint: &'a Checkpoint,
    device: DeviceKind,
    prompt: &'a [u32],
    tokens: usize,
}

impl OnDevice for Check<'_> {
    type Out = Vec<MtpReport>;

    fn run<D: Device>(self, d: D) -> Result<Self::Out, OpenError> {
        let (model, experts) = Model::load(&d, self.checkpoint, &mut |_, _| {})?;
        let length = self.prompt.len() + self.tokens;
        let capacity = Capacity {
            kv: self.device.default_kv(),
            pages: length.div_ceil(martlet_device::PAGE),
            sequences: 1,
            rows: 64,
            outputs: 1,
        };
        let failed = |e: martlet_engine::StepError| OpenError::Device(e.to_string());
        let mut runner = Runner::new(d, model, Box::new(experts), capacity).map_err(failed)?;
        check_mtp(&mut runner, self.prompt, self.tokens).map_err(failed)
    }
}
