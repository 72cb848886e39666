//! Which rows fit nowhere, and how rows are named in messages.

use crate::plan::{self, Limits, ModelFacts};
use crate::request::RowFacts;
use crate::spool::Spool;
use crate::units::show_count;

/// Rows that are named.
const NAMED: usize = 10;
/// Characters of an id.
const ID_CHARS: usize = 60;

/// The row that may take most tokens, and those that fit nowhere in the budget, for a message; `alone` gives what holds for a job of one row.
pub fn misfits(rows: &[RowFacts], m: &ModelFacts, spool: &Spool, alone: impl Fn(&[RowFacts]) -> Limits) -> String {
    let running = || rows.iter().enumerate().filter(|(_, row)| !row.is_idle());
    let Some((index, row)) = running().max_by_key(|(_, row)| row.positions_max()) else { return String::new() };
    let words = format!("; the longest row, `{}`, may take {} tokens", id(spool, index), show_count(row.positions_max()));
    let misfits = plan::misfits(rows, m, alone);
    if misfits.is_empty() || misfits.len() == running().count() {
        return words;
    }
    let ids: Vec<String> = misfits.iter().take(NAMED).map(|&i| format!("`{}`", id(spool, i as usize))).collect();
    let more = misfits.len() - ids.len();
    let more = if more > 0 { format!(" and {} more", show_count(more as u64)) } else { String::new() };
    format!("{words}; the rows that fit nowhere in this memory: {}{more}", ids.join(", "))
}

/// A row's id, cut short; a terminal gets no control characters of the input.
pub fn id(spool: &Spool, row: usize) -> String {
    spool.get(row as u64).map_or_else(|_| format!("number {row}"), |request| short(&request.id))
}

fn short(id: &str) -> String {
    id.chars().take(ID_CHARS).collect::<String>().replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_tame() {
        assert_eq!(short("a\u{1b}[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!(short(&"é".repeat(1000)).chars().count(), ID_CHARS);
    }
}
