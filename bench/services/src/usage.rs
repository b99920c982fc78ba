//! What a process uses: memory and processor time.

use std::fs;

use anyhow::{Context, Result};

/// Clock ticks in a second, as /proc counts them on all machines that Linux still supports.
const USER_HZ: f64 = 100.0;

/// The memory of a process now and its peak, in MB (of 2^20 bytes). Programs that it starts do not count.
pub fn memory(pid: u32) -> Result<(f64, f64)> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let field = |name: &str| -> Option<f64> {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kib| kib / 1024.0)
    };
    field("VmRSS").zip(field("VmHWM")).with_context(|| format!("{path} has no VmRSS and VmHWM"))
}

/// The processor time of a process and of the programs that it started and that have ended, in seconds.
pub fn processor_time(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The name of the program, in parentheses, may have spaces. utime, stime, cutime and cstime are the fields 14 to 17.
    let fields = text.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks: Option<Vec<f64>> =
        fields.split_whitespace().skip(11).take(4).map(|word| word.parse().ok()).collect();
    let ticks = ticks.filter(|ticks| ticks.len() == 4).with_context(|| format!("{path} has no times"))?;
    Ok(ticks.iter().sum::<f64>() / USER_HZ)
}

/// Whether programs run that a process has started.
pub fn has_children(pid: u32) -> Result<bool> {
    let path = format!("/proc/{pid}/task");
    for task in fs::read_dir(&path).with_context(|| format!("read {path}"))? {
        let children = fs::read_to_string(task?.path().join("children"));
        // A thread may have ended since it was listed.
        if children.is_ok_and(|children| !children.trim().is_empty()) {
            return Ok(true);
        }
    }
    Ok(false)
}
