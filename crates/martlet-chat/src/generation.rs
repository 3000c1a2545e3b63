//! What the checkpoint says about generating: where to stop, and how to sample by default.
//!
//! Stop ids are those of generation_config.json, config.json and its text_config together, since each of them is
//! incomplete in some release: Qwen3.5's config names `<|endoftext|>` alone, its generation_config `<|im_end|>` too.

use serde_json::{Map, Value};

/// Sampling values of generation_config.json; `None` where the file is silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    pub do_sample: Option<bool>,
    pub temperature: Option<f64>,
    pub top_k: Option<u32>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum GenerationError {
    #[error("{file}: not a JSON object: {message}")]
    Syntax { file: &'static str, message: String },
    #[error("{file}: {key} is {found}, expected {expected}")]
    BadValue { file: &'static str, key: String, found: String, expected: &'static str },
}

type Result<T> = std::result::Result<T, GenerationError>;

/// A parsed configuration file that can say where a value is wrong.
pub(crate) struct ConfigFile {
    file: &'static str,
    fields: Map<String, Value>,
}

impl ConfigFile {
    /// An absent file has no fields.
    pub(crate) fn parse(file: &'static str, bytes: Option<&[u8]>) -> Result<ConfigFile> {
        let fields = match bytes {
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|e| GenerationError::Syntax { file, message: e.to_string() })?
            }
            None => Map::new(),
        };
        Ok(ConfigFile { file, fields })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|v| !v.is_null())
    }

    fn bad(&self, key: &str, found: &Value, expected: &'static str) -> GenerationError {
        GenerationError::BadValue { file: self.file, key: key.to_string(), found: found.to_string(), expected }
    }

    fn number(&self, key: &str, expected: &'static str, valid: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|&x| valid(x)) {
            Some(x) => Ok(Some(x)),
            None => Err(self.bad(key, value, expected)),
        }
    }

    /// Ids under `key` of the given object: one number or a list of them.
    fn ids(&self, fields: &Map<String, Value>, key: &str, path: &str) -> Result<Vec<u32>> {
        const EXPECTED: &str = "a token id or a list of token ids";
        let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        match fields.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(|v| id(v).ok_or_else(|| self.bad(path, v, EXPECTED))).collect(),
            Some(one) => Ok(vec![id(one).ok_or_else(|| self.bad(path, one, EXPECTED))?]),
        }
    }
}

impl GenerationDefaults {
    pub(crate) fn read(config: &ConfigFile) -> Result<GenerationDefaults> {
        let do_sample = config.get("do_sample");
        let do_sample = do_sample.map(|v| v.as_bool().ok_or_else(|| config.bad("do_sample", v, "true or false")));
        let top_k = config.number("top_k", "a whole number from 0", |x| x >= 0.0 && x.fract() == 0.0 && x < 4e9)?;
        let share = |key| config.number(key, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x));
        let penalty = |key| config.number(key, "a number from -2 to 2", |x| (-2.0..=2.0).contains(&x));
        Ok(GenerationDefaults {
            do_sample: do_sample.transpose()?,
            temperature: config.number("temperature", "a number from 0", |x| (0.0..=1e6).contains(&x))?,
            top_k: top_k.map(|k| k as u32),
            top_p: share("top_p")?,
            min_p: share("min_p")?,
            repetition_penalty: config.number("repetition_penalty", "a number above 0", |x| x > 0.0 && x <= 1e6)?,
            presence_penalty: penalty("presence_penalty")?,
            frequency_penalty: penalty("frequency_penalty")?,
        })
    }
}

/// All stop ids of both files, ascending, each once.
pub(crate) fn stop_ids(generation_config: &ConfigFile, config: &ConfigFile) -> Result<Vec<u32>> {
    const KEY: &str = "eos_token_id";
    let mut ids = generation_config.ids(&generation_config.fields, KEY, KEY)?;
    ids.extend(config.ids(&config.fields, KEY, KEY)?);
    if let Some(text) = config.get("text_config").and_then(Value::as_object) {
        ids.extend(config.ids(text, KEY, "text_config.eos_token_id")?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &'static str, json: &str) -> ConfigFile {
        ConfigFile::parse(name, Some(json.as_bytes())).unwrap()
    }

    #[test]
    fn stop_ids_of_all_places_are_joined() {
        let generation = file("generation_config.json", r#"{"eos_token_id": [46, 44]}"#);
        let config = file("config.json", r#"{"eos_token_id": null, "text_config": {"eos_token_id": 44}}"#);
        assert_eq!(stop_ids(&generation, &config).unwrap(), [44, 46]);
        let config = file("config.json", r#"{"eos_token_id": 9}"#);
        assert_eq!(stop_ids(&file("generation_config.json", "{}"), &config).unwrap(), [9]);
    }

    #[test]
    fn defaults_are_read() {
        let config = file(
            "generation_config.json",
            r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null, "other": 1}"#,
        );
        let expected = GenerationDefaults {
            do_sample: Some(true),
            temperature: Some(0.6),
            top_k: Some(20),
            top_p: Some(0.95),
            ..GenerationDefaults::default()
        };
        assert_eq!(GenerationDefaults::read(&config).unwrap(), expected);
    }

    #[test]
    fn errors_name_file_key_and_value() {
        let read =
            |json: &str| GenerationDefaults::read(&file("generation_config.json", json)).unwrap_err().to_string();
        assert_eq!(read(r#"{"top_p": 95}"#), "generation_config.json: top_p is 95, expected a number from 0 to 1");
        assert_eq!(read(r#"{"top_k": 2.5}"#), "generation_config.json: top_k is 2.5, expected a whole number from 0");
        assert_eq!(read(r#"{"do_sample": 1}"#), "generation_config.json: do_sample is 1, expected true or false");
        assert_eq!(
            read(r#"{"temperature": "hot"}"#),
            "generation_config.json: temperature is \"hot\", expected a number from 0"
        );
        let config = file("config.json", r#"{"text_config": {"eos_token_id": [-1]}}"#);
        assert_eq!(
            stop_ids(&file("generation_config.json", "{}"), &config).unwrap_err().to_string(),
            "config.json: text_config.eos_token_id is -1, expected a token id or a list of token ids"
        );
        assert!(ConfigFile::parse("config.json", Some(b"[]")).is_err());
    }
}
