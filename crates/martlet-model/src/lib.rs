//! martlet-model
