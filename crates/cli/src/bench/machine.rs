//! What the figures were measured on.

use crate::bench::program::{WITH_REAPED, cpu_s, ticks};
use serde::Serialize;
use std::fs;
use std::thread::available_parallelism;
use std::time::Instant;

/// A machine, as far as it explains figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Processor model; empty where the kernel does not say.
    pub(crate) processor: String,
    /// Processors this process may use.
    pub(crate) cpus: usize,
    /// Memory in bytes.
    pub(crate) memory: u64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// Congestion control of TCP, which matters even on loopback.
    pub(crate) congestion_control: String,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Self {
        let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        Self {
            processor: field(&processors, "model name").unwrap_or_default().to_owned(),
            cpus: available_parallelism().map_or(1, Into::into),
            memory: field(&memory, "MemTotal").and_then(kibibytes).unwrap_or(0),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            congestion_control: congestion.trim().to_owned(),
        }
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        format!(
            "{} processors ({}), {:.0} GiB, Linux {}, TCP {}",
            self.cpus,
            self.processor,
            self.memory as f64 / f64::from(1 << 30),
            self.kernel,
            self.congestion_control
        )
    }
}

/// How much of the machine others use while something is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    daemon: u32,
    start: Instant,
    spent_s: f64,
}

impl Meter {
    /// From now on; the work of this process, of those it starts, and of `daemon` does not count.
    pub(crate) fn start(daemon: u32) -> Self {
        Self {
            daemon,
            start: Instant::now(),
            spent_s: others_s(daemon).unwrap_or(f64::NAN),
        }
    }

    /// Processors' worth of time that others have used, once everything started since then has ended.
    pub(crate) fn others(&self) -> Option<f64> {
        let spent = others_s(self.daemon)? - self.spent_s;
        let share = spent / self.start.elapsed().as_secs_f64();
        share.is_finite().then_some(share.max(0.0))
    }
}

/// Processor time in seconds that others have used so far.
fn others_s(daemon: u32) -> Option<f64> {
    let whole = busy_ticks(&fs::read_to_string("/proc/stat").ok()?)?;
    let own = ticks(&fs::read_to_string("/proc/self/stat").ok()?, WITH_REAPED)?;
    Some((whole as f64 - own as f64) / rustix::param::clock_ticks_per_second() as f64 - cpu_s(daemon))
}

/// Time that all processors have worked, from `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let at = |index: usize| ticks.get(index);
    Some(at(0)? + at(1)? + at(2)? + at(5)? + at(6)? + at(7)?)
}

/// The value of the first line `name: value`.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// A value such as `16 kB` in bytes.
pub(crate) fn kibibytes(value: &str) -> Option<u64> {
    Some(value.strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_found() {
        let text = "MemTotal:       24620996 kB\nMemFree:          100 kB\n";
        assert_eq!(field(text, "MemFree").and_then(kibibytes), Some(102_400));
        assert_eq!(field(text, "Shmem"), None);
        assert_eq!(kibibytes("12"), None);
    }

    #[test]
    fn idle_time_is_nobodys_work() {
        assert_eq!(busy_ticks("cpu  10 1 20 900 50 2 3 4 0 0\ncpu0 5 0 10\n"), Some(40));
        assert_eq!(busy_ticks("intr 1\n"), None);
    }

    #[test]
    fn own_work_is_not_that_of_others() {
        let before = others_s(0).unwrap();
        assert!(before.is_finite() && Meter::start(0).others().is_some_and(|share| share >= 0.0));
    }
}
