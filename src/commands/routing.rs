//! Records who chose whom while a job runs, and draws from it what the order of work has saved.
//!
//! The record proves what an order of work saves, and no answer depends on it: a disk that is full costs the record and not the job.

use std::fs;
use std::path::PathBuf;

use super::prepare::Prepared;
use super::profile::{self, Profile, Shown};
use crate::error::Result;
use crate::execute::{Recorder, Tally, routing_widths};
use crate::model::manifest::Manifest;
use crate::plan::{self, Compared, Schedule, Table};
use crate::routes::{NO_EXPERT, Routes, RoutesWriter};
use crate::spool::Spool;

/// What is replayed at most: 45,000 answer rows of the largest model, a few seconds.
const REPLAYED_BYTES_MAX: u64 = 128 << 20;

/// A job's record in the making.
pub struct Recording<'a> {
    state: PathBuf,
    spool: &'a Spool,
    /// What the job's tokens use, for later jobs.
    table: Table,
    /// None where no layer routes, and once the record is lost.
    writer: Option<RoutesWriter>,
    /// Prompts are recorded too, and the file stays.
    keep: bool,
    lost: Option<String>,
}

impl<'a> Recording<'a> {
    /// Starts a record in the folder `state`.
    pub fn start(state: PathBuf, manifest: &Manifest, spool: &'a Spool, keep: bool) -> Self {
        let widths = routing_widths(manifest);
        let table = Table::new(profile::shape(manifest));
        let mut recording = Recording { state, spool, table, writer: None, keep, lost: None };
        if widths.row() > 0 {
            recording.writer = recording.unless_lost(RoutesWriter::create(&recording.state, widths));
        }
        recording
    }

    /// Closes the record, replays it beside other orders of the same work, and remembers for later jobs what it has shown.
    pub fn close(&mut self, prepared: &Prepared, tally: &Tally) -> Option<Compared> {
        self.finish();
        let (schedule, manifest) = (&prepared.schedule, prepared.model.manifest());
        let allotment = schedule.allotment();
        let memory_bytes = (allotment.state_bytes + allotment.panel_ring_bytes + allotment.block_ring_bytes) / 2;
        let compared = self.compare(schedule, memory_bytes);
        let grouped =
            compared.filter(|compared| schedule.overlap().is_some() && compared.rows == tally.answer_rows && compared.random > 0.0);
        let shown = grouped.map(|compared| Shown {
            wave: allotment.wave,
            tokens: tally.answer_rows,
            ran: tally.answer_expert_loads,
            random: compared.random,
            random_sd: compared.random_sd,
        });
        // What is not remembered is learned again.
        if let Some(why) = Profile::save(&prepared.learned, manifest, &self.table, shown) {
            self.lost.get_or_insert(why);
        }
        compared
    }

    fn finish(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.unless_lost(writer.finish());
        }
    }

    /// What a person should know: that the record is lost, and why.
    pub fn note(&self) -> Option<String> {
        self.lost.as_ref().map(|why| format!("routing     the answers are whole, but who chose whom is not remembered: {why}\n"))
    }

    /// The job's order of work beside others, replayed as far as `memory_bytes` hold the record.
    fn compare(&mut self, schedule: &Schedule, memory_bytes: u64) -> Option<Compared> {
        if self.lost.is_some() || !self.state.join(RoutesWriter::NAME).exists() {
            return None;
        }
        let routes = Routes::load(&self.state, schedule.rows().len(), memory_bytes.min(REPLAYED_BYTES_MAX));
        routes.inspect_err(|why| self.lost = Some(why.to_string())).ok().map(|routes| plan::compare(schedule, &routes))
    }

    fn remove(&self) {
        let _ = fs::remove_file(self.state.join(RoutesWriter::NAME)); // it may never have been made
    }

    /// A file that is lost takes no more space: the answers need it.
    fn unless_lost<T>(&mut self, done: Result<T>) -> Option<T> {
        done.inspect_err(|why| {
            self.lost = Some(why.to_string());
            self.keep = false;
            self.remove();
        })
        .ok()
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.keep {
            self.remove();
        }
    }
}

impl Recording<'_> {
    /// Counts what the tokens of a prompt use.
    fn learn(&mut self, row: u64, first_position: u32, ids: &[u16]) {
        let Ok(request) = self.spool.get(row) else { return }; // who runs it says so
        let shape = self.table.shape();
        let (layers, chosen) = (self.table.layers().collect::<Vec<_>>(), usize::from(shape.chosen));
        let tokens = request.prompt.iter().skip(first_position as usize);
        for (&token, row) in tokens.zip(ids.chunks_exact(chosen * shape.layers as usize)) {
            for &layer in &layers {
                let experts = &row[layer as usize * chosen..][..chosen];
                if experts[0] != NO_EXPERT {
                    self.table.learn(token, layer, experts);
                }
            }
        }
    }
}

impl Recorder for Recording<'_> {
    fn wants_prompts(&self) -> bool {
        true
    }

    fn routed(&mut self, row: u64, first_position: u32, token: u32, of_answer: bool, ids: &[u16]) {
        if !of_answer {
            self.learn(row, first_position, ids);
            if !self.keep {
                return;
            }
        }
        if let Some(mut writer) = self.writer.take() {
            let pushed = writer.push(row, first_position, token, of_answer, ids);
            self.writer = self.unless_lost(pushed).map(|()| writer);
        }
    }
}

#[cfg(test)]
mod tests;
