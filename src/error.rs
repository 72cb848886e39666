//! One error type; its kinds are what the operator must do next.
//!
//! A row's failure is no error but data ([`crate::request::Fault`]): the job goes on.

use std::fmt;
use std::path::Path;

/// What the operator must do; each kind is one exit code of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Mend the command line or the job file.
    Usage,
    /// Mend the input, the model's folder or the budget; nothing was computed.
    Refused,
    /// Choose another output folder: this one belongs to another job.
    OtherJob,
    /// Look at the disk: storage failed while work was under way.
    Storage,
    /// Wait for the other process, or stop it: it holds this job.
    Locked,
    /// Run the same command again: the job was stopped, and goes on where it was.
    Stopped,
}

impl Kind {
    /// The process's exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Kind::Usage => 2,
            Kind::Refused => 3,
            Kind::OtherJob => 4,
            Kind::Storage => 5,
            Kind::Locked => 6,
            Kind::Stopped => 75,
        }
    }
}

/// A job that cannot start or go on. The message names file, tensor, line or field and says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// What the operator must do.
    pub kind: Kind,
    /// One message for a person, without a trailing full stop or newline.
    pub message: String,
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A fault of the command line or the job file.
    pub fn usage(message: impl Into<String>) -> Self {
        Error { kind: Kind::Usage, message: message.into() }
    }

    /// A fault of input, model or budget, found before work.
    pub fn refused(message: impl Into<String>) -> Self {
        Error { kind: Kind::Refused, message: message.into() }
    }

    /// An output folder that is in use by another job.
    pub fn other_job(message: impl Into<String>) -> Self {
        Error { kind: Kind::OtherJob, message: message.into() }
    }

    /// A failure of storage during work.
    pub fn storage(message: impl Into<String>) -> Self {
        Error { kind: Kind::Storage, message: message.into() }
    }

    /// A job that another process holds.
    pub fn locked(message: impl Into<String>) -> Self {
        Error { kind: Kind::Locked, message: message.into() }
    }

    /// A job that was stopped on purpose.
    pub fn stopped(message: impl Into<String>) -> Self {
        Error { kind: Kind::Stopped, message: message.into() }
    }

    /// An operating-system error on `path` while doing `what` ("read", "create"), as `kind`.
    pub fn io(kind: Kind, what: &str, path: &Path, error: &std::io::Error) -> Self {
        Error { kind, message: format!("cannot {what} {}: {error}", path.display()) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
