//! The figures that Leasehold promises, measured on this machine: `cargo bench -p leasehold-cli [-- FIGURE…] [--quick]`.
//!
//! Everything goes through a real host, the built `leasehold serve` on a data directory of its own, and through the same
//! client that users have. Each figure is bounded in count and time and removes what it made. The table says where a goal is
//! missed; the exit code says only whether something failed or gave a wrong answer, because goals are for one machine.

#![expect(clippy::print_stdout, reason = "a benchmark's table is its output")]

mod jobs;
mod lease;
mod machine;
mod memory;
mod output;
mod peer;
mod processor;
mod run;
mod sandbox;
mod shell;
mod stage;
mod table;
mod tti;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::machine::Machine;
use crate::table::Table;

/// The longest that one figure may take. Chosen: the slowest, the peer's jobs, takes half a minute.
const FIGURE_LIMIT: Duration = Duration::from_secs(240);

/// How often things are done.
#[derive(Debug, Clone, Copy)]
struct Counts {
    quick: bool,
}

impl Counts {
    /// `full` repetitions, or a tenth of them for a look.
    fn of(self, full: usize) -> usize {
        if self.quick { full.div_ceil(10) } else { full }
    }
}

type Measured<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + 'a>>;

/// One figure: its name on the command line, what it is, and how it is taken.
struct Figure {
    name: &'static str,
    about: &'static str,
    take: for<'a> fn(Counts, &'a mut Table) -> Measured<'a>,
}

const FIGURES: &[Figure] = &[
    Figure { name: "run", about: "`leasehold run -- true`, whole process", take: |c, t| Box::pin(run::take(c, t)) },
    Figure { name: "tti", about: "create sent to end of `echo`", take: |c, t| Box::pin(tti::take(c, t)) },
    Figure { name: "burst", about: "100 creates at once", take: |c, t| Box::pin(tti::burst(c, t)) },
    Figure { name: "shellctl", about: "`echo hi` round trip, and the peer", take: |c, t| Box::pin(shell::take(c, t)) },
    Figure { name: "lease", about: "acquire and release", take: |c, t| Box::pin(lease::take(c, t)) },
    Figure { name: "pause", about: "pause and resume through the API", take: |c, t| Box::pin(lease::pause(c, t)) },
    Figure { name: "memory", about: "an idle sandbox", take: |c, t| Box::pin(memory::take(c, t)) },
    Figure { name: "jobs", about: "2,000 × `printf x; exit 3`, all right", take: |c, t| Box::pin(jobs::take(c, t)) },
    Figure { name: "output", about: "bytes per second out of a sandbox", take: |c, t| Box::pin(output::take(c, t)) },
];

/// What the command line asks for.
struct Wanted {
    figures: Vec<&'static Figure>,
    counts: Counts,
}

fn main() -> ExitCode {
    match wanted().and_then(|wanted| measure(&wanted)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("figures: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn wanted() -> anyhow::Result<Wanted> {
    let mut names = Vec::new();
    let mut quick = false;
    for argument in std::env::args().skip(1) {
        match &*argument {
            // Cargo says this to every benchmark.
            "--bench" => {}
            "--quick" => quick = true,
            name if FIGURES.iter().any(|figure| figure.name == name) => names.push(argument),
            other => {
                let known: Vec<_> = FIGURES.iter().map(|f| format!("  {:<9} {}", f.name, f.about)).collect();
                anyhow::bail!(
                    "{other:?} is no figure; --quick does a tenth, and these are known:\n{}",
                    known.join("\n")
                );
            }
        }
    }
    let chosen = |figure: &&Figure| names.is_empty() || names.iter().any(|name| name == figure.name);
    Ok(Wanted { figures: FIGURES.iter().filter(chosen).collect(), counts: Counts { quick } })
}

/// Takes the figures, prints them, and says whether all were taken and right.
fn measure(wanted: &Wanted) -> anyhow::Result<bool> {
    // One thread, so that the client's share of a figure is no hand-over between threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    println!("{}", Machine::look()?);
    let mut table = Table::default();
    for figure in &wanted.figures {
        let start = Instant::now();
        eprintln!("figures: {} ({})…", figure.name, figure.about);
        let taken = runtime.block_on(async {
            tokio::time::timeout(FIGURE_LIMIT, (figure.take)(wanted.counts, &mut table))
                .await
                .unwrap_or_else(|_| Err(anyhow::anyhow!("not done within {} s", FIGURE_LIMIT.as_secs())))
        });
        match taken {
            Ok(()) => eprintln!("figures: {}: {:.1} s", figure.name, start.elapsed().as_secs_f64()),
            Err(error) => table.fail(format!("{}: {error:#}", figure.name)),
        }
    }
    println!("{table}");
    Ok(table.is_right())
}
