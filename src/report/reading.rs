//! How far is a reading of known length? A bar on a terminal, elsewhere one plain line every 30 s.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::progress::{LINE_EVERY, Screen, show_duration};
use crate::units::show_bytes;

/// Shows bytes read of bytes to read.
pub struct Reading {
    bytes_total: u64,
    face: Face,
    line_at: Duration,
}

enum Face {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

impl Reading {
    /// Starts to show a reading of `bytes_total` bytes.
    pub fn start(screen: Screen, bytes_total: u64) -> Self {
        let face = match screen {
            Screen::Lines(out) => Face::Lines(out),
            Screen::Bar(target) => {
                let style = ProgressStyle::with_template("{bar:12} {wide_msg}").expect("a template of known keys");
                Face::Bar(ProgressBar::with_draw_target(Some(bytes_total), target).with_style(style))
            }
        };
        Reading { bytes_total, face, line_at: LINE_EVERY }
    }

    /// Shows `bytes`, `elapsed` after the start.
    pub fn update(&mut self, elapsed: Duration, bytes: u64) {
        let line = elapsed >= self.line_at;
        match &mut self.face {
            Face::Bar(bar) => {
                bar.set_position(bytes.min(self.bytes_total));
                bar.set_message(words(self.bytes_total, elapsed, bytes));
            }
            Face::Lines(out) if line => {
                self.line_at = elapsed + LINE_EVERY;
                // Nobody is left to tell that nobody listens.
                let _ = writeln!(out, "{}", words(self.bytes_total, elapsed, bytes)).and_then(|()| out.flush());
            }
            Face::Lines(_) => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Face::Bar(bar) = &self.face {
            bar.finish_and_clear();
        }
    }
}

fn words(total: u64, elapsed: Duration, bytes: u64) -> String {
    let rate = bytes as f64 / elapsed.as_secs_f64();
    let left = Duration::try_from_secs_f64(total.saturating_sub(bytes) as f64 / rate);
    let left = left.map_or_else(|_| "end not known yet".into(), |left| format!("{} left", show_duration(left)));
    let rate = if rate.is_finite() { show_bytes(rate as u64) } else { "-".into() };
    format!("{} of {} read, {left}, {rate}/s", show_bytes(bytes), show_bytes(total))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics while it holds it").write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_every_half_minute_says_how_far_and_how_fast() {
        let said = Said::default();
        let mut reading = Reading::start(Screen::Lines(Box::new(said.clone())), 90_000_000_000);
        for second in 0..=65 {
            reading.update(Duration::from_secs(second), second * 1_500_000_000);
        }
        reading.finish();
        let text = String::from_utf8(said.0.lock().expect("no test panics while it holds it").clone()).expect("text");
        assert_eq!(text, "45.0 GB of 90.0 GB read, 30 s left, 1.50 GB/s\n90.0 GB of 90.0 GB read, 0 s left, 1.50 GB/s\n");
    }

    #[test]
    fn nothing_read_divides_by_nothing() {
        assert_eq!(words(10, Duration::ZERO, 0), "0 B of 10 B read, end not known yet, -/s");
        assert_eq!(words(10, Duration::from_secs(1), 0), "0 B of 10 B read, end not known yet, 0 B/s");
    }
}
