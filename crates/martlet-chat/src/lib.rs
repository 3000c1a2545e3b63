//! martlet-chat
