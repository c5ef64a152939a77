//! Events about the hosts of a copy to several hosts.

use schemars::JsonSchema;
use serde::Serialize;

use crate::job::progress::HostStanding;

/// How to add hosts to a running copy.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct Job {
    /// The name of the copy for `rdcp --join`.
    pub job: String,
}

/// The state of one of several hosts.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct Host {
    /// The host as the command line names it.
    pub host: String,
    /// The host's state now. The reason for a failure is in the event `failed` for the same host.
    pub state: HostStanding,
    /// Bytes of the stream that the host has received.
    pub bytes: u64,
    /// The host that sends it the stream. Null for the host that has the source, and if no host sends.
    pub from: Option<String>,
}

/// Progress of all hosts of a copy to several hosts.
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Hosts {
    /// Number of hosts.
    pub hosts: u64,
    /// Number of hosts that have everything, and have proved it.
    pub done: u64,
    /// Number of hosts that have failed.
    pub failed: u64,
    /// Bytes of the stream that the source has made so far, descriptions included; 0 with --sync, which has none.
    pub bytes: u64,
    /// Whether `bytes` is the whole stream.
    pub bytes_final: bool,
    /// The rate over the last seconds, of all hosts together, in bytes per second.
    pub bytes_per_second: f64,
    /// The slowest host that receives the stream, or with --sync its copy; null if none does.
    pub slowest: Option<HostRate>,
    /// The median rate in bytes per second of hosts that receive the stream, or with --sync a copy; null if none does.
    pub median_bytes_per_second: Option<f64>,
    /// The fastest host that receives the stream, or with --sync its copy; null if none does.
    pub fastest: Option<HostRate>,
    /// The host that others wait for; null if none is far enough behind.
    pub held_up: Option<HeldUp>,
}

/// How fast a host receives the stream, or with --sync its copy.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct HostRate {
    /// The host as the command line names it.
    pub host: String,
    /// Bytes that the host has received of the stream, or with --sync of its copy.
    pub bytes: u64,
    /// The rate over the last seconds, in bytes per second.
    pub bytes_per_second: f64,
}

/// A host that holds up others.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct HeldUp {
    /// The host that others wait for.
    pub host: String,
    /// The slow part of the host.
    pub by: HeldUpBy,
    /// Number of other hosts that receive the stream meanwhile.
    pub hosts: u64,
}

/// The part of a host that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HeldUpBy {
    /// The host's disk: the host has data that it has not written.
    Disk,
    /// The link to the host from the host before it.
    Link,
}

impl HeldUpBy {
    /// Returns the part's name, as in the schema.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Link => "link",
        }
    }
}
