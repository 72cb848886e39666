//! The nightshift command: reads the job file, hands the job on, prints what went wrong.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use nightshift::cli::{Cli, Command, JobArgs};
use nightshift::commands::{self, Said};
use nightshift::error::{Error, Kind, Result};
use nightshift::job::Job;
use nightshift::report::Screen;

/// More than this is no job file but, most likely, a row file given in its place.
const JOB_FILE_BYTES_MAX: u64 = 1 << 20;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) if help.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = help.print();
            return ExitCode::from(Kind::Usage.exit_code());
        }
        Err(error) if error.use_stderr() => return complain(&error.render().to_string(), Kind::Usage.exit_code()),
        Err(help) => {
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match execute(&cli.command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => complain(&format!("error: {error}\n"), error.kind.exit_code()),
    }
}

fn execute(command: &Command) -> Result<u8> {
    match command {
        Command::Run(args) => commands::run::run(&job(args)?, Screen::stderr()).and_then(say),
        Command::Plan(args) => commands::plan::plan(&job(&args.job)?, args.explain, args.json).and_then(say),
        Command::Verify(args) => commands::verify::verify(&args.model, args.cache.as_deref(), args.json, Screen::stderr()).and_then(say),
        Command::Doctor(args) => commands::doctor::doctor(args, &mut note).and_then(say),
    }
}

/// Prints what a command leaves; a reader that went away is no reason to fail, a full disk is.
fn say(said: Said) -> Result<u8> {
    let mut out = std::io::stdout();
    match out.write_all(said.text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::storage(format!("cannot write to standard output: {error}; what was asked for is done")))
        }
        _ => Ok(said.code),
    }
}

/// Says what goes on, for those who wait.
fn note(what: &str) {
    let _ = writeln!(std::io::stderr(), "nightshift: {what}");
}

/// Says `message`; a reader that went away is no reason to fail otherwise.
fn complain(message: &str, code: u8) -> ExitCode {
    let _ = write!(std::io::stderr(), "nightshift: {message}");
    ExitCode::from(code)
}

/// The job that `args` ask for.
fn job(args: &JobArgs) -> Result<Job> {
    let overrides = args.overrides()?;
    match &args.job {
        Some(file) => {
            let base = file.parent().unwrap_or(Path::new(""));
            Job::parse(&job_text(file)?, &file.display().to_string(), base, &overrides)
        }
        None => Job::parse("", "no job file given", Path::new(""), &overrides),
    }
}

fn job_text(file: &Path) -> Result<String> {
    let fault = |error: std::io::Error| Error::io(Kind::Usage, "read the job file", file, &error);
    let mut bytes = Vec::new();
    std::fs::File::open(file).map_err(fault)?.take(JOB_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > JOB_FILE_BYTES_MAX {
        return Err(Error::usage(format!("{} is no job file: it has over 1 MiB; rows go by --input", file.display())));
    }
    if bytes.trim_ascii_start().starts_with(b"{") {
        return Err(Error::usage(format!("{} is no job file: it begins with `{{`, as JSON does; rows go by --input", file.display())));
    }
    String::from_utf8(bytes).map_err(|_| Error::usage(format!("{} is no job file: it is not UTF-8 text", file.display())))
}
