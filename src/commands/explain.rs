//! Why the plan is as it is, in words.

use super::prepare::Prepared;
use crate::plan::{Forecast, States};
use crate::units::show_bytes;

/// What the states take on their disk.
pub fn scratch_bytes(prepared: &Prepared) -> u64 {
    match prepared.schedule.allotment() {
        allotment if allotment.states == States::Memory => 0,
        allotment => (allotment.pool as u64).saturating_mul(prepared.limits.scratch.slot_bytes),
    }
}

/// Who decodes together, by whose word, and why.
pub fn grouping(prepared: &Prepared) -> String {
    let name = prepared.schedule.grouping().name();
    let predictor = prepared.schedule.overlap().map_or_else(String::new, |overlap| format!(" as `{}` foretells it", overlap.predictor()));
    format!("{name}{predictor}: {}", prepared.why)
}

/// Where states lie, and what it costs.
pub fn states(states: States, f: &Forecast, prepared: &Prepared) -> String {
    let lie = match states {
        States::Memory => return "in memory".into(),
        States::Parked => "on disk while a row waits, in memory while it is answered",
        States::Passing => "on disk, in memory while their layer is swept",
    };
    let limit = prepared
        .limits
        .scratch
        .write_limit_bytes
        .map_or_else(|| "no limit is set".into(), |most| format!("the limit is {}", show_bytes(most)));
    let a_token = f.bytes_state_written / (f.prompt_tokens + f.completion_tokens_max).max(1);
    format!(
        "{lie}: {} of disk, {} read, {} written ({} a token; {limit})",
        show_bytes(scratch_bytes(prepared)),
        show_bytes(f.bytes_state_read),
        show_bytes(f.bytes_state_written),
        show_bytes(a_token)
    )
}
