//! A copy of a model that a test may damage.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

/// A model's folder that belongs to one test.
pub struct Model {
    pub folder: PathBuf,
}

impl Model {
    pub fn set(&self) -> String {
        format!("model.path={}", self.folder.display())
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.join(name)).expect("a file of the model")
    }

    /// Puts `bytes` in the place of the link or file `name`.
    pub fn put(&self, name: &str, bytes: impl AsRef<[u8]>) {
        self.remove(name);
        fs::write(self.folder.join(name), bytes).expect("written");
    }

    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.folder.join(name));
    }

    /// Changes the bytes of the file `name`.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.read(name);
        change(&mut bytes);
        self.put(name, bytes);
    }

    /// Changes config.json.
    pub fn config(&self, change: impl FnOnce(&mut Value)) {
        let mut config = serde_json::from_slice(&self.read("config.json")).expect("JSON");
        change(&mut config);
        self.put("config.json", config.to_string());
    }

    /// Changes the text of the header of the shard `name`, whose tensors stay as they lie.
    pub fn header(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let (mut header, data) = shard(&self.read(name));
        change(&mut header);
        self.put(name, unshard(&header, &data));
    }

    /// Changes the bytes of one tensor.
    pub fn tensor(&self, file: &str, name: &str, change: impl FnOnce(&mut [u8])) {
        let (header, mut data) = shard(&self.read(file));
        let at = |i: usize| header[name]["data_offsets"][i].as_u64().expect("an offset") as usize;
        change(&mut data[at(0)..at(1)]);
        self.put(file, unshard(&header, &data));
    }
}

/// The header and the data of a safetensors file.
pub fn shard(bytes: &[u8]) -> (Value, Vec<u8>) {
    let length = u64::from_le_bytes(*bytes.first_chunk::<8>().expect("a length")) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).expect("a header"), bytes[8 + length..].to_vec())
}

/// A safetensors file.
pub fn unshard(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}
