//! martlet-cpu
