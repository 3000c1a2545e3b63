//! martlet-session
