//! The network: checkpoints from a hub with the API of Hugging Face, whole or not at all, and where they are kept.
//!
//! [`Hub::snapshot`] lists a repository at one commit, [`select`] says which of its files a model needs, and
//! [`Hub::fetch`] brings them into a folder over several connections. **No byte is used before its file's length and
//! hash are those that the hub lists; what has arrived is not fetched again, whenever and however the last run ended.**
//! [`Store`] is the folder of installed models, and [`catalogue`] the table of their short names.

pub mod cache;
pub mod catalogue;
mod digest;
mod error;
mod fetch;
mod http;
mod listing;
mod part;
pub mod release;
pub mod select;
mod store;
mod target;

pub use cache::HubCache;
pub use digest::Digest;
pub use error::HubError;
pub use fetch::{FetchProgress, MIN_SEGMENT, has_room, link};
pub use http::Timing;
pub use listing::{RemoteFile, Snapshot};
pub use store::{Installed, Locked, Store};
pub use target::{Target, valid_repository};

use http::Client;
use std::fs::File;
use std::io::Read;

/// Where checkpoints come from when nothing else is said.
pub const ENDPOINT: &str = "https://huggingface.co";

/// How to reach a hub. The fields are what the environment says to Hugging Face's own tools.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// `HF_ENDPOINT`: the hub, or a mirror of it.
    pub endpoint: String,
    /// `HF_TOKEN`, or the file that logging in has left. Sent to the endpoint alone.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: use what is in the cache, and no network.
    pub offline: bool,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes that one request asks for; at least [`MIN_SEGMENT`].
    pub segment: u64,
    pub timing: Timing,
}

impl Default for HubOptions {
    fn default() -> HubOptions {
        HubOptions {
            endpoint: ENDPOINT.to_string(),
            token: None,
            offline: false,
            connections: 8,
            segment: 32 << 20,
            timing: Timing::default(),
        }
    }
}

/// A hub.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    options: HubOptions,
    cache: Option<HubCache>,
}

impl Hub {
    /// `cache` is the folder of other tools' downloads; what is there is used. Fails where the endpoint is no address.
    pub fn new(options: HubOptions, cache: Option<HubCache>) -> Result<Hub, HubError> {
        let client = Client::new(&options.endpoint, options.token.clone(), options.timing)?;
        Ok(Hub { client, options, cache })
    }

    /// The files of a repository ("OWNER/NAME") at a revision (a branch, tag or commit), pinned to its commit.
    pub fn snapshot(&self, repository: &str, revision: &str) -> Result<Snapshot, HubError> {
        let cached = || self.cache.as_ref().and_then(|cache| cache.snapshot(repository, revision));
        if self.options.offline {
            return cached().ok_or_else(|| HubError::Offline { repository: repository.to_string() });
        }
        match listing::snapshot(&self.client, repository, revision) {
            // What is whole in the cache needs no network.
            Err(e @ HubError::Transport { .. }) => cached().ok_or(e),
            listed => listed,
        }
    }

    /// A small file of a snapshot, checked.
    pub fn small_file(&self, snapshot: &Snapshot, file: &RemoteFile) -> Result<Vec<u8>, HubError> {
        if let Some(bytes) = self.cached(snapshot, file).and_then(|path| std::fs::read(path).ok())
            && file.digest.is_of(&bytes)
        {
            return Ok(bytes);
        }
        self.client.small_file(snapshot, file)
    }

    /// The first `bytes` of a file. **Nobody has checked them**: compare them with the file once it is whole.
    pub fn beginning(&self, snapshot: &Snapshot, file: &RemoteFile, bytes: u64) -> Result<Vec<u8>, HubError> {
        let wanted = bytes.min(file.size);
        if let Some(path) = self.cached(snapshot, file) {
            let mut found = Vec::new();
            let read = File::open(&path).and_then(|f| f.take(wanted).read_to_end(&mut found));
            return read.map(|_| found).map_err(HubError::io(path));
        }
        match self.options.offline {
            true => Err(HubError::Offline { repository: snapshot.repository.clone() }),
            false => self.client.beginning(snapshot, file, wanted),
        }
    }

    /// Where the cache has a file of the right size.
    fn cached(&self, snapshot: &Snapshot, file: &RemoteFile) -> Option<std::path::PathBuf> {
        self.cache.as_ref()?.file(snapshot, file)
    }
}
