//! The remote half: what a host does when it is asked. The caller has the same for what is on its own host.

pub mod end;
pub mod examiner;
pub mod measure;
pub mod place;
pub mod serve;
pub mod station;
mod tree;
