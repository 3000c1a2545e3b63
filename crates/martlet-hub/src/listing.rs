//! What a repository holds at one commit.

use crate::digest::Digest;
use crate::error::HubError;
use crate::http::{Client, encoded};
use martlet_weights::index;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::HeaderMap;

/// Bytes of one answer of the hub's API; an entry takes some 300.
const ANSWER: u64 = 32 << 20;
/// Pages of a listing, of a thousand entries each.
const PAGES: usize = 50;

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// "OWNER/NAME".
    pub repository: String,
    /// 40 hexadecimal digits.
    pub commit: String,
    /// The files of its topmost folder.
    pub files: Vec<RemoteFile>,
}

/// A file as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    /// A plain name.
    pub name: String,
    pub size: u64,
    pub digest: Digest,
}

impl Snapshot {
    pub fn file(&self, name: &str) -> Option<&RemoteFile> {
        self.files.iter().find(|f| f.name == name)
    }
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Whether a name from the network can be a file in a folder of ours, and in nobody else's.
pub(crate) fn plain_name(name: &str) -> bool {
    index::plain_name(name) && name.len() <= 200 && !name.starts_with('.') && !name.contains(char::is_control)
}

pub(crate) fn snapshot(client: &Client, repository: &str, revision: &str) -> Result<Snapshot, HubError> {
    let model = format!("/api/models/{repository}");
    let url = client.at(&format!("{model}/revision/{}", encoded(revision)));
    let name = || format!("{repository} (revision {revision})");
    let (_, found) = json::<Revision>(client, &url).map_err(|e| match e {
        HubError::NotFound { url, .. } => HubError::NotFound { what: name(), url },
        e => e,
    })?;
    let commit = found.sha;
    if !is_commit(&commit) {
        return Err(HubError::Listing { url, what: format!("\"{commit}\" is no commit") });
    }
    let mut next = Some(client.at(&format!("{model}/tree/{commit}")));
    let mut files = Vec::new();
    for _ in 0..PAGES {
        let Some(url) = next.take() else { break };
        let (headers, entries) = json::<Vec<Entry>>(client, &url)?;
        for entry in entries {
            files.extend(file(entry, &url)?);
        }
        next = following(&headers, &client.at("/"));
    }
    match next {
        None => Ok(Snapshot { repository: repository.to_string(), commit, files }),
        Some(url) => Err(HubError::Listing { url, what: format!("the listing has more than {PAGES} pages") }),
    }
}

/// None: a folder, or a name that is not for us.
fn file(entry: Entry, url: &str) -> Result<Option<RemoteFile>, HubError> {
    if entry.kind != "file" || !plain_name(&entry.path) {
        return Ok(None);
    }
    let (oid, size) = entry.lfs.map_or((entry.oid, entry.size), |lfs| (lfs.oid, lfs.size));
    match Digest::parse(oid.trim_start_matches("sha256:")) {
        Some(digest) => Ok(Some(RemoteFile { name: entry.path, size, digest })),
        None => Err(HubError::Listing { url: url.to_string(), what: format!("{} has no hash: \"{oid}\"", entry.path) }),
    }
}

/// The next page, by the `Link` header. It must be of the same hub.
fn following(headers: &HeaderMap, home: &str) -> Option<String> {
    let links = headers.get("link")?.to_str().ok()?;
    let link = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = link.split_once('<')?;
    let (url, _) = rest.split_once('>')?;
    url.starts_with(home).then(|| url.to_string())
}

fn json<T: DeserializeOwned>(client: &Client, url: &str) -> Result<(HeaderMap, T), HubError> {
    let (headers, bytes) = client.whole(url, ANSWER)?;
    match serde_json::from_slice(&bytes) {
        Ok(found) => Ok((headers, found)),
        Err(e) => {
            let what = format!("the answer is not what a hub says: {e}");
            Err(HubError::Listing { url: url.to_string(), what })
        }
    }
}
