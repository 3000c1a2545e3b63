//! One file for each subcommand.

pub mod bench;
pub mod benchtest;
pub mod cache;
pub mod chat;
pub mod config;
pub mod generate;
pub mod inspect;
pub mod models;
pub mod pack;
pub mod plan;
pub mod pull;
pub mod quantize;
pub mod replay;
pub mod serve;
pub mod service;
pub mod simulate;
pub mod stats;
pub mod synthetic;
pub mod template;
pub mod tokenize;
pub mod trace_experts;
