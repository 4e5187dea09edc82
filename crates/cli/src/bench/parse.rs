//! The figures in what other programs print.

use crate::bench::curves::Sample;
use serde::Deserialize;

/// UCX's benchmark program.
pub(crate) const UCX: &str = "ucx_perftest";

/// The number that follows `before` in `text`.
fn number_after(text: &str, before: &str) -> Option<f64> {
    let rest = text.split_once(before)?.1.trim_start();
    let end = rest
        .find(|character: char| !(character.is_ascii_digit() || character == '.'))
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}

/// Half a round trip in microseconds, and messages sent, in the output of sockperf's ping-pong.
pub(crate) fn sockperf_latency(text: &str) -> Option<(f64, f64)> {
    let latency = number_after(text, "Summary: Latency is ")?;
    Some((latency, number_after(text, "SentMessages=")?))
}

/// Messages a second, and messages sent, in the output of sockperf's throughput test.
pub(crate) fn sockperf_rate(text: &str) -> Option<(f64, f64)> {
    let rate = number_after(text, "Summary: Message Rate is ")?;
    Some((rate, number_after(text, "Total of ")?))
}

/// Bits a second received, and bytes, in the JSON output of iperf3.
pub(crate) fn iperf(text: &str) -> Option<(f64, f64)> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    let received = json.get("end")?.get("sum_received")?;
    Some((
        received.get("bits_per_second")?.as_f64()?,
        received.get("bytes")?.as_f64()?,
    ))
}

/// What redis-benchmark says of its one test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Redis {
    /// Requests a second.
    pub(crate) rate: f64,
    /// Median and 99th percentile of the latency in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

/// The last line of redis-benchmark's table.
pub(crate) fn redis(text: &str) -> Option<Redis> {
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let words = |line: &str| -> Vec<String> { line.split(',').map(|word| word.trim_matches('"').to_owned()).collect() };
    let (names, values) = (words(lines.next()?), words(lines.next_back()?));
    let column = |name: &str| {
        let at = names.iter().position(|column| column == name)?;
        values.get(at)?.parse().ok()
    };
    Some(Redis {
        rate: column("rps")?,
        p50_ms: column("p50_latency_ms")?,
        p99_ms: column("p99_latency_ms")?,
    })
}

/// Requests a second, and requests, in the output of wrk, if every answer was as it should be.
pub(crate) fn wrk(text: &str) -> Option<(f64, f64)> {
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return None;
    }
    let count = text
        .lines()
        .find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok())?;
    Some((number_after(text, "Requests/sec:")?, count))
}

/// Transactions a second, and transactions, in the output of pgbench, if none failed.
pub(crate) fn pgbench(text: &str) -> Option<(f64, f64)> {
    if number_after(text, "number of failed transactions: ")? > 0.0 {
        return None;
    }
    let count = number_after(text, "number of transactions actually processed: ")?;
    Some((number_after(text, "tps = ")?, count))
}

/// Seconds that all queries took, in the output of mysqlslap.
pub(crate) fn mysqlslap(text: &str) -> Option<f64> {
    number_after(text, "Average number of seconds to run all queries: ").filter(|seconds| *seconds > 0.0)
}

/// Seconds a message (a round trip for latency, of which it prints half) in the output of `ucx_perftest -v`.
pub(crate) fn ucx_seconds(text: &str, latency: bool) -> Option<f64> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with("iterations,"));
    let names = lines.next()?;
    let at = names.split(',').position(|name| name == "overall_lat")?;
    let micros: f64 = lines.last()?.split(',').nth(at)?.parse().ok()?;
    Some(micros * if latency { 2e-6 } else { 1e-6 })
}

