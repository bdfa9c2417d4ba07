//! Two plots: pages per CPU second by pipeline, and latencies by percentile.

use crate::report::{Load, Report};
use plotters::prelude::*;
use std::io;
use std::path::Path;

const SIZE: (u32, u32) = (900, 520);
/// Axis label of latency plots.
pub(crate) const NINES: &str = "nines of the percentile (0.3: median, 2: p99, 3: p99.9)";

/// A series of points with a name.
type Line = (String, Vec<(f64, f64)>);

pub(crate) fn all(report: &Report, folder: &Path) -> io::Result<()> {
    let mut pages: Vec<Line> = Vec::new();
    for cell in &report.cells {
        let base = Load::base(cell.load.pipeline);
        let is_base = match cell.what {
            "read" => cell.load == base,
            "ping" => cell.load == Load { size: 0, ..base },
            _ => false,
        };
        if !is_base {
            continue;
        }
        let name = if cell.what == "ping" {
            format!("{} PING", cell.subject)
        } else {
            cell.subject.clone()
        };
        add(&mut pages, name, (cell.load.pipeline as f64, cell.per_cpu_s()));
    }
    draw(
        &folder.join("pages.svg"),
        "Pages of 20 per CPU second of the server",
        "pipeline depth",
        "per CPU second",
        &pages,
    )?;
    let mut latencies: Vec<Line> = Vec::new();
    for l in report.latencies.iter().filter(|l| l.latency.rate == 10_000.0) {
        for (nines, us) in [(0.3, l.latency.p50), (2.0, l.latency.p99), (3.0, l.latency.p999)] {
            add(&mut latencies, l.subject.clone(), (nines, us));
        }
    }
    draw(
        &folder.join("latency.svg"),
        "Latency at 10,000 pages a second, open loop",
        NINES,
        "microseconds",
        &latencies,
    )
}

fn add(lines: &mut Vec<Line>, name: String, point: (f64, f64)) {
    match lines.iter_mut().find(|(known, _)| *known == name) {
        Some((_, points)) => points.push(point),
        None => lines.push((name, vec![point])),
    }
}

/// Draws series with a logarithmic y axis.
pub(crate) fn draw(file: &Path, title: &str, x: &str, y: &str, lines: &[Line]) -> io::Result<()> {
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let most = |of: fn((f64, f64)) -> f64| points().map(of).fold(1.0, f64::max);
    let least = points().map(|p| p.1).fold(f64::MAX, f64::min);
    if lines.is_empty() {
        return Ok(());
    }
    let wrong = |e: DrawingAreaErrorKind<io::Error>| io::Error::other(e.to_string());
    let root = SVGBackend::new(file, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(wrong)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .build_cartesian_2d(
            0.0..most(|p| p.0) * 1.02,
            (least * 0.7..most(|p| p.1) * 1.4).log_scale(),
        )
        .map_err(wrong)?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .y_label_formatter(&|v| format!("{v:.0}"))
        .draw()
        .map_err(wrong)?;
    for (index, (name, points)) in lines.iter().enumerate() {
        let color = Palette99::pick(index).mix(1.0);
        let line = LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3);
        chart.draw_series(line).map_err(wrong)?.label(name).legend(move |(x, y)| {
            PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(3))
        });
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(wrong)?;
    root.present().map_err(wrong)
}
