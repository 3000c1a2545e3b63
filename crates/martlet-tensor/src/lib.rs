//! martlet-tensor
