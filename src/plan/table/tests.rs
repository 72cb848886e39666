use proptest::prelude::*;

use super::*;

const SHAPE: TableShape = TableShape { vocab: 50, layers: 3, experts: 8, chosen: 2 };
/// The largest model's.
const LARGEST: TableShape = TableShape { vocab: 163_840, layers: 92, experts: 896, chosen: 16 };

/// A table of some tokens' routing: (id, an expert of each layer).
fn table(shape: TableShape, seen: &[(u32, u16)]) -> Table {
    let mut table = Table::new(shape);
    for &(id, expert) in seen {
        for layer in 0..shape.layers {
            table.learn(id, layer, &[expert % shape.experts, (expert + 1 + layer as u16) % shape.experts]);
        }
    }
    table
}

fn share(footprint: &Footprint, block: usize) -> f32 {
    footprint.iter().find(|b| b.0 == block).map_or(0.0, |b| b.1)
}

#[test]
fn a_token_is_foretold_by_what_it_used() {
    let mut seen = vec![(7, 0); 30];
    seen.extend([(9, 4); 30]);
    let table = table(SHAPE, &seen);
    let (seven, nine) = (table.predict(&[7, 7], 99), table.predict(&[9], 99));
    // Layer 1's block of expert 0 is 8, of expert 4 is 12.
    assert!(share(&seven, 8) > 0.9 && share(&seven, 12) < 0.1, "{seven:?}");
    assert!(share(&nine, 12) > 0.9 && share(&nine, 8) < 0.1, "{nine:?}");
    assert!((share(&table.predict(&[7, 9], 99), 8) - 0.5).abs() < 0.05);
    assert!(table.predict(&[3, 49, 50, u32::MAX], 99).is_empty(), "tokens never seen");
    assert_eq!(table.predict(&[7, 9], 2).len(), 2);
}

#[test]
fn rare_tokens_weigh_more_and_are_drawn_to_the_mean() {
    let mut seen = vec![(1, 0); 2000];
    seen.extend([(2, 4); 20]);
    let both = table(SHAPE, &seen).predict(&[1, 2], 99);
    assert!(share(&both, 4) > 0.85, "{both:?}");
    seen.push((3, 5));
    let once = share(&table(SHAPE, &seen).predict(&[3], 99), 5);
    assert!((once - 1.0 / 3.0).abs() < 0.05, "{once}");
}

#[test]
fn what_is_used_often_outlives_what_is_used_once() {
    let mut cell = [Slot::default(); 3];
    for round in 0..200u16 {
        count(&mut cell, 1);
        count(&mut cell, 2);
        count(&mut cell, 100 + round);
    }
    assert_eq!(cell.iter().filter(|s| s.count == 200).map(|s| s.expert).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cell[2].count, 1, "newcomers wear each other down");
}

#[test]
fn counts_that_run_full_keep_their_ratio() {
    let mut table = Table::new(TableShape { vocab: 2, layers: 1, experts: 2, chosen: 1 });
    for turn in 0..70_000u32 {
        table.learn(1, 0, &[u16::from(turn % 4 == 0)]);
    }
    let footprint = table.predict(&[1], 9);
    assert!((share(&footprint, 0) - 0.75).abs() < 0.01, "{footprint:?}");
}

#[test]
fn the_largest_models_table_stays_within_its_bytes() {
    let layout = Layout::of(&LARGEST);
    assert_eq!((layout.layers, layout.slots), (5, 16));
    assert!(layout.rows > 160_000, "{layout:?}");
    let mut table = Table::new(LARGEST);
    for id in 0..layout.rows as u32 + 10 {
        for layer in 0..92 {
            table.learn(id, layer, &[1, 2, 3, 895]);
        }
    }
    let bytes = table.to_bytes();
    assert!(bytes.len() as u64 <= Table::BYTES_MAX, "{}", bytes.len());
    assert_eq!(table.rows.len(), layout.rows);
    assert_eq!(Table::from_bytes(&bytes, LARGEST), Ok(table));
    let layers: Vec<u32> = Table::new(LARGEST).layers().collect();
    assert_eq!(layers, [0, 18, 36, 55, 73]);
}

