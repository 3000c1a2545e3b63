//! From a checkpoint to a device.

use crate::forward::Model;
use crate::layers::{Attention, GatedDelta, Layer, Mixer, Mlp, MlpOrMoe, Moe};
use crate::mtp::{Mtp, MtpConvention, draft_vocabulary};
use crate::names::{expected_tensors, ignored_tensors};
use crate::spec::{LayerSpec, MixerSpec, MlpSpec, ModelSpec};
use crate::{ModelError, Resident, read_config};
use martlet_device::{Device, ExpertShape, MatrixSpec, ROW_STEP};
use martlet_weights::{Checkpoint, Kind, MatrixForm, Report};

/// Stored bytes of a matrix that are taken to the device at a time. What is rewritten or mapped of a checkpoint is in memory
/// for so long only.
const PIECE: u64 = 16 << 20;

/// Progress of a load: (tensors done, tensors in all).
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize);

/// The experts of each layer that has some.
type Stacks<D> = Vec<Option<<D as Device>::Experts>>;

impl<D: Device> Model<D> {
    /// Checks that the checkpoint holds exactly what its config needs.
    pub fn check(checkpoint: &Checkpoint) -> Result<(ModelSpec, Report), ModelError> {
        let spec = read_config(checkpoint.config())?;
        let report =
            checkpoint.check(&expected_tensors(&spec, checkpoint.has("mtp.fc.weight")), &ignored_tensors(&spec))?;
        Ok((spec, report))
    }

    /// Checks the checkpoint and takes all its weights to the device, experts included. The draft head is loaded where
    /// the checkpoint has one.
    pub fn load(d: &D, checkpoint: &Checkpoint, progress: Progress<'_>) -> Result<(Model<D>, Resident<D>), ModelError> {
        let (spec, _) = Self::check(checkpoint)?;
        Self::load_checked(d, checkpoint, spec, progress)
    }

    /// [`Self::load`] of a checkpoint for which [`Self::check`] gave this `spec`.
    pub fn load_checked(
        d: &D,
        checkpoint: &Checkpoint,
        spec: ModelSpec,
        progress: Progress<'_>,
    ) -> Result<(Model<D>, Resident<D>), ModelError> {
        let most = spec.all_layers().filter_map(|l| l.mlp.route()).map(|r| r.experts).max().unwrap_or(0);
        let (model, experts) = Self::load_parts(d, checkpoint, spec, true, progress)?;
        Ok((model, Resident::new(experts, most)))
    }

    /// All but the experts, which come from elsewhere.
    pub fn load_dense(
        d: &D,
        checkpoint: &Checkpoint,
        spec: ModelSpec,
        progress: Progress<'_>,
    ) -> Result<Model<D>, ModelError> {
        Ok(Self::load_parts(d, checkpoint, spec, false, progress)?.0)
    }

    /// The model, and with `all` the experts of each layer.
    fn load_parts(
        d: &D,
        checkpoint: &Checkpoint,
        spec: ModelSpec,
        all: bool,
        progress: Progress<'_>,
    ) -> Result<(Model<D>, Stacks<D>), ModelError> {
        let has_mtp = checkpoint.has("mtp.fc.weight");
        let total = expected_tensors(&spec, has_mtp).len();
        let mut loader =
            Loader { d, checkpoint, hidden: spec.hidden, all, experts: Vec::new(), done: 0, total, progress };
        let embed = loader.matrix("embed_tokens.weight", false)?;
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(i, l)| loader.layer(&format!("layers.{i}."), l))
            .collect::<Result<_, _>>()?;
        let norm = loader.vector("norm.weight")?;
        let head = if spec.tied { None } else { Some(loader.matrix("lm_head.weight", false)?) };
        let mtp = if has_mtp { Some(loader.mtp(&spec, head.as_ref().unwrap_or(&embed))?) } else { None };
        let experts = loader.experts;
        Ok((Model { spec, embed, layers, norm, head, mtp }, experts))
    }
}

struct Loader<'a, D: Device> {
    d: &'a D,
    checkpoint: &'a Checkpoint,
    hidden: usize,
    /// Experts too.
    all: bool,
    /// Experts of each layer so far.
    experts: Stacks<D>,
    done: usize,
    total: usize,
    progress: Progress<'a>,
}

