//! Requirements on every transport, as one suite that runs unchanged over each of them: memory, TCP on
//! loopback, and RDMA if `RD_TESTBED` (rxe or siw) says that there is a device. A new transport needs only
//! another [`fabric::Fabric`].
//!
//! The cases of `lane` examine a single pair of lanes. Those of `session` and `tree` run whole transfers, in which
//! [`script::Script`] loses, silences and damages lanes in the same way over every transport. Every case is a test
//! `TRANSPORT::CASE`, so that a case that cannot run here is counted as ignored. For each case `tests/planted` has a
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