/// The samples in the output of the benchmark's MPI program, of the run numbered `run`.
pub(crate) fn ranks(text: &str, run: usize) -> Option<Vec<Sample>> {
    #[derive(Deserialize)]
    struct Line {
        rounds: u64,
        seconds: f64,
        asking_cpu_s: f64,
        serving_cpu_s: f64,
    }
    // Other lines are mpirun's own.
    let lines = text.lines().filter(|line| line.starts_with('{'));
    let sample = |line: &str| {
        let line: Line = serde_json::from_str(line).ok()?;
        Some(Sample {
            run,
            rounds: line.rounds,
            seconds: line.seconds,
            asking_cpu_s: Some(line.asking_cpu_s),
            serving_cpu_s: Some(line.serving_cpu_s),
        })
    };
    lines.map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockperf_is_understood() {
        let output = "sockperf: [Total Run] RunTime=1.001 sec; Warm up time=400 msec; SentMessages=43659; \
            ReceivedMessages=43658\nsockperf: [Valid Duration] RunTime=0.549 sec; SentMessages=24040; \
            ReceivedMessages=24040\nsockperf: \u{1b}[2;35m====> avg-latency=11.403 (std-dev=75.874)\u{1b}[0m\n\
            sockperf: Summary: Latency is 11.403 usec\n";
        assert_eq!(sockperf_latency(output), Some((11.403, 43659.0)));
        let output = "sockperf: Total of 528666 messages sent in 1.014 sec\n\n\
            sockperf: \u{1b}[2;35mNOTE: test was performed, using msg-size=64. For getting maximum throughput consider\n\
            sockperf: Summary: Message Rate is 521593 [msg/sec]\n\
            sockperf: Summary: BandWidth is 31.836 MBps (254.684 Mbps)\n";
        assert_eq!(sockperf_rate(output), Some((521_593.0, 528_666.0)));
        assert_eq!(sockperf_latency(output), None);
    }

    #[test]
    fn iperf_is_understood() {
        let output = r#"{"end": {
            "sum_sent": {"bytes": 1627783168, "bits_per_second": 13017097556.27016},
            "sum_received": {"start": 0, "end": 1.00281, "bytes": 1627652096, "bits_per_second": 12984729677.605928}}}"#;
        assert_eq!(iperf(output), Some((12_984_729_677.605_928, 1_627_652_096.0)));
        assert_eq!(iperf(r#"{"error": "unable to connect to server"}"#), None);
    }

    #[test]
    fn redis_benchmark_is_understood() {
        let output = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
            \"p99_latency_ms\",\"max_latency_ms\"\n\
            \"GET\",\"46663.56\",\"0.701\",\"0.152\",\"0.567\",\"1.407\",\"4.575\",\"6.343\"\n";
        let found = redis(output).unwrap();
        assert_eq!((found.rate, found.p50_ms, found.p99_ms), (46663.56, 0.567, 4.575));
        assert_eq!(
            redis("Could not connect to Redis at 127.0.0.1:1: Connection refused\n"),
            None
        );
    }

    #[test]
    fn wrk_is_understood() {
        let output = "Running 1s test @ http://127.0.0.1:18080/\n  1 threads and 32 connections\n  \
            Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   345.14us  189.03us   6.62ms   96.26%\n    \
            Req/Sec    94.03k     3.97k   98.31k    90.91%\n  102814 requests in 1.10s, 16.67MB read\n\
            Requests/sec:  93478.42\nTransfer/sec:     15.16MB\n";
        assert_eq!(wrk(output), Some((93478.42, 102_814.0)));
        let failed = format!("{output}  Non-2xx or 3xx responses: 3\n");
        assert_eq!(wrk(&failed), None);
    }

    #[test]
    fn pgbench_is_understood() {
        let output = "transaction type: <builtin: select only>\nscaling factor: 1\nnumber of clients: 1\n\
            number of transactions actually processed: 12345\nnumber of failed transactions: 0 (0.000%)\n\
            latency average = 0.081 ms\ninitial connection time = 3.012 ms\n\
            tps = 12353.712345 (without initial connection time)\n";
        assert_eq!(pgbench(output), Some((12353.712345, 12345.0)));
        assert_eq!(pgbench(&output.replace("transactions: 0", "transactions: 1")), None);
    }

    #[test]
    fn mysqlslap_is_understood() {
        let output = "Benchmark\n\tAverage number of seconds to run all queries: 0.274 seconds\n\
            \tMinimum number of seconds to run all queries: 0.274 seconds\n";
        assert_eq!(mysqlslap(output), Some(0.274));
        assert_eq!(mysqlslap(&output.replace("0.274", "0.000")), None);
    }

    #[test]
    fn ucx_is_understood() {
        let output = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
            100000,0.110,1.996,1.996,3.82,3.82,500922,500922\n";
        assert_eq!(ucx_seconds(output, true), Some(1.996 * 2e-6));
        assert_eq!(ucx_seconds(output, false), Some(1.996 * 1e-6));
        assert_eq!(ucx_seconds("Waiting for connection...\n", true), None);
    }
    #[test]
    fn ranks_are_understood() {
        let output = "--------------------------------------------------------------------------\n\
            {\"size\": 1, \"rounds\": 50000, \"seconds\": 0.014497334, \"asking_cpu_s\": 0.014463285, \"serving_cpu_s\": 0.014482252}\n\
            {\"size\": 64, \"rounds\": 50000, \"seconds\": 0.019240602, \"asking_cpu_s\": 0.018995366, \"serving_cpu_s\": 0.015412940}\n";
        let samples = ranks(output, 2).unwrap();
        let [_, second] = samples[..] else {
            panic!("{samples:?}");
        };
        assert_eq!((second.run, second.rounds, second.seconds), (2, 50_000, 0.019_240_602));
        assert_eq!(second.serving_cpu_s, Some(0.015_412_940));
        assert!(ranks("{\"size\": 1}\n", 0).is_none());
    }
}