impl<D: Device> Loader<'_, D> {
    fn step(&mut self, tensors: usize) {
        self.done += tensors;
        (self.progress)(self.done, self.total);
    }

    fn matrix(&mut self, name: &str, exact: bool) -> Result<D::Matrix, ModelError> {
        let MatrixForm { scheme, rows, cols, tiles, bytes } = self.checkpoint.form(name)?;
        let matrix = if tiles {
            self.d.matrix(&self.checkpoint.rows(name, 0..rows)?.matrix(), exact)?
        } else {
            let mut matrix = self.d.blank_matrix(MatrixSpec { scheme, rows, cols, exact })?;
            let step = rows_of_a_piece(rows, bytes).next_multiple_of(ROW_STEP);
            for first in (0..rows).step_by(step) {
                let piece = self.checkpoint.rows(name, first..rows.min(first + step))?;
                self.d.load_rows(&mut matrix, first, &piece.matrix())?;
            }
            matrix
        };
        self.step(1);
        Ok(matrix)
    }

    fn vector(&mut self, name: &str) -> Result<D::Vector, ModelError> {
        let vector = self.d.vector(&self.checkpoint.vector(name)?)?;
        self.step(1);
        Ok(vector)
    }

    fn layer(&mut self, prefix: &str, spec: &LayerSpec) -> Result<Layer<D>, ModelError> {
        Ok(Layer {
            mixer_norm: self.vector(&format!("{prefix}input_layernorm.weight"))?,
            mixer: match spec.mixer {
                MixerSpec::Attention(_) => Mixer::Attention(self.attention(&format!("{prefix}self_attn."), spec)?),
                MixerSpec::GatedDelta(_) => Mixer::GatedDelta(self.delta(&format!("{prefix}linear_attn."), spec)?),
            },
            mlp_norm: self.vector(&format!("{prefix}post_attention_layernorm.weight"))?,
            mlp: self.mlp_or_moe(&format!("{prefix}mlp."), spec.mlp)?,
        })
    }

    fn attention(&mut self, prefix: &str, layer: &LayerSpec) -> Result<Attention<D>, ModelError> {
        let MixerSpec::Attention(spec) = layer.mixer else { unreachable!("asked for an attention layer") };
        let name = |part: &str| format!("{prefix}{part}.weight");
        Ok(Attention {
            spec,
            q: self.matrix(&name("q_proj"), false)?,
            k: self.matrix(&name("k_proj"), false)?,
            v: self.matrix(&name("v_proj"), false)?,
            o: self.matrix(&name("o_proj"), false)?,
            q_norm: self.vector(&name("q_norm"))?,
            k_norm: self.vector(&name("k_norm"))?,
        })
    }

    fn delta(&mut self, prefix: &str, layer: &LayerSpec) -> Result<GatedDelta<D>, ModelError> {
        let MixerSpec::GatedDelta(spec) = layer.mixer else { unreachable!("asked for a linear layer") };
        let name = |part: &str| format!("{prefix}{part}.weight");
        Ok(GatedDelta {
            spec,
            qkv: self.matrix(&name("in_proj_qkv"), false)?,
            z: self.matrix(&name("in_proj_z"), false)?,
            a: self.matrix(&name("in_proj_a"), true)?,
            b: self.matrix(&name("in_proj_b"), true)?,
            conv: self.vector(&name("conv1d"))?,
            a_log: self.vector(&format!("{prefix}A_log"))?,
            dt_bias: self.vector(&format!("{prefix}dt_bias"))?,
            norm: self.vector(&name("norm"))?,
            out: self.matrix(&name("out_proj"), false)?,
        })
    }

    fn mlp_or_moe(&mut self, prefix: &str, spec: MlpSpec) -> Result<MlpOrMoe<D>, ModelError> {
        Ok(match spec {
            MlpSpec::Dense { width } => {
                self.experts.push(None);
                MlpOrMoe::Mlp(self.mlp(prefix, width)?)
            }
            MlpSpec::Experts { route, width, shared } => {
                let shape = ExpertShape { hidden: self.hidden, width };
                let experts = if self.all { Some(self.stack(prefix, route.experts, shape)?) } else { None };
                if experts.is_none() {
                    self.step(3);
                }
                self.experts.push(experts);
                MlpOrMoe::Moe(Moe {
                    route,
                    router: self.matrix(&format!("{prefix}gate.weight"), true)?,
                    shared_gate: self.matrix(&format!("{prefix}shared_expert_gate.weight"), true)?,
                    shared: self.mlp(&format!("{prefix}shared_expert."), shared)?,
                })
            }
        })
    }

    fn mlp(&mut self, prefix: &str, width: usize) -> Result<Mlp<D>, ModelError> {
        Ok(Mlp {
            width,
            gate: self.matrix(&format!("{prefix}gate_proj.weight"), false)?,
            up: self.matrix(&format!("{prefix}up_proj.weight"), false)?,
            down: self.matrix(&format!("{prefix}down_proj.weight"), false)?,
        })
    }

    fn stack(&mut self, prefix: &str, count: usize, shape: ExpertShape) -> Result<D::Experts, ModelError> {
        let (width, hidden) = (shape.width, shape.hidden);
        let parts = [("gate", width), ("up", width), ("down", hidden)];
        let parts = parts.map(|(part, rows)| (format!("{prefix}experts.{part}_proj.weight"), rows));
        let mut bytes = 0;
        for (name, _) in &parts {
            bytes += self.checkpoint.form(name)?.bytes;
        }
        let mut experts = self.d.experts(shape, count)?;
        let step = rows_of_a_piece(count, bytes);
        for first in (0..count).step_by(step) {
            let here = first..count.min(first + step);
            let read = |(name, rows): &(String, usize)| self.checkpoint.rows(name, here.start * rows..here.end * rows);
            let [gate, up, down] = [read(&parts[0])?, read(&parts[1])?, read(&parts[2])?];
            let [gate, up, down] = [gate.matrix(), up.matrix(), down.matrix()];
            for (i, e) in here.enumerate() {
                let wide = i * width..(i + 1) * width;
                let back = down.slice(i * hidden..(i + 1) * hidden);
                self.d.load_expert(&mut experts, e, &gate.slice(wide.clone()), &up.slice(wide), &back)?;
            }
        }
        self.step(3);
        Ok(experts)
    }

    /// `head` is the whole output head: its beginning, which drafts are chosen by, takes no memory of its own.
    fn mtp(&mut self, spec: &ModelSpec, head: &D::Matrix) -> Result<Mtp<D>, ModelError> {
        let drafts = draft_vocabulary(spec.vocabulary);
        Ok(Mtp {
            width: spec.hidden,
            fc: self.matrix("mtp.fc.weight", false)?,
            norm_embedding: self.vector("mtp.pre_fc_norm_embedding.weight")?,
            norm_hidden: self.vector("mtp.pre_fc_norm_hidden.weight")?,
            layer: self.layer("mtp.layers.0.", &spec.mtp)?,
            norm: self.vector("mtp.norm.weight")?,
            head: (drafts < spec.vocabulary).then(|| self.d.first_rows(head, drafts)).transpose()?,
            convention: MtpConvention::default(),
        })
    }
}

