//! The faults that tests want in a step, where they happen.

use std::io;
use std::path::PathBuf;

use oss_model::State;
use oss_threads::{PerWorker, Team};

use crate::error::Result;
use crate::fault::Fault;
use crate::step::Task;
use crate::step::plan::Plan;

/// Refuses memory, or an expert, where a test wants it.
pub(crate) fn refuse(task: &mut Task) -> Result<()> {
    let drawn = task.drawn();
    let Some(Fault::Refused { at, times } | Fault::Unread { at, times }) = &mut task.fault else {
        return Ok(());
    };
    if *at != drawn || *times == 0 {
        return Ok(());
    }
    *times -= 1;
    if let Some(Fault::Refused { .. }) = task.fault {
        let cause = io::Error::from(io::ErrorKind::OutOfMemory);
        let refused = oss_memory::Error::Memory { action: "inject", bytes: 0, cause };
        return Err(oss_cache::Error::Memory(refused).into());
    }
    let (path, cause) = (PathBuf::from("injected"), io::Error::other("a fault was injected"));
    let cause = oss_memory::Error::File { action: "read", path: path.clone(), cause };
    let (layer, expert, offset, expected) = (0, 0, 0, 0);
    Err(oss_model::Error::Expert { path, layer, expert, offset, expected, cause }.into())
}

/// The first fault that a test wants in the middle of this step, and its row.
pub(crate) fn due_fault(plan: &Plan, running: &[Task]) -> Option<(Fault, usize)> {
    let mut first = 0;
    for part in &plan.parts {
        let task = Task::find(running, part.task)?;
        if let Some(fault @ (Fault::Panic { at } | Fault::Nan { at })) = task.fault
            && let Some(ahead) = at.checked_sub(task.drawn())
            && ahead <= part.drafts
        {
            return Some((fault, first + ahead));
        }
        first += part.rows;
    }
    None
}

/// Does what a test wants done to a row in the middle of a step.
pub(crate) fn strike(fault: Fault, team: &Team, state: &mut State, row: usize) {
    if let Fault::Nan { .. } = fault {
        let rows = state.residual(row + 1);
        let hidden = rows.len() / (row + 1);
        rows[row * hidden..].fill(f32::NAN);
        return;
    }
    let mut workers = vec![(); team.threads()];
    let last = team.threads() - 1;
    team.phase(last + 1, PerWorker::new(&mut workers), |unit, _| {
        assert!(unit.index < last, "a fault was injected");
    });
}
