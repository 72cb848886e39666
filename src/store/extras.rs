//! What lies in a checkpoint's shards and is not read: counted, and the first of it named, since a hostile header may hold millions of it.

/// What lies in the shards beside the model.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Tensors that the model does not use.
    pub unused: Names,
    /// Copies of tensors, in files that the index file does not name for them.
    pub copies: Names,
}

/// Some names of many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// How many there are.
    pub count: u64,
    /// The first of them.
    pub first: Vec<String>,
}

impl Names {
    const FIRST: usize = 20;
    const CHARS: usize = 200;

    /// Counts a name; one of megabytes is not kept whole.
    pub fn push(&mut self, name: &str) {
        self.count += 1;
        if self.first.len() < Self::FIRST {
            self.first.push(name.chars().take(Self::CHARS).collect());
        }
    }
}
