//! martlet-io
