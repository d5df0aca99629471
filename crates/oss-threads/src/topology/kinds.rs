//! Which of a machine's cores are made to use little energy.

use std::path::Path;

use super::{cpu_list, number};
use crate::error::Error;

/// A core is of another kind than the fastest if it is below this share of its speed, in percent:
/// cores of one kind differ a little too, by the clocks that each can hold.
const ALIKE: usize = 80;

/// The CPUs of efficiency cores, by what the folder `sys/devices` says: the lists of Intel's
/// hybrids, else the capacities that Arm's kernels measure, else the highest clocks. None where the
/// system says nothing of some CPU.
pub(super) fn efficient(devices: &Path, online: &[usize]) -> Result<Vec<usize>, Error> {
    if let Some(fast) = cpu_list(&devices.join("cpu_core/cpus"))? {
        return Ok(online.iter().copied().filter(|cpu| !fast.contains(cpu)).collect());
    }
    for file in ["cpu_capacity", "cpufreq/cpuinfo_max_freq"] {
        if let Some(speeds) = speeds(devices, online, file)? {
            let most = speeds.iter().copied().fold(0, usize::max);
            let is_slow = |speed: usize| speed.saturating_mul(100) < most.saturating_mul(ALIKE);
            let all = online.iter().copied().zip(speeds);
            return Ok(all.filter(|(_, speed)| is_slow(*speed)).map(|(cpu, _)| cpu).collect());
        }
    }
    Ok(Vec::new())
}

/// What a file says of each CPU, if it does so of all.
fn speeds(devices: &Path, online: &[usize], file: &str) -> Result<Option<Vec<usize>>, Error> {
    let mut speeds = Vec::with_capacity(online.len());
    for cpu in online {
        match number(&devices.join(format!("system/cpu/cpu{cpu}/{file}")))? {
            Some(speed) => speeds.push(speed),
            None => return Ok(None),
        }
    }
    Ok(Some(speeds))
}
