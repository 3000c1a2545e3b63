//! Reads one JSON object of a config so that every key is used, known to be harmless, or an error.

use crate::ModelError;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::HashSet;

/// An object whose keys are ticked off as they are read.
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Path for messages: "" or "text_config.".
    path: &'static str,
    read: RefCell<HashSet<&'static str>>,
}

impl<'a> Fields<'a> {
    pub fn new(value: &'a Value, path: &'static str) -> Result<Fields<'a>, ModelError> {
        let object = value.as_object().ok_or_else(|| ModelError::config(path.trim_end_matches('.'), "is no object"))?;
        Ok(Fields { object, path, read: RefCell::default() })
    }

    /// The value of `key`; `null` counts as absent.
    pub fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.read.borrow_mut().insert(key);
        self.object.get(key).filter(|v| !v.is_null())
    }

    pub fn error(&self, key: &str, what: impl Into<String>) -> ModelError {
        ModelError::config(&format!("{}{key}", self.path), what)
    }

    /// A positive integer below 2^31.
    pub fn count(&self, key: &'static str, default: Option<usize>) -> Result<usize, ModelError> {
        match self.get(key) {
            None => default.ok_or_else(|| self.error(key, "is missing")),
            Some(v) => match v.as_u64() {
                Some(n) if n > 0 && n < 1 << 31 => Ok(n as usize),
                _ => Err(self.error(key, format!("is {v}, expected a positive integer"))),
            },
        }
    }

    pub fn number(&self, key: &'static str, default: Option<f64>) -> Result<f64, ModelError> {
        match self.get(key) {
            None => default.ok_or_else(|| self.error(key, "is missing")),
            Some(v) => v
                .as_f64()
                .filter(|x| x.is_finite())
                .ok_or_else(|| self.error(key, format!("is {v}, expected a number"))),
        }
    }

    /// A number above 0 that f32 can hold.
    pub fn positive(&self, key: &'static str, default: Option<f64>) -> Result<f64, ModelError> {
        match self.number(key, default)? {
            x if x > 0.0 && x <= f64::from(f32::MAX) => Ok(x),
            x => Err(self.error(key, format!("is {x}, expected a number above 0"))),
        }
    }

    pub fn flag(&self, key: &'static str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_bool().ok_or_else(|| self.error(key, format!("is {v}, expected true or false"))),
        }
    }

    /// Fails unless `key` is absent or has the one value that is supported.
    pub fn only(&self, key: &'static str, supported: &Value) -> Result<(), ModelError> {
        match self.get(key) {
            Some(v) if v != supported => {
                Err(self.error(key, format!("is {v}; it changes the maths, and only {supported} is supported")))
            }
            _ => Ok(()),
        }
    }

    pub fn list(&self, key: &'static str) -> Result<Option<&'a [Value]>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(v) => Err(self.error(key, format!("is {v}, expected a list"))),
        }
    }

    /// Marks keys that do not touch the forward pass.
    pub fn ignore(&self, keys: &[&'static str]) {
        self.read.borrow_mut().extend(keys);
    }

    /// Fails on a key that nobody read, unless its value says "off".
    pub fn finish(self) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let off = |v: &Value| match v {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            v => v.as_f64() == Some(0.0),
        };
        match self.object.iter().find(|(key, value)| !read.contains(key.as_str()) && !off(value)) {
            Some((key, value)) => Err(self.error(
                key,
                format!("({}) is unknown: it may change the maths, so the model is not run on a guess", brief(value)),
            )),
            None => Ok(()),
        }
    }
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
