//! rdma-pipe: pipes, files and pipelines between hosts, at the link's speed.
//!
//! The layers, each reaching only downwards: `cmd` → `control`, `engine`, `measure` → `transport`, `fs` → `rd_proto`. See
//! `docs/ARCHITECTURE.md`.

pub mod cmd;
pub mod control;
pub mod engine;
pub mod fs;
pub mod measure;
pub mod transport;