#[test]
fn shapes_that_no_model_has_make_tables_that_hold_little() {
    let most = TableShape { vocab: u32::MAX, layers: u32::MAX, experts: u16::MAX, chosen: u16::MAX };
    for shape in [
        TableShape { vocab: 0, ..SHAPE },
        TableShape { layers: 0, ..SHAPE },
        TableShape { experts: 0, ..SHAPE },
        TableShape { chosen: 0, ..SHAPE },
        most,
    ] {
        let mut table = Table::new(shape);
        table.learn(0, 0, &[0, 1, u16::MAX]);
        table.learn(u32::MAX, u32::MAX, &[]);
        table.predict(&[0, 1, u32::MAX], 10);
        let bytes = table.to_bytes();
        assert!(bytes.len() as u64 <= Table::BYTES_MAX);
        assert_eq!(Table::from_bytes(&bytes, shape), Ok(table));
    }
}

#[test]
fn two_halves_merge_to_the_whole() {
    let seen: Vec<(u32, u16)> = (0..400u32).map(|i| (i * i % 23, (i % 5) as u16)).collect();
    let (whole, mut half) = (table(SHAPE, &seen), table(SHAPE, &seen[..150]));
    half.merge(&table(SHAPE, &seen[150..]));
    assert_eq!((half.seen, &half.uses), (whole.seen, &whole.uses));
    let ids: Vec<u32> = (0..50).collect();
    for id in ids {
        assert_eq!(half.predict(&[id], 99), whole.predict(&[id], 99), "token {id}");
    }
    let full = table(SHAPE, &vec![(1, 0); 65_000]);
    let mut twice = full.clone();
    twice.merge(&full);
    assert_eq!(twice.predict(&[1], 99), full.predict(&[1], 99), "sums that do not fit are halved");
}

#[test]
fn bytes_of_another_model_or_form_are_refused() {
    let bytes = table(SHAPE, &[(7, 0), (9, 4)]).to_bytes();
    let told = |bytes: &[u8], shape| Table::from_bytes(bytes, shape).expect_err("refused");
    assert!(told(&bytes, TableShape { chosen: 3, ..SHAPE }).contains("another shape"));
    assert!(told(&bytes[..10], SHAPE).contains("short"));
    assert!(told(b"", SHAPE).contains("short"));
    assert!(told(&[7; 300], SHAPE).contains("no table"));
    // Bytes whose sum is right may still be nonsense.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut body = bytes[..bytes.len() - 4].to_vec();
        change(&mut body);
        body.extend(crc32fast::hash(&body).to_le_bytes());
        body
    };
    let first_row = FRAME + 3 * 8 * 8;
    assert!(told(&sealed(&|b| b.truncate(b.len() - 1)), SHAPE).contains("length"));
    assert!(told(&sealed(&|b| b[32..36].fill(255)), SHAPE).contains("more rows"));
    assert!(told(&sealed(&|b| b[first_row] = 50), SHAPE).contains("tokens"));
    assert!(told(&sealed(&|b| b[first_row] = 9), SHAPE).contains("ascending"));
    assert!(told(&sealed(&|b| b[first_row + 6] = 8), SHAPE).contains("expert"));
    // Counts may be anything, and the table goes on.
    let mut odd = Table::from_bytes(&sealed(&|b| b[24..32].fill(255)), SHAPE).expect("a table");
    odd.learn(7, 0, &[0]);
    odd.merge(&odd.clone());
    odd.predict(&[7], 9);
}

/// Bytes before the sums.
const FRAME: usize = bytes::FRAME_BYTES - 4;

proptest! {
    #[test]
    fn what_is_written_is_read_and_damage_is_found(
        seen in prop::collection::vec((0u32..60, 0u16..8), 0..60), at in any::<prop::sample::Index>(), bit in 0u32..8
    ) {
        let table = table(SHAPE, &seen);
        let mut bytes = table.to_bytes();
        prop_assert_eq!(bytes.len() , FRAME + 4 + 3 * 8 * 8 + table.rows.len() * table.row_bytes());
        let read = Table::from_bytes(&bytes, SHAPE);
        prop_assert_eq!(read.as_ref().map(Table::hash), Ok(table.hash()));
        prop_assert_eq!(read, Ok(table));
        let at = at.index(bytes.len());
        prop_assert!(Table::from_bytes(&bytes[..at], SHAPE).is_err());
        bytes[at] ^= 1 << bit;
        prop_assert!(Table::from_bytes(&bytes, SHAPE).is_err());
    }

    #[test]
    fn no_bytes_are_a_panic(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = Table::new(SHAPE).to_bytes()[..24].to_vec();
        bytes.extend(&body);
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        if let Ok(mut table) = Table::from_bytes(&bytes, SHAPE) {
            table.merge(&table.clone());
            table.predict(&[0, 1, 2], 9);
        }
    }
}
