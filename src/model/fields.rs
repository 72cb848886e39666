//! Reads config.json strictly: nothing is defaulted, and all faults are told at once.

use serde_json::{Map, Value};

/// One object of a config, read field by field; faults gather until [`Fields::finish`].
pub struct Fields<'a> {
    path: &'static str,
    object: Option<&'a Map<String, Value>>,
    faults: Vec<String>,
}

/// The largest count that a config may state; the product of three stays within 64 bits.
const COUNT_MAX: u64 = 1 << 20;

impl<'a> Fields<'a> {
    /// Reads the object `name` of `parent`, said as `path` in messages.
    pub fn of(parent: &'a Value, name: &str, path: &'static str) -> Self {
        let object = parent.get(name).and_then(Value::as_object);
        let faults = if object.is_none() { vec![format!("`{path}` is missing or no object")] } else { Vec::new() };
        Fields { path, object, faults }
    }

    fn value(&mut self, name: &str) -> Option<&'a Value> {
        let value = self.object?.get(name);
        if value.is_none() {
            self.faults.push(format!("`{}.{name}` is missing", self.path));
        }
        value
    }

    fn wrong(&mut self, name: &str, value: &Value, wanted: &str) {
        self.faults.push(format!("`{}.{name}` is {value}, must be {wanted}", self.path));
    }

    /// A whole number from 1 to about a million.
    pub fn count(&mut self, name: &str) -> usize {
        self.count_from(name, 1)
    }

    /// A whole number from `least` to about a million.
    pub fn count_from(&mut self, name: &str, least: u64) -> usize {
        let Some(value) = self.value(name) else { return least as usize };
        match value.as_u64() {
            Some(n) if (least..=COUNT_MAX).contains(&n) => n as usize,
            _ => {
                self.wrong(name, value, &format!("a whole number from {least} to {COUNT_MAX}"));
                least as usize
            }
        }
    }

    /// A finite number.
    pub fn number(&mut self, name: &str) -> f32 {
        let Some(value) = self.value(name) else { return 1.0 };
        match value.as_f64() {
            Some(x) if (x as f32).is_finite() => x as f32,
            _ => {
                self.wrong(name, value, "a number");
                1.0
            }
        }
    }

    /// A number above 0.
    pub fn positive(&mut self, name: &str) -> f32 {
        let x = self.number(name);
        if x > 0.0 {
            return x;
        }
        self.faults.push(format!("`{}.{name}` is {x}, must be above 0", self.path));
        1.0
    }

    /// true or false.
    pub fn switch(&mut self, name: &str) -> bool {
        let Some(value) = self.value(name) else { return false };
        value.as_bool().unwrap_or_else(|| {
            self.wrong(name, value, "true or false");
            false
        })
    }

    /// A list of layer numbers, counted from 1 to `layers`; the result counts from 0.
    pub fn layers(&mut self, name: &str, layers: usize) -> Vec<usize> {
        let Some(value) = self.value(name) else { return Vec::new() };
        let number = |v: &Value| v.as_u64().filter(|n| (1..=layers as u64).contains(n)).map(|n| n as usize - 1);
        let list: Option<Vec<usize>> = value.as_array().and_then(|list| list.iter().map(number).collect());
        list.unwrap_or_else(|| {
            self.wrong(name, value, &format!("a list of layers from 1 to {layers}"));
            Vec::new()
        })
    }

    /// A field of which this version computes one value.
    pub fn only(&mut self, name: &str, supported: &Value) {
        if let Some(value) = self.value(name)
            && value != supported
        {
            self.wrong(name, value, &format!("{supported}: nothing else is computed"));
        }
    }

    /// States a fault that no single field shows.
    pub fn require(&mut self, holds: bool, message: impl FnOnce() -> String) {
        if !holds {
            self.faults.push(format!("`{}`: {}", self.path, message()));
        }
    }

    /// The faults found.
    pub fn finish(self) -> Vec<String> {
        self.faults
    }
}
