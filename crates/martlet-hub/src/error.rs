//! What can go wrong between a hub and a folder.

use std::fmt;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// What a person has written names nothing.
    #[error("\"{text}\" {what}")]
    Name { text: String, what: String },
    #[error("the endpoint \"{url}\" {what}; HF_ENDPOINT sets it")]
    Endpoint { url: String, what: String },
    #[error("{what} is not at {url}: is the name right? A private repository needs HF_TOKEN, too")]
    NotFound { what: String, url: String },
    #[error(
        "{url} refuses (status {status}): {}. A gated repository wants its terms accepted on its page first",
        Token(*token)
    )]
    Denied { url: String, status: u16, token: bool },
    #[error("{url}: {what}, {attempts} times. What has arrived is kept: the same command goes on from there")]
    Transport { url: String, what: String, attempts: u32 },
    #[error("{url}: {what}")]
    Listing { url: String, what: String },
    #[error("{repository} at {commit} {what}")]
    Files { repository: String, commit: String, what: String },
    #[error("{file} has arrived damaged {times} times: its hash is {found}, and the hub says {expected}")]
    Digest { file: String, found: String, expected: String, times: u32 },
    #[error(
        "the disk of {} has {} left, and {} are needed: {what}", dir.display(), Bytes(*free), Bytes(*needed)
    )]
    NoRoom { dir: PathBuf, needed: u64, free: u64, what: String },
    #[error("another martlet{} is at work on \"{name}\"", Process(holder))]
    Busy { name: String, holder: Option<String> },
    #[error("{repository} is not in the cache, and HF_HUB_OFFLINE forbids to ask for it")]
    Offline { repository: String },
    /// The caller wanted no more.
    #[error("the fetching was stopped")]
    Stopped,
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl HubError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |source| HubError::Io { path, source }
    }

    /// Whether it is the person's command that is wrong.
    pub fn is_usage(&self) -> bool {
        matches!(self, HubError::Name { .. } | HubError::Endpoint { .. })
    }
}

struct Token(bool);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            true => "the token has no access",
            false => "HF_TOKEN is not set",
        })
    }
}

struct Process<'a>(&'a Option<String>);

impl fmt::Display for Process<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |id| write!(f, " (process {id})"))
    }
}

/// Bytes for people.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1 << 30 => write!(f, "{:.2} GiB", n as f64 / (1u64 << 30) as f64),
            n => write!(f, "{:.1} MiB", n as f64 / (1u64 << 20) as f64),
        }
    }
}