/// Rows (or experts) that are taken at a time of `rows` that take `bytes` bytes in their files.
fn rows_of_a_piece(rows: usize, bytes: u64) -> usize {
    let each = (bytes / rows.max(1) as u64).max(1);
    ((PIECE / each) as usize).max(1)
}

/// Bytes of the weights of a checkpoint once they are on a device; experts included.
pub fn weight_bytes<D: Device>(d: &D, checkpoint: &Checkpoint, spec: &ModelSpec) -> Result<u64, ModelError> {
    let mut bytes = 0;
    for tensor in expected_tensors(spec, checkpoint.has("mtp.fc.weight")) {
        let matrix = |matrices: usize| {
            let MatrixForm { scheme, rows, cols, .. } = checkpoint.form(&tensor.name)?;
            let (rows, exact) = (rows / matrices.max(1), tensor.kind == Kind::Exact);
            Ok::<_, ModelError>(
                d.matrix_bytes(MatrixSpec { scheme, rows, cols, exact }).saturating_mul(matrices as u64),
            )
        };
        bytes += match tensor.kind {
            Kind::Vector => 4 * tensor.shape.iter().product::<usize>() as u64,
            Kind::Matrix | Kind::Exact => matrix(1)?,
            Kind::Experts => matrix(tensor.shape.first().copied().unwrap_or(1))?,
        };
    }
    Ok(bytes)
}
