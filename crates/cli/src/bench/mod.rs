//! `viaduct bench`.

/// Measures Viaduct against plain TCP
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the experiments.
pub(crate) fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("no experiment is built in")
}
