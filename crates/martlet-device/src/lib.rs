//! martlet-device
