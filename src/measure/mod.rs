//! What is measured, beside the wire, and what is made of it: numbers in, tables and drawings out.
//!
//! * `report`: the numbers, as text, CSV and JSON. `plot`: as drawings.
//! * `model`: an adapter's on-board cache, and what it does to many connections.
//! * `disk`, `mem`: storage and memory of this host.

pub mod disk;
pub mod mem;
pub mod model;
pub mod plot;
pub mod report;
