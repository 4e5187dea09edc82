//! What the figures were measured on.

use serde::Serialize;
use std::fs;
use std::thread::available_parallelism;

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
    /// Processes that wanted a processor when the measurement began, without this one.
    pub(crate) busy: f64,
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
            busy: running().unwrap_or(0.0),
        }
    }

    /// In one line.
    pub(crate) fn line(&self) -> String {
        let mut line = format!(
            "{} processors ({}), {:.0} GiB, Linux {}, TCP {}",
            self.cpus,
            self.processor,
            self.memory as f64 / f64::from(1 << 30),
            self.kernel,
            self.congestion_control
        );
        if self.busy >= 0.5 {
            line.push_str(&format!("; {:.0} other processes were running", self.busy));
        }
        line
    }
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

/// Threads that run or wait for a processor, without this one.
fn running() -> Option<f64> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let (running, _) = load.split_whitespace().nth(3)?.split_once('/')?;
    Some(running.parse::<f64>().ok()? - 1.0)
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
}
