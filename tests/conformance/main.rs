//! What every transport must do, as one suite that is run unchanged over each: memory, TCP on loopback, and RDMA where
//! `RD_TESTBED` (rxe or siw) says that there is a device. A new transport is a [`fabric::Fabric`] more.
//!
//! The cases of `lane` look at a pair of lanes alone; those of `session` and `tree` run whole transfers over them, with
//! [`script::Script`] losing, silencing and damaging lanes in the same way whatever they are made of. Every case is a
//! test `TRANSPORT::CASE`, so that what cannot run here is counted as ignored. `tests/planted` shows, for each case, a
//! defect that makes it fail.

mod fabric;
mod lane;
mod mem;
mod script;
mod session;
mod tree;

use std::process::ExitCode;
use std::sync::Arc;

use fabric::Fabric;
use libtest_mimic::{Arguments, Trial};

/// A case of the suite.
type Case = fn(&Arc<dyn Fabric>);

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    let fabrics: [Arc<dyn Fabric>; 3] = [Arc::new(fabric::Mem), Arc::new(fabric::Tcp), Arc::new(fabric::Rdma)];
    if fabric::Rdma.is_here() {
        // The cases share one device, and two emulated processors.
        arguments.test_threads = Some(1);
    } else {
        eprintln!("conformance: rdma NOT RUN, since RD_TESTBED (rxe or siw) is not set");
    }
    let mut trials = Vec::new();
    for fabric in fabrics {
        for &(name, case) in lane::CASES.iter().chain(session::CASES).chain(tree::CASES) {
            let (fabric, here) = (Arc::clone(&fabric), fabric.is_here());
            let name = format!("{}::{name}", fabric.name());
            let trial = Trial::test(name, move || {
                case(&fabric);
                Ok(())
            });
            trials.push(trial.with_ignored_flag(!here));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
