//! Byte counts as people write and read them. In the program a byte count is a `u64`, never a float.

/// Parses "8GiB", "512MiB", "1.5GB", "64k" or a bare number of bytes; decimal suffixes are powers of 1000.
///
/// # Errors
/// A message that names the accepted forms.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let fault = || format!("`{text}` is no size: write bytes or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB");
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let number: f64 = trimmed[..digits].parse().map_err(|_| fault())?;
    let unit: u64 = match trimmed[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(fault()),
    };
    let bytes = number * unit as f64;
    if bytes.is_finite() && bytes < 9.0e18 { Ok(bytes as u64) } else { Err(fault()) }
}

/// "31.4 MB": three significant digits, powers of 1000.
pub fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// "12,345,678".
pub fn show_count(n: u64) -> String {
    let plain = n.to_string();
    let mut out = String::with_capacity(plain.len() + plain.len() / 3);
    for (i, c) in plain.chars().enumerate() {
        if i > 0 && (plain.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(parse_bytes("8GiB"), Ok(8 << 30));
        assert_eq!(parse_bytes(" 1.5 GB "), Ok(1_500_000_000));
        assert_eq!(parse_bytes("64k"), Ok(65_536));
        assert_eq!(parse_bytes("123"), Ok(123));
        for bad in ["", "GiB", "8XiB", "-1", "1e9", "8 Gi B", "99999999TB"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_counts_are_shown_short() {
        assert_eq!(show_bytes(999), "999 B");
        assert_eq!(show_bytes(999_600), "1.00 MB");
        assert_eq!(show_bytes(31_440_000), "31.4 MB");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(12), "12");
    }
}
