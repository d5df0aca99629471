//! The faults that tests want in a step, where they happen.

use oss_model::State;
use oss_threads::{PerWorker, Team};

use crate::error::Result;
use crate::fault::Fault;
use crate::step::Task;
use crate::step::plan::Plan;

/// Refuses memory where a test wants it.
pub(crate) fn refuse(task: &mut Task) -> Result<()> {
    let drawn = task.drawn();
    match &mut task.fault {
        Some(Fault::Refused { at, times }) if *at == drawn && *times > 0 => {
            *times -= 1;
            let cause = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
            let refused = oss_memory::Error::Memory { action: "inject", bytes: 0, cause };
            Err(oss_cache::Error::Memory(refused).into())
        }
        _ => Ok(()),
    }
}

/// The first fault that a test wants in the middle of this step, and its row.
pub(crate) fn due_fault(plan: &Plan, running: &[Task]) -> Option<(Fault, usize)> {
    let mut first = 0;
    for part in &plan.parts {
        let task = running.iter().find(|task| task.id == part.task)?;
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
