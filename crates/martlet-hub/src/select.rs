//! Which files of a repository a model needs.

use crate::error::HubError;
use crate::listing::{RemoteFile, Snapshot, plain_name};
use martlet_weights::gguf;
use serde_json::Value;
use std::collections::BTreeSet;

/// Says which shard holds which tensor.
pub const INDEX_FILE: &str = "model.safetensors.index.json";
/// What a model is. It takes its name last of all files.
pub const CONFIG_FILE: &str = "config.json";
/// The weights of a checkpoint that has no shards, and of its draft head where that is apart.
const SINGLE: [&str; 2] = ["model.safetensors", "mtp.safetensors"];
/// Most bytes of a file that is read whole while choosing.
pub const SMALL: u64 = 100_000_000;

/// The files of a model, in the order in which they are fetched: texts, weights, config.json. `gguf` names the first part
/// of a GGUF model; without it a repository must have safetensors. `read` brings a small file.
pub fn select(
    snapshot: &Snapshot,
    gguf: Option<&str>,
    read: impl FnOnce(&RemoteFile) -> Result<Vec<u8>, HubError>,
) -> Result<Vec<RemoteFile>, HubError> {
    let weights = match gguf {
        Some(name) => return parts(snapshot, name),
        None => weights(snapshot, read)?,
    };
    let mut texts = Vec::new();
    for file in snapshot.files.iter().filter(|f| is_text(&f.name)) {
        if file.size > SMALL {
            return Err(wrong(snapshot, format!("has {} of {} bytes, which is no text file", file.name, file.size)));
        }
        texts.push(file.clone());
    }
    let Some(config) = texts.iter().position(|f| f.name == CONFIG_FILE) else {
        return Err(wrong(snapshot, format!("has no {CONFIG_FILE}")));
    };
    let config = texts.remove(config);
    Ok(texts.into_iter().chain(weights).chain([config]).collect())
}

/// Bytes of the weights among files.
pub fn weight_bytes(files: &[RemoteFile]) -> u64 {
    files.iter().filter(|f| is_weights(&f.name)).map(|f| f.size).sum()
}

/// Whether a file of this name holds weights.
pub fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".gguf")
}

fn weights(
    snapshot: &Snapshot,
    read: impl FnOnce(&RemoteFile) -> Result<Vec<u8>, HubError>,
) -> Result<Vec<RemoteFile>, HubError> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    match snapshot.file(INDEX_FILE) {
        Some(index) => names.extend(shards(snapshot, &read_small(snapshot, index, read)?)?),
        None if snapshot.file(SINGLE[0]).is_some() => {
            names.insert(SINGLE[0].to_string());
        }
        None => return Err(nothing(snapshot)),
    }
    names.extend(snapshot.file(SINGLE[1]).map(|f| f.name.clone()));
    let find = |name: &String| {
        let missing = || wrong(snapshot, format!("lists {name} in {INDEX_FILE}, and does not have it"));
        snapshot.file(name).cloned().ok_or_else(missing)
    };
    names.iter().map(find).collect()
}

fn read_small(
    snapshot: &Snapshot,
    file: &RemoteFile,
    read: impl FnOnce(&RemoteFile) -> Result<Vec<u8>, HubError>,
) -> Result<Vec<u8>, HubError> {
    match file.size {
        0..=SMALL => read(file),
        size => Err(wrong(snapshot, format!("has a {} of {size} bytes; at most {SMALL} are read", file.name))),
    }
}

fn shards(snapshot: &Snapshot, index: &[u8]) -> Result<BTreeSet<String>, HubError> {
    let damaged = |what: &str| wrong(snapshot, format!("has a damaged {INDEX_FILE}: {what}"));
    let index: Value = serde_json::from_slice(index).map_err(|e| damaged(&e.to_string()))?;
    let map = index["weight_map"].as_object().filter(|m| !m.is_empty()).ok_or_else(|| damaged("no weight_map"))?;
    let name = |v: &Value| v.as_str().filter(|n| plain_name(n) && n.ends_with(".safetensors")).map(str::to_string);
    map.values().map(|v| name(v).ok_or_else(|| damaged(&format!("{v} is no file of weights")))).collect()
}

/// What a pack takes along, and an index that leads to the weights.
fn is_text(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
    let text = ["json", "jinja", "txt", "model", "tiktoken"].contains(&extension);
    let index = name.ends_with(".index.json") && name != INDEX_FILE;
    (text && !index) || name.starts_with("LICENSE") || name.starts_with("NOTICE")
}

