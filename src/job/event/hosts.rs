//! Events about the hosts of a copy to several hosts.

use schemars::JsonSchema;
use serde::Serialize;

use crate::job::progress::HostStanding;

/// See [`super::Event::Job`].
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct Job {
    /// What `rdcp --join` calls it.
    pub job: String,
}

/// See [`super::Event::Host`].
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct Host {
    /// The host as the command line names it.
    pub host: String,
    /// How it stands now. Why it failed is in `failed`, which has the host.
    pub state: HostStanding,
    /// Bytes of the stream that it has.
    pub bytes: u64,
    /// The hop by which it gets them: from this host. Null for the one that has the source, and for none.
    pub from: Option<String>,
}

/// See [`super::Event::Hosts`].
#[derive(Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Hosts {
    /// All of them.
    pub hosts: u64,
    /// Those that have all, proven.
    pub done: u64,
    /// Those that have failed.
    pub failed: u64,
    /// Bytes of the stream that the source has made so far: of file contents and of what describes them.
    pub bytes: u64,
    /// That is all of it.
    pub bytes_final: bool,
    /// The rate of the last seconds, of all hosts together.
    pub bytes_per_second: f64,
    /// The slowest of those that take the stream; null where none does.
    pub slowest: Option<HostRate>,
    /// The rate of the middle one; null where none takes the stream.
    pub median_bytes_per_second: Option<f64>,
    /// The fastest; null where none takes the stream.
    pub fastest: Option<HostRate>,
    /// The host that others wait for; null where none is far enough behind.
    pub held_up: Option<HeldUp>,
}

/// How fast a host takes the stream.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct HostRate {
    /// The host as the command line names it.
    pub host: String,
    /// Bytes of the stream that it has.
    pub bytes: u64,
    /// The rate of the last seconds.
    pub bytes_per_second: f64,
}

/// Who holds up whom.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub struct HeldUp {
    /// The host that is waited for.
    pub host: String,
    /// What of it is slow.
    pub by: HeldUpBy,
    /// How many others take the stream meanwhile.
    pub hosts: u64,
}

/// What of a host others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HeldUpBy {
    /// Its disk: it has what it does not write.
    Disk,
    /// The way to it from the host before it.
    Link,
}
