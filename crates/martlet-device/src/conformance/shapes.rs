//! Shapes below, at and above the sizes at which devices change their ways.

use martlet_tensor::Scheme;

/// Rows of a batch.
pub(super) const ROWS: [usize; 7] = [1, 2, 5, 17, 33, 64, 65];

/// One product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    pub outputs: usize,
    pub inputs: usize,
}

/// Calls `f` with the shapes of products that a scheme is tried on: the one list that the suite and the devices' own
/// tests share. Every count of rows and outputs occurs, and inputs on both sides of groups and slices of 256.
pub fn on_edge_shapes(scheme: Scheme, mut f: impl FnMut(Shape)) {
    let inputs: Vec<usize> = match scheme {
        Scheme::Dense(_) | Scheme::Fp8Block { .. } => vec![1, 700, 16, 257, 129, 63, 256],
        _ => {
            // Some have a factor for several groups.
            let group = scheme.group(0) * if scheme.fits(scheme.group(0)) { 1 } else { 128 / scheme.group(0) };
            let near = |k: usize| k.div_ceil(group) * group;
            vec![group, near(640), near(256), near(250) + group, 3 * group, near(513), 2 * group]
        }
    };
    let outputs = [1, 16, 130, 17, 64, 3, 33];
    for i in 0..ROWS.len() {
        f(Shape { rows: ROWS[i], outputs: outputs[i], inputs: inputs[i] });
    }
    f(Shape { rows: 5, outputs: 65, inputs: inputs[1] });
}