/// All parts of a GGUF model ("NAME-00001-of-00003.gguf" and so on). Their texts are in them.
fn parts(snapshot: &Snapshot, name: &str) -> Result<Vec<RemoteFile>, HubError> {
    let Some(first) = snapshot.file(name).filter(|f| f.name.ends_with(".gguf")) else {
        return Err(wrong(snapshot, format!("has no \"{name}\"; it has {}", ggufs(snapshot))));
    };
    let Some((stem, _, count)) = gguf::part(name) else { return Ok(vec![first.clone()]) };
    let part = |i: u64| {
        let name = gguf::part_name(stem, i, count);
        snapshot.file(&name).cloned().ok_or_else(|| wrong(snapshot, format!("does not have the part {name}")))
    };
    (1..=count).map(part).collect()
}

fn ggufs(snapshot: &Snapshot) -> String {
    const SHOWN: usize = 20;
    let names: Vec<&str> = snapshot.files.iter().map(|f| f.name.as_str()).filter(|n| n.ends_with(".gguf")).collect();
    match names.len() {
        0 => "no .gguf files at all".to_string(),
        n if n > SHOWN => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
        _ => names.join(", "),
    }
}

fn nothing(snapshot: &Snapshot) -> HubError {
    match snapshot.files.iter().any(|f| f.name.ends_with(".gguf")) {
        true => wrong(snapshot, format!("has GGUF files: choose one with --file. It has {}", ggufs(snapshot))),
        false => wrong(snapshot, format!("has no weights: neither {} nor {INDEX_FILE}", SINGLE[0])),
    }
}

fn wrong(snapshot: &Snapshot, what: String) -> HubError {
    HubError::Files { repository: snapshot.repository.clone(), commit: snapshot.commit.clone(), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn snapshot(names: &[&str]) -> Snapshot {
        let file = |name: &&str| RemoteFile { name: name.to_string(), size: 10, digest: Digest::GitBlob([0; 20]) };
        Snapshot { repository: "a/b".into(), commit: "0".repeat(40), files: names.iter().map(file).collect() }
    }

    fn chosen(names: &[&str], gguf: Option<&str>, index: &str) -> Result<Vec<String>, String> {
        let files = select(&snapshot(names), gguf, |_| Ok(index.as_bytes().to_vec())).map_err(|e| e.to_string())?;
        Ok(files.into_iter().map(|f| f.name).collect())
    }

    #[test]
    fn weights_are_those_of_the_index_and_the_config_comes_last() {
        let names = ["config.json", "README.md", "tokenizer.json", "model.safetensors", "other.safetensors", "x.py"];
        assert_eq!(chosen(&names, None, "").unwrap(), ["tokenizer.json", "model.safetensors", "config.json"]);
        let names =
            ["config.json", INDEX_FILE, "a.safetensors", "b.safetensors", "mtp.safetensors", "c.bin.index.json"];
        let index = r#"{"weight_map": {"t": "b.safetensors", "u": "a.safetensors", "v": "b.safetensors"}}"#;
        let expected = [INDEX_FILE, "a.safetensors", "b.safetensors", "mtp.safetensors", "config.json"];
        assert_eq!(chosen(&names, None, index).unwrap(), expected);
        for (index, word) in [
            ("{", "damaged"),
            ("{}", "no weight_map"),
            (r#"{"weight_map": {"t": "../b.safetensors"}}"#, "no file of weights"),
            (r#"{"weight_map": {"t": "z.safetensors"}}"#, "does not have it"),
        ] {
            let error = chosen(&names, None, index).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(chosen(&["model.safetensors"], None, "").unwrap_err().contains("no config.json"));
        assert!(chosen(&["config.json"], None, "").unwrap_err().contains("no weights"));
    }

    #[test]
    fn gguf_files_are_chosen_by_name() {
        let names = ["q4.gguf", "q8-00001-of-00002.gguf", "q8-00002-of-00002.gguf", "README.md"];
        assert_eq!(chosen(&names, Some("q4.gguf"), "").unwrap(), ["q4.gguf"]);
        assert_eq!(chosen(&names, Some(names[1]), "").unwrap(), names[1..3]);
        assert!(chosen(&names, None, "").unwrap_err().contains("--file. It has q4.gguf, q8-00001"));
        assert!(chosen(&names, Some("q5.gguf"), "").unwrap_err().contains("no \"q5.gguf\""));
        assert!(chosen(&names[..2], Some(names[1]), "").unwrap_err().contains("q8-00002-of-00002"));
    }
}
