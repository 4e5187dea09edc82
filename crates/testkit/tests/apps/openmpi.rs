//! Open MPI over its TCP transport: two ranks, each native or accelerated, check messages and collective results.

use crate::Pair;
use std::path::Path;
use std::process::Command;
use viaduct_testkit::{Launch, Mode};

matrix!(check, "mpirun", "mpicc");

fn check(pair: &Pair<'_>) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/apps/programs/mpi.c");
    let program = pair.instance.scratch("mpi-check");
    let compiled = Command::new("mpicc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");

    let transport = "--allow-run-as-root --oversubscribe --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo \
                     --mca oob_tcp_if_include lo --mca plm isolated --mca mpi_yield_when_idle 1";
    let mut words: Vec<_> = transport.split_whitespace().map(Into::into).collect();
    for side in [pair.server, pair.client] {
        if words.len() > 20 {
            words.push(":".into());
        }
        words.extend(["-np".into(), "1".into()]);
        words.extend(Launch::new(side, &program, [""; 0]).words());
    }
    let ranks = Launch::new(Mode::Native, "mpirun", words).directory(pair.instance.dir());
    let output = pair.proved_meanwhile("mpi-check", ranks).success();
    assert!(output.contains("all results are right"));
    pair.prove(&[]);
}
