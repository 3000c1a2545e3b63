//! martlet-weights
