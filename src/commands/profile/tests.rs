//! What is believed of what is remembered.

use super::*;
#[test]
fn what_was_noise_is_not_expected_again() {
    let mut savings = Vec::new();
    for (wave, ran) in [(7, 90), (8, 80), (100, 99)] {
        add(&mut savings, Shown { wave, tokens: 500, ran, random: 100.0, random_sd: 1.0 });
    }
    let profile = Profile { table: Table::new(TableShape { vocab: 1, layers: 0, experts: 0, chosen: 0 }), savings };
    let (saved, measured) = profile.expected_saving(5);
    assert!((saved - 0.15).abs() < 1e-9 && measured);
    assert_eq!(profile.expected_saving(65), (0.0, true), "less than chance explains");
    assert_eq!(profile.expected_saving(16), (UNKNOWN, false));
}

#[test]
fn what_makes_no_sense_is_not_believed() {
    let of =
        |saved: &str, sd: &str, runs: &str| savings(format!(r#"[{{"wave":8,"saved":{saved},"sd":{sd},"runs":{runs}}}]"#).as_bytes()).len();
    assert_eq!(of("0.1", "0.01", "3"), 1);
    assert_eq!([of("1.5", "0.01", "3"), of("0.1", "-1", "3"), of("0.1", "0.01", "4294967295"), of("0.1", "0.01", "0")], [0; 4]);
    assert!(savings(b"[{").is_empty() && savings(b"\xff").is_empty());
}
