//! The rows that are printed: a figure, its spread, and its goal.

use std::fmt;
use std::time::Duration;

/// What a figure is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Milliseconds; less is better.
    Millis,
    /// 10⁶ bytes that something occupies; less is better.
    Megabytes,
    /// 10⁶ bytes per second; more is better.
    MegabytesPerSecond,
    /// So many times as fast; more is better.
    Times,
    /// How many were wrong.
    Wrong,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Millis => "ms",
            Self::Megabytes => "MB",
            Self::MegabytesPerSecond => "MB/s",
            Self::Times => "×",
            Self::Wrong => "wrong",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::Times)
    }
}

/// Values of one figure.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn time(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64() * 1e3);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest value that at least `percent` of the values don't exceed (nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent * sorted.len()).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.percentile(50)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

struct Row {
    figure: String,
    unit: Unit,
    count: usize,
    /// p50, p95, p99; a single value has the first only.
    values: Vec<f64>,
    goal: Option<f64>,
    note: String,
}

/// The figures taken so far, and what went wrong.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    failures: Vec<String>,
}

impl Table {
    /// A figure with its spread. The goal is for its median.
    pub(crate) fn spread(&mut self, figure: impl Into<String>, unit: Unit, samples: &Samples, goal: Option<f64>) {
        let percentiles: &[usize] = if samples.count() > 1 { &[50, 95, 99] } else { &[50] };
        let values = percentiles.iter().map(|percent| samples.percentile(*percent)).collect();
        let (figure, count) = (figure.into(), samples.count());
        self.rows.push(Row { figure, unit, count, values, goal, note: String::new() });
    }

    /// A figure that is one value over `count` things.
    pub(crate) fn single(
        &mut self,
        figure: impl Into<String>,
        unit: Unit,
        count: usize,
        value: f64,
        goal: Option<f64>,
    ) {
        let figure = figure.into();
        if unit == Unit::Wrong && value > 0.0 {
            self.fail(format!("{figure}: {value} of {count} were wrong"));
        }
        self.rows.push(Row { figure, unit, count, values: vec![value], goal, note: String::new() });
    }

    /// Says something about the row that was added last.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        if let Some(row) = self.rows.last_mut() {
            row.note = note.into();
        }
    }

    /// Remembers that a figure could not be taken, or was wrong.
    pub(crate) fn fail(&mut self, why: String) {
        eprintln!("figures: FAILED: {why}");
        self.failures.push(why);
    }

    pub(crate) fn is_right(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Three significant digits, as many as such measurements carry.
fn number(value: f64) -> String {
    let digits = if value == 0.0 || value.fract() == 0.0 && value.abs() < 1e4 {
        0
    } else if value.abs() < 1.0 {
        3
    } else if value.abs() < 10.0 {
        2
    } else if value.abs() < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.digits$}")
}

impl Row {
    fn cells(&self) -> [String; 7] {
        let value = |index: usize| self.values.get(index).map(|value| number(*value)).unwrap_or_default();
        let goal = self.goal.map(|goal| {
            let median = self.values.first().copied().unwrap_or(f64::NAN);
            let (sign, met) =
                if self.unit.more_is_better() { ("≥", median >= goal) } else { ("≤", median <= goal) };
            format!("{sign} {}{}", number(goal), if met { " ✓" } else { " missed" })
        });
        let figure = format!("{}, {}", self.figure, self.unit.name());
        [figure, self.count.to_string(), value(0), value(1), value(2), goal.unwrap_or_default(), self.note.clone()]
    }
}

impl fmt::Display for Table {
    /// A table that is both readable and Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["figure", "n", "p50", "p95", "p99", "goal", "note"].map(str::to_owned);
        let rows: Vec<_> = std::iter::once(head).chain(self.rows.iter().map(Row::cells)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let widths: [usize; 7] = std::array::from_fn(width);
        for (index, row) in rows.iter().enumerate() {
            for (cell, width) in row.iter().zip(widths) {
                write!(f, "| {cell:<width$} ")?;
            }
            writeln!(f, "|")?;
            if index == 0 {
                for width in widths {
                    write!(f, "| {} ", "-".repeat(width.max(3)))?;
                }
                writeln!(f, "|")?;
            }
        }
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        Ok(())
    }
}
