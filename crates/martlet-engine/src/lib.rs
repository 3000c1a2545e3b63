//! martlet-engine
