//! The keys and values of a GGUF file.

use std::collections::BTreeMap;

/// A value; integers and floats of all widths are widened.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
    /// An array of strings.
    Texts(Texts),
}

/// Strings, one behind the other: a vocabulary has hundreds of thousands, which would take several times their bytes each on
/// its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    all: String,
    /// Where each ends in `all`.
    ends: Vec<usize>,
}

impl Texts {
    pub fn push(&mut self, text: &str) {
        self.all.push_str(text);
        self.ends.push(self.all.len());
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).map(|(&start, &end)| &self.all[start..end])
    }
}

/// All keys of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Value>);

impl Value {
    pub fn number(&self) -> Option<u64> {
        match self {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Value::Unsigned(_) | Value::Signed(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Bool(_) => "a bool",
            Value::Text(_) => "a string",
            Value::List(_) => "an array",
            Value::Texts(_) => "an array of strings",
        }
    }
}

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The value as `read` takes it; the error names the key, what it holds and what was expected.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let error = || format!("key {key} holds {}, expected {expected}", value.kind());
        read(value).map(Some).ok_or_else(error)
    }

    /// A whole number, if the key is there.
    pub fn number(&self, key: &str) -> Result<Option<u64>, String> {
        self.typed(key, "a whole number", Value::number)
    }

    pub fn need_number(&self, key: &str) -> Result<u64, String> {
        self.number(key)?.ok_or_else(|| format!("key {key} is missing"))
    }

    pub fn need_float(&self, key: &str) -> Result<f64, String> {
        let float = |v: &Value| match v {
            Value::Float(x) if x.is_finite() => Some(*x),
            _ => None,
        };
        self.typed(key, "a finite float", float)?.ok_or_else(|| format!("key {key} is missing"))
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>, String> {
        self.typed(key, "a string", Value::text)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        let flag = |v: &Value| match v {
            Value::Bool(b) => Some(*b),
            _ => None,
        };
        self.typed(key, "a bool", flag)
    }

    pub fn list(&self, key: &str) -> Result<Option<&[Value]>, String> {
        self.typed(key, "an array", |v| match v {
            Value::List(list) => Some(list.as_slice()),
            _ => None,
        })
    }

    /// An array of whole numbers.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<u64>>, String> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let all: Option<Vec<u64>> = list.iter().map(Value::number).collect();
        all.map(Some).ok_or_else(|| format!("key {key} is not an array of whole numbers"))
    }

    /// An array of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, String> {
        self.typed(key, "an array of strings", |v| match v {
            Value::Texts(texts) => Some(texts.iter().collect()),
            Value::List(list) if list.is_empty() => Some(Vec::new()),
            _ => None,
        })
    }
}
